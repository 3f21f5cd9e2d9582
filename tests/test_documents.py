"""What README and docs show is what happens."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
from python_processes import run_python

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The contents of a page's code blocks in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


WITH_PYTHON = [
    pytest.param(page, id=page.name, marks=[] if page.name == "README.md" else pytest.mark.slow)
    for page in PAGES
    if blocks(page, "python")
]


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """The Python on a page, put together, runs as a script, without a warning of ours."""
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(page, "python")), encoding="utf-8")
    run_python(script, cwd=tmp_path, warnings="error")


EXAMPLES = [
    (page.name, command, output)
    for page in PAGES
    for block in blocks(page, "console")
    for command, output in re.findall(r"^\$ python (-m core\.explain .*)\n((?:(?!\$ ).*\n)+)", block, re.MULTILINE)
]


@pytest.mark.parametrize(("page", "command", "output"), EXAMPLES)
def test_output_on_a_page_is_what_is_printed(page: str, command: str, output: str, tmp_path: Path) -> None:
    """The output shown below a command is what that command prints."""
    ended = run_python(*shlex.split(command), cwd=tmp_path, expect=None)
    assert ended.stdout + ended.stderr == output


def test_pages_show_output() -> None:
    """The search above finds the commands with output."""
    assert len(EXAMPLES) >= 2


def test_ci_runs_the_commands_of_the_readme() -> None:
    """README has two commands that do all the set-up; CI runs the second, which has the tests in it, as it stands."""
    train, check = (block.strip() for block in blocks(ROOT / "README.md", "console") if "nox -s" in block)
    assert train.endswith("nox -s digits")
    assert "tests" in check.rpartition("nox -s")[2].split()
    assert f"\n{check}\n" in (ROOT / ".ci" / "run").read_text("utf-8")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_sessions_that_pages_name_exist() -> None:
    """Every nox session named anywhere is one."""
    sessions = set(re.findall(r"^def (\w+)\(session: nox\.Session\) -> None:", (ROOT / "noxfile.py").read_text(), re.M))
    for page in PAGES:
        for arguments in re.findall(r"nox -s ([a-z ]+)", page.read_text("utf-8")):
            assert {*arguments.split()} <= sessions, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    """A relative link leads to a file of the project."""
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target
