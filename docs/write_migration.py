"""Writes docs/migrating-from-lightning.md's tables, and which rows of core/migrate/lightning.toml are missing here.

Run ``python docs/write_migration.py`` after a change to the Trainer, the callbacks or the table.
"""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path

from core import Callback, DataModule, Module, Trainer, callbacks, seed_everything
from core.migrate.tables import HOMES, MISSING, Section, read_tables

HERE = Path(__file__).parent
PAGE = HERE / "migrating-from-lightning.md"
TABLE = HERE.parent / "core" / "migrate" / "lightning.toml"
BEGIN, END = "<!-- tables:begin -->", "<!-- tables:end -->"


def main() -> None:
    """Write both files."""
    text = TABLE.read_text("utf-8")
    for name, content in tomllib.loads(text).items():
        there = names_here(name)
        rows = {key: row.get("here", key) for key, row in content["rows"].items()}
        missing = [key for key, here in rows.items() if not (exists(name, here) if there is None else here in there)]
        listed = "".join(f'\n    "{key}",' for key in missing) + "\n" * bool(missing)
        before, header, after = text.partition(f"[{name}]\n")
        after = re.sub(r"^missing = \[[^]]*\]$", f"missing = [{listed}]", after, count=1, flags=re.MULTILINE)
        text = before + header + after
    TABLE.write_text(text, encoding="utf-8")
    page = PAGE.read_text("utf-8")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{tables(read_tables().values())}{END}{after}", encoding="utf-8")


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
    if section == "trainer_members":
        return dir(Trainer(accelerator="cpu", devices=1, enable_progress_bar=False))
    objects = {"module_members": Module, "datamodule_members": DataModule, "callback_members": Callback}
    return dir(objects[section]()) if section in objects else None


def exists(section: str, path: str) -> bool:
    """Whether a path such as ``core.callbacks.Timer`` can be imported."""
    module, _, name = (f"{HOMES[section]}.{path}" if section in HOMES else path).rpartition(".")
    try:
        return bool(module) and hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


def tables(sections: Iterable[Section]) -> str:
    """The sections as Markdown."""
    parts = []
    for section in sections:
        parts.append(
            f"\n## {section.title}\n\n| Lightning | here | what differs, or what to use instead |\n|---|---|---|\n"
        )
        for row in section.rows.values():
            here = "missing" if row.state == MISSING else f"`{row.here}`"
            parts.append(f"| `{row.name}` | {here} | {row.note} |\n")
    return "".join(parts) + "\n"


if __name__ == "__main__":
    main()
