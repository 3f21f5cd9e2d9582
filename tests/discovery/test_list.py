"""``python -m core.list``: what it prints, what it costs, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from installing import environment, files_of, lay_down, run_list

from core.kinds import KINDS
from core.list import main

HEAVY = {"torch", "pluggy", "attr", "packaging", "importlib.metadata", "importlib_metadata", "rich"}
SLOW = {
    "collections",
    "functools",
    "typing",
    "re",
    "argparse",
    "logging",
    "json",
    "subprocess",
    "dataclasses",
    "inspect",
}
"""Modules of the standard library that take a listing milliseconds to import."""

RUN = """\
import runpy, sys
before = set(sys.modules)
sys.argv = ["core.list"]
try:
    runpy.run_module("core.list", run_name="__main__")
finally:
    sys.stderr.write(" ".join(set(sys.modules) - before))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A good plugin, one that needs a newer core, and two that claim one name."""
    plugin = "[core.accelerators]\n{0} = torch_hal_{0}.plugin\n"
    lay_down(tmp_path, files_of("torch-hal-acme", "1.2", plugin.format("acme")))
    lay_down(tmp_path, files_of("torch-hal-newer", "1.0", plugin.format("newer"), ["torch-hal>=99"]))
    lay_down(tmp_path, files_of("torch-hal-twin", "1.0", plugin.format("twin")))
    lay_down(tmp_path, files_of("torch-hal-other-twin", "1.0", plugin.format("twin")))
    return tmp_path


def test_imports_nothing_heavy(site: Path) -> None:
    """A plain listing, with compatibility and conflicts of plugins to tell, imports no heavy module."""
    done = subprocess.run(
        [sys.executable, "-c", RUN], env=environment(site), capture_output=True, text=True, timeout=60, check=False
    )
    assert "torch-hal-newer" in done.stdout
    assert set(done.stderr.split()) & (HEAVY | SLOW) == set()


def test_table(site: Path) -> None:
    """The table has a section for each kind, a line for each backend, and the reason under each that is not usable."""
    done = run_list(environ=environment(site))
    assert (done.returncode, done.stderr) == (0, "")
    sections = done.stdout.split("\n\n")
    assert [section.split("  ")[0] for section in sections] == [kind.title.upper() for kind in KINDS.values()]
    lines = sections[0].splitlines()
    assert lines[0].split() == ["ACCELERATOR", "DISTRIBUTION", "STATE"]
    assert lines[1].split() == ["acme", "torch-hal-acme", "1.2", "installed"]
    assert [line.split()[0] for line in lines if line[:1] not in (" ", "A")] == [
        "acme",
        "cpu",
        "newer",
        "torch",
        "twin",
        "twin",
    ]
    newer = lines.index(next(line for line in lines if line.startswith("newer")))
    assert lines[newer].split()[-1] == "incompatible"
    assert lines[newer + 1].startswith("    needs torch-hal>=99; this is torch-hal ")
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_long_names_stay_within_80_columns(site: Path) -> None:
    """A name that leaves no room for the rest has its own line."""
    name = "a_name_that_is_so_long_that_nobody_would_ever_want_to_type_it"
    lay_down(site, files_of("torch-hal-long", "1.0", f"[core.strategies]\n{name} = long\n"))
    lines = run_list(environ=environment(site)).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[lines.index(name) + 1].split() == ["torch-hal-long", "1.0", "installed"]


@pytest.mark.parametrize("arguments", [["--kind", "precision"], ["--kind=precision"]])
def test_one_kind(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """--kind shows that kind alone."""
    assert main(arguments, environ={}) == 0
    out = capsys.readouterr().out
    assert out.startswith("PRECISION")
    assert "bf16-mixed" in out
    assert "ddp" not in out


def test_json(site: Path) -> None:
    """--json has every fact of every row, in the order of the table."""
    listed = json.loads(run_list("--json", "--kind", "accelerator", environ=environment(site)).stdout)
    assert [row["name"] for row in listed["backends"]] == ["acme", "cpu", "newer", "torch", "twin", "twin"]
    assert listed["backends"][0] == {
        "aliases": None,
        "detail": "",
        "devices": None,
        "distribution": "torch-hal-acme",
        "interfaces": [],
        "kind": "accelerator",
        "location": str(site / "torch_hal_acme-1.2.dist-info"),
        "module": "torch_hal_acme.plugin",
        "name": "acme",
        "reason": "",
        "requires": ["torch-hal>=0.1,<1"],
        "seconds": None,
        "state": "installed",
        "version": "1.2",
    }
    assert listed["warnings"] == []


@pytest.mark.parametrize(
    ("arguments", "setting", "code"),
    [
        ([], "", 0),
        (["--strict"], "", 1),
        (["--strict", "--kind", "strategy"], "", 0),
        (["--strict"], "-newer,-twin", 0),
        (["--strict"], "-newer", 1),
        (["--strict"], "-newer,twin@torch-hal-twin", 0),
    ],
)
def test_exit_code(arguments: list[str], setting: str, code: int, site: Path) -> None:
    """--strict fails if what is shown has a broken backend; one that was denied is not broken."""
    assert run_list(*arguments, environ=environment(site, CORE_PLUGINS=setting)).returncode == code


def test_denied_is_shown(site: Path) -> None:
    """A denied plugin is a row with the setting."""
    out = run_list(environ=environment(site, CORE_PLUGINS="-acme")).stdout
    assert ["acme", "torch-hal-acme", "1.2", "denied"] in [line.split() for line in out.splitlines()]
    assert "    CORE_PLUGINS has -acme\n" in out


def test_setting_without_effect_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A name in CORE_PLUGINS that belongs to no plugin is a warning under the table."""
    assert main([], environ={"CORE_PLUGINS": "-cpuu"}) == 0
    assert "warning: CORE_PLUGINS: '-cpuu' does not name an installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--knd"], "unknown option '--knd'. Did you mean '--kind'? Valid: --kind, --timeout, --probe"),
        (["cpu"], "unexpected argument 'cpu'. Valid: --kind, --timeout, --probe"),
        (["--json=1"], "unknown option '--json=1'"),
        (["--kind"], "--kind '' is not a kind of backend. Valid: 'accelerator', 'strategy', 'precision'"),
        (["--kind", "accelerators"], "--kind 'accelerators' is not a kind of backend. Did you mean 'accelerator'?"),
        (["--timeout", "soon"], "--timeout 'soon' is not a number of seconds. Give more than 0 and less than 86400"),
        (["--timeout=0"], "--timeout '0' is not a number of seconds"),
        (["--timeout=nan"], "--timeout 'nan' is not a number of seconds"),
    ],
)
def test_bad_argument(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A bad argument ends with 2 and one line that quotes it and names the valid ones."""
    assert main(arguments, environ={}) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("python -m core.list: ")
    assert message in err
    assert err.count("\n") == 1


def test_malformed_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """A malformed CORE_PLUGINS ends with 2 and one line that quotes it."""
    assert main([], environ={"CORE_PLUGINS": "a b"}) == 2
    assert "CORE_PLUGINS: invalid entry 'a b'" in capsys.readouterr().err


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """--help explains every option, within 80 columns."""
    assert main(["--help"], environ={}) == 0
    out = capsys.readouterr().out
    assert all(
        option in out for option in ("--kind", "--probe", "--timeout", "--verbose", "--json", "--strict", *KINDS)
    )
    assert max(map(len, out.splitlines())) <= 80


def test_odd_names_can_be_printed(site: Path) -> None:
    """A name that the terminal's encoding lacks is printed with escapes."""
    lay_down(site, files_of("torch-hal-odd", "1.0", "[core.accelerators]\n超 = odd\n"))
    done = run_list(environ=environment(site, PYTHONIOENCODING="ascii"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u8d85" in done.stdout


AUTOLOADED = "raise RuntimeError('libvendor.so: cannot open shared object file')\n"


@pytest.mark.parametrize("fault", ["raises", "unreadable"])
def test_probe_tells_that_a_package_breaks_torch(fault: str, tmp_path: Path) -> None:
    """Where a package breaks ``import torch``, --probe says which, how to go on, and the states found that way."""
    entry_points = "[torch.backends]\nvendor = torch_vendor:autoload\n"
    lay_down(tmp_path, {"torch_vendor/__init__.py": AUTOLOADED, **files_of("torch-vendor", "2.13", entry_points)})
    if fault == "unreadable":
        path = tmp_path / "torch_vendor-2.13.dist-info" / "entry_points.txt"
        path.write_bytes(path.read_bytes() + b"# \xff")
    done = run_list("--probe", "--json", "--kind", "checkpoint_io", environ=environment(tmp_path))
    listed = json.loads(done.stdout)
    *others, warning = listed["warnings"]
    assert len(others) == (fault == "unreadable")  # which names the file, too
    assert warning.startswith("import torch fails: ")
    assert ("libvendor.so: cannot open" if fault == "raises" else "UnicodeDecodeError") in warning
    assert ("torch-vendor 2.13" if fault == "raises" else "torch_vendor-2.13.dist-info") in warning
    assert "set TORCH_DEVICE_BACKEND_AUTOLOAD=0 in the environment" in warning
    assert {row["state"] for row in listed["backends"]} == {"available"}


def test_probe_where_torch_cannot_be_imported(tmp_path: Path) -> None:
    """Where torch cannot be imported at all, each backend is failed with the cause, and the listing works."""
    lay_down(tmp_path, {"torch.py": "raise ImportError('libc10.so is missing')"})
    done = run_list("--probe", "--strict", "--kind", "checkpoint_io", environ=environment(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    assert "import torch fails: ImportError: libc10.so is missing" in done.stdout
    assert "warning: import torch fails, so that no backend can be used" in done.stdout


HOOK = """\
from core.hookspecs import hookimpl
from core.specs import AcceleratorSpec

@hookimpl
def core_accelerators():
    return [AcceleratorSpec(name="zulu", target="a:B", aliases=("gpu",))]
"""


SERVING_HOOK = """\
from core.hookspecs import hookimpl
from core.specs import AcceleratorSpec

@hookimpl
def core_accelerators():
    target, discover = "torch_hal_serving.work:Serving", "torch_hal_serving:served"
    return [AcceleratorSpec(name="serving", target=target, discover=discover)]

def served():
    return ["cpu", "pear"]
"""
SERVING = """\
from core.accelerators import CPUAccelerator

class Serving(CPUAccelerator):
    def __init__(self, name):
        self.name = name

    def auto_device_count(self):
        return 2 if self.name == "pear" else 5
"""


def test_probe_leaves_names_to_those_who_have_them(tmp_path: Path) -> None:
    """An accelerator that serves further names has the devices of those alone that no one else has, as in a run."""
    lay_down(
        tmp_path,
        {
            "torch_hal_serving/__init__.py": SERVING_HOOK,
            "torch_hal_serving/work.py": SERVING,
            **files_of("torch-hal-serving", "1.0", "[core.accelerators]\nserving = torch_hal_serving\n"),
        },
    )
    listed = json.loads(run_list("--probe", "--json", "--kind", "accelerator", environ=environment(tmp_path)).stdout)
    (row,) = (row for row in listed["backends"] if row["name"] == "serving")
    assert (row["state"], row["reason"], row["devices"]) == ("available", "provides pear", 2)


def test_plugin_whose_import_kills_the_process(tmp_path: Path) -> None:
    """A plugin that is fatal to import fails with all its backends; those that come after it are asked all the same."""
    entry_points = "[core.accelerators]\nfatal = torch_hal_fatal\n[core.strategies]\nfatal_too = torch_hal_fatal\n"
    code = "import ctypes\nctypes.string_at(0)\n"
    lay_down(tmp_path, {"torch_hal_fatal.py": code, **files_of("torch-hal-fatal", "1.0", entry_points)})
    entry_points = "[core.accelerators]\nzulu = torch_hal_zulu\n"
    lay_down(tmp_path, {"torch_hal_zulu.py": HOOK, **files_of("torch-hal-zulu", "1.0", entry_points)})
    listed = json.loads(run_list("--verbose", "--json", environ=environment(tmp_path)).stdout)
    rows = {row["name"]: row for row in listed["backends"] if row["distribution"] != "torch-hal"}
    for name in ("fatal", "fatal_too"):
        assert (rows[name]["state"], rows[name]["reason"]) == ("failed", "killed by SIGSEGV")
        assert "torch_hal_fatal.py" in rows[name]["detail"]
    assert (rows["zulu"]["state"], rows["zulu"]["aliases"]) == ("installed", ["gpu"])


def test_leaves_no_files(tmp_path: Path) -> None:
    """What the probing process writes on the way is removed."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    assert run_list("--verbose", environ=environment(TMPDIR=str(temporary))).returncode == 0
    assert os.listdir(temporary) == []
