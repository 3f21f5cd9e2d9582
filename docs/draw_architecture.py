"""Draws docs/architecture.svg from the imports in ``core/``: its packages, their files, and the imports between them.

A room is a module or package directly in ``core``. The rows are the layers of the import contract in
``pyproject.toml``. Imports inside functions and inside ``if TYPE_CHECKING`` count like all others.

Run it with ``nox -s picture``. ``nox -s lint`` runs it with ``--check``.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

import grimp

HERE = Path(__file__).parent
PICTURE = HERE / "architecture.svg"
ROOT = "core"

WIDTH = 1240
MARGIN = 20
GAP_X, GAP_Y = 18, 46
LINE = 13
HEADING = 24
CHARACTER = 6.1
"""Width of a character of the small font, in pixels."""

Graph = Mapping[str, set[str]]


def main() -> None:
    """Draw the picture, or with ``--check`` compare it with the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the picture is out of date")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE.parent))
    modules = module_graph()
    layers = contract_layers()
    if faults := upward(room_graph(modules), layers) + circles(modules):
        sys.exit("\n".join(faults))
    picture = draw(modules, layers)
    if not options.check:
        PICTURE.write_text(picture, encoding="utf-8")
    elif not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != picture:
        sys.exit(f"docs/{PICTURE.name} does not show today's imports. Run: nox -s picture")


def module_graph() -> Graph:
    """Each module of the package -> the modules of the package that it imports."""
    graph = grimp.build_graph(ROOT, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in sorted(graph.modules)}


def contract_layers() -> list[list[str]]:
    """The rooms of each layer, from the top, as the first import contract in ``pyproject.toml`` lists them."""
    settings = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract.get("containers") == [ROOT])
    rows = [[room.strip(" ()") for room in layer.replace(":", "|").split("|")] for layer in layers]
    return [
        [
            room
            for room in row
            if HERE.parent.joinpath(ROOT, room).with_suffix(".py").exists() or HERE.parent.joinpath(ROOT, room).is_dir()
        ]
        for row in rows
    ]


def room_of(module: str) -> str:
    """The room that ``module`` lies in; empty for the package itself."""
    return module.split(".")[1] if "." in module else ""


def room_graph(modules: Graph) -> dict[str, set[str]]:
    """Each room -> the rooms that it imports."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for module, imported in modules.items():
        if room := room_of(module):
            rooms[room] |= {room_of(other) for other in imported} - {room, ""}
    return dict(rooms)


def upward(rooms: Graph, layers: list[list[str]]) -> list[str]:
    """A line for each import that does not lead to a lower layer, and for each room that no layer has."""
    level = {room: number for number, layer in enumerate(layers) for room in layer}
    missing = [f"core.{room}: in no layer of the import contract" for room in rooms if room not in level]
    return missing + [
        f"core.{room} imports core.{other}, which is not in a lower layer"
        for room, imported in rooms.items()
        for other in sorted(imported)
        if room in level and other in level and level[other] <= level[room]
    ]


def circles(modules: Graph) -> list[str]:
    """A line for each group of modules that import one another in a circle."""
    reach = {module: reachable(module, modules) for module in modules}
    found = {
        tuple(sorted({module} | {other for other in reach[module] if module in reach[other]}))
        for module in modules
        if module in reach[module]
    }
    return [f"a circle of imports: {', '.join(circle)}" for circle in sorted(found)]


def reachable(start: str, graph: Graph) -> set[str]:
    """Everything that ``start`` imports, directly or not."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        ahead += (new := graph.get(ahead.pop(), set()) - found)
        found |= new
    return found


def without_shortcuts(rooms: Graph) -> list[tuple[str, str]]:
    """The imports between rooms without those that lead where a longer way leads as well."""
    return [
        (room, other)
        for room, imported in sorted(rooms.items())
        for other in sorted(imported)
        if not any(other in reachable(third, rooms) for third in imported - {other})
    ]


