"""``torch-hal doctor``: each trap is found and has a remedy; nothing hangs, and torch is not imported here."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from python_processes import run_python

from core.doctor import machine, processes
from core.doctor.report import Check, Report, limited
from core.environments.base import LAUNCHED
from core.environments.local import OWNER


def problems(checks: list[Check]) -> list[Check]:
    return [check for check in checks if check.state == "problem"]


def distribution(folder: Path, name: str, entry_points: bytes) -> None:
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_bytes(entry_points)


def test_entry_points_that_break_the_import_of_torch(tmp_path: Path) -> None:
    """Bytes that are not UTF-8, and a package that is not there; what torch loads besides is only mentioned."""
    distribution(tmp_path, "torn", b"[console_scripts]\nx = \xff\xfe:main\n")
    distribution(
        tmp_path, "gone", b"[torch.backends]\n# a comment\ndevice = no_such_package.sub:load\n[other]\na = b:c\n"
    )
    distribution(tmp_path, "there", b"[other]\na = b:c\n[torch.backends]\ndevice = json:loads\n")
    found = machine.check_metadata({}, [str(tmp_path), str(tmp_path / "nothing")])
    assert [(check.name, check.state) for check in found] == [
        ("torch.backends", "problem"),
        ("torch.backends", "ok"),
        ("metadata", "problem"),
    ]
    gone, there, torn = found
    assert "no_such_package" in gone.found
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in gone.remedy
    assert "json:loads of there-1.0.dist-info" in there.found
    assert f"{tmp_path}/torn-1.0.dist-info/entry_points.txt is not UTF-8" in torn.found
    assert "Reinstall the distribution 'torn'" in torn.remedy
    off = machine.check_metadata({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, [str(tmp_path)])
    assert [check.name for check in problems(off)] == ["metadata"]
    assert not problems(machine.check_metadata({}))


def test_files_that_hide_others(tmp_path: Path) -> None:
    """A ``core`` package of the user, and modules of the names that a run imports."""
    assert not problems(machine.check_folders(str(tmp_path)))
    (tmp_path / "core").mkdir()
    (tmp_path / "train.py").write_text("")
    assert not problems(machine.check_folders(str(tmp_path)))  # Python prefers the package
    (tmp_path / "core" / "__init__.py").write_text("")
    (tmp_path / "random.py").write_text("")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    found = problems(machine.check_folders(str(tmp_path)))
    assert [check.name for check in found] == ["own core", "hidden module", "hidden module"]
    assert "from torch_hal import" in found[0].remedy
    assert ["random.py" in found[1].found, "torch" in found[2].found] == [True, True]


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "RANK, WORLD_SIZE set, but not LOCAL_RANK, MASTER_ADDR, MASTER_PORT"),
        ({LAUNCHED: "{}"}, f"{LAUNCHED} is set"),
        ({OWNER: "1/a"}, f"{OWNER} is set"),
        ({"FLUX_JOB_SIZE": "4"}, "FLUX_JOB_SIZE"),
        ({"OMPI_COMM_WORLD_SIZE": "x"}, "OMPI_COMM_WORLD_SIZE is 'x'"),
        (
            {
                "RANK": "0",
                "WORLD_SIZE": "2",
                "LOCAL_RANK": "0",
                "MASTER_ADDR": "a",
                "MASTER_PORT": "1",
                "OMPI_COMM_WORLD_SIZE": "3",
            },
            "contradict each other",
        ),
    ],
)
def test_variables_that_clash(environ: dict[str, str], says: str) -> None:
    """Each is named, with what to do."""
    (found,) = problems(machine.check_variables(environ))
    assert says in found.found
    assert found.remedy


def test_variables_that_are_shown() -> None:
    """Those that a run depends on; no secret, nothing endless, nothing that breaks the page."""
    given = {
        "RANK": "1",
        "CORE_DEVICES": "2",
        "SLURM_JOB_ID": "7",
        "HOME": "/root",
        "AWS_SECRET": "x",
        "SLURM_TOKEN": "hush",
        "SLURM_JWT": "hush",
        "CORE_DEFAULT_ROOT_DIR": "https://me:hush@host/folder?a=b@c",
        "CORE_LAUNCHED_PLAN": "y" * 5000,
        "TORCH_LOGS": "a\nb\udcff",
    }
    shown = machine.environment(given)
    assert sorted(shown) == sorted({*given} - {"HOME", "AWS_SECRET"})
    assert shown["SLURM_TOKEN"] == shown["SLURM_JWT"] == "(hidden)"
    assert shown["CORE_DEFAULT_ROOT_DIR"] == "https://(hidden)@host/folder?a=b@c"
    assert shown["CORE_LAUNCHED_PLAN"].endswith("(5000 characters)")
    assert shown["TORCH_LOGS"] == "a\\nb\\udcff"


def test_ports() -> None:
    """A port that another process holds, or that is none, is named."""
    assert not problems(machine.check_ports({}))
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        (found,) = problems(machine.check_ports({"MASTER_PORT": port}))
        assert f"MASTER_PORT={port}" in found.found
        assert not problems(machine.check_ports({"MASTER_PORT": port, "RANK": "1"}))  # another machine's port
    (found,) = problems(machine.check_ports({"MASTER_PORT": "99999"}))
    assert "99999" in found.found


def test_disk_and_shared_memory(tmp_path: Path) -> None:
    """A folder that cannot be written to is a problem; without /dev/shm there is nothing to check."""
    assert [check.state for check in machine.check_disk({"here": str(tmp_path)})] in (["ok"], ["problem"])
    (found,) = machine.check_disk({"there": str(tmp_path / "nothing")})
    assert (found.name, found.state) == ("there", "problem")
    assert machine.check_memory(str(tmp_path / "nothing"))[0].state == "skipped"


def test_no_answer_is_an_answer() -> None:
    """A check that blocks or raises is a problem with its name; the others go on."""
    start, blocked = time.monotonic(), threading.Event()
    (late,) = limited("disk", lambda: [Check("x", "ok", "y")] if blocked.wait(60) else [], 0.05)
    assert (late.name, late.state) == ("disk", "problem")
    assert time.monotonic() - start < 20
    blocked.set()
    (raised,) = limited("disk", lambda: [Check("x", "ok", str(1 // 0))], 5)
    assert "ZeroDivisionError" in raised.found


def test_the_page() -> None:
    """Text for a reader, with the number of problems; JSON with the version of its format."""
    report = Report(
        versions={"python": "3"}, checks=[Check("a", "ok", "fine"), Check("b", "problem", "bad", "do", "1\n2")]
    )
    text = str(report)
    assert "  PROBLEM  b: bad\n           remedy: do\n           | 1\n           | 2\n" in text
    assert text.endswith("1 problem found.")
    data = json.loads(report.to_json())
    assert (data["schema"], data["problems"]) == (1, 1)
    assert sorted(data) == sorted(["schema", "problems", "versions", "plugins", "environment", "backends", "checks"])


@pytest.mark.slow
def test_a_healthy_machine(tmp_path: Path) -> None:
    """No problem, exit code 0; versions and backends are those that are here."""
    ended = run_python("-m", "core.doctor", "--json", cwd=tmp_path, env={"CORE_DEVICES": "2"}, leaves_nothing=True)
    page = json.loads(ended.stdout)
    assert page["problems"] == 0
    states = {check["name"]: check["state"] for check in page["checks"]}
    assert (states["import torch"], states["plan"], states["two processes"]) == ("ok", "ok", "ok")
    assert page["environment"]["CORE_DEVICES"] == "2"
    assert page["versions"]["torch"].startswith(__import__("torch").__version__.partition("+")[0])
    assert {"cpu", "ddp"} <= {row["name"] for row in page["backends"]}


ENGINES = """
from core.hookspecs import hookimpl
from core.specs import StrategySpec

