"""Mistakes on the verbs' command lines: one line names the argument, what was given, and what to do; exit code 2."""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest

from core.__main__ import main
from core.commands.verbs import available_verbs, load_verb
from core.run.options import parse

MISTAKES = {
    "explain --acelerator cpu": ("explain", "'--acelerator'", "Did you mean '--accelerator'?"),
    "explain --acelerator=cpu": ("explain", "'--acelerator'", "Did you mean '--accelerator'?"),
    "explain --accel cpu": ("explain", "'--accel'", "Did you mean '--accelerator'"),
    "explain --num_nodes 2": ("explain", "'--num_nodes'", "Did you mean '--num-nodes'?"),
    "explain --checkpoint_io async": ("explain", "'--checkpoint_io'", "Did you mean '--checkpoint-io'?"),
    "explain --gpus 2": ("explain", "'--gpus'", "Use '--accelerator gpu --devices N'."),
    "explain --devices": ("explain", "--devices", "give it a value"),
    "explain --devices --json": ("explain", "--devices", "give it a value"),
    "explain --json=yes": ("explain: --json", "'yes'", "takes no value"),
    "explain cpu": ("explain", "unexpected argument 'cpu'", "Arguments: torch-hal explain --help"),
    "explain devices=2": ("explain", "unexpected argument 'devices=2'", "Did you mean '--devices'?"),
    "explain -a cpu": ("explain", "unknown option '-a'", "Arguments: torch-hal explain --help"),
    "run --nproc_per_node 2 train.py": ("run", "'--nproc_per_node'", "Use '--devices'."),
    "run --nproc-per-node=2": ("run", "'--nproc-per-node'", "Use '--devices'."),
    "run --num_processes 2 train.py": ("run", "'--num_processes'", "Use '--devices'."),
    "run --mixed_precision bf16 train.py": ("run", "'--mixed_precision'", "Use '--precision'"),
    "run --master_addr host train.py": ("run", "'--master_addr'", "Use '--rdzv-endpoint HOST:PORT'."),
    "run --standalone train.py": ("run", "'--standalone'", "Remove it"),
    "run --max_restarts 2 train.py": ("run", "'--max_restarts'", "Did you mean '--max-restarts'?"),
    "run --max-restarts two train.py": ("run: --max-restarts", "'two'", "is not an integer"),
    "run": ("run", "missing: SCRIPT.", "Arguments: torch-hal run --help"),
    "run --dry": ("run", "'--dry'", "Did you mean '--dry-run'?"),
    "run -mpackage.train": ("run: -m/--module", "'package.train'", "takes no value"),
    "doctor --jso": ("doctor", "'--jso'", "Did you mean '--json'?"),
    "doctor json": ("doctor", "'json'", "Did you mean '--json'?"),
    "doctor --timeout soon": ("doctor: --timeout", "'soon'", "is not a number"),
    "doctor --timeout 0": ("doctor: --timeout", "0", "must be from 1 to 3600"),
    "list --jso": ("list", "'--jso'", "Did you mean '--json'?"),
    "list accelerator": ("list", "'accelerator'", "Did you mean '--kind accelerator'?"),
    "list --strategy": ("list", "'--strategy'", "Did you mean '--kind strategy'?"),
    "list --kind accelarator": ("list: --kind", "'accelarator'", "Did you mean 'accelerator'?"),
    "new-plugin": ("new-plugin", "missing: NAME.", "Arguments: torch-hal new-plugin --help"),
    "new-plugin acme --kind precison": ("new-plugin: --kind", "'precison'", "Did you mean 'precision'?"),
    "new-plugin acme --dir x": ("new-plugin", "'--dir'", "Arguments: torch-hal new-plugin --help"),
    "conformance": ("conformance", "missing: --backend.", "Arguments: torch-hal conformance --help"),
    "conformance --backend accelerator:cpu --reprot x.html": ("conformance", "'--reprot'", "'--report'?"),
    "conformance accelerator:cpu": ("conformance", "missing: --backend.", "Arguments: torch-hal conformance --help"),
    "migrate": ("migrate", "missing: FILE.", "Arguments: torch-hal migrate --help"),
    "migrate --jsn train.py": ("migrate", "'--jsn'", "Did you mean '--json'?"),
    "checkpoints run1 --verfy": ("checkpoints", "'--verfy'", "Did you mean '--verify'?"),
    "convert": ("convert", "missing: PATH.", "Arguments: torch-hal convert --help"),
    "convert --file last.pt last.ckpt": ("convert", "'--file'", "Arguments: torch-hal convert --help"),
    "completion fsh": ("completion: SHELL", "'fsh'", "Did you mean 'fish'"),
    "completion": ("completion", "missing: SHELL.", "Arguments: torch-hal completion --help"),
    "explian": ("unknown verb", "'explian'", "Did you mean 'explain'?"),
    "new_plugin acme": ("unknown verb", "'new_plugin'", "Did you mean 'new-plugin'?"),
    "launch train.py": ("unknown verb", "'launch'", "Did you mean 'run'?"),
    "env": ("unknown verb", "'env'", "Did you mean 'doctor'?"),
    "version": ("unknown verb", "'version'", "Did you mean '--version'?"),
    "train.py": ("unknown verb", "'train.py'", "torch-hal run train.py"),
    "--verson": ("unknown verb", "'--verson'", "Did you mean '--version'?"),
    "install cuda": ("unknown verb", "'install'", "pip install torch-hal-cuda"),
    "list ddp": ("list", "unexpected argument 'ddp'", "Valid: --kind"),
    "run /": ("run", "'/'", "It is a folder: give a file in it."),
    "run tests/conftst.py": ("run", "'tests/conftst.py'", "Did you mean 'tests/conftest.py'?"),
    "run tests/conftest": ("run", "'tests/conftest'", "Did you mean 'tests/conftest.py'?"),
    "--devices 2 train.py": ("unknown verb", "'--devices'", "torch-hal run --devices"),
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_with_a_remedy(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command, what is wrong, what was given and what to do; nothing runs, nothing is on stdout."""
    monkeypatch.setattr(sys, "argv", ["torch-hal"])
    monkeypatch.chdir(Path(__file__).parents[2])
    try:
        code = main(line.split())
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("torch-hal")
    assert err.count("\n") == 1
    assert [each for each in MISTAKES[line] if each not in err] == [], err
    assert not re.search(r"\?\.|\.\.", err)


@pytest.mark.parametrize("verb", available_verbs({}))
def test_every_verb_uses_one_parser(verb: str) -> None:
    """No verb has a parser of argparse's own, which takes abbreviations and names no nearest option."""
    module = load_verb(verb, {}).__module__.replace("run.__main__", "run.options")
    source = inspect.getsource(importlib.import_module(module))
    assert "argparse.ArgumentParser(" not in source
    assert "VerbParser(" in source or verb == "list"  # which imports next to nothing


def test_what_looks_like_a_mistake_and_is_none() -> None:
    """A script's own options, a value that begins with a dash, and one that equals an option's name."""
    options = parse(["--devices", "-1", "--rdzv-id=--nproc", "--no-python", "echo", "--nproc-per-node", "2"], "run", {})
    assert options.requested == {"devices": "-1"}
    assert (options.rdzv_id, options.script, options.arguments) == ("--nproc", "echo", ("--nproc-per-node", "2"))


def test_remedies_name_options_that_exist() -> None:
    """Each option that a remedy for another tool's option names is one of the verb ``run``."""
    from core.hints.remedies import remedies
    from core.run.options import _parser

    known = {name for action in _parser("run")._actions for name in action.option_strings}
    assert isinstance(_parser("run"), argparse.ArgumentParser)
    for wrong, remedy in remedies("options").items():
        assert wrong not in known
        assert set(re.findall(r"--[a-z-]+", remedy)) <= known
