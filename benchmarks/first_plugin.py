"""Follows docs/vendors.md in an empty directory, from nothing to a package whose tests pass, and times each step.

    python benchmarks/first_plugin.py            # prints the table
    python benchmarks/first_plugin.py --write    # and writes it into docs/vendors.md

The commands are those of the page, in its order. torch-hal is installed from this clone in place of an index, into a
new environment with torch from ``constraints.txt``.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "vendors.md"
BEGIN, END = "<!-- steps: written by benchmarks/first_plugin.py -->", "<!-- end of steps -->"


def commands(page: str) -> list[tuple[str, str | None]]:
    """The commands of the page's first section, each with the output that it shows, if any."""
    found: list[tuple[str, str | None]] = []
    section = page.partition("## 2. Fill in")[0]
    for language, text in re.findall(r"^```(sh|console)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
        if language == "sh":
            found += [(line, None) for line in text.splitlines()]
        else:
            shown = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE)
            found += [(command, output or None) for command, output in shown]
    return found


def follow(folder: Path, inherited: Mapping[str, str] = os.environ) -> list[tuple[str, float, str]]:
    """Run the commands in ``folder``; each with its seconds, and the last line that it prints."""
    environ = {name: value for name, value in inherited.items() if not name.startswith(("PYTHON", "CORE_"))}
    environ |= {"PATH": os.pathsep.join([str(folder / "fresh" / "bin"), environ["PATH"]]), "NO_COLOR": "1"}
    environ |= {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_QUIET": "1", "COLUMNS": "100"}
    where, steps = folder, []
    for command, shown in [("python -m venv fresh", None), *commands(PAGE.read_text("utf-8"))]:
        if command.startswith("cd "):
            where /= command[3:]
            continue
        # In place of an index, which does not have the packages yet.
        runs = command.replace("pip install torch-hal-devkit", f"pip install {ROOT} {ROOT / 'plugins' / 'devkit'}")
        began = time.monotonic()
        done = subprocess.run(runs, shell=True, cwd=where, env=environ, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
        if done.returncode != 0 or (shown is not None and done.stdout != shown):
            raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        lines = done.stdout.strip().splitlines()
        steps.append((command, seconds, lines[-1] if shown is None and lines else ""))
    return steps


def table(steps: Sequence[tuple[str, float, str]]) -> str:
    rows = [f"| `{command}` | {seconds:.0f} | {said.strip('= ')} |" for command, seconds, said in steps]
    total = sum(seconds for _, seconds, _ in steps)
    return "\n".join(["| step | seconds | |", "|---|---|---|", *rows, f"| all | {total:.0f} | |"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/vendors.md")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = table(follow(Path(folder)))
    sys.stdout.write(f"{found}\n")
    if options.write:
        head, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
        if not begin:
            raise SystemExit(f"{PAGE}: there is no line {BEGIN!r}")
        PAGE.write_text(f"{head}{BEGIN}\n\n{found}\n\n{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    main()
