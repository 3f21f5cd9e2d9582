"""The tables of names: what they say is true, stands once, and has all names of the installed libraries."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import operator
import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch_hal_migrate
from declared import PREFIX
from installing import import_packages_from_here
from torch import nn
from torch_hal_migrate.report import ACCELERATE, LIGHTNING, Library
from torch_hal_migrate.tables import HERE, MISSING, Row, Section

from torch_hal import Callback, DataModule, Module, Runtime, Trainer, callbacks, seed_everything

ROOT = Path(__file__).parents[3]
LIBRARIES = (LIGHTNING, ACCELERATE)
SECTIONS = [section for library in LIBRARIES for section in library.read().values()]


def trainer() -> Trainer:
    return Trainer(accelerator="cpu", devices=1, enable_progress_bar=False)


def names_here(section: str) -> Collection[str] | None:
    """The names that exist here, for a section; ``None`` for names that are imported."""
    stages = (Trainer.fit, Trainer.validate, Trainer.test, Trainer.predict)
    functions = {
        "trainer_arguments": [Trainer],
        "fit_arguments": stages,
        "seed_arguments": [seed_everything],
        "log_arguments": [Module.log],
        "model_checkpoint_arguments": [callbacks.ModelCheckpoint],
        "constructor": [Runtime],
    }
    if section in functions:
        return {name for one in functions[section] for name in inspect.signature(one).parameters}
    if section in (*ACCELERATE.groups["members"], "fabric_members"):
        return dir(Runtime(accelerator="cpu", devices=1))
    if section == "hook_arguments":
        return {"dataloader_iter"}
    if section == "trainer_members":
        return dir(trainer())
    objects = {
        "module_members": Module,
        "datamodule_members": DataModule,
        "callback_members": Callback,
        "prepared": nn.Module,
    }
    return dir(objects[section]()) if section in objects else None


def exists(path: str) -> bool:
    """Whether a path such as ``core.callbacks.Timer`` can be imported."""
    module, _, name = path.rpartition(".")
    return hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_a_name_is_here_or_has_a_remedy(section: Section, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row that is not missing exists here; each missing one does not, and says what to use instead."""
    import_packages_from_here(monkeypatch)
    names = names_here(section.name)
    for row in section.rows.values():
        if not row.shown:
            assert (exists(row.here) if names is None else row.name in names) is (row.state != MISSING), row
    assert [row.name for row in section.rows.values() if row.state == HERE and row.note and not row.example] == []


def test_no_name_has_two_entries() -> None:
    """What to do about a name stands in torch-hal, for its errors, or in this package; so does where a name is."""
    for library in LIBRARIES:
        file = Path(torch_hal_migrate.__file__).with_name(f"{library.table}.toml")
        for name, content in tomllib.loads(file.read_text("utf-8")).items():
            twice = [key for key, row in content["rows"].items() if "instead" in row or "here" in row]
            assert not library.read()[name].instead.keys() & {*twice}, name


@pytest.mark.parametrize(("library", "count"), [(LIGHTNING, 350), (ACCELERATE, 180)])
def test_the_tables_are_read(library: Library, count: int) -> None:
    """All of their rows."""
    rows: list[Row] = [row for section in library.read().values() for row in section.rows.values()]
    assert len(rows) > count


def test_remedies_name_what_exists() -> None:
    """What a remedy says of ``trainer``, such as ``trainer.plan.devices``, is there."""
    front_end = trainer()
    notes = [row.note for part in LIGHTNING.read().values() for row in part.rows.values() if row.state == MISSING]
    paths = {path for note in notes for path in re.findall(r"\btrainer\.([a-z_]+(?:\.[a-z_]+)*)", note)}
    assert paths
    for path in sorted(paths):
        operator.attrgetter(path)(front_end)


def test_the_pages_have_the_tables(tmp_path: Path) -> None:
    """As ``docs/write_migration.py`` writes them."""
    spec = importlib.util.spec_from_file_location("write_migration", ROOT / "docs" / "write_migration.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    (tmp_path / "docs").mkdir()
    for library in LIBRARIES:
        (tmp_path / library.page).write_text((ROOT / library.page).read_text("utf-8"), encoding="utf-8")
    script.main(tmp_path)
    for library in LIBRARIES:
        written, page = ((folder / library.page).read_text("utf-8") for folder in (tmp_path, ROOT))
        assert written == page, f"{library.page} is out of date. Run: python docs/write_migration.py"


# -- next to the installed libraries ---------------------------------------------------------------------------------


def installed(library: str) -> pytest.MarkDecorator:
    absent = importlib.util.find_spec(library.lower()) is None
    return pytest.mark.skipif(absent, reason=f"{PREFIX}{library} not installed (nox -s peers)")


def members(kind: Any, base: type | None = None) -> set[str]:
    """The public members of a class, without those of ``base``."""
    return {name for name in dir(kind) if not name.startswith("_") and not hasattr(base, name)}


def arguments(function: Any) -> set[str]:
    return {*inspect.signature(function).parameters} - {"self"}


def names_of_lightning() -> dict[str, set[str]]:
    """By section of the table."""
    import lightning.pytorch as pl
    from lightning.fabric import Fabric
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
        "fabric_members": members(Fabric),
        "hook_arguments": set(),  # of other versions
    }


@installed("Lightning")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("section", LIGHTNING.read())
def test_lightnings_table_is_complete(section: str) -> None:
    """Each of Lightning's names has a row."""
    assert names_of_lightning()[section] - {*LIGHTNING.read()[section].rows} == set()


@installed("Accelerate")
@pytest.mark.filterwarnings("default")
def test_accelerates_table_is_complete() -> None:
    """It has every argument and member of the installed Accelerate's class."""
    import accelerate

    tables, sections = ACCELERATE.read(), ACCELERATE.groups["members"]
    known = {name for section in sections for name in tables[section].rows}
    assert arguments(accelerate.Accelerator) - {*tables["constructor"].rows} == set()
    assert members(accelerate.Accelerator) - known == set()
