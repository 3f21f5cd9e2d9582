"""Words that contradict what started this process are refused by the constructor of either front end."""

from __future__ import annotations

from typing import Any

import pytest

from core import AcceleratorRegistry
from core.environments import LocalEnvironment, TorchElasticEnvironment
from core.errors import ConfigurationError, DeviceError

from .backends import TORCHRUN, TwoAccelerator, refuse

pytestmark = pytest.mark.usefixtures("no_processes")

TWO_MACHINES = {**TORCHRUN, "WORLD_SIZE": "4"}

ENVIRONMENTS: list[tuple[dict[str, str], dict[str, Any], tuple[str, ...]]] = [
    (TORCHRUN, {"devices": 3}, ("devices: 3 process(es)", "its launcher started 2", "Valid: devices=2")),
    (TORCHRUN, {"devices": 1}, ("devices: 1 process(es)", "its launcher started 2", "torchrun --nproc_per_node 1")),
    (TORCHRUN, {"devices": [0]}, ("devices: 1 process(es)", "its launcher started 2")),
    (TORCHRUN, {"num_nodes": 2}, ("num_nodes=2: the launcher started 1 machine(s)", "Valid: num_nodes=1")),
    (TWO_MACHINES, {"num_nodes": 1}, ("num_nodes=1: the launcher started 2 machine(s)", "Valid: num_nodes=2")),
    (TORCHRUN, {"strategy": "single_device"}, ("strategy='single_device'", "give 2 process(es)", "Valid: 1")),
    (TORCHRUN, {"cluster_environment": "local"}, ("RANK=1, LOCAL_RANK=1, WORLD_SIZE=2", "'local' starts its own")),
    ({"RANK": "1", "WORLD_SIZE": "2"}, {}, ("RANK=1, WORLD_SIZE=2", "not set: LOCAL_RANK, MASTER_ADDR, MASTER_PORT")),
    (
        {"RANK": "0", "WORLD_SIZE": "2"},
        {},
        ("WORLD_SIZE=2", "not set: LOCAL_RANK, MASTER_ADDR, MASTER_PORT", "'torchelastic'"),
    ),
    ({"RANK": "1"}, {}, ("RANK=1", "not set: WORLD_SIZE, LOCAL_RANK", "Valid: the environment of what started it")),
    ({"LOCAL_RANK": "1"}, {}, ("LOCAL_RANK=1", "Valid: the environment of what started it")),
    ({"WORLD_SIZE": "many"}, {}, ("WORLD_SIZE=many", "Valid: the environment of what started it")),
    ({"RANK": "1", "WORLD_SIZE": "2"}, {"cluster_environment": LocalEnvironment}, ("RANK=1, WORLD_SIZE=2",)),
    ({**TORCHRUN, "RANK": "x"}, {}, ("RANK: given 'x'", "Valid: a whole number from 0 on")),
    ({**TORCHRUN, "RANK": "-1"}, {}, ("RANK: given '-1'", "Valid: a whole number from 0 on")),
    ({**TORCHRUN, "RANK": ""}, {}, ("RANK: given ''", "Valid: a whole number from 0 on")),
    ({**TORCHRUN, "RANK": "2"}, {}, ("RANK=2, WORLD_SIZE=2", "a rank must be below its size")),
    ({**TORCHRUN, "LOCAL_RANK": "2"}, {}, ("LOCAL_RANK=2", "a rank must be below its size")),
    ({**TORCHRUN, "LOCAL_RANK": "0"}, {}, ("RANK=1", "LOCAL_RANK=0", "ranks must count through the machines")),
    ({**TORCHRUN, "WORLD_SIZE": "0"}, {}, ("WORLD_SIZE: given '0'", "Valid: a whole number from 1 on")),
    ({**TORCHRUN, "WORLD_SIZE": "3"}, {}, ("WORLD_SIZE=3", "LOCAL_WORLD_SIZE=2", "the same number of processes")),
    ({**TORCHRUN, "LOCAL_WORLD_SIZE": "0"}, {}, ("LOCAL_WORLD_SIZE: given '0'", "Valid: a whole number from 1 on")),
    ({**TORCHRUN, "MASTER_PORT": "http"}, {}, ("MASTER_PORT: given 'http'", "Valid: a whole number from 1 to 65535")),
    ({**TORCHRUN, "MASTER_PORT": "65536"}, {}, ("MASTER_PORT: given '65536'", "Valid: a whole number from 1 to 65535")),
    ({**TORCHRUN, "MASTER_ADDR": ""}, {}, ("MASTER_ADDR=''", "Valid: a host name or an address")),
    ({}, {"cluster_environment": "torchelastic"}, ("environment variable", "not set", "Valid: ")),
    ({}, {"cluster_environment": TorchElasticEnvironment}, ("environment variable", "not set", "Valid: ")),
    ({}, {"num_nodes": 2}, ("num_nodes=2", "NODE_RANK, MASTER_ADDR, MASTER_PORT not set", "Valid: torchrun on each")),
    ({"MASTER_ADDR": "h", "MASTER_PORT": "1"}, {"num_nodes": 2}, ("num_nodes=2", "NODE_RANK not set")),
    (
        {"MASTER_ADDR": "", "MASTER_PORT": "1", "NODE_RANK": "0"},
        {"num_nodes": 2},
        ("num_nodes=2", "MASTER_ADDR not set"),
    ),
    (
        {"MASTER_ADDR": "h", "MASTER_PORT": "x", "NODE_RANK": "0"},
        {"num_nodes": 2},
        ("MASTER_PORT: given 'x'", "Valid: a whole number from 1 to 65535"),
    ),
    (
        {"MASTER_ADDR": "h", "MASTER_PORT": "1", "NODE_RANK": "2"},
        {"num_nodes": 2},
        ("NODE_RANK: given 2", "num_nodes=2", "Valid: a NODE_RANK below num_nodes"),
    ),
    ({"NODE_RANK": "1"}, {}, ("NODE_RANK: given 1", "num_nodes=1", "num_nodes= as many as there are machines")),
    ({"NODE_RANK": "one"}, {}, ("NODE_RANK: given 'one'", "Valid: a whole number from 0 on")),
]


@pytest.mark.parametrize(("environ", "words", "says"), ENVIRONMENTS, ids=[says[0] for _, _, says in ENVIRONMENTS])
def test_what_the_launcher_contradicts(
    front_end: Any,
    environ: dict[str, str],
    words: dict[str, Any],
    says: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More or fewer processes than were started, and ranks nobody can use, are refused: never two runs of rank 0."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    words = {word: given() if isinstance(given, type) else given for word, given in words.items()}
    refuse(front_end, {"accelerator": "cpu", **words}, ConfigurationError, says)


def test_more_processes_than_devices(front_end: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torchrun started more processes than there are devices, the error says that it was torchrun."""
    AcceleratorRegistry.register("two", TwoAccelerator)
    for name, value in {**TORCHRUN, "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    says = ("torchelastic started 3 process(es) on this machine", "accelerator 'two'", "there: devices 0 to 1.")
    refuse(front_end, {"accelerator": "two"}, DeviceError, says)
