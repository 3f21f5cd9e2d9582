"""What a page, loaders and strategies of the installed Lightning do is done here, too (``nox -s peers``)."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from declared import PREFIX
from migrated_script import after, before
from python_processes import run_python

import core.strategies
from core.hints.remedies import remedies

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason=f"{PREFIX}Lightning not installed (nox -s peers)"
)


def members(kind: Any, base: type | None = None) -> set[str]:
    """The public members of a class, without those of ``base``."""
    return {name for name in dir(kind) if not name.startswith("_") and not hasattr(base, name)}


def test_the_pages_script_computes_the_same(tmp_path: Path) -> None:
    """With Lightning's imports and with ours, the losses are the same: of the last step to the last bit."""
    (tmp_path / "before.py").write_text(before())
    (tmp_path / "after.py").write_text(after())
    printed = [run_python(name, cwd=tmp_path).stdout for name in ("before.py", "after.py")]
    (theirs,), (ours,) = (re.findall(r"^steps 30 (\S+) (\S+)$", text, re.MULTILINE) for text in printed)
    assert ours[0] == theirs[0]
    assert float(ours[1]) == pytest.approx(float(theirs[1]), rel=1e-6)  # their mean is rounded to 32 bits


def test_metrics_of_several_loaders(tmp_path: Path) -> None:
    """All names and values that Lightning has; ``callback_metrics`` also has the last values of steps of evaluation."""
    found = []
    for front in ("core", "lightning"):
        printed = run_python(Path(__file__).parent / "several_loaders.py", front, cwd=tmp_path).stdout
        found.append([json.loads(text) for text in re.findall(r"^metrics (.*)$", printed, re.MULTILINE)])
    (ours, ours_logged), (theirs, theirs_logged) = found
    assert ours_logged == pytest.approx(theirs_logged, rel=1e-5)
    assert {name: ours[name] for name in theirs} == pytest.approx(theirs, rel=1e-5)
    assert {name.partition("/")[0] for name in ours.keys() - theirs.keys()} == {"both_step", "step"}


def test_each_method_of_a_strategy_is_called_or_refused() -> None:
    """A subclass may define any method of Lightning's strategies: it is one here too, or refused by name."""
    from lightning.pytorch import strategies

    for kind in ("Strategy", "SingleDeviceStrategy", "ParallelStrategy", "DDPStrategy"):
        theirs, ours = getattr(strategies, kind), getattr(core.strategies, kind)
        methods = {name for name in members(theirs) if inspect.isfunction(getattr(theirs, name))}
        assert methods - {*dir(ours)} - {*remedies("methods", ["Strategy"])} == set()
