"""Who started this process, and who it is among the others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest
from torch_hal_horovod import HorovodEnvironment
from torch_hal_horovod.detect import started
from torch_hal_horovod.plugin import core_cluster_environments

from torch_hal.discovery.ranks import ranks_by
from torch_hal.errors import ConfigurationError

GLOO = {
    "HOROVOD_RANK": "5",
    "HOROVOD_SIZE": "6",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "2",
    "HOROVOD_CROSS_SIZE": "3",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
SIGN = {"HOROVOD_CONTROLLER": "mpi"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (GLOO, True),
        ({**MPI, **SIGN}, True),
        (MPI, False),
        (SIGN, False),
        ({**MPI, "HOROVOD_CONTROLLER": "gloo"}, False),
        ({"HOROVOD_RANK": "0"}, False),
        ({"HOROVOD_TIMELINE": "file"}, False),
        ({}, False),
    ],
)
def test_detection(environ: Mapping[str, str], expected: bool) -> None:
    """Horovod's own ranks say that Horovod started it; mpirun's do only with Horovod's variable."""
    assert started(environ) is expected
    assert HorovodEnvironment.detect(environ) is expected


@pytest.mark.parametrize(("environ", "uses_mpi"), [(GLOO, False), ({**MPI, **SIGN}, True)])
def test_ranks(environ: Mapping[str, str], uses_mpi: bool) -> None:
    """The second of two processes on the third of three machines."""
    environment = HorovodEnvironment(environ)
    environment.validate_settings(2, 3)
    assert environment.creates_processes_externally
    assert environment.uses_mpi is uses_mpi
    assert (environment.global_rank, environment.world_size) == (5, 6)
    assert (environment.local_rank, environment.local_world_size) == (1, 2)
    assert (environment.node_rank, environment.num_nodes) == (2, 3)
    (spec,) = core_cluster_environments()
    assert ranks_by(spec, environ) == (None if uses_mpi else (5, 6))  # under mpirun, core's environment tells them


def test_address_of_another_strategy() -> None:
    """Horovod's launcher names no port to meet at; one that the user names is taken."""
    with pytest.raises(ConfigurationError, match=r"MASTER_ADDR is not set.*strategy='horovod'"):
        _ = HorovodEnvironment(GLOO).main_address
    environment = HorovodEnvironment({**GLOO, "MASTER_ADDR": "one", "MASTER_PORT": "5000"})
    assert (environment.main_address, environment.main_port) == ("one", 5000)


@pytest.mark.parametrize(
    ("changes", "processes", "machines", "message"),
    [
        ({}, 3, 3, r"devices asks for 3 process.*started 2 \(HOROVOD_LOCAL_SIZE\)"),
        ({}, 2, 1, r"num_nodes=1, but the launcher has started processes on 3"),
        ({"HOROVOD_RANK": "6"}, 2, 3, "a rank must be smaller than its world size"),
        ({"HOROVOD_LOCAL_RANK": "2"}, 2, 3, "a rank must be smaller than its world size"),
        ({"HOROVOD_SIZE": "7"}, 2, 3, "same number of processes"),
        ({"HOROVOD_RANK": "4"}, 2, 3, "ranks must be consecutive on each machine"),
        ({"HOROVOD_RANK": "x"}, 2, 3, "HOROVOD_RANK is 'x'"),
    ],
)
def test_contradictions(changes: Mapping[str, str], processes: int, machines: int, message: str) -> None:
    """Numbers other than the launcher's, and ranks that cannot be, are errors that name the variable."""
    with pytest.raises(ConfigurationError, match=message):
        HorovodEnvironment({**GLOO, **changes}).validate_settings(processes, machines)


def test_elastic_ranks_need_not_count_through() -> None:
    """The elastic driver lets those that stay keep their ranks."""
    elastic = {**GLOO, "HOROVOD_RANK": "0", "HOROVOD_ELASTIC": "1"}
    environment = HorovodEnvironment(elastic)
    environment.validate_settings(2, 3)
    assert environment.is_elastic


def test_detection_imports_neither_torch_nor_horovod() -> None:
    """A listing, or any script on a machine without Horovod, pays nothing for this plugin."""
    code = (
        "import sys, torch_hal_horovod.plugin as plugin, torch_hal_horovod.detect as detect\n"
        "plugin.core_strategies(), plugin.core_cluster_environments(), detect.started({})\n"
        "assert not {'torch', 'horovod', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
