"""Drawing SVG pictures that fit a light and a dark page: used by ``draw_pictures.py`` and ``draw_plots.py``.

The colours are CSS variables that follow ``prefers-color-scheme``. A site with its own switch sets ``color-scheme``
of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

__all__ = ["Picture", "bars"]

STYLE = """\
svg { --ink: #24292f; --quiet: #59636e; --line: #8c959f; --soft: #eef1f4; --page: #ffffff;
  --a: #4051b5; --b: #1a7f64; --c: #b35900; --a-soft: #dfe3f7; --b-soft: #d8efe8; --c-soft: #f9e5d0;
  color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e6e8eb; --quiet: #a5adb6; --line: #6e7781; --soft: #2b3038; --page: #1f2229;
    --a: #9fb0ff; --b: #6fd3b5; --c: #f0b072; --a-soft: #333c66; --b-soft: #1f463b; --c-soft: #553a1e; } }
text { font-family: system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; font-size: 14px; fill: var(--ink); }
.small { font-size: 12px; fill: var(--quiet); }
.strong { font-weight: 600; }
.code { font-family: ui-monospace, "Cascadia Code", "DejaVu Sans Mono", monospace; font-size: 12.5px; }
.arrow { stroke: var(--line); stroke-width: 1.6; fill: none; }
.head { fill: var(--line); }
"""


class Picture:
    """An SVG picture.

    Args:
        width: In pixels.
        height: In pixels.
        title: For those who cannot see it.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, color: str = "soft", border: str = "line") -> None:
        """A rounded box."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" '
            f'style="fill: var(--{color}); stroke: var(--{border})"/>'
        )

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "middle") -> None:
        """A line of text; ``y`` is its middle."""
        names = f' class="{style}"' if style else ""
        self.parts.append(f'<text x="{x:g}" y="{y + 4.5:g}"{names} text-anchor="{anchor}">{escape(text)}</text>')

    def lines(self, x: float, y: float, *lines: str, style: str = "small", anchor: str = "middle") -> None:
        """Lines of text, the first at ``y``."""
        for number, line in enumerate(lines):
            self.text(x, y + 17 * number, line, style, anchor)

    def arrow(self, *points: tuple[float, float]) -> None:
        """An arrow along the points, its last part horizontal or vertical."""
        (x0, y0), (x, y) = points[-2:]
        length = 7
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        path = " L".join(f"{px:g},{py:g}" for px, py in [*points[:-1], (x - length * dx, y - length * dy)])
        side = length / 2
        head = f"{x:g},{y:g} {x - length * dx - side * dy:g},{y - length * dy - side * dx:g} "
        head += f"{x - length * dx + side * dy:g},{y - length * dy + side * dx:g}"
        self.parts.append(f'<path class="arrow" d="M{path}"/><polygon class="head" points="{head}"/>')

    def bar(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """A filled bar."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{max(width, 1):.1f}" height="{height:g}" style="fill: var(--{color})"/>'
        )

    def line(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """A thin line."""
        self.parts.append(f'<path d="M{x:g},{y:g} L{to_x:g},{to_y:g}" style="stroke: var(--line); stroke-width: 0.7"/>')

    def svg(self) -> str:
        """The file's content."""
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(self.title)}</title>\n'
        return f"{head}<style>\n{STYLE}</style>\n" + "\n".join(self.parts) + "\n</svg>\n"


def bars(title: str, unit: str, series: Sequence[str], rows: Sequence[tuple[str, Sequence[float | None]]]) -> Picture:
    """A chart of horizontal bars.

    Args:
        title: Shown above.
        unit: Of the values.
        series: The names of each row's values; several have a legend.
        rows: A label, and a value for each of the series or ``None``.
    """
    label, chart, thick, gap = 265, 395, 9 if len(series) > 1 else 16, 9
    step = thick * len(series) + gap
    top = 58 if len(series) > 1 else 36
    picture = Picture(label + chart + 90, top + step * len(rows) + 10, title)
    picture.text(0, 12, title, "strong", "start")
    picture.text(picture.width, 12, unit, "small", "end")
    colors = ("c", "b", "a")[-len(series) :]
    for number, name in enumerate(series if len(series) > 1 else ()):
        x = label + 130 * number
        picture.bar(x, 31, 14, 10, colors[number])
        picture.text(x + 20, 36, name, "small", "start")
    largest = max(value for _, values in rows for value in values if value is not None)
    picture.line(label, top - 4, label, picture.height - 6)
    for number, (name, values) in enumerate(rows):
        y = top + step * number
        picture.text(label - 8, y + thick * len(series) / 2, name, "code", "end")
        for place, value in enumerate(values):
            if value is None:
                continue
            width = chart * max(value, 0) / largest
            picture.bar(label, y + thick * place, width, thick - 1, colors[place])
            if len(series) == 1 or place == len(series) - 1:
                middle = y + thick * (place + 0.5)
                picture.text(label + max(width, 1) + 6, middle, f"{value:,.4g}", "small", "start")
    return picture
