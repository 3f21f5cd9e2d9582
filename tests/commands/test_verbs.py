"""``python -m core`` and ``torch-hal``: the verbs, their help, and the version."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from installing import files_of, lay_down

import core
from core.__main__ import main
from core.commands.completion import options_of
from core.commands.verbs import available_verbs

ROOT = Path(__file__).parents[2]
VERBS = available_verbs({})
"""core's verbs, and those of the devkit, of migrate and of tools."""
HEAVY = {"torch", "pluggy", "attr", "packaging", "importlib.metadata", "importlib_metadata"}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments."""
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_without_a_verb_all_verbs_are_shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each verb has one line with its name and what it does, within 80 columns."""
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    for verb, purpose in VERBS.items():
        assert [line.split(maxsplit=1) for line in lines if line.startswith(f"  {verb} ")] == [[verb, purpose]]
    assert max(map(len, lines)) <= 80


def test_an_unknown_verb_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 2; the message quotes the verb and suggests the one that was meant."""
    assert main(["lits"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "'lits'" in err
    assert "Did you mean 'list'?" in err


OTHERS = {"checkpoints", "completion", "config", "estimate", "manifest", "migrate", "push", "ssh"}
"""Verbs without a module of their name on core's top level."""


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - OTHERS))
def test_both_ways_to_run_a_verb_are_the_same(verb: str) -> None:
    """``python -m core VERB`` and ``python -m core.VERB`` print the same help, each under its own name."""
    by_table = run("-m", "core", verb, "--help")
    module = f"core.{verb.replace('-', '_')}"
    by_module = run("-m", module, "--help")
    assert (by_table.returncode, by_module.returncode) == (0, 0), by_table.stderr + by_module.stderr
    assert f"usage: python -m core {verb} [" in by_table.stdout
    assert f"usage: python -m {module} [" in by_module.stdout
    options = [
        {option for option in text.split() if option.startswith("--")} for text in (by_table.stdout, by_module.stdout)
    ]
    assert options[0] == options[1]


def test_exit_codes_and_arguments_are_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    """A verb gets the rest of the command line, and its exit code is the command's."""
    assert main(["list", "--kind", "precision"]) == 0
    assert capsys.readouterr().out.startswith("PRECISION")
    assert main(["list", "--kind", "nonsense"]) == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """``core.__version__`` is the version of the project; ``--version`` prints it, and those of torch and Python."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert core.__version__ == version
    assert main(["--version"]) == 0
    first, *plugins, torch, python = capsys.readouterr().out.splitlines()
    assert first == f"torch-hal {version}"
    assert all(re.fullmatch(r"\S+ \S+", line) for line in plugins)
    assert torch == f"torch {importlib.metadata.version('torch')}"
    assert python == f"Python {platform.python_version()}"


@pytest.mark.parametrize("name", ["core", "torch_hal"])
def test_the_version_is_light(name: str) -> None:
    """Importing the package and reading its version imports no torch and none of the other heavy modules."""
    code = f"import sys, {name}; {name}.__version__; print(*sys.modules)"
    assert not HEAVY & set(run("-c", code).stdout.split())


MODULE = '''"""The verb ``polish`` of a package: make it shine.