def ordered_files(room: str, modules: Graph) -> list[str]:
    """The room's modules, each after those that import it."""
    inside = {module: imported for module, imported in modules.items() if module.startswith(f"{ROOT}.{room}.")}
    inside = {module: imported & inside.keys() for module, imported in inside.items()}
    # What imports another module reaches all that it reaches, and the module itself.
    below = {module: len(reachable(module, inside)) for module in inside}
    return [module.removeprefix(f"{ROOT}.{room}.") for module in sorted(inside, key=lambda name: (-below[name], name))]


def wrapped(names: Iterable[str], width: float) -> list[str]:
    """``names``, separated by commas, in lines that fit into ``width`` pixels."""
    lines, line = [], ""
    for name in names:
        longer = f"{line}, {name}" if line else name
        if line and len(longer) * CHARACTER > width:
            lines.append(f"{line},")
            longer = name
        line = longer
    return [*lines, line] if line else []


def draw(modules: Graph, layers: list[list[str]]) -> str:
    """The picture, as SVG."""
    rooms = room_graph(modules)
    boxes: dict[str, tuple[float, float, float, float]] = {}
    texts: list[str] = []
    top = float(MARGIN)
    for layer in layers:
        files = {room: ordered_files(room, modules) for room in layer}
        weights = {
            room: max(126.0, min(560.0, CHARACTER * sum(len(name) + 2 for name in files[room]) / 3)) for room in layer
        }
        room_left = WIDTH - 2 * MARGIN - GAP_X * (len(layer) - 1)
        scale = min(1.0, room_left / sum(weights.values()))
        used = sum(weights.values()) * scale + GAP_X * (len(layer) - 1)
        left = (WIDTH - used) / 2
        lines = {room: wrapped(files[room], weights[room] * scale - 16) for room in layer}
        for room in layer:
            width, height = weights[room] * scale, HEADING + 6 + LINE * len(lines[room])
            boxes[room] = (left, top, width, height)
            texts.append(f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{height}" rx="5"/>')
            title = f"{room}/" if files[room] else room
            texts.append(f'<text class="room" x="{left + 8:.0f}" y="{top + 17:.0f}">{escape(title)}</text>')
            texts += [
                f'<text x="{left + 8:.0f}" y="{top + HEADING + 8 + LINE * number:.0f}">{escape(line)}</text>'
                for number, line in enumerate(lines[room])
            ]
            left += width + GAP_X
        top += max(boxes[room][3] for room in layer) + GAP_Y
    arrows = [arrow(boxes[room], boxes[other]) for room, other in without_shortcuts(rooms)]
    told = "; ".join(f"{room}: {', '.join(sorted(imported)) or 'nothing'}" for room, imported in sorted(rooms.items()))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top - GAP_Y + MARGIN:.0f}" role="img">',
            "<title>The packages of core and their imports</title>",
            f"<desc>Each package and the packages that it imports. {escape(told)}.</desc>",
            "<style>text{font:10.5px sans-serif;fill:#333}.room{font-weight:bold;font-size:13px}"
            "rect{fill:#fff;stroke:#456}path{fill:none;stroke:#89a;stroke-width:1.2;marker-end:url(#tip)}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z" style="fill:#567;stroke:none;marker-end:none"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{top - GAP_Y + MARGIN:.0f}" style="stroke:none"/>',
            *arrows,
            *texts,
            "</svg>",
            "",
        ]
    )


def arrow(start: tuple[float, float, float, float], end: tuple[float, float, float, float]) -> str:
    """A curve from the lower edge of one box to the upper edge of another."""
    start_x, start_y = start[0] + start[2] / 2, start[1] + start[3]
    end_x, end_y = end[0] + end[2] / 2, end[1] - 1
    # Arrows that come from the left end on the left, so that they do not hide one another.
    shift = max(-0.35, min(0.35, (start_x - end_x) / WIDTH))
    start_x -= shift * start[2] * 0.8
    end_x += shift * end[2] * 0.8
    bend = min(60.0, (end_y - start_y) / 2)
    return (
        f'<path d="M{start_x:.0f} {start_y:.0f}C{start_x:.0f} {start_y + bend:.0f} '
        f'{end_x:.0f} {end_y - bend:.0f} {end_x:.0f} {end_y:.0f}"/>'
    )


if __name__ == "__main__":
    main()
