"""Runs on a Ray cluster of four nodes on this machine. One cluster serves all of them: it takes long to start."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from python_processes import run_python

SCRIPT = Path(__file__).parent / "scripts" / "cluster.py"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the runs of the script said, by name."""
    out = tmp_path_factory.mktemp("ray")
    # Ray's own code warns; it must not fail then.
    env = {"PYTHONWARNINGS": None, "OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "0"}
    run_python(SCRIPT, out, cwd=SCRIPT.parent, env=env, timeout=380)
    found: dict[str, Any] = json.loads((out / "said.json").read_text())
    return found


def test_a_driver_trains_on_two_nodes(said: dict[str, Any]) -> None:
    """The module that the driver has afterwards is bit for bit that of two processes without Ray."""
    assert said["driven"]["weights"] == said["plain"]["weights"]
    assert said["driven"]["launcher"] == "ray"
    assert said["driven"]["loss"] > 0
    assert said["driven"]["saved"] == 6  # steps 4, 8, ... 24


@pytest.mark.parametrize("lost", ["worker", "node"])
def test_what_is_lost_is_replaced(said: dict[str, Any], lost: str) -> None:
    """A worker, or its node, was killed at step 9: the run ends bit for bit as the undisturbed one."""
    assert said[lost]["failed"]
    assert said[lost]["weights"] == said["driven"]["weights"]


def test_ranks_are_consecutive_on_each_node(said: dict[str, Any]) -> None:
    """Two processes on each of two different nodes of Ray; collectives reach all."""
    found = said["spread"]
    assert [part[:3] for part in found] == [[0, 0, 0], [1, 1, 0], [2, 0, 1], [3, 1, 1]]
    nodes = [part[3] for part in found]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    assert [part[4] for part in found] == [[10.0]] * 4


def test_no_room(said: dict[str, Any]) -> None:
    """The error says what was asked for, what the nodes have, and which argument to change."""
    message = said["refusals"]["resource"]
    assert re.search(r"no room for the run within 0:00:03: 2 node\(s\) with .*none_such.*acme", message)
    assert "resources_per_process" in message


def test_a_fault_of_the_users(said: dict[str, Any]) -> None:
    """The error names the rank that failed first and has its traceback."""
    message = said["refusals"]["raised"]
    assert message.startswith("rank 1 failed: ValueError: a fault of the user's")
    assert "in _raises" in message


def test_trainer_in_ray_train(said: dict[str, Any]) -> None:
    """core.Trainer in TorchTrainer, a worker killed at step 9: resumed from Ray's checkpoint, bit-equal."""
    found = said["trained"]
    assert found["environment"] == "ray"
    assert found["failed"]
    assert found["path"].endswith("/checkpoint")
    assert found["weights"] == said["plain"]["weights"]


def test_reports_to_ray_train(said: dict[str, Any]) -> None:
    """Ray has the metrics and the checkpoint of the last report, of a Trainer and of a loop of one's own."""
    found = said["trained"]
    assert found["metrics"]["step"] == 24
    assert found["metrics"]["loss"] > 0
    assert found["checkpoint"]
    assert found["error"] == "None"
    assert said["looped"]["metrics"]["loss"] > 0
    assert said["looped"]["checkpoint"]
