"""``python -m core`` and ``torch-hal``: the verbs, their help, and the version."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import core
from core.__main__ import VERBS, main

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "pluggy", "attr", "packaging", "importlib.metadata", "importlib_metadata"}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments."""
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_without_a_verb_all_verbs_are_shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each verb has one line with its name and what it does, within 80 columns."""
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    for verb, (_, purpose) in VERBS.items():
        assert [line.split(maxsplit=1) for line in lines if line.startswith(f"  {verb} ")] == [[verb, purpose]]
    assert max(map(len, lines)) <= 80


def test_an_unknown_verb_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 2; the message quotes the verb and suggests the one that was meant."""
    assert main(["lits"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "'lits'" in err
    assert "Did you mean 'list'?" in err


@pytest.mark.parametrize("verb", VERBS)
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
