"""Who started this process, and what the driver asks of the cluster; without Ray."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from torch_hal_ray import RayEnvironment
from torch_hal_ray.detect import SINCE, started
from torch_hal_ray.plugin import core_cluster_environments
from torch_hal_ray.resources import resources_for

from torch_hal.discovery.ranks import ranks_by
from torch_hal.errors import ConfigurationError, CoreError, LaunchError

WORKER = {
    "RAY_RAYLET_PID": "77",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "NODE_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "1234",
}


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in WORKER.items() if key != name}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (WORKER, True),
        ({}, False),
        (without("RAY_RAYLET_PID"), False),  # torchrun's
        (without("RANK"), False),  # a Ray task that is no worker of Ray Train
        ({**WORKER, "TORCHELASTIC_RUN_ID": "x"}, False),  # torchrun in a Ray task
    ],
)
def test_detection(environ: Mapping[str, str], expected: bool) -> None:
    """Workers of Ray Train are recognized, and nothing else; before a run by what the spec says."""
    assert RayEnvironment.detect(environ) == started(environ) == expected
    (spec,) = core_cluster_environments()
    assert ranks_by(spec, environ) == ((3, 4) if expected else None)


def test_ranks_of_a_worker() -> None:
    """They are those that Ray has set."""
    environment = RayEnvironment(WORKER)
    assert environment.creates_processes_externally
    ranks = environment.global_rank, environment.local_rank, environment.node_rank
    assert (*ranks, environment.world_size, environment.num_nodes) == (3, 1, 1, 4, 2)
    assert (environment.main_address, environment.main_port, environment.hosts_store) == ("10.0.0.1", 1234, False)
    environment.connect(2, 2)
    with pytest.raises(ConfigurationError, match=r"devices asks for 4 .* started 2 \(LOCAL_WORLD_SIZE\)"):
        environment.connect(4, 1)


def test_uneven_workers_are_refused() -> None:
    """Ray Train may place one worker on one node and three on another."""
    with pytest.raises(ConfigurationError, match=r"same number of processes.*Ray Train must place the same number"):
        RayEnvironment({**WORKER, "LOCAL_WORLD_SIZE": "3"}).connect(3, 1)


def test_driver() -> None:
    """The driver is process 0 until the others are started, of as many as it asks for."""
    environment = RayEnvironment({})
    environment.connect(2, 3)
    assert environment.starts_processes
    assert not environment.creates_processes_externally
    assert (environment.world_size, environment.num_nodes, environment.global_rank) == (6, 3, 0)


@pytest.mark.parametrize(("attempt", "expected"), [("0", None), ("2", 1700000000.5)])
def test_restarts(attempt: str, expected: float | None) -> None:
    """Only a process of a restart goes on from a checkpoint."""
    environment = RayEnvironment({**WORKER, SINCE: f"1700000000.5/{attempt}"})
    assert environment.restarted_since == expected
    assert environment.hosts_store


@pytest.mark.parametrize(
    "given", [{"max_restarts": -1}, {"placement_timeout": 3}, {"resources_per_process": {"CPU": "one"}}]
)
def test_invalid_arguments(given: dict[str, Any]) -> None:
    """The error names the argument."""
    with pytest.raises(CoreError, match=next(iter(given))):
        RayEnvironment({}, **given)
    RayEnvironment({}, max_restarts=2, placement_timeout=timedelta(seconds=3), resources_per_process={"CPU": 0.5})


@pytest.mark.parametrize(
    ("accelerator", "cluster", "expected"),
    [
        ("cpu", {"CPU": 4}, {"CPU": 1.0}),
        ("cuda", {"CPU": 4, "GPU": 1}, {"CPU": 1.0, "GPU": 1.0}),
        ("acme", {"CPU": 4, "acme": 1}, {"CPU": 1.0, "acme": 1.0}),
    ],
)
def test_resource_names(accelerator: str, cluster: dict[str, float], expected: dict[str, float]) -> None:
    """Ray's own name where it has one, else the accelerator's."""
    assert resources_for(accelerator, None, cluster) == expected
    assert resources_for(accelerator, {"CPU": 2}, cluster) == {"CPU": 2}


def test_cluster_without_the_resource() -> None:
    """The error names what is missing, what there is, and the command."""
    with pytest.raises(LaunchError, match=r"needs the resource 'acme'.*it has 'CPU'\..*ray start --resources"):
        resources_for("acme", None, {"CPU": 4, "node:10.0.0.1": 1})


def test_detection_needs_neither_torch_nor_ray() -> None:
    """It runs in each listing."""
    code = "import sys, torch_hal_ray.plugin, torch_hal_ray.detect; sys.exit(bool({'torch', 'ray'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
