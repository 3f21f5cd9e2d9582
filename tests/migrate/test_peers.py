"""The table of Lightning's names has all that the installed Lightning has (``nox -s peers``)."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from declared import PREFIX
from python_processes import run_python
from torch import nn

import core.strategies
from core.migrate.report import LIGHTNING
from core.strategies.foreign_methods import OF_STRATEGIES

from .test_migrate import PAGE, before

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason=f"{PREFIX}Lightning not installed (nox -s peers)"
)


def members(kind: Any, base: type | None = None) -> set[str]:
    """The public members of a class, without those of ``base``."""
    return {name for name in dir(kind) if not name.startswith("_") and not hasattr(base, name)}


def arguments(function: Any) -> set[str]:
    return {*inspect.signature(function).parameters} - {"self"}


def names_of_lightning() -> dict[str, set[str]]:
    """By section of the table."""
    import lightning.pytorch as pl
    from lightning.pytorch import callbacks, loggers, profilers

    stages = (pl.Trainer.fit, pl.Trainer.validate, pl.Trainer.test, pl.Trainer.predict)
    return {
        "names": {*pl.__all__},
        "trainer_arguments": arguments(pl.Trainer),
        "trainer_members": members(pl.Trainer),
        "fit_arguments": set().union(*map(arguments, stages)),
        "seed_arguments": arguments(pl.seed_everything),
        "module_members": members(pl.LightningModule, nn.Module),
        "log_arguments": arguments(pl.LightningModule.log),
        "datamodule_members": members(pl.LightningDataModule),
        "callback_members": members(pl.Callback),
        "callbacks": {*callbacks.__all__},
        "model_checkpoint_arguments": arguments(callbacks.ModelCheckpoint),
        "loggers": {*loggers.__all__},
        "profilers": {*profilers.__all__},
    }


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("section", LIGHTNING.read())
def test_the_table_is_complete(section: str) -> None:
    """Each of Lightning's names has a row."""
    assert names_of_lightning()[section] - {*LIGHTNING.read()[section].rows} == set()


def test_the_pages_script_computes_the_same(tmp_path: Path) -> None:
    """With Lightning's imports and with ours, the losses are the same: of the last step to the last bit."""
    (tmp_path / "before.py").write_text(before())
    after = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "after.py").write_text(after)
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
        assert methods - {*dir(ours)} - {*OF_STRATEGIES} == set()
