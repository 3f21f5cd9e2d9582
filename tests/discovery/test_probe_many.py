"""A probe of a thousand backends, of which one hangs and one crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from installing import files_of, lay_down

from core.discovery.probe import detect, probe
from core.discovery.selection import survey
from core.specs import AcceleratorSpec

MANY = 1000
HOOK = """\
from core.hookspecs import hookimpl
from core.specs import PrecisionSpec

@hookimpl
def core_precisions():
    return [PrecisionSpec(name="{name}", target="{target}")]
"""
TARGETS = """\
from core.precisions import FullPrecision

class Ten(FullPrecision):
    name = "ten"
"""
SEGFAULT = "import ctypes\nctypes.string_at(0)\n"
DETECT = """\
import ctypes

def one():
    return 1

def crashes():
    return ctypes.string_at(0)
"""
HANG = "import time\ntime.sleep(600)\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A thousand plugins with a backend each; importing number 300's module hangs, loading number 600's crashes."""
    files: dict[str, str | bytes] = {"many_targets.py": TARGETS, "many_crash.py": SEGFAULT}
    for number in range(MANY):
        target = "many_crash:Ten" if number == 600 else "many_targets:Ten"
        files[f"many_{number}.py"] = HANG if number == 300 else HOOK.format(name=f"many_{number}", target=target)
        files |= files_of(f"torch-hal-many-{number}", "1.0", f"[core.precisions]\nmany_{number} = many_{number}\n")
    return lay_down(tmp_path / "site", files)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The processes started so far."""
    processes: list[Any] = []
    popen = subprocess.Popen

    def counted(*arguments: Any, **options: Any) -> Any:
        processes.append(popen(*arguments, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", counted)
    return processes


def test_a_thousand_backends(site: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a hang or a crash costs another process; the work for each backend does not grow with their number."""
    monkeypatch.syspath_prepend(site)
    rows = survey({}, [str(site)]).rows
    assert len(rows) >= MANY
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        assert probe(rows, dict(os.environ), hardware=True, timeout=15.0, kinds=["precision"]) == []
    finally:
        sys.setprofile(None)
    states = {row.name: (row.state, row.reason) for row in rows if row.name.startswith("many_")}
    assert states.pop("many_300") == ("failed", "timed out after 15 s")
    assert states.pop("many_600") == ("failed", "killed by SIGSEGV")
    assert set(states.values()) == {("available", "")}
    assert len(states) == MANY - 2
    assert all(row.seconds is not None and row.seconds < 15.0 for row in rows if row.state == "available")
    assert len(started) == 3
    assert calls < 200 * MANY


def test_a_hundred_detect_functions(tmp_path: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one of many ``detect`` functions crashes, the others are not asked in a process each."""
    (tmp_path / "many_detect.py").write_text(DETECT)
    monkeypatch.syspath_prepend(tmp_path)
    functions = {f"many_{number}": "crashes" if number in (3, 70) else "one" for number in range(100)}
    specs = [AcceleratorSpec(name=name, target="a:B", detect=f"many_detect:{f}") for name, f in functions.items()]
    results = detect(specs, timeout=60.0)
    for name, function in functions.items():
        expected = (1, None) if function == "one" else (None, "killed by SIGSEGV")
        assert (results[name].count, results[name].error) == expected
    assert len(started) <= 1 + 8 + 2
