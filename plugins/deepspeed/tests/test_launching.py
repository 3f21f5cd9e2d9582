"""DeepSpeed's launcher, torchrun, core's own, and functions in spawned processes: the same run."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from torch_hal_deepspeed.environment import DeepSpeedEnvironment, detect
from torch_hal_deepspeed.plugin import core_cluster_environments

from torch_hal.discovery.ranks import ranks_by

from .conftest import run, said

VARIABLES = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_SIZE": "2",
    "CROSS_RANK": "1",
    "CROSS_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
"""What DeepSpeed's launcher sets in the second process of the second of two machines."""


def test_ranks_are_read_on_several_machines() -> None:
    """The launcher's own names say how many processes a machine has, and which machine this is."""
    environment = DeepSpeedEnvironment(VARIABLES)
    environment.validate_settings(2, 2)
    assert (environment.global_rank, environment.local_rank, environment.node_rank) == (3, 1, 1)
    assert (environment.world_size, environment.local_world_size, environment.num_nodes) == (4, 2, 2)
    assert environment.creates_processes_externally


@pytest.mark.parametrize("missing", ["LOCAL_SIZE", "CROSS_RANK", "RANK", "MASTER_ADDR"])
def test_processes_of_others_are_not_claimed(missing: str) -> None:
    """Where one of its variables is missing, another launcher started the process."""
    (spec,) = core_cluster_environments()
    others = {name: value for name, value in VARIABLES.items() if name != missing}
    assert (detect(VARIABLES), ranks_by(spec, VARIABLES)) == (True, (3, 4))
    assert (detect(others), ranks_by(spec, others)) == (False, None)


LAUNCHERS = {
    "deepspeed": ["-m", "deepspeed.launcher.runner", "--num_gpus", "2", "--no_local_rank", "--master_port"],
    "torchelastic": ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port"],
}


@pytest.mark.deepspeed
@pytest.mark.timeout(600)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_launchers_work(tmp_path: Path, launcher: str) -> None:
    """Two processes that either launcher started find each other and train together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run(tmp_path, *LAUNCHERS[launcher], port, "launched.py", "deepspeed_stage_2")
    found = said(tmp_path / "said.json")
    assert found["environment"] == launcher
    assert found["ranks"] == [0, 1]
    assert len(set(found["losses"])) == 2


@pytest.mark.deepspeed
@pytest.mark.timeout(600)
def test_a_function_in_spawned_processes(tmp_path: Path) -> None:
    """The Trainer's module comes back whole from processes that divided it."""
    run(tmp_path, "spawned.py")
    found = said(tmp_path / "said.json")
    assert found["steps"] == 3
    assert found["found"] == pytest.approx(found["logged"], rel=1e-5)
