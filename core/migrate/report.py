"""The report: what of some scripts works, differs or is missing."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from core.errors import ConfigurationError
from core.migrate.scripts import Use, class_kinds, uses
from core.migrate.tables import DIFFERS, HERE, MISSING, Row, Section, read_tables

__all__ = ["Finding", "as_json", "as_text", "examine"]

IMPORTED = ("names", "callbacks", "loggers", "profilers")
"""The sections with names that are imported."""

HEADINGS = {
    HERE: "works when the import is changed",
    DIFFERS: "works differently",
    MISSING: "missing",
}


class Finding(NamedTuple):
    """One name of Lightning in one script."""

    lines: tuple[int, ...]
    use: str
    """The name as the script uses it: ``Trainer(max_epochs=)``, ``trainer.fit``."""
    state: str
    here: str
    """What to write here."""
    note: str


def examine(files: Iterable[Path]) -> dict[Path, list[Finding]]:
    """Read scripts; the findings of each are ordered by line.

    Raises:
        ConfigurationError: A file cannot be read, or is not Python.
    """
    tables = read_tables()
    trees = {file: _parsed(file) for file in files}
    kinds = class_kinds(trees.values(), tables["callbacks"].rows)
    members = {name: section.rows for name, section in tables.items()}
    return {file: _findings(uses(tree, kinds, members), tables) for file, tree in trees.items()}


def _parsed(file: Path) -> ast.AST:
    try:
        return ast.parse(file.read_bytes(), filename=str(file))
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}.") from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise ConfigurationError(f"{file}{f':{line}' if line else ''}: is not Python: {error}.") from error


def _findings(found: Iterable[Use], tables: Mapping[str, Section]) -> list[Finding]:
    lines: dict[tuple[str, str, str], list[int]] = {}
    for use in found:
        lines.setdefault((use.section, use.name, use.call), []).append(use.line)
    findings = []
    for (section, name, call), numbers in lines.items():
        where = tables[section]
        if section == "names":
            where = next((tables[place] for place in IMPORTED if name in tables[place].rows), where)
        row = where.rows.get(name) or Row(name, MISSING, "", f"Lightning 2.6 has no such name in {where.peer!r}.")
        if section == "trainer_arguments" and name not in where.rows:
            from core.trainer.renamed import REMEDIES  # with torch, so only when it is needed

            row = row._replace(note=REMEDIES.get(name, row.note))
        if section == "names" and name not in where.rows:
            row = row._replace(note="The table has no such name; look for it in the docs.")
        findings.append(
            Finding(tuple(dict.fromkeys(numbers)), _shown(where, name, call), row.state, _written(where, row), row.note)
        )
    return findings


def _shown(section: Section, name: str, call: str) -> str:
    if section.name in IMPORTED:
        return name
    if call:
        return f"{call}({name}=)"
    before, arguments, _ = section.peer.partition("...")
    return f"{before}{name}=)" if arguments else f"{before}{name}"


def _written(section: Section, row: Row) -> str:
    """What to write: the import, or another name."""
    if row.state == MISSING:
        return ""
    if section.name in IMPORTED:
        module, _, name = row.here.rpartition(".")
        return f"from {module} import {name}" + (f" as {row.name}" if name != row.name else "")
    return "" if row.here == row.name else row.here


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
            lines.append("  uses nothing of Lightning")
        for state, heading in HEADINGS.items():
            of_state = [finding for finding in found if finding.state == state]
            lines += [f"  {heading}:"] if of_state else []
            width = max((len(finding.use) for finding in of_state), default=0)
            for finding in of_state:
                said = ". ".join(filter(None, (finding.here, finding.note)))
                lines.append(f"    {_numbers(finding.lines):>9}  {finding.use:<{width}}  {said}".rstrip())
        blocks.append("\n".join(lines))
    works, differs, missing = (_count(findings, state) for state in HEADINGS)
    blocks.append(f"{works} names work, {differs} differ, {missing} missing.")
    return "\n\n".join(blocks) + "\n"


def _numbers(lines: tuple[int, ...]) -> str:
    return ", ".join(map(str, lines)) if len(lines) <= 2 else f"{lines[0]}, {lines[1]}, …"


def _count(findings: Mapping[Path, Iterable[Finding]], state: str) -> int:
    return sum(finding.state == state for found in findings.values() for finding in found)
