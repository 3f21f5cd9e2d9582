"""Draws a terminal session for README: an SVG of what a terminal shows of some commands, in which lines appear.

    python docs/draw_terminal.py    # in an environment with torch-hal; it installs the hardware plugins for the picture

It runs ``train.py`` from ``docs/five-minutes.md``.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
HARDWARE = ("cuda", "hpu", "ipu", "mps", "npu", "xla", "xpu")
COMMANDS = (
    "torch-hal list --kind accelerator",
    "torch-hal run --accelerator cpu --devices 2 train.py",
    "torch-hal explain --accelerator cuda --devices 2 2>&1 | fold -s -w 88",
)
COLORS = {31: "#ff7b72", 32: "#7ee787", 33: "#f2cc60", 34: "#79c0ff", 35: "#d2a8ff", 36: "#76e3ea", 90: "#8b949e"}
SIZE, LINE, COLUMNS = 13, 19, 92
Run = tuple[str, str]
"""Text, and its style as CSS."""


def main() -> None:
    """Run the commands and write the picture."""
    page = (ROOT / "docs" / "five-minutes.md").read_text("utf-8")
    script = re.search(r'^```python title="train.py"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)
    assert script is not None
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(script[1], "utf-8")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
        projects = [str(ROOT / "plugins" / name) for name in HARDWARE]
        subprocess.run([*pip, "--target", f"{folder}/installed", *projects], check=True)
        lines: list[tuple[float, list[Run]]] = []
        second = 0.5
        for command in COMMANDS:
            lines.append((second, [("$ ", "fill: #8b949e"), (command, "fill: #ffffff; font-weight: 600")]))
            second += 1.0
            for line in shown(command, folder).splitlines():
                lines.append((second, runs(line)))
                second += 0.12
            lines.append((second, []))
            second += 1.0
    (ROOT / "docs" / "pictures" / "terminal.svg").write_text(svg(lines[:-1]), "utf-8")


def shown(command: str, folder: str) -> str:
    """What a terminal shows of a command, at its end."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": f"{folder}/installed",
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
    }
    parent, child = pty.openpty()
    termios.tcsetwinsize(child, (40, COLUMNS))
    with subprocess.Popen(
        ["sh", "-c", command], cwd=folder, env=env, stdin=child, stdout=child, stderr=child
    ) as process:
        os.close(child)
        output = b""
        try:
            while part := os.read(parent, 65536):
                output += part
        except OSError:  # the terminal's other end is closed
            pass
        process.wait()
    return on_screen(output.decode())


def on_screen(output: str) -> str:
    """What is left on the screen of what was written: bars go up to their line and draw it again."""
    screen, row, column = [""], 0, 0
    for part in re.split(r"(\r\n|\r|\n|\x1b\[A)", output):
        if part in ("\n", "\r\n"):
            row, column = row + 1, 0
            screen += [""] * (row == len(screen))
        elif part == "\x1b[A":
            row -= 1
        elif part == "\r":
            column = 0
        else:
            text = re.sub(r"\x1b\[[0-9;?]*[A-LN-Za-ln-z]", "", part)
            line = screen[row].ljust(column)
            screen[row] = line[:column] + text + line[column + len(text) :]
            column += len(text)
    return "\n".join(line.rstrip() for line in screen).rstrip()


def runs(line: str) -> list[Run]:
    """The parts of a line, by colour."""
    found: list[Run] = []
    style: dict[str, str] = {}
    for code, text in re.findall(r"(?:\x1b\[([\d;]*)m)?([^\x1b]*)", line):
        for number in map(int, filter(None, (code or "").split(";"))):
            if number == 0:
                style = {}
            elif number == 1:
                style["font-weight"] = "600"
            elif number == 2:
                style["fill"] = "#8b949e"
            elif number in COLORS or number - 60 in COLORS:
                style["fill"] = COLORS.get(number, COLORS.get(number - 60, "#e6edf3"))
        if text:
            found.append((text[:COLUMNS], "; ".join(f"{key}: {value}" for key, value in style.items())))
    return found


def svg(lines: list[tuple[float, list[Run]]]) -> str:
    """The picture; each line appears at its second. Without movement, and where it is not wanted, all are there."""
    width, height = 780, 62 + LINE * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>torch-hal in a terminal: what is installed, a run, and why something does not run</title>",
        "<style>text { font-family: ui-monospace, 'Cascadia Code', 'DejaVu Sans Mono', Menlo, monospace; "
        f"font-size: {SIZE}px; fill: #e6edf3; white-space: pre; }}",
        "@keyframes show { from { opacity: 0; } to { opacity: 1; } }",
        "@media (prefers-reduced-motion: no-preference) { .line { animation: show 0.1s linear backwards; } }</style>",
        f'<rect width="{width}" height="{height}" rx="9" fill="#161b22"/>',
        *(
            f'<circle cx="{20 + 20 * n}" cy="20" r="6" fill="{c}"/>'
            for n, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        ),
    ]
    for number, (second, line) in enumerate(lines):
        spans = "".join(f'<tspan style="{style}">{escape(text)}</tspan>' for text, style in line)
        if spans:
            where = f'x="18" y="{54 + LINE * number}" class="line" style="animation-delay: {second:.2f}s"'
            parts.append(f'<text {where} xml:space="preserve">{spans}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    main()
