"""Draws docs/architecture.svg: the parts of ``core`` as boxes, and the imports between them as arrows.

Imports inside functions and inside ``if TYPE_CHECKING`` count like all others, but for that of the Trainer, which is
only a type. The import contracts in ``pyproject.toml`` keep them free of circles.

Run it with ``nox -s picture``. ``nox -s lint`` runs it with ``--check``.
"""

from __future__ import annotations

import argparse
import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

import grimp

PICTURE = Path(__file__).with_name("architecture.svg")
WIDTH, MARGIN, HEIGHT, GAP = 1000, 20, 62, 46


class Box(NamedTuple):
    """A part of core."""

    title: str
    content: str
    rooms: str
    """The modules and packages directly in ``core`` that belong to it."""


ROWS = [
    [
        Box(
            "Tools",
            "the verbs of torch-hal, the CLI of a script",
            "__main__ cli commands conformance convert doctor explain list new_plugin run",
        )
    ],
    [Box("Front ends", "trainer/ callbacks/ runtime/", "trainer callbacks runtime")],
    [
        Box("Plan", "what runs, where, and why", "plan"),
        Box("Data and loggers", "data/ loggers/ profilers/", "data loggers profilers"),
    ],
    [
        Box("Discovery", "what is installed", "discovery"),
        Box("Strategies", "launchers/ group/ store/ failures/ step/ ...", "strategies"),
    ],
    [Box("Logging and random numbers", "of one process of several", "logging random")],
    [
        Box("Accelerators", "hardware", "accelerators"),
        Box("Precisions", "dtypes", "precisions"),
        Box("Checkpoints", "bytes and commits", "checkpoints"),
        Box("Environments", "ranks and addresses", "environments"),
    ],
    [
        Box(
            "Contract",
            "kinds specs hookspecs registration errors hints/ utilities/",
            "builtin errors hints hookspecs kinds registration specs utilities",
        )
    ],
]


def main() -> None:
    """Draw the picture, or with ``--check`` compare it with the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the picture is out of date")
    options = parser.parse_args()
    picture = draw(imports())
    if not options.check:
        PICTURE.write_text(picture, encoding="utf-8")
    elif not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != picture:
        sys.exit(f"docs/{PICTURE.name} does not show today's imports. Run: nox -s picture")


def imports() -> set[tuple[str, str]]:
    """The pairs of boxes of which the first imports the second, without those to which a longer way leads as well."""
    sys.path.insert(0, str(PICTURE.parents[1]))
    homes = {room: box.title for row in ROWS for box in row for room in box.rooms.split()}
    graph = grimp.build_graph("core", cache_dir=None)
    found: dict[str, set[str]] = {title: set() for title in homes.values()}
    for module in graph.modules - {"core"}:
        room = module.split(".")[1]
        if room not in homes:
            sys.exit(f"docs/draw_architecture.py: core.{room} is in no box")
        for other in graph.find_modules_directly_imported_by(module) - {"core", "core.trainer.trainer"}:
            found[homes[room]].add(homes[other.split(".")[1]])
        found[homes[room]].discard(homes[room])

    def reached(title: str) -> set[str]:
        return found[title].union(*(reached(other) for other in found[title]))

    return {(a, b) for a in found for b in found[a] if not any(b in reached(c) for c in found[a] - {b})}


def draw(arrows: set[tuple[str, str]]) -> str:
    """The picture, as SVG."""
    places, parts = {}, []
    for number, row in enumerate(ROWS):
        width = (WIDTH - 2 * MARGIN - GAP * (len(row) - 1)) / max(len(row), 2)
        left = (WIDTH - width * len(row) - GAP * (len(row) - 1)) / 2
        for box in row:
            top = MARGIN + number * (HEIGHT + GAP)
            places[box.title] = (left + width / 2, top)
            parts += [
                f'<rect x="{left:.0f}" y="{top}" width="{width:.0f}" height="{HEIGHT}" rx="6"/>',
                f'<text class="title" x="{left + width / 2:.0f}" y="{top + 26}">{escape(box.title)}</text>',
                f'<text x="{left + width / 2:.0f}" y="{top + 46}">{escape(box.content)}</text>',
            ]
            left += width + GAP
    lines = []
    for start, end in sorted(arrows):
        (x, y), (to_x, to_y) = places[start], places[end]
        shift = max(-60.0, min(60.0, (to_x - x) / 4))  # so that arrows from one box do not hide one another
        lines.append(f'<path d="M{x + shift:.0f} {y + HEIGHT}L{to_x - shift:.0f} {to_y - 1}"/>')
    height = 2 * MARGIN + len(ROWS) * (HEIGHT + GAP) - GAP
    told = "; ".join(f"{start} imports {end}" for start, end in sorted(arrows))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
            f"<title>The parts of core and their imports</title><desc>{escape(told)}.</desc>",
            "<style>text{font:13px sans-serif;fill:#333;text-anchor:middle}.title{font-weight:bold;font-size:16px}"
            "rect{fill:#fff;stroke:#456}path{stroke:#89a;stroke-width:1.4;marker-end:url(#tip)}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path d="M0 0L8 4L0 8z" style="fill:#567;stroke:none;marker-end:none"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{height}" style="stroke:none"/>',
            *lines,
            *parts,
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    main()
