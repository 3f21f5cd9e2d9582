"""The report: what of some scripts works, differs or is missing."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch_hal.errors import ConfigurationError
from torch_hal.hints.remedies import import_line

from . import configs
from .accelerate import uses as uses_of_accelerate
from .scripts import Use, class_kinds, names_of_scripts, names_scripts_call, uses
from .tables import DIFFERS, HERE, MISSING, Row, Section, read_tables

__all__ = ["ACCELERATE", "LIGHTNING", "NOTEBOOK", "Finding", "Library", "as_json", "as_text", "examine"]


class Library(NamedTuple):
    """A library that scripts are written for."""

    name: str
    table: str
    version: str
    page: str
    """What says more about it."""
    groups: Mapping[str, tuple[str, ...]]
    """The sections in which names of one kind are."""

    def read(self) -> dict[str, Section]:
        """Its table."""
        return read_tables(Path(__file__).with_name(f"{self.table}.toml"))


LIGHTNING = Library(
    "Lightning",
    "lightning",
    "2.6",
    "docs/migrating-from-lightning.md",
    {"names": ("names", "callbacks", "loggers", "profilers")},
)
ACCELERATE = Library(
    "Accelerate",
    "accelerate",
    "1.15",
    "docs/migrating-from-accelerate.md",
    {
        "names": ("imports", "functions"),
        "members": ("preparing", "loop", "values", "processes", "engines", "saving", "tracking"),
    },
)

IMPORTED = (*LIGHTNING.groups["names"], *ACCELERATE.groups["names"])
"""The sections with names that are imported."""

NOTEBOOK = ".ipynb"
T = TypeVar("T")

HEADINGS = {
    HERE: "works when the import is changed",
    DIFFERS: "works differently",
    MISSING: "missing",
}


class Finding(NamedTuple):
    """One name of a library in one script."""

    lines: tuple[int, ...]
    use: str
    """The name as the script uses it: ``Trainer(max_epochs=)``, ``trainer.fit``."""
    state: str
    here: str
    """What to write here."""
    note: str
    library: str
    """The library that the script uses it of."""


def examine(files: Iterable[Path]) -> tuple[dict[Path, list[Finding]], list[ConfigurationError]]:
    """Read scripts, notebooks and configurations; the findings of each are ordered by line.

    Configurations without any are left out: a directory has others.

    Returns:
        The findings, and what was wrong with each file that cannot be read, or is neither Python nor YAML.
    """
    errors: list[ConfigurationError] = []
    lightning, accelerate = LIGHTNING.read(), ACCELERATE.read()
    files = list(files)
    trees = _each([file for file in files if file.suffix not in configs.SUFFIXES], _parsed, errors)
    kinds = class_kinds(trees.values(), lightning["callbacks"].rows)
    own = names_of_scripts(trees.values(), kinds)
    members = {name: {*section.rows, *section.instead} - (section.unread & own) for name, section in lightning.items()}
    called = own & names_scripts_call(trees.values(), kinds)

    def is_own(use: Use) -> bool:
        """Whether it is a method that the script's classes define and call, and torch-hal does not."""
        of_class = use.section in ("module_members", "datamodule_members", "callback_members")
        return of_class and use.name in called and lightning[use.section].find(use.name, "").state == MISSING

    used = {
        file: ([use for use in uses(tree, kinds, members) if not is_own(use)], uses_of_accelerate(tree))
        for file, tree in trees.items()
    }
    by_cli = any(use.name == "LightningCLI" for found, _ in used.values() for use in found)
    settings = [file for file in files if file.suffix in configs.SUFFIXES]
    read = _each(settings, lambda file: configs.uses(file, by_cli), errors)
    used |= {file: found for file, found in read.items() if any(found)}
    findings = {
        file: [
            *_findings(of_lightning, lightning, LIGHTNING, file not in trees),
            *_findings(of_accelerate, accelerate, ACCELERATE, file not in trees),
        ]
        for file, (of_lightning, of_accelerate) in used.items()
    }
    return findings, errors


def _each(files: Iterable[Path], read: Callable[[Path], T], errors: list[ConfigurationError]) -> dict[Path, T]:
    """What ``read`` returns for each of the files that it can read; its ``errors`` for the others."""
    found: dict[Path, T] = {}
    for file in files:
        try:
            found[file] = read(file)
        except ConfigurationError as error:
            errors.append(error)
    return found


