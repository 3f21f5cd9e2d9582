"""Detection in another process: all at once, and whatever one does is charged to it alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from core.discovery.probe import DetectResult, detect
from core.specs import AcceleratorSpec

FUNCTIONS = """\
import ctypes, os, subprocess, sys, threading, time

def one(): return 1
def none(): return 0
def two(): return 2
def fails(): raise RuntimeError("driver 1.0 is too old")
def exits(): sys.exit("no licence")
def text(): return "4"
def boolean(): return True
def negative(): return -1
def quits(): os._exit(3)
def crashes(): return ctypes.string_at(0)
def hangs(): time.sleep(600)
def hangs_holding_the_lock(): ctypes.PyDLL(None).sleep(600)
def variable(): return int(os.environ["ACME_COUNT"])
def forbidden(): return len({"torch", "pluggy", "attr", "importlib_metadata"} & set(sys.modules))

def prints():
    print('{"job": 0, "count": 99}')
    os.write(1, b'{"job": 0, "count": 99}\\n')
    sys.stderr.write("noise")
    return 3

def notes_process():
    with open(os.environ["ACME_NOTES"], "a") as file:
        file.write(f"{os.getpid()}\\n")
    return 1

also_notes_process = notes_process

def leaves_a_child():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.environ["ACME_NOTES"], "w") as file:
        file.write(str(child.pid))
    return 1

def leaves_a_thread():
    threading.Thread(target=time.sleep, args=(600,)).start()
    return 1
"""

Detect = Callable[..., dict[str, DetectResult]]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Detect:
    """Asks the functions above by name."""
    (tmp_path / "acme_detect.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)

    def asked(*names: str, timeout: float = 20.0, environ: Mapping[str, str] | None = None) -> dict[str, DetectResult]:
        specs = [AcceleratorSpec(name=name, target="a:B", detect=f"acme_detect:{name}") for name in names]
        return detect(specs, timeout=timeout, environ=environ)

    return asked


def test_counts(ask: Detect) -> None:
    """Each function's answer is given under its accelerator's name."""
    assert ask("one", "none", "two") == {
        "one": DetectResult(1, None),
        "none": DetectResult(0, None),
        "two": DetectResult(2, None),
    }


def test_nothing_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerators without a function are left out, and no process is started for them."""
    monkeypatch.setattr(subprocess, "Popen", None)
    assert detect([AcceleratorSpec(name="acme", target="a:B")]) == {}


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("fails", "RuntimeError: driver 1.0 is too old"),
        ("exits", "SystemExit: no licence"),
        (
            "text",
            "TypeError: acme_detect:text returned '4' of type str; it must return the number of devices",
        ),
        (
            "boolean",
            "TypeError: acme_detect:boolean returned True of type bool; it must return the number of devices",
        ),
        (
            "negative",
            "TypeError: acme_detect:negative returned -1 of type int; it must return the number of devices",
        ),
        (
            "absent",
            "'acme_detect:absent' does not exist: AttributeError: module 'acme_detect' has no attribute 'absent'.",
        ),
        ("quits", "ended with exit code 3"),
        ("crashes", "killed by SIGSEGV"),
    ],
)
def test_failure_is_charged_to_the_culprit(name: str, error: str, ask: Detect) -> None:
    """Whatever one function does, it has the true cause as its answer and the others have theirs."""
    results = ask("one", name, "two")
    assert results[name] == DetectResult(None, error)
    assert (results["one"].count, results["two"].count) == (1, 2)


@pytest.mark.parametrize("name", ["hangs", "hangs_holding_the_lock"])
def test_hang_has_a_limit(name: str, ask: Detect) -> None:
    """A function that hangs, be it in C with the interpreter's lock, costs the time limit and harms no other."""
    start = time.monotonic()
    results = ask("one", name, "two", timeout=1.0)
    assert results[name] == DetectResult(None, "timed out after 1 s")
    assert (results["one"].count, results["two"].count) == (1, 2)
    assert time.monotonic() - start < 20.0


def test_several_culprits(ask: Detect) -> None:
    """Several that die, hang or fail at once are each told apart."""
    results = ask("crashes", "hangs", "quits", "one", "fails", timeout=3.0)
    assert results["crashes"].error == "killed by SIGSEGV"
    assert results["hangs"].error == "timed out after 3 s"
    assert results["quits"].error == "ended with exit code 3"
    assert results["one"].count == 1
    assert results["fails"].error == "RuntimeError: driver 1.0 is too old"


def test_prints_are_no_answers(ask: Detect, capfd: pytest.CaptureFixture[str]) -> None:
    """What a function prints, even if it looks like an answer, is none, and does not reach our output."""
    assert ask("one", "prints") == {"one": DetectResult(1, None), "prints": DetectResult(3, None)}
    assert capfd.readouterr() == ("", "")


def test_one_process_for_all(ask: Detect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All functions are asked in one process, and not in this one."""
    monkeypatch.setenv("ACME_NOTES", str(tmp_path / "notes"))
    ask("notes_process", "also_notes_process")
    processes = (tmp_path / "notes").read_text().split()
    assert len(processes) == 2
    assert len(set(processes)) == 1
    assert str(os.getpid()) not in processes


def test_process_is_light(ask: Detect) -> None:
    """A function is asked without torch and whatever else takes long to import."""
    assert ask("forbidden")["forbidden"] == DetectResult(0, None)


def test_environment_variables_are_those_given(ask: Detect) -> None:
    """The functions see the environment variables that are passed, not what this process has."""
    assert ask("variable", environ={**os.environ, "ACME_COUNT": "5"})["variable"].count == 5


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads process states from /proc")
def test_nothing_is_left_running(ask: Detect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that a function started is ended, and a thread that it left running keeps no one waiting."""
    monkeypatch.setenv("ACME_NOTES", str(tmp_path / "child"))
    results = ask("leaves_a_child", "leaves_a_thread")
    assert {result.count for result in results.values()} == {1}
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 10.0
    while _is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = _is_running(child)
    if left:
        os.kill(child, signal.SIGKILL)
    assert not left


def _is_running(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_process_that_cannot_be_started(ask: Detect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process can be started, that is every accelerator's answer, and no file is left behind."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    results = ask("one", "two")
    assert all("the process that queries plugins cannot be started" in str(result.error) for result in results.values())
    assert os.listdir(temporary) == []
