"""An unchanged script for Transformers' Trainer, on simulated cards by the command alone."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from python_processes import run_python

from .conftest import SCRIPTS

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs Transformers")

BRIDGE = ("-m", "torch_hal_accelerate")


def train(out: Path, *arguments: object, command: tuple[str, ...] = (), **variables: str) -> dict[str, Any]:
    """Run the script, by ``python command train.py``."""
    out.mkdir(exist_ok=True)
    env = {"ACME_DEVICES": "2", "HF_HUB_OFFLINE": "1", **variables}
    run_python(*command, SCRIPTS / "train.py", out, *arguments, cwd=out, timeout=380, warnings="ignore", env=env)
    said: dict[str, Any] = json.loads((out / "said.json").read_text())
    return said


def on_the_cpu(out: Path, *arguments: object) -> dict[str, Any]:
    """Without torch-hal, on a machine without cards."""
    return train(out, *arguments, ACCELERATE_USE_CPU="true", ACME_DEVICES="0")


def test_two_cards_by_torch_hal_run(tmp_path: Path) -> None:
    """``torch-hal run`` puts it on two cards; weights are those of the CPU with batches twice as large."""
    command = ("-m", "core.run", "--accelerator", "acme", "--devices", "2", *BRIDGE)
    said = train(tmp_path / "cards", command=command)
    assert (said["device"], said["world"]) == ("acme:0", 2)
    expected = on_the_cpu(tmp_path / "cpu", "--batch", 8)
    assert expected["device"] == "cpu"
    assert said["weights"] == pytest.approx(expected["weights"], rel=5e-4)  # Adam enlarges what rounding leaves
    assert said["losses"] == pytest.approx(expected["losses"], rel=1e-3)  # Transformers rounds them to four digits
    assert said["validated"] == pytest.approx(expected["validated"], rel=1e-3)


def test_resuming_is_exact(tmp_path: Path) -> None:
    """With dropout, whose numbers the card draws, the resumed run has the weights of the uninterrupted one."""
    one = {"command": BRIDGE, "CORE_ACCELERATOR": "acme", "CORE_DEVICES": "1"}
    whole = train(tmp_path / "out", "--dropout", 0.5, **one)  # type: ignore[arg-type]
    resumed = train(tmp_path / "out", "--dropout", 0.5, "--resume", **one)  # type: ignore[arg-type]
    assert whole["device"] == "acme:0"
    assert resumed["weights"] == whole["weights"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("cards", [2, 3])
@pytest.mark.parametrize("precision", [(), ("--bf16",)], ids=["fp32", "bf16"])
def test_resuming_on_some_cards(tmp_path: Path, cards: int, precision: tuple[str, ...]) -> None:
    """So it has on several, each with its own numbers for dropout; three cards do not divide the samples."""
    command = ("-m", "core.run", "--accelerator", "acme", "--devices", str(cards), *BRIDGE)
    arguments = ("--dropout", 0.5, *precision)
    whole = train(tmp_path / "out", *arguments, command=command, ACME_DEVICES=str(cards))
    resumed = train(tmp_path / "out", *arguments, "--resume", command=command, ACME_DEVICES=str(cards))
    assert (whole["device"], whole["world"]) == ("acme:0", cards)
    assert resumed["weights"] == whole["weights"]
    assert resumed["losses"] == whole["losses"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("precision", [(), ("--bf16",)], ids=["fp32", "bf16"])
def test_it_starts_processes_itself(tmp_path: Path, precision: tuple[str, ...]) -> None:
    """Without a launcher, the script is started again for the second card."""
    environ = {"CORE_ACCELERATOR": "acme", "CORE_DEVICES": "2"}
    said = train(tmp_path / "cards", *precision, command=BRIDGE, **environ)
    assert said["world"] == 2
    if precision:  # which Transformers alone refuses on the CPU
        cpu = {"command": BRIDGE, "CORE_ACCELERATOR": "cpu", "CORE_DEVICES": "1"}
        expected = train(tmp_path / "cpu", "--batch", 8, *precision, **cpu)  # type: ignore[arg-type]
    else:
        expected = on_the_cpu(tmp_path / "cpu", "--batch", 8)
    # Adam enlarges what rounding leaves of gradients that would be 0, so in bfloat16 only losses are compared.
    assert said["losses"] == pytest.approx(expected["losses"], rel=1e-3)
    if not precision:
        assert said["weights"] == pytest.approx(expected["weights"], rel=5e-4)


@pytest.mark.exhaustive
def test_under_accelerate_launch(tmp_path: Path) -> None:
    """``accelerate launch`` starts the processes of a script that does not know torch-hal."""
    launch = ("accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "bf16")
    more = ("--dynamo_backend", "no", "--multi_gpu", "-m", "torch_hal_accelerate")
    said = train(tmp_path / "cards", command=("-m", *launch, *more), CORE_ACCELERATOR="acme")
    assert (said["device"], said["world"]) == ("acme:0", 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", [(), ("--fsdp", 2)], ids=["ddp", "fsdp"])
def test_three_cards_under_torchrun(tmp_path: Path, options: tuple[object, ...]) -> None:
    """Torch's launcher starts three processes, which are replicas, or divide the model by Accelerate's FSDP."""
    launch = ("-m", "torch.distributed.run", "--nproc-per-node", "3", "--standalone", *BRIDGE)
    cards = {"CORE_ACCELERATOR": "acme", "ACME_DEVICES": "3"}
    said = train(tmp_path / "cards", *options, command=launch, **cards)
    resumed = train(tmp_path / "cards", *options, "--resume", command=launch, **cards)
    assert (said["device"], said["world"]) == ("acme:0", 3)
    assert (resumed["weights"], resumed["losses"]) == (said["weights"], said["losses"])
    expected = on_the_cpu(tmp_path / "cpu", "--batch", 12)
    assert said["losses"][:5] == pytest.approx(expected["losses"][:5], rel=1e-3)  # then three cards complete a batch
