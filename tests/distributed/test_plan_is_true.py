"""The Plan tells what runs: in real processes, for each of core's strategies and each way of starting processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from core.discovery.registry import Registry

from .conftest import run_script

STARTED_AS = {None: "_MainProcess", "script": "_MainProcess", "spawn": "SpawnProcess", "fork": "ForkProcess"}
"""By launcher, the class that multiprocessing reports for a process."""

NAMES = sorted(
    name for name in Registry.read(os.environ).names("strategy") if name == "single_device" or name.startswith("ddp")
)
SPAWNED = [name for name in NAMES if name.startswith("ddp_spawn")]
FORKED = [name for name in NAMES if name.startswith(("ddp_fork", "ddp_notebook"))]
STARTED_AGAIN = [name for name in NAMES if name.startswith("ddp") and name not in SPAWNED + FORKED]


def planned(out: Path, names: list[str]) -> dict[str, list[dict[str, Any]]]:
    """By strategy and rank, what ``planned.py`` reports."""
    run_script(out, "planned.py", "cpu", *names)
    facts: dict[str, list[dict[str, Any]]] = json.loads((out / "planned.json").read_text())
    return facts


@pytest.mark.parametrize(
    ("names", "launcher", "processes"),
    [
        (["single_device"], None, 1),
        (STARTED_AGAIN, "script", 2),
        pytest.param(SPAWNED, "spawn", 2, marks=pytest.mark.slow),
        (FORKED, "fork", 2),
    ],
    ids=["single_device", "script", "spawn", "fork"],
)
def test_what_runs_is_what_the_plan_says(
    names: list[str], launcher: str | None, processes: int, tmp_path: Path
) -> None:
    """Backend, launcher, ranks and world size of the Plan are those of the live process group."""
    facts = planned(tmp_path, names)
    assert sorted(facts) == names
    for name, ranks in facts.items():
        assert [fact["rank"] for fact in ranks] == [[rank, processes] for rank in range(processes)], name
        for fact in ranks:
            assert fact["planned_rank"] == fact["rank"], name
            # A later run in processes that an earlier run of the script has started starts none.
            assert fact["launcher"] == (launcher if name == names[0] or launcher != "script" else None), name
            assert fact["process"] == STARTED_AS[launcher], name
            assert fact["is_started"] == (launcher is not None), name
            if processes == 1:
                assert fact["backends"] == fact["planned_backend"] is None
            else:
                assert f"cpu:{fact['planned_backend']}" in fact["backends"].split(","), name
            assert fact["has_trained"], name
            assert fact["weights"] == ranks[0]["weights"], name


BROKEN = """\
raise RuntimeError("a driver reports " + 150_000 * "x")
"""


@pytest.fixture
def broken_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed plugin whose module raises an error of 150,000 characters; no test asks for it."""
    folder = tmp_path / "installed"
    info = folder / "torch_hal_verbose-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "torch_hal_verbose.py").write_text(BROKEN)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch-hal-verbose\nVersion: 1.0\nRequires-Dist: torch-hal>=0.1,<1\n\nA plugin.\n"
    )
    groups = ("accelerators", "cluster_environments", "strategies")
    (info / "entry_points.txt").write_text(
        "".join(f"[core.{group}]\nverbose = torch_hal_verbose\n" for group in groups)
    )
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.mark.usefixtures("broken_plugin")
@pytest.mark.parametrize("name", ["ddp", "ddp_spawn", "ddp_fork"])
def test_an_unused_plugin_with_a_long_error(name: str, tmp_path: Path) -> None:
    """Two processes train whatever an unused plugin reports: a started process does not receive the explanation."""
    ranks = planned(tmp_path, [name])[name]
    assert [fact["rank"] for fact in ranks] == [[0, 2], [1, 2]]
    assert ranks[0]["has_trained"]
    assert ranks[0]["weights"] == ranks[1]["weights"]
    started = ranks[1]
    assert f"cpu:{started['planned_backend']}" in started["backends"].split(",")
    assert 0 < started["plan_characters"] < 10_000
    if name == "ddp_fork":  # a copy of this process, and of its Plan
        assert "not verbose: failed: " in started["plan"]
    else:
        assert "verbose" not in started["plan"]
        assert "print its" in started["plan"]
    if name == "ddp":
        assert "not verbose: failed: " in ranks[0]["plan"]
        assert len(ranks[0]["plan"]) < 10_000
