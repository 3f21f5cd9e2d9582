"""The code blocks of a page, and whether what they show happens."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Block(NamedTuple):
    """A code block of a page."""

    language: str
    title: str
    text: str
    output: str | None
    """What the page shows directly below it as its output."""

    @property
    def commands(self) -> list[tuple[str, str]]:
        """The commands of a block for a console, each with the output below it."""
        return re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", self.text, re.MULTILINE)


def blocks(page: Path, *languages: str) -> list[Block]:
    """The code blocks of a page in one of the languages."""
    found = re.findall(
        r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```$(?:\n\n```text title="Output"\n(.*?)^```$)?',
        page.read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    return [Block(kind, title, text, output or None) for kind, title, text, output in found if kind in languages]


def is_run(page: Path) -> bool:
    """Whether a page has anything for :func:`run_blocks`."""
    return bool(blocks(page, "python")) or any(block.commands for block in blocks(page, "console"))


MEASURED = {
    r"\b\d+:\d\d:\d\d\b": "0:00:00",
    r"\b\d{4}-\d\d-\d\d\b": "2026-01-01",
    r"\b[\d.]+(e\+\d+)?/s\b": "1/s",
    r"memory=[\d.]+ GB": "memory=1 GB",
    r"\b[\d.]+ kB": "1 kB",
}
"""What each run prints anew."""


WAITS = re.compile(r"^rank \d+ of \d+ waits .*\n", re.MULTILINE)
"""What a process prints if others take longer than 10 s to start, as on a busy machine."""


def matches(shown: str, printed: str) -> bool:
    """Whether a page shows what is printed; ``...`` stands for any text, any time, rate or size is right."""
    printed = WAITS.sub("", printed)
    for measured, constant in MEASURED.items():
        shown, printed = (re.sub(measured, constant, text) for text in (shown, printed))
    pattern = ".*".join(map(re.escape, shown.rstrip().split("...")))
    return re.fullmatch(pattern, printed.rstrip(), re.DOTALL) is not None


MARKER = """
import os as _os

def _block_begins(number):
    if __name__ == "__main__" and _os.environ.get("RANK", "0") == "0":
        print(f"\\x1e{number}", flush=True)
"""
"""Prints where the output of a block begins, once."""


def run_blocks(page: Path, folder: Path, script: Callable[[str], str], command: Callable[[str], str]) -> None:
    """Run a page's Python as one script, then its commands; compare what they print with what the page shows.

    Args:
        page: In Markdown. A block with a title is written into the file of that name.
        folder: The working directory.
        script: Runs a script of the folder, which must end with exit code 0; returns its standard output.
        command: Runs a command of the shell in the folder; returns its standard output and standard error.

    Raises:
        AssertionError: Something else is printed.
    """
    parts: list[str] = [MARKER]
    expected: list[Block] = []
    for block in blocks(page, "python", "yaml", "toml"):
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            parts.append(f"_block_begins({len(expected)})\n{block.text}")
            expected.append(block)
    if expected:
        (folder / "page.py").write_text("\n".join(parts), encoding="utf-8")
        outputs = re.split(r"\x1e\d+\n", script("page.py"))[1:]
        for block, output in zip(expected, outputs, strict=True):
            assert block.output is None or matches(block.output, output), f"{block.text}\nprinted:\n{output}"
    for block in blocks(page, "console"):
        for line, shown in block.commands:
            printed = command(line).replace(f"{folder}/", "")
            assert matches(shown, printed), f"$ {line}\n{printed}"