The rest is not shown.
"""

import sys


def main(arguments, program):
    if "--help" in arguments:
        sys.stdout.write("usage: [--wax WAX]\\nexample: --brush\\n")
        raise SystemExit(0)
    sys.stdout.write(f"{program}: {arguments}\\n")
    return 7


def buff(arguments, program):
    sys.stdout.write("buffed\\n")
    return 3
'''
BROKEN = '"""The verb ``rust``: fall apart."""\nimport no_such_module_of_mine\n'


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with a package of four verbs: two that work, a broken one, one of core's."""
    declared = "[core.commands]\npolish = shop.polish:main\nbuff = shop.polish:buff\n"
    declared += "rust = shop.rust:main\nlist = shop.polish:main\n"
    code = {"__init__.py": "raise SystemError('imported')\n", "polish.py": MODULE, "rust.py": BROKEN}
    lay_down(tmp_path, files_of("torch-hal-shop", "1.2", declared))
    lay_down(tmp_path / "shop", code)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def test_help_shows_the_verbs_of_packages(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the first line of their module's docstring; the package, which cannot be imported, is not imported."""
    assert main([]) == 0
    shown = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["polish", "make it shine"] in shown
    assert ["buff", "make it shine"] in shown
    assert ["rust", "fall apart"] in shown
    assert ["list", VERBS["list"]] in shown  # a package cannot replace a verb of core's
    (shop / "shop" / "rust.py").unlink()
    assert main([]) == 0
    assert ["rust", "a verb of torch-hal-shop 1.2"] in [
        line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()
    ]


def test_a_package_adds_a_verb(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It gets the rest of the command line, and its exit code is the command's; no line of core names it."""
    (shop / "shop" / "__init__.py").write_text("")
    assert main(["polish", "--gently", "list"]) == 7
    assert capsys.readouterr().out == f"{program()} polish: ['--gently', 'list']\n"
    assert main(["buff"]) == 3
    assert capsys.readouterr().out == "buffed\n"
    assert main(["list", "--kind", "precision"]) == 0
    assert capsys.readouterr().out.startswith("PRECISION")
    assert main(["polihs"]) == 2
    assert "unknown verb 'polihs'. Did you mean 'polish'" in capsys.readouterr().err
    assert options_of("polish") == ["--help", "--wax"]


def program() -> str:
    """How ``main`` says that it was called, in this process."""
    return "python -m core" if Path(sys.argv[0]).name == "__main__.py" else "torch-hal"


def test_a_verb_that_cannot_be_run(
    shop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken verb, and one that CORE_PLUGINS denies, are one line with the package and the cause; others work."""
    assert main(["rust"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{program()} rust: torch-hal-shop 1.2 is broken: 'shop.rust:main' cannot be imported: ")
    assert "SystemError: imported" in said
    assert main(["completion", "fish"]) == 0
    captured = capsys.readouterr()
    assert "-a rust" in captured.out
    assert "the options of 'rust' are not completed: BackendError: torch-hal-shop 1.2 is broken" in captured.err
    monkeypatch.setenv("CORE_PLUGINS", "-torch-hal-shop")
    assert main(["polish"]) == 2
    said = capsys.readouterr().err
    assert said == f"{program()} polish: torch-hal-shop 1.2 is denied: CORE_PLUGINS has -torch-hal-shop.\n"
    monkeypatch.setenv("CORE_PLUGINS", "@")
    for verb in ("polish", "polihs", "completion bash"):
        assert main(verb.split()) == 2
        assert "CORE_PLUGINS: invalid entry '@'" in capsys.readouterr().err
    assert main([]) == 0
    assert "not shown: CORE_PLUGINS: invalid entry '@'" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("called", "package"),
    [
        ("core new-plugin", "torch-hal-devkit"),
        ("core.new_plugin", "torch-hal-devkit"),
        ("core conformance", "torch-hal-devkit"),
        ("core.conformance", "torch-hal-devkit"),
        ("core migrate", "torch-hal-migrate"),
        ("core estimate", "torch-hal-tools"),
        ("core push", "torch-hal-tools"),
    ],
)
def test_without_its_package_a_verb_says_what_to_install(called: str, package: str, tmp_path: Path) -> None:
    """In a source tree without any installed package; the help lists the verbs of core alone."""
    python = (sys.executable, "-S", "-m")
    options = {"env": {"PYTHONPATH": str(ROOT)}, "cwd": tmp_path, "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run([*python, *called.split(), "--help"], check=False, **options)  # type: ignore[call-overload]
    line = f"{package}@{ROOT.as_uri()}/plugins/{package.removeprefix('torch-hal-')}"
    said = f"python -m {called}: {package} is not installed. Run: pip install {line}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    done = subprocess.run([*python, "core"], check=True, **options)  # type: ignore[call-overload]
    assert " doctor " in done.stdout
    assert "new-plugin" not in done.stdout
