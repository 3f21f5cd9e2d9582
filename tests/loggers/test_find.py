"""Loggers and profilers by name: core's own, and those of installed distributions."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from installing import files_of, lay_down
from torch import ones
from torch.utils.data import DataLoader, TensorDataset

from core import Runtime, Trainer
from core.discovery.selection import survey
from core.errors import BackendError, UnknownNameError, WrongTypeError
from core.loggers import CSVLogger, JSONLogger, Logger, find_loggers
from core.profilers import SimpleProfiler, find_profiler

from .test_csv_with_trainer import Net

GOOD = """
from core.loggers import Logger

class Acme(Logger):
    name = "acme"

    @classmethod
    def for_project(cls, project, save_dir, **options):
        return cls()

    def open(self):
        return []

    def write_metrics(self, values, step, **options):
        self.experiment.append((step, values))
"""

LINES = """
from pathlib import Path

from core.loggers import FolderLogger

class Lines(FolderLogger):
    name = "lines"

    def open(self):
        Path(self.log_dir).mkdir(parents=True, exist_ok=True)
        return open(Path(self.log_dir, "lines.txt"), "a")

    def write_metrics(self, values, step, **options):
        print(step, *values, file=self.experiment)

    def close(self, status):
        self.experiment.close()
"""

PROFILER = """
from core.profilers import Profiler

class Acme(Profiler):
    def __init__(self):
        super().__init__()
        self.actions = []

    def start(self, action_name):
        self.actions.append(action_name)

    def stop(self, action_name):
        pass

    def summary(self):
        return ""

class Demanding(Acme):
    def __init__(self, server):
        super().__init__()
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that installs a distribution with entry points of loggers, or of another group, and modules."""

    def install(
        distribution: str, entries: str, requires: tuple[str, ...] = (), group: str = "core.loggers", **modules: str
    ) -> None:
        folder = tmp_path / distribution
        files = files_of(distribution, "1.0", f"[{group}]\n{entries}\n", requires)
        lay_down(folder, {**files, **{f"{name}.py": text for name, text in modules.items()}})
        monkeypatch.syspath_prepend(folder)
        for name in modules:
            monkeypatch.delitem(sys.modules, name, raising=False)

    return install


def test_names_and_objects() -> None:
    """A name is a class, an object is itself, each once, in the order given."""
    own = JSONLogger(".", version="")
    assert find_loggers(None) == []
    assert find_loggers("csv") == [CSVLogger]
    assert find_loggers([own, "csv"]) == [own, CSVLogger]


def test_an_unknown_name() -> None:
    """The error has the nearest name, and tells names whose package is installed from the others."""
    with pytest.raises(UnknownNameError, match="Did you mean 'tensorboard'") as raised:
        find_loggers("tensorbord")
    valid, absent = re.findall(r"Valid: (.*); not installed: (.*)\. Others", str(raised.value))[0]
    libraries = {"comet_ml": "comet_ml", "mlflow": "mlflow", "tensorboard": "tensorboard", "wandb": "wandb"}
    there = {name for name, library in libraries.items() if importlib.util.find_spec(library)}
    assert set(re.findall(r"'(\w+)'", valid)) == {"csv", "json", "all", *there}
    assert set(re.findall(r"'(\w+)'", absent)) == {*libraries} - there
    with pytest.raises(UnknownNameError) as raised:
        Trainer(logger="tensorbord")
    assert "'all'" not in str(raised.value), "only log_with takes it"


@pytest.mark.parametrize("given", [3, object(), CSVLogger])
def test_what_is_no_logger(given: Any) -> None:
    """Neither a name nor an object with a logger's methods."""
    with pytest.raises(WrongTypeError, match="log_with"):
        find_loggers([given])


def test_a_logger_of_another_distribution(install: Any) -> None:
    """A name in an entry point is found, and is part of "all"."""
    install("acme-tracking", "acme = acme_logger:Acme", acme_logger=GOOD)
    (found,) = find_loggers("acme")
    assert isinstance(found, type)
    assert issubclass(found, Logger)
    logger = found()
    logger.log_metrics({"x": 1}, 2)
    assert logger.experiment == [(2, {"x": 1})]
    assert {"acme", "csv", "json"} <= {logger.name for logger in find_loggers("all")}


def test_a_broken_one_is_an_error_only_if_requested(install: Any) -> None:
    """Others work, "all" leaves it out, and its name raises the real cause."""
    install("acme-tracking", "acme = acme_logger:Acme", acme_logger=GOOD)
    entries = "bad = bad_logger:Bad\nodd = acme_logger:Logger.\nno = acme_logger:Logger\nbare = acme_logger\n"
    install("bad-tracking", f"{entries}fake = acme_logger:__name__\nother = acme_logger:Acme", bad_logger="1 / 0")
    install("late-tracking", "late = bad_logger:Bad", ("no-such-library>=3",))
    assert len(find_loggers(["acme", "csv"])) == 2
    assert not {"bad", "odd", "no", "bare", "fake", "late"} & {logger.name for logger in find_loggers("all")}
    with pytest.raises(BackendError, match=r"bad-tracking 1.0.*ZeroDivisionError") as raised:
        find_loggers("bad")
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    for name, reason in {
        "odd": r"failed \(bad-tracking 1.0\): .*not module:Class",
        "bare": "Valid: <name> = <package.module:Class>",
        "no": "bad-tracking 1.0: its target .* does not define open, write_metrics",
        "fake": "not a subclass of torch_hal.loggers.base.Logger but an object of type str",
        "other": "Set name='other' in the class",
        "late": "needs no-such-library>=3, which is not installed. Run: pip install 'no-such-library>=3'",
    }.items():
        with pytest.raises(BackendError, match=rf"^log_with='{name}'.*{reason}"):
            find_loggers(name)


