"""Arguments that contradict what started this process are rejected by the constructor of either front end."""

from __future__ import annotations

from typing import Any

import pytest

from core import AcceleratorRegistry
from core.environments import LocalEnvironment, TorchElasticEnvironment
from core.errors import ConfigurationError, DeviceError

from .backends import TORCHRUN, TwoAccelerator, refuse

pytestmark = pytest.mark.usefixtures("no_processes")

TWO_MACHINES = {**TORCHRUN, "WORLD_SIZE": "4"}
FIRST_OF_TWO = {"MASTER_ADDR": "h", "MASTER_PORT": "1", "NODE_RANK": "0"}

ENVIRONMENTS: list[tuple[dict[str, str], dict[str, Any], tuple[str, ...]]] = [
    (TORCHRUN, {"devices": 3}, ("devices asks for 3 process(es)", "the launcher has started 2", "Set devices=2")),
    (
        TORCHRUN,
        {"devices": 1},
        ("devices asks for 1 process(es)", "the launcher has started 2", "torchrun --nproc_per_node 1"),
    ),
    (TORCHRUN, {"devices": [0]}, ("devices asks for 1 process(es)", "the launcher has started 2")),
    (
        TORCHRUN,
        {"num_nodes": 2},
        ("num_nodes=2, but the launcher has started processes on 1 machine(s)", "Set num_nodes=1"),
    ),
    (
        TWO_MACHINES,
        {"num_nodes": 1},
        ("num_nodes=1, but the launcher has started processes on 2 machine(s)", "Set num_nodes=2"),
    ),
    (
        TORCHRUN,
        {"strategy": "single_device"},
        ("strategy='single_device' runs on 1 process; the launcher has started 2. Start 1, or set strategy='auto'.",),
    ),
    (
        TORCHRUN,
        {"cluster_environment": "local"},
        ("RANK=1, LOCAL_RANK=1, WORLD_SIZE=2", "cluster_environment='local' starts processes itself"),
    ),
    ({"RANK": "1", "WORLD_SIZE": "2"}, {}, ("RANK=1, WORLD_SIZE=2", "not set: LOCAL_RANK, MASTER_ADDR, MASTER_PORT")),
    (
        {"RANK": "0", "WORLD_SIZE": "2"},
        {},
        ("WORLD_SIZE=2", "not set: LOCAL_RANK, MASTER_ADDR, MASTER_PORT", "'torchelastic'"),
    ),
    ({"RANK": "1"}, {}, ("RANK=1", "not set: WORLD_SIZE, LOCAL_RANK", "Set cluster_environment to that launcher's")),
    ({"LOCAL_RANK": "1"}, {}, ("LOCAL_RANK=1", "Set cluster_environment to that launcher's")),
    ({"WORLD_SIZE": "many"}, {}, ("WORLD_SIZE=many", "Set cluster_environment to that launcher's")),
    ({"RANK": "1", "WORLD_SIZE": "2"}, {"cluster_environment": LocalEnvironment}, ("RANK=1, WORLD_SIZE=2",)),
    ({**TORCHRUN, "RANK": "x"}, {}, ("RANK is 'x'", "an integer ≥ 0")),
    ({**TORCHRUN, "RANK": "-1"}, {}, ("RANK is '-1'", "an integer ≥ 0")),
    ({**TORCHRUN, "RANK": ""}, {}, ("RANK is ''", "an integer ≥ 0")),
    ({**TORCHRUN, "RANK": "2"}, {}, ("RANK=2, WORLD_SIZE=2", "a rank must be smaller than its world size")),
    ({**TORCHRUN, "LOCAL_RANK": "2"}, {}, ("LOCAL_RANK=2", "a rank must be smaller than its world size")),
    ({**TORCHRUN, "LOCAL_RANK": "0"}, {}, ("RANK=1", "LOCAL_RANK=0", "ranks must be consecutive on each machine")),
    ({**TORCHRUN, "WORLD_SIZE": "0"}, {}, ("WORLD_SIZE is '0'", "an integer ≥ 1")),
    ({**TORCHRUN, "WORLD_SIZE": "3"}, {}, ("WORLD_SIZE=3", "LOCAL_WORLD_SIZE=2", "the same number of processes")),
    ({**TORCHRUN, "LOCAL_WORLD_SIZE": "0"}, {}, ("LOCAL_WORLD_SIZE is '0'", "an integer ≥ 1")),
    ({**TORCHRUN, "MASTER_PORT": "http"}, {}, ("MASTER_PORT is 'http'", "an integer from 1 to 65535")),
    ({**TORCHRUN, "MASTER_PORT": "65536"}, {}, ("MASTER_PORT is '65536'", "an integer from 1 to 65535")),
    ({**TORCHRUN, "MASTER_ADDR": ""}, {}, ("MASTER_ADDR is ''", "the host name or IP address")),
    ({}, {"cluster_environment": "torchelastic"}, ("environment variable", "is not set", "an integer")),
    ({}, {"cluster_environment": TorchElasticEnvironment}, ("environment variable", "is not set", "an integer")),
    ({}, {"num_nodes": 2}, ("num_nodes=2", "not set: NODE_RANK, MASTER_ADDR, MASTER_PORT", "torchrun on each machine")),
    ({"MASTER_ADDR": "h", "MASTER_PORT": "1"}, {"num_nodes": 2}, ("num_nodes=2", "not set: NODE_RANK")),
    (
        {"MASTER_ADDR": "", "MASTER_PORT": "1", "NODE_RANK": "0"},
        {"num_nodes": 2},
        ("num_nodes=2", "not set: MASTER_ADDR"),
    ),
    (
        {"MASTER_ADDR": "h", "MASTER_PORT": "x", "NODE_RANK": "0"},
        {"num_nodes": 2},
        ("MASTER_PORT is 'x'", "an integer from 1 to 65535"),
    ),
    (
        {"MASTER_ADDR": "h", "MASTER_PORT": "1", "NODE_RANK": "2"},
        {"num_nodes": 2},
        ("NODE_RANK is 2", "num_nodes=2", "an integer from 0 to num_nodes - 1"),
    ),
    (
        FIRST_OF_TWO,
        {"num_nodes": 2, "strategy": "single_device"},
        ("strategy='single_device' runs on 1 process; num_nodes=2 asks for 2. Use 1 in all, or set strategy='auto'.",),
    ),
    (
        FIRST_OF_TWO,
        {"num_nodes": 2, "devices": 2, "strategy": "single_device"},
        ("runs on 1 process; devices=2 and num_nodes=2 ask for 4. Use 1 in all, or",),
    ),
    ({"NODE_RANK": "1"}, {}, ("NODE_RANK is 1", "num_nodes=1", "Set num_nodes to the number of machines")),
    ({"NODE_RANK": "one"}, {}, ("NODE_RANK is 'one'", "an integer ≥ 0")),
]


@pytest.mark.parametrize(("environ", "arguments", "says"), ENVIRONMENTS, ids=[says[0] for _, _, says in ENVIRONMENTS])
def test_what_the_launcher_contradicts(
    front_end: Any,
    environ: dict[str, str],
    arguments: dict[str, Any],
    says: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More or fewer processes than were started, and ranks no one can use, are rejected: never two runs of rank 0."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    arguments = {name: given() if isinstance(given, type) else given for name, given in arguments.items()}
    refuse(front_end, {"accelerator": "cpu", **arguments}, ConfigurationError, says)


def test_more_processes_than_devices(front_end: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torchrun started more processes than there are devices, the error says that it was torchrun."""
    AcceleratorRegistry.register("two", TwoAccelerator)
    for name, value in {**TORCHRUN, "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    says = ("torchelastic started 3 process(es) on this machine", "accelerator 'two'", "available: devices 0 to 1.")
    refuse(front_end, {"accelerator": "two"}, DeviceError, says)
