"""``python -m core.explain`` prints the Plan that Trainer and Runtime get."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from core import AcceleratorRegistry, Runtime, Trainer
from core.explain import main

from .backends import ORDER, TORCHRUN, AbsentAccelerator, BrokenAccelerator, TwoAccelerator

ARGUMENTS: list[dict[str, str]] = [
    {},
    {"accelerator": "auto", "devices": "2", "strategy": "auto", "precision": "bf16-mixed"},
    {"accelerator": "gpu"},
    {"devices": "0,1", "strategy": "ddp_spawn", "precision": "16"},
    {"devices": "-1", "num_nodes": "1", "checkpoint_io": "torch", "cluster_environment": "local"},
]

ENVIRONMENTS: list[dict[str, str]] = [{}, {"CORE_PRECISION": "bf16", "CORE_DEVICES": "2"}, TORCHRUN]


def arguments(options: dict[str, str]) -> list[str]:
    """The arguments as the command takes them."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]


@pytest.fixture
def hardware() -> None:
    """Some accelerators registered in code, of which one is there."""
    AcceleratorRegistry.register("two", TwoAccelerator, aliases=("gpu",))
    AcceleratorRegistry.register("absent", AbsentAccelerator, aliases=("gpu",), priority=60)
    AcceleratorRegistry.register("broken", BrokenAccelerator)


@pytest.mark.usefixtures("hardware")
@pytest.mark.parametrize("environ", ENVIRONMENTS, ids=["bare", "options", "torchrun"])
@pytest.mark.parametrize("options", ARGUMENTS, ids=lambda options: " ".join(options) or "nothing")
def test_it_prints_the_plan_that_the_front_ends_get(
    options: dict[str, str],
    environ: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The JSON is the Plan of Trainer and of Runtime, and the text is how it reads; or all three refuse alike."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    front_ends: list[Any] = [Runtime, Trainer]
    if environ is TORCHRUN and "local" in options.values():
        assert main(arguments(options)) == 2
        message = capsys.readouterr().err.removeprefix("ConfigurationError: ").rstrip("\n")
        for front_end in front_ends:
            with pytest.raises(ValueError) as caught:
                front_end(**options)
            assert str(caught.value) == message
        return
    plans = [front_end(**options).plan for front_end in front_ends]
    assert main([*arguments(options), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [plan.to_dict() for plan in plans] == [printed, printed]
    assert main(arguments(options)) == 0
    assert capsys.readouterr().out == f"{plans[0]}\n"


@pytest.mark.usefixtures("hardware")
def test_every_choice_and_every_candidate_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """The text has each choice with its reason and origin, and each candidate passed over with its reason."""
    assert main(["--precision=bf16", "--devices=2"]) == 0
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [
        "accelerator          two  [this process]",
        "has the highest priority of the accelerators present",
        "not torch: no device found",
        "not absent: no device found",
        "not broken: OSError: the driver does not answer",
        "not cpu: its priority (0) is lower than that of two (50)",
        f"strategy             ddp  [torch-hal {_version()}]",
        "the default of accelerator 'two' for several processes",
        f"precision            bf16-mixed  [torch-hal {_version()}]",
        "requested by precision='bf16'",
        f"checkpoint_io        torch  [torch-hal {_version()}]",
        "the default",
        f"cluster_environment  local  [torch-hal {_version()}]",
        "has the highest priority of those that detect how this",
        "process was started",
        *(f"not {name}: did not start this process" for name in ORDER[:-1]),
        "devices              cpu, cpu",
        "requested by devices='2'",
        "num_nodes            1",
        "the default",
        "processes            2 (this script is started again for each further one)",
        "process group        gloo",
        "the default of strategy 'ddp' on accelerator 'two'",
    ]


def _version() -> str:
    from importlib_metadata import version

    return version("torch-hal")


class _TalkativeAccelerator(BrokenAccelerator):
    def is_available(self) -> bool:
        raise OSError("the driver\nsays " + "a lot " * 60)


def test_it_reads_well_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """However long a reason is, no line is longer, and what goes on stands under what it belongs to."""
    AcceleratorRegistry.register("talkative", _TalkativeAccelerator)
    assert main(["--devices=64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 80
    begin = next(number for number, line in enumerate(lines) if "not talkative" in line)
    assert lines[begin].startswith(" " * 23 + "not talkative: OSError: the driver says a lot")
    assert lines[begin + 1].startswith((" " * 25 + "a lot", " " * 25 + "lot a"))


def test_what_a_front_end_refuses_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments that give no run: exit code 2, nothing on stdout, and on stderr the error that front ends raise."""
    for options in (
        {"accelerator": "cup"},
        {"devices": "0"},
        {"precision": "17"},
        {"strategy": "ddp", "devices": "x"},
    ):
        assert main(arguments(options)) == 2
        out, err = capsys.readouterr()
        front_end: Any = Runtime
        with pytest.raises((ValueError, RuntimeError)) as caught:
            front_end(**options)
        assert out == ""
        assert err == f"{type(caught.value).__name__}: {caught.value}\n"


def test_the_command_itself(tmp_path: Path) -> None:
    """``python -m core.explain`` gives the Plan of the arguments, and takes the environment's."""
    command = [sys.executable, "-m", "core.explain", "--devices", "2", "--json"]
    environ = {**os.environ, "CORE_PRECISION": "bf16"}
    result = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    printed = json.loads(result.stdout)
    assert printed["precision"]["name"] == "bf16-mixed"
    assert printed["precision"]["reason"] == "requested by the environment variable CORE_PRECISION='bf16'"
    assert printed["world_size"] == 2
