"""benchmarks/compare.py: what it trains, and that it notices what does not come to what it must."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

GOOD = {"first": 2.0, "final": 1.0, "above": 0.0, "losses": 0.0, "parameters": 0.0, "fitted": 0.0, "ranks": 0.0}
BROKEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "not the plain loop's": ("ddp", {"above": 2e-4}, "final loss"),
    "further than the plain loop": ("ddp", {"above": -2e-4}, "final loss"),
    "no number": ("bagua_async", {"final": float("nan")}, "loss went"),
    "rising": ("bagua_async", {"final": 2.5}, "loss went"),
    "rounding lost too much": ("bagua_bytegrad", {"above": 0.02}, "final loss"),
    "losses not DDP's": ("fsdp", {"losses": 2e-5}, "losses 2e-05"),
    "parameters not DDP's": ("horovod", {"parameters": float("nan")}, "parameters nan"),
    "Trainer not DDP's": ("deepspeed_stage_3", {"fitted": 2e-5}, "Trainer's losses"),
    "bits not DDP's": ("bagua_gradient_allreduce", {"parameters": 1e-9}, "parameters 1e-09"),
    "processes apart": ("bagua_bytegrad", {"ranks": 1e-9}, "processes are 1e-09 apart"),
    "resumed otherwise": ("bagua_decentralized", {"resumed": 1e-9}, "resumed is 1e-09"),
}


@pytest.fixture(autouse=True)
def siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts import each other as siblings."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_batches_are_the_same_wherever_they_are_asked() -> None:
    """Shares make up the global batch, every item comes once before any comes again, and then in another order."""
    task = import_module("tasks").TASKS["digits"]
    inputs, targets = task.batch(3)
    shares = [task.share(3, shard, 2) for shard in range(2)]
    assert torch.equal(torch.cat([share[0] for share in shares]), inputs)
    assert torch.equal(torch.cat([share[1] for share in shares]), targets)
    around = len(task.items()[0]) // task.batch_size
    seen = torch.cat([task.batch(step)[0] for step in range(around)])
    assert len(set(map(tuple, seen.tolist()))) == len(seen) == around * task.batch_size  # no two pictures are alike
    assert not torch.equal(task.batch(0)[0], task.batch(around)[0])


def test_models_are_the_same_each_time() -> None:
    """Building one leaves the global generator alone, and gives the same numbers."""
    task = import_module("tasks").TASKS["digits"]
    torch.manual_seed(7)
    before = torch.get_rng_state()
    one, other = task.build(), task.build()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))


def test_another_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not the published one is not trained on."""
    texts = import_module("texts")
    (tmp_path / "poem.txt").write_text("Of Mans First Disobedience")
    monkeypatch.setenv(texts.TEXT_VARIABLE, str(tmp_path / "poem.txt"))
    with pytest.raises(ValueError, match=r"poem.txt: is not paradiselost.txt"):
        texts.paradise_lost()


@pytest.mark.parametrize("fault", BROKEN)
def test_what_breaks_a_bar_is_named(fault: str) -> None:
    """Figures beyond what a strategy promises are faults, and say which; those of a good run are none."""
    figures, roster = import_module("compare_figures"), import_module("compare_roster")
    name, changes, message = BROKEN[fault]
    entry = next(entry for entry in roster.ROSTER if entry.name == name)
    for figure, expected in (({**GOOD, "resumed": 0.0}, 0), ({**GOOD, "resumed": 0.0, **changes}, 1)):
        task = figures.TaskFigures(**figure)
        found = figures.broken(entry, {name: figures.Figures(tasks={"text": task})})
        assert len(found) == expected, found
    assert message in found[0]


def test_a_refusal_is_a_fault_unless_the_machine_lacks_what_it_names() -> None:
    """Offload to a drive may be refused for want of libaio, and for nothing else; other strategies never."""
    figures, roster = import_module("compare_figures"), import_module("compare_roster")
    by_name = {entry.name: entry for entry in roster.ROSTER}
    for name, reason, expected in (
        ("deepspeed_stage_3_offload_nvme", "async_io: needs libaio", 0),
        ("deepspeed_stage_3_offload_nvme", "nvme_path: no directory", 1),
        ("fsdp", "async_io: needs libaio", 1),
    ):
        assert len(figures.broken(by_name[name], {name: figures.Figures(refusal=reason)})) == expected


@pytest.mark.slow
def test_ddp_comes_to_the_plain_loop(tmp_path: Path) -> None:
    """Digits with DDP, in both front ends, on two processes, resumed in new ones; and the figures are all written."""
    words = ["--only", "plain", "--tasks", "digits", "--steps", "60", "--check", "--json", str(tmp_path / "all.json")]
    command = [sys.executable, str(BENCHMARKS / "compare.py"), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads((tmp_path / "all.json").read_text())["strategies"]
    assert list(found) == ["plain loop", "plain loop, Adam", "ddp"]
    figures = found["ddp"]["tasks"]["digits"]
    assert figures["final"] < 1 < figures["first"]
    assert (figures["ranks"], figures["resumed"]) == (0.0, 0.0)
    assert abs(figures["above"]) < 1e-4
    assert ended.stdout.count("\n| ") == 1 + 3
