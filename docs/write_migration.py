"""Writes the tables of the pages on migrating, and which rows of core/migrate/*.toml are missing here.

Run ``python docs/write_migration.py`` after a change to the Trainer, the Runtime, the callbacks or a table.
"""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path

from core import Callback, DataModule, Module, Runtime, Trainer, callbacks, seed_everything
from core.migrate.report import ACCELERATE, LIGHTNING, Library, import_of
from core.migrate.tables import MISSING, Row, Section, full_path, read_tables

ROOT = Path(__file__).parents[1]
LIBRARIES = (LIGHTNING, ACCELERATE)
BEGIN, END = "<!-- tables:begin -->", "<!-- tables:end -->"


def main(root: Path = ROOT) -> None:
    """Write the tables and the pages of all libraries."""
    for library in LIBRARIES:
        write(library, root)


def files(library: Library, root: Path) -> tuple[Path, Path]:
    """The table and the page of a library."""
    return root / "core" / "migrate" / f"{library.table}.toml", root / library.page


def write(library: Library, root: Path) -> None:
    """Write which rows of a library's table are missing, and its page."""
    table, place = files(library, root)
    text = table.read_text("utf-8")
    for name, content in tomllib.loads(text).items():
        there = names_here(name)
        rows = {key: row.get("here", key) for key, row in content["rows"].items()}
        missing = [
            key
            for key, here in rows.items()
            if "shown" not in content["rows"][key] and not (exists(name, here) if there is None else here in there)
        ]
        listed = "".join(f'\n    "{key}",' for key in missing) + "\n" * bool(missing)
        before, header, after = text.partition(f"[{name}]\n")
        after = re.sub(r"^missing = \[[^]]*\]$", f"missing = [{listed}]", after, count=1, flags=re.MULTILINE)
        text = before + header + after
    table.write_text(text, encoding="utf-8")
    page = place.read_text("utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    sections = read_tables(table).values()
    place.write_text(f"{before}{BEGIN}\n{tables(library, sections)}{END}{after}", encoding="utf-8")


def names_here(section: str) -> Collection[str] | None:
    """The names that exist here, for the section of a table; ``None`` for names that are imported."""
    if section == "trainer_arguments":
        return inspect.signature(Trainer).parameters
    if section == "fit_arguments":
        stages = (Trainer.fit, Trainer.validate, Trainer.test, Trainer.predict)
        return {name for stage in stages for name in inspect.signature(stage).parameters}
    if section == "seed_arguments":
        return inspect.signature(seed_everything).parameters
    if section == "log_arguments":
        return inspect.signature(Module.log).parameters
    if section == "model_checkpoint_arguments":
        return inspect.signature(callbacks.ModelCheckpoint).parameters
    if section == "constructor":
        return inspect.signature(Runtime).parameters
    if section in ACCELERATE.groups["members"]:
        return dir(Runtime(accelerator="cpu", devices=1))
    if section == "trainer_members":
        return dir(Trainer(accelerator="cpu", devices=1, enable_progress_bar=False))
    objects = {"module_members": Module, "datamodule_members": DataModule, "callback_members": Callback}
    return dir(objects[section]()) if section in objects else None


def exists(section: str, path: str) -> bool:
    """Whether a path such as ``core.callbacks.Timer`` can be imported."""
    module, _, name = full_path(section, path).rpartition(".")
    try:
        return bool(module) and hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


def tables(library: Library, sections: Iterable[Section]) -> str:
    """The sections as Markdown."""
    parts = []
    for section in sections:
        intro = f"{section.intro}\n\n" if section.intro else ""
        parts.append(
            f"\n## {section.title}\n\n{intro}| {library.name} | here | what differs, or what to use instead |\n"
            "|---|---|---|\n"
        )
        for row in section.rows.values():
            parts.append(f"| {row.shown or f'`{row.name}`'} | {here_of(library, row)} | {row.note} |\n")
    return "".join(parts) + "\n"


def here_of(library: Library, row: Row) -> str:
    """The middle column: an example, the line that imports it, or the name."""
    if row.state == MISSING:
        return "missing"
    if library is ACCELERATE:
        return f"`{row.example or import_of(row)}`"
    return f"`{row.here}`"


if __name__ == "__main__":
    main()
