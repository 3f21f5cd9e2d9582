"""Runs on a Ray cluster of several nodes on this machine. One cluster serves many of them: it takes long to start."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from python_processes import run_python

SCRIPT = Path(__file__).parent / "scripts" / "cluster.py"


def run_script(out: Path, *names: str, timeout: float) -> dict[str, Any]:
    """Run the named parts of the script in one cluster; returns what each said."""
    # Ray's own code warns; it must not fail then.
    env = {"PYTHONWARNINGS": None, "OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "0"}
    run_python(SCRIPT, out, *names, cwd=SCRIPT.parent, env=env, timeout=timeout)
    found: dict[str, Any] = json.loads((out / "said.json").read_text())
    return found


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What CI has time for."""
    return run_script(tmp_path_factory.mktemp("ray"), "plain", "worker", "looped", timeout=380)


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All other parts, and the reference."""
    parts = ("plain", "driven", "spread", "refusals", "trained", "node", "trained on nodes")
    return run_script(tmp_path_factory.mktemp("rest"), *parts, timeout=900)


def check_driven(found: dict[str, Any], plain: dict[str, Any]) -> None:
    """The module that the driver has afterwards is bit for bit that of two processes without Ray."""
    assert found["weights"] == plain["weights"]
    assert found["launcher"] == "ray"
    assert found["loss"] > 0


def test_a_driver_trains_on_two_nodes_of_which_one_loses_its_worker(said: dict[str, Any]) -> None:
    """A worker was killed at step 9: the run goes on from step 8, and ends as the undisturbed one without Ray."""
    assert said["worker"]["failed"]
    check_driven(said["worker"], said["plain"])


@pytest.mark.parametrize(("run", "lost"), [("driven", False), ("node", True)])
@pytest.mark.exhaustive
@pytest.mark.timeout(1000)
def test_a_driver_trains_on_two_nodes(rest: dict[str, Any], run: str, lost: bool) -> None:
    """Undisturbed, or with a node killed at step 9, whose work another one takes over."""
    assert rest[run]["failed"] == lost
    check_driven(rest[run], rest["plain"])
    if not lost:
        assert rest[run]["saved"] == 6  # steps 4, 8, ... 24


@pytest.mark.exhaustive
@pytest.mark.timeout(1000)
def test_ranks_are_consecutive_on_each_node(rest: dict[str, Any]) -> None:
    """Two processes on each of two different nodes of Ray; collectives reach all."""
    found = rest["spread"]
    assert [part[:3] for part in found] == [[0, 0, 0], [1, 1, 0], [2, 0, 1], [3, 1, 1]]
    nodes = [part[3] for part in found]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    assert [part[4] for part in found] == [[10.0]] * 4


@pytest.mark.exhaustive
@pytest.mark.timeout(1000)
def test_no_room(rest: dict[str, Any]) -> None:
    """The error says what was asked for, what the nodes have, and which argument to change."""
    message = rest["refusals"]["resource"]
    assert re.search(r"no room for the run within 0:00:03: 2 node\(s\) with .*none_such.*acme", message)
    assert "resources_per_process" in message


@pytest.mark.exhaustive
@pytest.mark.timeout(1000)
def test_a_fault_of_the_users(rest: dict[str, Any]) -> None:
    """The error names the rank that failed first and has its traceback."""
    message = rest["refusals"]["raised"]
    assert message.startswith("rank 1 failed: ValueError: a fault of the user's")
    assert "in _raises" in message


@pytest.mark.parametrize("run", ["trained", "trained on nodes"])
@pytest.mark.exhaustive
@pytest.mark.timeout(1000)
def test_trainer_in_ray_train(rest: dict[str, Any], run: str) -> None:
    """core.Trainer in TorchTrainer, a worker or its node killed at step 9: resumed bit-equal; Ray has its metrics."""
    found = rest[run]
    assert found["environment"] == "ray"
    assert found["failed"]
    assert found["path"].endswith("/checkpoint")
    assert found["weights"] == rest["plain"]["weights"]
    assert found["metrics"]["step"] == 24
    assert found["metrics"]["loss"] > 0
    assert found["checkpoint"]
    assert found["error"] == "None"


def test_a_loop_reports_to_ray_train(said: dict[str, Any]) -> None:
    """Ray has the metrics and the checkpoint of core.Runtime in TorchTrainer."""
    assert said["looped"]["metrics"]["loss"] > 0
    assert said["looped"]["checkpoint"]
