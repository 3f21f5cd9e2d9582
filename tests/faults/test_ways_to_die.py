"""However one of three processes dies, does not start or is stopped, all end soon, and the output ends with it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from .dying import LAUNCHERS, WAYS, die

pytestmark = [
    pytest.mark.usefixtures("started_not_forked"),
    pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="finds processes in /proc"),
]

SECONDS = 30
"""Allowed from the death, or from the end of a time limit, until all are gone, on a machine that does other things."""
QUICK = ("ddp", "import exit")
SLOW = (("torch-hal run", "stop"), ("torchrun", "input waits"))
CASES = [
    pytest.param(*case, marks=() if case == QUICK else pytest.mark.slow if case in SLOW else pytest.mark.exhaustive)
    for case in ((launcher, way) for launcher in LAUNCHERS for way in WAYS)
]


@pytest.mark.parametrize(("launcher", "way"), CASES)
def test_a_process_dies(launcher: str, way: str, tmp_path: Path) -> None:
    """The exit code is its own under our launchers; no process is left, and none writes a lost peer's traceback."""
    expected = WAYS["input" if (launcher, way) == ("ddp", "input waits") else way]
    limit = max(WAYS[way].limit, 20)  # joining may take longer than 10 s on a busy machine
    death = die(launcher, way, tmp_path, limit)
    assert death.are_all_gone, death.said
    assert death.code == (min(expected.code, 1) if launcher == "torchrun" else expected.code), death.said
    if expected.code == 0:
        assert death.output.count("trained 20") == 3
        return
    assert "gloo/" not in death.said
    stopped_under_torchrun = 30 if (launcher, way) == ("torchrun", "stop") else 0
    waited = limit if WAYS[way].limit < 120 else 0
    assert death.seconds < SECONDS + waited + stopped_under_torchrun, death.said
    if launcher != "torchrun" or not re.search("SIGKILL|code", expected.says):  # then only torchrun can tell
        assert re.match(expected.says, death.cause), death.said