@hookimpl
def core_strategies():
    return [
        StrategySpec(name=name, target=f"{name}_strategy:Mine", description="for a test")
        for name in ("lacking", "hanging")
    ]
"""


@pytest.mark.slow
def test_an_engine_that_is_not_installed_and_a_plugin_that_is_slow(tmp_path: Path) -> None:
    """The first is a problem only if it was asked for; the second has the time given, and no verdict."""
    entry_points = b"[core.strategies]\nlacking = engines_plugin\nhanging = engines_plugin\n"
    distribution(tmp_path, "engines", entry_points)
    (tmp_path / "engines_plugin.py").write_text(ENGINES)
    (tmp_path / "lacking_strategy.py").write_text("import no_such_engine.inner\n")
    (tmp_path / "hanging_strategy.py").write_text(
        "import time\ntime.sleep(12)\nfrom core.strategies import SingleDeviceStrategy as Mine\n"
    )
    env = {"PYTHONPATH": str(tmp_path)}
    for expect, given in ((0, {}), (1, {"CORE_STRATEGY": "lacking"})):
        ended = run_python("-m", "core.doctor", "--json", cwd=tmp_path, env=env | given, expect=expect)
        page = json.loads(ended.stdout)
        states = {row["name"]: row["state"] for row in page["backends"]}
        assert (states["lacking"], states["hanging"]) == ("unavailable", "available")
        skipped = [check["found"] for check in page["checks"] if check["state"] == "skipped"]
        assert skipped == ["engines: needs no_such_engine, which is not installed"]
        found = [check for check in page["checks"] if check["state"] == "problem"]
        assert [check["name"] for check in found] == ["plan"] * expect
        assert all("no_such_engine" in check["found"] for check in found)
    (tmp_path / "hanging_strategy.py").write_text("import time\ntime.sleep(1000)\n")
    ended = run_python("-m", "core.doctor", "--json", "--timeout", "20", cwd=tmp_path, env=env, expect=1)
    (late,) = (check for check in json.loads(ended.stdout)["checks"] if check["name"] == "plugins" and check["remedy"])
    assert "'hanging' of engines has not answered within 20 s: it hangs, or this machine is busy" in late["found"]
    assert "--timeout 100" in late["remedy"]
    assert "Repair" not in late["remedy"]


@pytest.mark.slow
def test_a_machine_on_which_torch_does_not_import(tmp_path: Path) -> None:
    """An extension that raises: the page names it, is complete, and comes from a process that did not import torch.

    A logger that claims a name of torch-hal's is a problem as a backend would be.
    """
    distribution(tmp_path, "broken", b"[torch.backends]\ndevice = broken_extension:load\n")
    (tmp_path / "broken_extension.py").write_text("def load():\n    raise OSError('no driver here')\n")
    distribution(tmp_path, "acme", b"[core.loggers]\ncsv = acme_tracking:Logger\n")
    env = {"PYTHONPATH": str(tmp_path), "CORE_PLUGINS": "acme,nonsense"}
    code = (
        "import sys; from core.doctor.__main__ import main; code = main(['--json']); assert 'torch' not in sys.modules"
    )
    ended = run_python("-c", f"{code}; sys.exit(code)", cwd=tmp_path, env=env, expect=1, leaves_nothing=True)
    page = json.loads(ended.stdout)
    checks = {check["name"]: check for check in page["checks"]}
    assert page["plugins"]["acme"] == "1.0"
    conflict = "logger 'csv' of acme is conflict: 'csv' is reserved for torch-hal's own logger"
    assert conflict in [check["found"] for check in page["checks"]]
    assert "no driver here" in checks["import torch"]["detail"]
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in checks["import torch"]["remedy"]
    assert checks["two processes"]["state"] == "skipped"
    assert "nonsense" in checks["plugins"]["found"]


@pytest.mark.slow
def test_a_collective_that_cannot_work() -> None:
    """A network interface that is not there: the cause is in the page, within the time limit."""
    start = time.monotonic()
    (found,) = processes.check_collective({**os.environ, "GLOO_SOCKET_IFNAME": "nosuch0"}, 60.0)
    assert found.state == "problem"
    assert "nosuch0" in found.detail
    assert time.monotonic() - start < 150
    assert sys.modules
