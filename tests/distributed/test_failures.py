"""However one of two processes fails, both are gone in bounded time and the exit code says so."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from .conftest import processes_with, run_script

pytestmark = pytest.mark.usefixtures("started_not_forked")


@pytest.mark.parametrize(
    ("how", "victim", "expect"),
    [
        ("raise", 1, 1),
        pytest.param("kill", 1, 128 + signal.SIGKILL, marks=pytest.mark.slow),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (("raise", 0, 1), ("exit", 1, 7), ("none", 9, 0))
        ),
    ],
)
def test_one_process_fails(how: str, victim: int, expect: int, tmp_path: Path) -> None:
    """An exception, ``sys.exit`` or SIGKILL in one process of an own loop ends both with its exit code."""
    begin = time.monotonic()
    result = run_script(tmp_path, "failing.py", how, str(victim), expect=expect)
    assert time.monotonic() - begin < 100
    assert result.stdout.count("is through") == (0 if expect else 2)
    if how == "raise":
        assert "ValueError: planted" in result.stderr
    assert processes_with(tmp_path) == []


@pytest.mark.slow
def test_a_batch_that_a_process_skips(tmp_path: Path) -> None:
    """The others have nothing to average its gradients with: refused, where parameters would drift apart."""
    result = run_script(tmp_path, "skipping.py", expect=1)
    assert (
        "ConfigurationError: training_step: returned None for batch 1, but only a run with one process" in result.stderr
    )


@pytest.mark.slow
def test_another_size_in_the_same_script_is_refused(tmp_path: Path) -> None:
    """A script that was started again for two processes cannot go on as one: the error says what can be done."""
    result = run_script(tmp_path, "other_size.py", expect=1)
    assert "ConfigurationError" in result.stderr
    assert "ddp_spawn" in result.stderr
