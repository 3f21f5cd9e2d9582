"""Three processes, of which some do not save: with equal replicas that works, with divided state it ends at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from python_processes import run_python

from core.checkpoints import TorchCheckpointIO, is_committed

SCRIPTS = Path(__file__).parent / "scripts"


def run_script(out: Path, script: str, *arguments: str, timeout: float = 200) -> list[dict[str, Any]]:
    """What each process of a script of this folder left."""
    run_python(SCRIPTS / script, *arguments, cwd=out, env={"OUT": str(out)}, timeout=timeout)
    return [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]


@pytest.mark.parametrize("strategy", ["ddp", "ddp_sharded"])
def test_absent_and_late_processes(strategy: str, tmp_path: Path) -> None:
    """No one waits for them for long; an error of one process is raised in all that came; training goes on."""
    first, second, third = said = run_script(tmp_path, "saving.py", strategy)
    needs_all = strategy == "ddp_sharded"
    for seconds, error in first["main only"]:
        assert seconds < 10
        assert ("rank(s) 1, 2 of 3 did not call it" in error) is needs_all
        assert ("call save in every process" in error) is needs_all
    assert all(error == "" for rank in said for _, error in rank["all"])
    assert all(rank["on the others"] for rank in said)  # whoever has come returns when it is committed
    for rank in (first, second):
        seconds, error = rank["one is absent"]
        assert seconds < 10
        assert ("rank(s) 2 of 3 did not call it" in error) is needs_all
    assert [rank["one is late"][1] for rank in said] == ["", "", ""]
    assert all("cannot be written" in rank["cannot be written"][1] for rank in said)
    assert first["weights"] == second["weights"] == third["weights"]
    written = {"all", "late"} if needs_all else {"all", "late", "main", "absent"}
    assert {path.name for path in tmp_path.iterdir() if is_committed(path)} == written
    for name in written:
        assert TorchCheckpointIO().load_checkpoint(tmp_path / name).keys() == {"core", "model", "optimizer"}
