"""The variables that well-known launchers set in each process, and the environments that read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from torch_hal.discovery.loading import import_target
from torch_hal_devkit.backend import BackendUnderTest

__all__ = [
    "NODES",
    "PROCESSES",
    "WELL_KNOWN",
    "Cluster",
    "cluster_of",
    "connected",
    "detections",
    "made",
    "other_shapes",
]

Variables = Mapping[str, str]
Sample = Callable[..., Variables]
"""``sample(rank, processes_per_node, num_nodes)``: the variables of one process."""

NODES, PROCESSES = 2, 3

_SHAPES = ((1, 1), (4, 1), (1, 3), (3, 2), (2, 4))
"""Processes on each machine, and machines."""

_HOSTS = {
    1: ("node-1", "node-1"),
    2: ("node-1", "node-[1-2]"),
    3: ("gpu007", "gpu[007-009]"),
    4: ("rack1-n08", "rack1-n[08-11]"),
}
"""By number of machines, the first host, and all in the notation of Slurm."""

_ADDRESSES = {1: "node-a", 2: "node-a", 3: "fe80::1", 4: "10.0.0.7"}
"""By number of machines, the address at which processes meet."""


@attrs.frozen
class Cluster:
    """The variables of each process that a cluster has started."""

    processes_per_node: int
    num_nodes: int
    variables: Sequence[Variables]
    """By global rank; of one process if the cluster starts none."""
    of_shape: Callable[[int, int], Cluster] | None = None
    """``of_shape(processes_per_node, num_nodes)`` describes another cluster of the kind, for further tests."""
    main_address: str | None = None
    """The first machine, as the variables name it; ``None`` if any address is right."""


def cluster_of(sample: Sample, processes: int = PROCESSES, nodes: int = NODES) -> Cluster:
    """The cluster whose processes have the variables of ``sample``."""
    variables = [sample(rank, processes, nodes) for rank in range(processes * nodes)]
    address = variables[0].get("MASTER_ADDR", _HOSTS[nodes][0]) if nodes > 1 else None  # alone, it may be a loopback
    return Cluster(processes, nodes, variables, lambda *shape: cluster_of(sample, *shape), address)


def other_shapes(cluster: Cluster) -> list[Cluster]:
    """Clusters of the same kind with other numbers of machines and processes, of more than one process."""
    return [] if cluster.of_shape is None else [cluster.of_shape(*shape) for shape in _SHAPES if shape != (1, 1)]


def _torchrun(rank: int, processes: int = PROCESSES, nodes: int = NODES) -> Variables:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(nodes * processes),
        "LOCAL_RANK": str(rank % processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "GROUP_RANK": str(rank // processes),
        "MASTER_ADDR": _ADDRESSES[nodes],
        "MASTER_PORT": "29511",
    }


def _slurm(rank: int, processes: int = PROCESSES, nodes: int = NODES) -> Variables:
    tasks = f"{processes}(x{nodes})" if nodes > 1 else str(processes)
    hosts = _HOSTS[nodes][1]
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOBID": "4711",
        "SLURM_JOB_NAME": "train",
        "SLURM_NTASKS": str(nodes * processes),
        "SLURM_NTASKS_PER_NODE": str(processes),
        "SLURM_TASKS_PER_NODE": tasks,
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % processes),
        "SLURM_NODEID": str(rank // processes),
        "SLURM_NODELIST": hosts,
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_STEP_NODELIST": hosts,
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(nodes * processes),
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
        "SLURM_SRUN_COMM_HOST": "10.0.0.1",
    }


def _open_mpi(rank: int, processes: int = PROCESSES, nodes: int = NODES) -> Variables:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(nodes * processes),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % processes),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(processes),
        "OMPI_COMM_WORLD_NODE_RANK": str(rank % processes),
        "OMPI_MCA_ess_base_jobid": "4711",
        "MASTER_ADDR": _ADDRESSES[nodes],
        "MASTER_PORT": "29511",
    }


WELL_KNOWN: tuple[Sample, ...] = (_torchrun, _slurm, _open_mpi)
"""What torchrun, Slurm and Open MPI set."""


def made(backend: BackendUnderTest, variables: Variables) -> Any:
    """An environment with these variables."""
    return backend.create(environ=variables)


def connected(backend: BackendUnderTest, variables: Variables, cluster: Cluster) -> Any:
    """An environment of a process of the cluster, with the numbers of its run."""
    environment = made(backend, variables)
    environment.connect(cluster.processes_per_node, cluster.num_nodes)
    return environment


def detections(backend: BackendUnderTest) -> dict[str, Any]:
    """The functions that detect it: the class's own, and the spec's if it has one."""
    function = backend.spec.detect
    found = {f"{backend.load().__name__}.detect": backend.load().detect}
    return found if function is None else {**found, function: import_target(function)}