def _parsed(file: Path) -> ast.AST:
    try:
        content = file.read_bytes()
        with warnings.catch_warnings(action="ignore"):  # of strings such as "\d", which are the script's own
            return ast.parse(_code(content) if file.suffix == NOTEBOOK else content, filename=str(file))
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}.") from error
    except (SyntaxError, ValueError, LookupError, TypeError) as error:
        line = getattr(error, "lineno", None)
        raise ConfigurationError(f"{file}{f':{line}' if line else ''}: is not Python: {error}.") from error


def _code(notebook: bytes) -> str:
    """The code of a notebook's cells, one after another; lines for the shell or IPython do nothing."""
    cells = ["".join(cell["source"]) for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "code"]
    others = re.compile("%%(?!time|capture|prun)")  # such as %%bash: cells in other languages
    code = "\n".join("\n" * cell.count("\n") if others.match(cell) else cell for cell in cells)
    return re.sub(r"^([ \t]*)[%!?].*", r"\1pass", code, flags=re.MULTILINE)


def _findings(found: Iterable[Use], tables: Mapping[str, Section], library: Library, in_config: bool) -> list[Finding]:
    lines: dict[tuple[str, str, str], list[int]] = {}
    for use in found:
        lines.setdefault((use.section, use.name, use.call), []).append(use.line)
    findings = []
    for (section, name, call), numbers in lines.items():
        places = [tables[place] for place in library.groups.get(section, (section,))]
        where = next((place for place in places if name in place.rows), places[0])
        if section == "names" or library is ACCELERATE:
            unknown = f"The table has no such name; look for it in {library.page}."
        else:
            unknown = f"{library.name} {library.version} has no such name in {where.peer!r}."
        row = where.find(name, unknown)
        lines_of = tuple(dict.fromkeys(numbers))
        written = _written(where, row, in_config)
        if section == "names" and call and row.state == MISSING:
            row = row._replace(state=DIFFERS, note=f"Imported only if {call}. {row.note}")
        findings.append(Finding(lines_of, _shown(where, name, call), row.state, written, row.note, library.name))
    return findings


def _shown(section: Section, name: str, call: str) -> str:
    if section.name in IMPORTED:
        return name
    if call:
        return f"{call}({name}=)"
    before, arguments, _ = section.peer.partition("...")
    return f"{before}{name}=)" if arguments else f"{before}{name}"


def _written(section: Section, row: Row, in_config: bool) -> str:
    """What to write: the import, the path in a configuration, or another name."""
    if row.state == MISSING:
        return ""
    if section.name in IMPORTED:
        return row.here if in_config else import_line(row.here, row.name)
    return "" if row.here == row.name or row.example else row.here


def as_json(findings: Mapping[Path, Iterable[Finding]]) -> dict[str, Any]:
    """The report as data, with the numbers of names by state."""
    return {
        "files": [
            {"file": str(file), "findings": [finding._asdict() for finding in found]}
            for file, found in findings.items()
        ],
        **{state: _count(findings, state) for state in HEADINGS},
    }


def as_text(findings: Mapping[Path, list[Finding]]) -> str:
    """The report for a terminal."""
    blocks = []
    for file, found in findings.items():
        lines = [str(file)]
        if not found:
            lines.append("  uses nothing of Lightning or Accelerate")
        if any(finding.library == ACCELERATE.name for finding in found):
            lines.append(f"  uses Accelerate; see {ACCELERATE.page}")
        for state, heading in HEADINGS.items():
            of_state = [finding for finding in found if finding.state == state]
            lines += [f"  {heading}:"] if of_state else []
            width = max((len(finding.use) for finding in of_state), default=0)
            for finding in of_state:
                said = _plain(finding.note)
                if finding.here and said:
                    said = f"{finding.here}{'.' if said[0].isupper() else ';'} {said}"
                said = said or finding.here
                lines.append(f"    {_numbers(finding.lines):>9}  {finding.use:<{width}}  {said}".rstrip())
        blocks.append("\n".join(lines))
    works, differs, missing = (_count(findings, state) for state in HEADINGS)
    blocks.append(f"{works} names work, {differs} differ, {missing} missing.")
    return "\n\n".join(blocks) + "\n"


def _plain(note: str) -> str:
    """A note without the marks of Markdown; a link is the path of its page."""
    return re.sub(r"\[[^]]*\]\(([^)]*)\)", r"docs/\1", note).replace("`", "")


def _numbers(lines: tuple[int, ...]) -> str:
    return ", ".join(map(str, lines)) if len(lines) <= 2 else f"{lines[0]}, {lines[1]}, …"


def _count(findings: Mapping[Path, Iterable[Finding]], state: str) -> int:
    return sum(finding.state == state for found in findings.values() for finding in found)
