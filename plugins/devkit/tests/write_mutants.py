"""Writes the tables of the contract and of mutants in docs/conformance.md from their data; ``--check`` only compares.

Usage, in ``plugins/devkit``: ``python -m tests.write_mutants [--check]``
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

from torch_hal_devkit.contract import CONTRACT, PROPERTIES, UNWATCHED, Method

from torch_hal.kinds import KINDS

from . import mutants, mutants_of_modules, mutants_of_parts, mutants_of_values
from .kit import SIMULATED

PAGE = Path(__file__).parents[3] / "docs" / "conformance.md"
BEGIN, END = "<!-- mutants: written by plugins/devkit/tests/write_mutants.py -->", "<!-- end of mutants -->"
CONTRACT_BEGIN = "<!-- contract: written by plugins/devkit/tests/write_mutants.py -->"
CONTRACT_END = "<!-- end of contract -->"


def contract() -> str:
    """One row for each method: what it may change of the process, and how many tests prove each property."""
    lines = [CONTRACT_BEGIN, "", "| property | what is tested |", "|---|---|"]
    lines += [f"| {name} | {text.replace('``', '`')} |" for name, text in PROPERTIES.items()]
    for kind, methods in CONTRACT.items():
        lines += ["", f"### {KINDS[kind].title[0].upper()}{KINDS[kind].title[1:]}", ""]
        lines += [f"| method | may change | {' | '.join(PROPERTIES)} |", f"|---|---|{'---|' * len(PROPERTIES)}"]
        lines += [_contract_row(name, row) for name, row in methods.items() if row.tests]
        reasons: dict[str, list[str]] = {}
        for name, row in methods.items():
            if row.untested:
                reasons.setdefault(row.untested, []).append(f"`{name}`")
        if reasons:
            told = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
            lines += ["", f"Not tested: {told}."]
    return "\n".join([*lines, "", CONTRACT_END])


def _contract_row(name: str, row: Method) -> str:
    changes = "whatever the program does" if name in UNWATCHED else ", ".join(row.may_change) or "nothing"
    cells = [str(len(row.tests.get(property_, ())) or "-") for property_ in PROPERTIES]
    return f"| `{name}` | {changes} | {' | '.join(cells)} |"


def table() -> str:
    """One row for each mutant and the test that is meant for it."""
    every_mutant = [
        one
        for module in (mutants, mutants_of_parts, mutants_of_values, mutants_of_modules)
        for name in module.__all__
        if isinstance(group := getattr(module, name), list)
        for one in group
    ]
    rows = [f"| {KINDS[one.kind].title} | {_case(one)} | `{one.test}` |" for one in every_mutant]
    numbers = Counter(KINDS[one.kind].title for one in every_mutant)
    counts = [f"| {title} | {number} | {number} |" for title, number in numbers.items()]
    counts += [f"| all | {len(rows)} | {len(rows)} |"]
    intro = "All are noticed, each by the test that is meant for it (`nox -s exhaustive`; CI runs a draw):"
    head = ["| kind | broken rules | noticed |", "|---|---|---|", *counts]
    return "\n".join(
        [BEGIN, "", intro, "", *head, "", "| kind | what is broken | noticed by |", "|---|---|---|", *rows, "", END]
    )


def _case(mutant: mutants.Mutant) -> str:
    """What it breaks: the docstring of its class, its name in words, or what is written into its module."""
    text = next((text for text in (mutant.hooks, mutant.target, mutant.startup) if text), "")
    if not mutant.is_class and (text or mutant.detect != "return 2"):
        return f"`{text or mutant.detect}`"
    return _docstrings(mutant.kind).get(mutant.name, mutant.name.replace("_", " "))


def _docstrings(kind: str) -> dict[str, str]:
    files = (SIMULATED / "torch_hal_mutants").glob(f"{KINDS[kind].group.removeprefix('core.')}*.py")
    nodes = [node for file in files for node in ast.parse(file.read_text("utf-8")).body]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    return {node.name.lower(): _line(ast.get_docstring(node)) or _words(node.name) for node in classes}


def _line(docstring: str | None) -> str:
    return " ".join((docstring or "").split()).rstrip(".").replace("``", "`").replace("|", "\\|")


def _words(name: str) -> str:
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*", name)).lower()


def main() -> int:
    """Write the page, or compare it; returns the exit code."""
    page = PAGE.read_text("utf-8")
    begin = BEGIN in page and CONTRACT_BEGIN in page
    written = page
    for first, last, text in ((BEGIN, END, table()), (CONTRACT_BEGIN, CONTRACT_END, contract())):
        written = written.partition(first)[0] + text + written.partition(last)[2]
    if not begin or "--check" in sys.argv:
        return int(written != page)
    PAGE.write_text(written, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
