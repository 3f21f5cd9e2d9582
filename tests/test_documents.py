"""What README and docs show is what happens."""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from pages_shown import blocks, is_run, run_blocks
from python_processes import run_program, run_python

from core import Runtime, Trainer
from core.accelerators import CAPABILITIES
from core.commands.verbs import available_verbs
from core.plan import Request, resolve

ROOT = Path(__file__).parents[1]
VERBS = available_verbs({})
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))


QUICK = ("README.md", "index.md", "five-minutes.md", "migrating-from-lightning.md", "migrating-from-accelerate.md")
"""The pages that a newcomer reads first, and those that a script writes in part; the others are marked slow."""
ELSEWHERE = {"vendors.md"}
"""``plugins/devkit/tests/test_new_plugin.py`` runs its commands, with an installation between them."""
RUN = [
    pytest.param(page, id=str(page.relative_to(ROOT)), marks=[] if page.name in QUICK else pytest.mark.slow)
    for page in PAGES
    if is_run(page)
    if page.name not in ELSEWHERE
]


@pytest.mark.parametrize("page", RUN)
def test_what_a_page_shows_happens(page: Path, tmp_path: Path) -> None:
    """The Python on a page runs, without a warning of ours; it and the page's commands print what the page shows.

    Blocks with a file name are written into that file. The page's other Python runs as one script, then the commands.
    """

    def script(name: str) -> str:
        return run_python(name, cwd=tmp_path, warnings="error").stdout

    def command(line: str) -> str:
        return run_program("sh", "-c", f"({line}) 2>&1", cwd=tmp_path, expect=None, env=COMMANDS).stdout

    run_blocks(page, tmp_path, script, command)


def test_the_first_hour_reads_every_page() -> None:
    """The script that follows the documentation finds all pages that are run here, in a fresh clone too."""
    code = "import first_hour; print(*first_hour.pages(), sep='\\n')"
    read = run_python("-c", code, cwd=ROOT / "benchmarks").stdout.split()
    assert sorted(read) == sorted(str(page) for page in PAGES if is_run(page))


def test_statements_of_the_source_documents() -> None:
    """Each row of ``tests/seeds/README.md`` names a test that exists, and each test of that folder is named."""
    rows = re.findall(
        r"^\| .+ \| `(\S+)::(\w+)` \|$", (ROOT / "tests/seeds/README.md").read_text("utf-8"), re.MULTILINE
    )
    assert [(file, name) for file, name in rows if f"def {name}(" not in (ROOT / file).read_text("utf-8")] == []
    own = {
        (f"tests/seeds/{file.name}", name)
        for file in (ROOT / "tests" / "seeds").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)
    }
    assert own - {*rows} == set()


def test_names_of_precisions() -> None:
    """Each row of the table has the names of one precision."""
    page = (ROOT / "docs" / "mixed-precision.md").read_text("utf-8")
    rows = [re.findall(r"`([^`]+)`", row) for row in re.findall(r"^\| (`\S*\d.*?) \|", page, flags=re.MULTILINE)]
    assert [row[0] for row in rows] == ["32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true"]
    for name, *aliases in rows:
        for alias in aliases:
            assert resolve(Request.read(accelerator="cpu", precision=alias, environ={})).precision.name == name


