"""Follows the documentation as a newcomer does: a fresh clone, an empty home directory, a new environment.

    python benchmarks/first_hour.py                    # prints the tables; exit code 1 if a page does not work
    python benchmarks/first_hour.py --write            # and writes them into docs/install.md
    python benchmarks/first_hour.py --pages data.md    # only installation and these pages

README's first command trains a network, and the commands of docs/install.md install torch-hal. Then the blocks of each
page run in the order of the navigation, each page in an empty directory, by the code that ``tests/test_documents.py``
uses. What a page needs beyond torch-hal is installed where the page says so. At last docs/vendors.md leads to a plugin,
and the script of docs/migrating-from-lightning.md is written for Lightning again and migrated as the page says.

Commands get PATH and HOME, and settings of pip in ``PIP_...``: the table names the torch that ``pip`` finds with these.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import NamedTuple

from first_plugin import follow
from pages import write_between

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from pages_shown import blocks, is_run, matches, run_blocks  # noqa: E402

NEEDS = {
    "cli.md": ["torch-hal[cli]"],
    "checkpoint-authors.md": ["safetensors"],
    "conformance.md": ["torch-hal-devkit"],
    "environment-authors.md": ["torch-hal-devkit"],
    "memory.md": ["torch-hal-tools", "torch-hal-fsdp"],
    "migrating-from-accelerate.md": ["torch-hal-migrate"],
    "migrating-from-lightning.md": ["torch-hal-migrate"],
}
"""What is installed before a page is read, as the page says."""
WITH_NAMES = ["torch-hal-fsdp"]
"""Those that are removed after the page: other pages list the names of core alone."""
BY_ANOTHER_WAY = {"vendors.md"}
"""Its commands install a package between them: ``first_plugin.py`` follows it."""


class Step(NamedTuple):
    """Something that a newcomer did."""

    name: str
    seconds: float
    result: str
    """``"works"``, or what went wrong."""


class Newcomer:
    """A clone in an empty folder, with an empty home directory, and what was done there."""

    def __init__(self, folder: Path) -> None:
        self.clone, self.home, self.steps = folder / "clone", folder / "home", list[Step]()
        self.home.mkdir()
        settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "COLUMNS": "80",
            "NO_COLOR": "1",
            **settings,
        }

    def activate(self, environment: Path) -> None:
        """As ``. environment/bin/activate``."""
        self.environ["PATH"] = os.pathsep.join([str(environment / "bin"), os.environ["PATH"]])
        self.environ["VIRTUAL_ENV"] = str(environment)

    def shell(self, command: str, folder: Path, expect: int | None = None, only_output: bool = False) -> str:
        """Run a command; its standard output, and standard error unless ``only_output``."""
        with tempfile.TemporaryFile("w+") as errors:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors if only_output else subprocess.STDOUT,
                text=True,
                timeout=1800,
                check=False,
            )
            errors.seek(0)
            printed = f"{done.stdout}\n{errors.read()}"[-3000:]
        assert expect in (None, done.returncode), f"$ {command}\nexit code {done.returncode}\n{printed}"
        return done.stdout

    def step(self, name: str, work: Callable[[], object]) -> float:
        began = time.monotonic()
        result = "works"
        try:
            work()
        except (AssertionError, ValueError, SystemExit, subprocess.TimeoutExpired) as error:
            result = (str(error).strip().splitlines() or [type(error).__name__])[0]
            print(f"{name}:\n{error}", file=sys.stderr)
        self.steps.append(Step(name, time.monotonic() - began, result))
        print(f"{name}: {self.steps[-1].seconds:.0f} s, {result}", flush=True)
        return self.steps[-1].seconds


def pages() -> list[Path]:
    """README, the pages of the navigation in its order, and the examples' page: those with something to run.

    Not those that the site makes of notebooks, which ``nox -s notebooks`` executes.
    """
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2].partition("\nvalidation:")[0]
    named = re.findall(r"(\S+\.md)$", navigation, re.MULTILINE)
    order = [ROOT / "docs" / name for name in named if not name.startswith("notebooks/")]
    return [page for page in (ROOT / "README.md", *order, ROOT / "examples" / "README.md") if is_run(page)]


def read(newcomer: Newcomer, page: Path, folder: Path) -> None:
    """Install what the page says, then run its blocks."""
    for needed in NEEDS.get(page.name, ()):
        assert re.search(rf"pip install\s['\"]?{re.escape(needed)}", page.read_text("utf-8")), f"does not say: {needed}"
        # As docs/install.md says, until there is an index.
        here = re.sub(r"^torch-hal(?=\[|$)", ".", re.sub(r"^torch-hal-", "./plugins/", needed))
        newcomer.shell(f"pip install -q '{here}'", newcomer.clone, expect=0)
    folder.mkdir()

    def script(name: str) -> str:
        return newcomer.shell(f"python {name}", folder, expect=0, only_output=True)

    run_blocks(page, folder, script, partial(newcomer.shell, folder=folder))
    for needed in set(NEEDS.get(page.name, ())).intersection(WITH_NAMES):
        newcomer.shell(f"pip uninstall -q -y {needed}", newcomer.clone, expect=0)


def migrate(newcomer: Newcomer, folder: Path) -> None:
    """Write the page's script for Lightning, ask ``torch-hal migrate``, change the imports, and train."""
    page = ROOT / "docs" / "migrating-from-lightning.md"
    (diff,) = blocks(page, "diff")
    before, after = ("\n".join(re.findall(rf"^[{sign}](.*)$", diff.text, re.MULTILINE)) for sign in "-+")
    block = next(block for block in blocks(page, "python") if block.output)
    assert after in block.text, "the page's script does not have the imports of its diff"
    assert block.output is not None
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(block.text.replace(after, before), "utf-8")
    found = newcomer.shell("torch-hal migrate train.py", folder, expect=0)
    assert "\n  missing:" not in found, found
    script.write_text(script.read_text("utf-8").replace(before, after), "utf-8")
    printed = newcomer.shell("python train.py", folder, expect=0, only_output=True)
    assert matches(block.output, printed[printed.rindex("steps ") :]), printed


