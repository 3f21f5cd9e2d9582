"""torch-hal's own log: levels, CORE_LOG, and the line with which a fit begins."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from core import Runtime, Trainer
from core.plan import Plan, Request, resolve

from .cases import Net, loader, trainer


def explained(level: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "core.explain", "--accelerator", "cpu", *arguments]
    environ = {**os.environ, "CORE_LOG": level}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=120)


def test_levels_of_the_variable() -> None:
    """CORE_LOG=info shows the Plan, and debug also what discovery found and activated."""
    info, debug = explained("info"), explained("DEBUG")
    assert "INFO torch_hal.plan.resolution: the Plan:" in info.stderr
    assert "DEBUG" not in info.stderr
    assert "DEBUG torch_hal.discovery.registry: strategy 'ddp' of torch-hal" in debug.stderr
    assert "activating torch_hal.builtin" in debug.stderr
    assert info.stdout == debug.stdout


def test_wrong_level() -> None:
    """An unknown level is refused with the nearest."""
    done = explained("debugg")
    assert done.returncode == 2
    assert "CORE_LOG='debugg': there is no such level. Did you mean 'debug'?" in done.stderr


def plan(**changes: Any) -> Plan:
    return attrs.evolve(resolve(Request.read(accelerator="cpu", devices=1, environ={})), **changes)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "single_device on cpu, 32-true"),
        ({"devices": ("cpu", "cpu")}, "single_device on cpu:0-1, 32-true"),
        ({"devices": ("acme:0", "acme:1", "acme:2")}, "single_device on acme:0-2, 32-true"),
        ({"devices": ("acme:3", "acme:1")}, "single_device on acme:3,1, 32-true"),
        ({"devices": ("acme:0",), "num_nodes": 4}, "single_device on acme:0 on each of 4 machines, 32-true"),
    ],
)
def test_headline(changes: dict[str, Any], line: str) -> None:
    """What runs on what, in one line."""
    assert plan(**changes).headline == line


LINE = "single_device on cpu, 32-true; details: print(trainer.plan)"


def test_a_fit_begins_with_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Once, on stderr with the summary of the model; not without a summary."""
    Trainer(accelerator="cpu", devices=1, max_epochs=1, default_root_dir=tmp_path, enable_progress_bar=False).fit(
        Net(), loader()
    )
    assert capsys.readouterr().err.count(LINE) == 1
    trainer().fit(Net(), loader())
    assert LINE not in capsys.readouterr().err


def test_messages_of_checkpoints_and_resuming(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """At INFO: the Plan, each checkpoint with its path, and what a run resumes from."""
    caplog.set_level(logging.INFO, logger="torch_hal")
    fitting = trainer()
    fitting.fit(Net(), loader())
    fitting.save_checkpoint(tmp_path / "one.ckpt")
    trainer(max_epochs=2).fit(Net(), loader(), ckpt_path=tmp_path / "one.ckpt")
    run = Runtime(accelerator="cpu", devices=1)
    run.prepare(Net())
    run.load_state(run.save_state(tmp_path / "state"))
    run.teardown()
    for said in (
        f"{tmp_path}/one.ckpt",
        f"resuming from {tmp_path}",
        "save_state: ",
        "load_state: ",
        "the Plan:",
        LINE,
    ):
        assert said in caplog.text
    assert LINE not in capsys.readouterr().err