def test_names_of_capabilities() -> None:
    """The table of what hardware can lack has each name that a plugin may declare, once."""
    table = (
        (ROOT / "docs" / "vendors.md").read_text("utf-8").partition("### What hardware can lack")[2].partition("##")[0]
    )
    rows = re.findall(r"^\| (`.*?`) \|", table, flags=re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(names) == sorted(CAPABILITIES)


def test_attributes_of_front_ends_exist() -> None:
    """Where a page says ``runtime.…`` or ``trainer.…``, there is such an attribute."""
    known = {
        "runtime": {*dir(Runtime(accelerator="cpu", devices=1))},
        "trainer": {*dir(Trainer(accelerator="cpu", devices=1, logger=False))},
    }
    mistakes = {"is_main", "world_size", "precision"}  # docs/runtime.md shows what is said of these
    for page in [*PAGES, *sorted(ROOT.glob("plugins/*/README.md"))]:
        text = re.sub(r"\]\([^)]*\)|^\|.*\.md.*$", "", page.read_text("utf-8"), flags=re.MULTILINE)
        for owner, name in re.findall(r"(?<![\w./-])(runtime|trainer)\.([a-z]\w*)(?!\w*[/.]yaml)", text):
            if name not in ("md", "yaml") and not (page.name == "runtime.md" and name in mistakes):
                assert name in known[owner], f"{page.relative_to(ROOT)}: {owner}.{name}"


@pytest.mark.slow
def test_readme_on_two_processes(tmp_path: Path) -> None:
    """Both front ends of README train on two processes, without a change; what they print is there once."""
    trainer, loop = [block.text for block in blocks(ROOT / "README.md", "python") if "auto" in block.text][:2]
    (tmp_path / "train.py").write_text(trainer, "utf-8")
    (tmp_path / "loop.py").write_text(loop, "utf-8")
    two = {"CORE_ACCELERATOR": "cpu", "CORE_DEVICES": "2"}
    assert (
        run_python("train.py", cwd=tmp_path, env=two, warnings="error").stdout.count("devices              cpu, cpu")
        == 1
    )
    assert run_python("loop.py", cwd=tmp_path, env=two, warnings="error").stdout.count("loss ") == 1


COMMANDS = {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    "PYTHONUNBUFFERED": "1",
    "COLUMNS": "80",
    "NO_COLOR": "1",
}
"""The environment of commands: ``python`` and ``torch-hal`` are those that run the tests."""


NOT_RUN_HERE = {
    "README.md": "CI runs the commands in a fresh clone; tests/packages installs the packages",
    "CONTRIBUTING.md": "the sessions of nox that run these tests",
    "cli.md": "tests/cli gives such options to a script",
    "clusters.md": "tests/environments and tests/launchers start SLURM, MPI and torchrun where they are installed",
    "commands.md": "tests/run starts scripts, tests/doctor examines machines",
    "conformance.md": "plugins/devkit/tests/test_conformance_command.py runs the kit on a simulated card",
    "debugging-a-hang.md": "it needs py-spy and a GPU",
    "install.md": "benchmarks/first_hour.py installs as the page says; tests/packages installs the packages",
    "index.md": "its installation is that of install.md",
    "plugins.md": "it needs a package torch_tiny",
    "vendors.md": "plugins/devkit/tests/test_new_plugin.py follows the page",
    **{
        f"{kind}-authors.md": "plugins/devkit/tests runs the kit on the example"
        for kind in ("precision", "checkpoint", "strategy")
    },
}
"""Pages with shell commands that :func:`test_what_a_page_shows_happens` does not run, and why."""


def test_commands_that_are_not_run_are_declared() -> None:
    """Each command is run and compared with its output, or its page is in the table above; no other page is."""
    found = {
        page.name
        for page in PAGES
        for block in blocks(page, "bash", "sh", "shell", "console")
        if block.language != "console" or not block.text.startswith("$ ")
    }
    assert found == set(NOT_RUN_HERE)


def test_pages_show_output() -> None:
    """The search above finds what is shown: a pattern that matches nothing would test nothing."""
    outputs = [block for page in PAGES for block in blocks(page, "python") if block.output]
    commands = [found for page in PAGES for block in blocks(page, "console") for found in block.commands]
    assert len(outputs) >= 15
    assert len(commands) >= 10


BEGIN_WITHOUT_EXAMPLE = {"changelog.md", "security.md", "architecture.md", "everywhere.md", "hardware.md", "scale.md"}
BEGIN_WITHOUT_EXAMPLE |= {"broken-plugins.md", "examples.md"}
"""Texts, lists, and tables of measurements."""


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_each_page_begins_with_an_example(page: Path, tmp_path: Path) -> None:
    """Within its first section, a page has an example with what it prints."""
    if page.name in BEGIN_WITHOUT_EXAMPLE:
        return
    begin = re.match(r".*?(?:^## .*?)?(?=^## |\Z)", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert begin is not None
    (page_begin := tmp_path / "begin.md").write_text(begin[0], "utf-8")
    found = blocks(page_begin, "python", "console")
    assert any(block.output or any(output for _, output in block.commands) for block in found)


@pytest.mark.slow
def test_options_of_commands_exist(tmp_path: Path) -> None:
    """Every option that a page gives to a command of torch-hal is in that command's help."""
    used: defaultdict[str, set[str]] = defaultdict(set)
    for page in PAGES:
        for verb, arguments in re.findall(
            r"(?:torch-hal|python -m core)[ .]([a-z][a-z_-]+)([^|\n`]*)", page.read_text("utf-8")
        ):
            if verb.replace("_", "-") in VERBS:
                used[verb.replace("_", "-")] |= set(re.findall(r"(?<!\S)--[a-z-]+", arguments.partition(".py")[0]))
    assert len(used) == len(VERBS), f"no page shows: {set(VERBS) - set(used)}"
    for verb, options in used.items():
        shown = run_python("-m", "core", verb, "--help", cwd=tmp_path).stdout
        assert options <= set(re.findall(r"--[a-z-]+", shown)), verb


def test_ci_runs_the_commands_of_the_readme() -> None:
    """README has two commands that do all the set-up; CI runs the second, which has the tests in it, as it stands."""
    train, check = (block.text.strip() for block in blocks(ROOT / "README.md", "console") if "nox -s" in block.text)
    text = (ROOT / "README.md").read_text("utf-8")
    assert [line for line in text.splitlines() if line.startswith("python3 -m venv")] == [train, check]
    assert train.endswith("nox -s digits")
    assert "tests" in check.rpartition("nox -s")[2].split()
    assert f"\n{check}\n" in (ROOT / ".ci" / "run").read_text("utf-8")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_sessions_that_pages_name_exist() -> None:
    """Every nox session named anywhere is one."""
    sessions = set(re.findall(r"^def (\w+)\(session: nox\.Session\) -> None:", (ROOT / "noxfile.py").read_text(), re.M))
    for page in PAGES:
        for arguments in re.findall(r"nox -s ([a-z0-9_ ]+)", page.read_text("utf-8")):
            assert {*arguments.split()} <= sessions, page.name


def test_the_test_workflow_runs_readmes_commands() -> None:
    """Pushes and pull requests run the commands that README gives, with pinned actions."""
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text("utf-8")
    commands = re.findall(r"^python3 -m venv .*$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert re.findall(r"run: (.*)", workflow) == commands
    assert len(commands) == 2
    assert len(re.findall(r"uses: [\w/-]+@[0-9a-f]{40} # v[\d.]+$", workflow, re.MULTILINE)) == workflow.count("uses: ")


def test_the_release_workflow_runs_what_exists() -> None:
    """Its sessions are sessions of nox, its Pythons are those of the classifiers, and each job gets what is built."""
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    sessions = set(re.findall(r"^def (\w+)\(session: nox\.Session\) -> None:", (ROOT / "noxfile.py").read_text(), re.M))
    assert {"dists", "local_index"} <= {*re.findall(r"nox -s (\w+)", workflow)} <= sessions
    (versions,) = re.findall(r"python: \[(.*)\]", workflow)
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert re.findall(r'"([\d.]+)"', versions) == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    assert workflow.count("name: dist\n") == workflow.count("path: dist/\n") == 4  # uploaded once, downloaded by three
    pinned = re.findall(r"uses: [\w/-]+@[0-9a-f]{40} # v[\d.]+$", workflow, re.MULTILINE)
    assert len(pinned) == workflow.count("uses: ")  # a job that publishes runs no action that can be changed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    """A relative link leads to a file of the project."""
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target