def commands_of(page: Path) -> str:
    """The commands of the first block for a shell on a page."""
    return blocks(page, "sh")[0].text


class Found(NamedTuple):
    """What an hour brought."""

    steps: list[Step]
    seconds: dict[str, float]
    """From a clone to each aim."""
    torch: str
    """Its version."""


def hour(folder: Path, only: Sequence[str]) -> Found:
    """Follow everything, or installation and some pages."""
    newcomer = Newcomer(folder)
    shell = newcomer.shell
    cloned = newcomer.step("`git clone`", lambda: shell(f"git clone -q {ROOT} clone", folder, expect=0))
    seconds: dict[str, float] = {}
    if not only:
        first = next(block.text for block in blocks(ROOT / "README.md", "console") if "nox -s digits" in block.text)
        trained = newcomer.step(f"README: `{first.strip()}`", lambda: shell(first, newcomer.clone, expect=0))
        seconds["a first trained model, by README's first command"] = cloned + trained
        newcomer.shell("rm -rf .venv", newcomer.clone)
    install = commands_of(ROOT / "docs" / "install.md")
    installed = cloned + newcomer.step("install.md: its first block", lambda: shell(install, newcomer.clone, expect=0))
    newcomer.activate(newcomer.clone / ".venv")
    torch = shell("python -W ignore -c 'import torch; print(torch.__version__)'", folder).split()[-1]
    for number, page in enumerate(pages()):
        inside = page.parent.name == "docs"
        name = f"[{page.name}]({page.name})" if inside else f"`{page.relative_to(ROOT)}`"
        if page.name in BY_ANOTHER_WAY or (only and page.name not in only):
            continue
        took = newcomer.step(name, partial(read, newcomer, page, folder / f"page{number}"))
        if page.name == "five-minutes.md":
            seconds["a first trained model, by the pages install and five minutes"] = installed + took
    if not only:
        took = newcomer.step("a migrated Lightning script", lambda: migrate(newcomer, folder / "migrated"))
        seconds["a migrated Lightning script"] = installed + took
        (folder / "plugin").mkdir()
        took = newcomer.step("vendors.md: a first plugin", lambda: follow(folder / "plugin", newcomer.environ))
        seconds["a first plugin of your own, whose tests pass"] = cloned + took
    return Found(newcomer.steps, seconds, torch)


def tables(found: Found) -> str:
    aims = [f"| {name} | {seconds / 60:.1f} |" for name, seconds in found.seconds.items()]
    cells = [(name, f"{seconds:.0f}", result.replace("|", "\\|")) for name, seconds, result in found.steps]
    rows = [f"| {' | '.join(row)} |" for row in cells]
    machine = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, torch {found.torch}"
    heads = ["| from the clone to | minutes |", "|---|---|", *aims, "", f"Measured on {date.today()}: {machine}.", ""]
    return "\n".join([*heads, "| step or page | seconds | result |", "|---|---|---|", *rows])


def main(arguments: Sequence[str] | None = None) -> None:
    """Follow the documentation, and show how long it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the tables into docs/install.md")
    parser.add_argument("--pages", nargs="+", default=[], metavar="PAGE", help="only installation and these pages")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = hour(Path(folder).resolve(), options.pages)
    print(tables(found))
    if options.write:
        write_between(ROOT / "docs" / "install.md", "first hour", tables(found))
    if any(step.result != "works" for step in found.steps):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