def test_two_distributions_of_one_name(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither gets it, unless CORE_PLUGINS selects one; a denied one is refused; core's names are core's."""
    install("acme-tracking", "acme = acme_logger:Acme\ncsv = acme_logger:Acme", acme_logger=GOOD)
    install("other-tracking", "acme = other_logger:Acme", other_logger=GOOD)
    with pytest.raises(BackendError, match=r"acme-tracking 1.0 and other-tracking 1.0.*acme@other-tracking"):
        find_loggers("acme")
    assert find_loggers("csv") == [CSVLogger]
    (claim,) = (row for row in survey(os.environ).classes if row.name == "csv" and not row.is_core)
    assert claim.reason == "'csv' is reserved for torch-hal's own logger"
    monkeypatch.setenv("CORE_PLUGINS", "acme@other-tracking")
    (found,) = find_loggers("acme")
    assert isinstance(found, type)
    assert found.__module__ == "other_logger"
    monkeypatch.setenv("CORE_PLUGINS", "-acme-tracking,-other-tracking")
    with pytest.raises(BackendError, match="denied"):
        find_loggers("acme")
    found_in_metadata = survey(os.environ)
    assert found_in_metadata.warnings == [], "CORE_PLUGINS has an effect, on loggers"
    assert not [row for row in found_in_metadata.rows if row.kind == "logger"], "a logger is not a backend"


def test_an_incompatible_one(install: Any) -> None:
    """Its requirement on torch-hal is compared before it is imported."""
    install("acme-tracking", "acme = acme_logger:Acme", ("torch-hal>=7",), acme_logger="raise SystemExit")
    with pytest.raises(BackendError, match="incompatible"):
        find_loggers("acme")


def test_front_ends_take_those_of_other_distributions_by_name(install: Any, tmp_path: Path) -> None:
    """Trainer(logger=, profiler=) and Runtime(log_with=), with what the run has measured."""
    install("acme-tracking", "acme = acme_logger:Acme", acme_logger=GOOD)
    install("acme-timing", "acme = acme_profiler:Acme", group="core.profilers", acme_profiler=PROFILER)
    install("acme-lines", "lines = acme_lines:Lines", acme_lines=LINES)
    quiet: Any = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    quiet |= {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "default_root_dir": tmp_path}
    for _ in range(2):
        trainer = Trainer(logger=["acme", "lines"], profiler="acme", log_every_n_steps=1, **quiet)
        trainer.fit(Net(), DataLoader(TensorDataset(ones(6, 2)), batch_size=2))
    assert [type(logger).__module__ for logger in trainer.loggers] == ["acme_logger", "acme_lines"]
    for version in ("version_0", "version_1"):
        lines = (tmp_path / "core_logs" / version / "lines.txt").read_text().splitlines()
        assert lines == ["0 loss epoch", "1 loss epoch", "2 loss epoch"], "each run has its own folder"
    assert [step for step, values in trainer.loggers[0].experiment if "loss" in values] == [0, 1, 2]
    profiler: Any = trainer.profiler
    assert profiler.actions.count("run_training_batch") == 3

    runtime = Runtime(accelerator="cpu", devices=1, log_with="acme")
    runtime.init_trackers("digits", init_kwargs={"acme": {}, "wandb": {}})
    runtime.log({"loss": 0.5}, step=1)
    assert runtime.get_tracker("acme", unwrap=True) == [(1, {"loss": 0.5})]
    with pytest.raises(UnknownNameError, match="Did you mean 'acme'"):
        Runtime(accelerator="cpu", devices=1, log_with="acm")
    runtime.end_training()


def test_profilers_by_name(install: Any) -> None:
    """Errors are those of loggers; core's names are core's."""
    install(
        "acme-timing",
        "acme = acme_profiler:Demanding\nsimple = acme_profiler:Acme\nno = acme_profiler:Profiler",
        group="core.profilers",
        acme_profiler=PROFILER,
    )
    assert type(find_profiler("simple")) is SimpleProfiler
    with pytest.raises(BackendError, match=r"Demanding\(\) raises TypeError.*profiler=Demanding\(\.\.\.\)"):
        find_profiler("acme")
    with pytest.raises(BackendError, match=r"profiler='no' of acme-timing 1.0: .* does not define start, stop"):
        find_profiler("no")
    with pytest.raises(UnknownNameError, match=r"Did you mean 'acme'.* Valid: 'acme', 'advanced'.*'core\.profilers'"):
        find_profiler("acm")
