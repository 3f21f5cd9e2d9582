"""The conformance kit of core on Horovod itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .conftest import SCRIPTS, run_alone


@pytest.mark.timeout(600)
def test_it_passes_the_kit(tmp_path: Path) -> None:
    """The strategy passes on one process and on two that Horovod started, also where one of them fails."""
    kit = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "torch_hal_devkit.plugin", f"--rootdir={tmp_path}")
    said = run_alone(*kit, SCRIPTS / "conformance.py", timeout=280)
    summary = r"conformance of TestHorovod .*: (\d+) passed, (\d+) skipped by declaration; proven: (\d+) of (\d+)$"
    line = re.search(summary, said, re.MULTILINE)
    assert line, said
    assert line[1] == line[3]
    assert int(line[1]) > 150
