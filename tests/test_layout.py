"""The layout of core's files: how long, how many in a folder, which names, and where the documents say they are."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core"
FILES = sorted(file.relative_to(CORE) for file in CORE.rglob("*.py") if "__pycache__" not in file.parts)

SHORT = {
    "checkpoints/disk_remedies.py": "what six files say of a disk",
    "conformance.py": "python -m core.conformance",
    "new_plugin.py": "python -m core.new_plugin",
    "run/parent_death.py": "a separate script, which imports next to nothing",
    "strategies/single_device.py": "a strategy, like its neighbours",
}
"""Files of fewer than 40 lines, and why each is one."""

SAME_IDEA = {
    "agreement.py": "what all ranks must have alike",
    "base.py": "the base class of a folder",
    "checks.py": "what a front end refuses of what it is given",
    "properties.py": "what a front end shows of its run",
    "settings.py": "arguments, checked",
}
"""File names that more than one folder has."""


def test_the_page_on_architecture_has_every_package() -> None:
    """Its table has each package and module of core once, those of a higher layer of the import contract first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract.get("containers") == ["core"])
    level = {name.strip(): number for number, layer in enumerate(layers) for name in layer.split("|")}
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = page.partition("| package or module | content |")[2].partition("\n\n")[0]
    names = [
        name for row in table.splitlines() for name in re.findall(r"`(\w+)/?`", row.split("|")[1:2][0] if row else "")
    ]
    assert sorted(names) == sorted(level)
    assert [level[name] for name in names] == sorted(level.values())


def test_no_file_is_long() -> None:
    """A file of more than 500 lines has more than one subject, but for a front end with all its methods."""
    folders = ("core", "plugins", "tests", "examples", "benchmarks")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    long = {file.relative_to(ROOT).as_posix() for file in files if file.read_text("utf-8").count("\n") > 500}
    assert long <= {"core/trainer/trainer.py", "core/runtime/runtime.py", "core/trainer/module/module.py"}


def test_a_short_file_has_a_reason() -> None:
    """A newcomer opens each file to see what it is: a few lines belong to another one, unless something forbids it."""
    short = {
        file.as_posix()
        for file in FILES
        if file.name != "__init__.py" and (CORE / file).read_text("utf-8").count("\n") < 40
    }
    assert short == set(SHORT)


def test_a_folder_can_be_seen_at_once() -> None:
    """The top level has at most 16 files, other folders at most 25."""
    count: dict[Path, int] = defaultdict(int)
    for file in FILES:
        count[file.parent] += 1
    assert count.pop(Path()) <= 16
    assert max(count.values()) <= 25


def test_nothing_lies_about() -> None:
    """Core's folders hold Python, its data, and the mark that it is typed; no copy that a tool has left."""
    files = [file for file in CORE.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert {file.suffix or file.name for file in files} == {".py", ".toml", ".json", ".typed"}


def test_a_name_stands_for_one_idea() -> None:
    """Two folders have files of the same name only if these are the same for their folders."""
    folders: dict[str, set[Path]] = defaultdict(set)
    for file in FILES:
        folders[file.name].add(file.parent)
    twice = {name for name, found in folders.items() if len(found) > 1 and not name.startswith("__")}
    assert twice == set(SAME_IDEA)
