"""Writes a benchmark's results into a page."""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata
from pathlib import Path

__all__ = ["versions", "write_between"]


def write_between(page: Path, name: str, text: str) -> None:
    """Replace what is between the comments ``name:begin`` and ``name:end`` of a page.

    Args:
        page: In Markdown.
        name: Of the pair of comments.
        text: What is put there, with an empty line before and after.

    Raises:
        SystemExit: The page lacks one of them.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, begun, rest = page.read_text("utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise SystemExit(f"{page}: no {begin} with {end} after it")
    page.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}", "utf-8")


def versions(*names: str) -> str:
    """Those of the packages that are installed, with their versions."""
    found = []
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return ", ".join(found)
