"""The conformance kit on core's own environments, with variables that their launchers set for two machines.

``local`` and ``torchelastic`` are in ``plugins/devkit/tests/test_core_backends.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from torch_hal_devkit import BackendUnderTest, Cluster, ClusterEnvironmentSuite

pytestmark = pytest.mark.slow

NODES, PROCESSES = 2, 3
SIZE = NODES * PROCESSES


class _Known(ClusterEnvironmentSuite):
    """The suite of one environment."""

    name: str
    variables: Any
    """The variables of a rank."""

    @pytest.fixture
    def backend(self) -> BackendUnderTest:
        return BackendUnderTest.find("cluster_environment", self.name, {})

    @pytest.fixture
    def cluster(self, backend: BackendUnderTest) -> Cluster:
        return Cluster(PROCESSES, NODES, [type(self).variables(rank) for rank in range(SIZE)])


def _at_host(rank: int, size: int = SIZE) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "host-a", "MASTER_PORT": "23456"}


def _plain(rank: int) -> Mapping[str, str]:
    return {**_at_host(rank), "LOCAL_WORLD_SIZE": str(PROCESSES)}


def _slurm(rank: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "4242",
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_NODELIST": "gpu[07-08]",
        "SLURM_JOB_NUM_NODES": str(NODES),
        "SLURM_LOCALID": str(rank % PROCESSES),
        "SLURM_NODEID": str(rank // PROCESSES),
        "SLURM_NTASKS": str(SIZE),
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "gpu[07-08]",
        "SLURM_STEP_NUM_NODES": str(NODES),
        "SLURM_STEP_NUM_TASKS": str(SIZE),
        "SLURM_STEP_TASKS_PER_NODE": f"{PROCESSES}(x{NODES})",
    }


def _open_mpi(rank: int) -> Mapping[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(SIZE),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % PROCESSES),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(PROCESSES),
        "PMIX_NAMESPACE": "1437073409",
        "PMIX_RANK": str(rank),
        "MASTER_ADDR": "host-a",
        "MASTER_PORT": "23456",
    }


def _pmix(rank: int) -> Mapping[str, str]:
    return {**_slurm(rank), "PMIX_RANK": str(rank), "PMIX_NAMESPACE": "slurm.pmix.4242.0"}


def _mpich(rank: int) -> Mapping[str, str]:
    local = {"MPI_LOCALRANKID": str(rank % PROCESSES), "MPI_LOCALNRANKS": str(PROCESSES)}
    return {"PMI_RANK": str(rank), "PMI_SIZE": str(SIZE), "PMI_FD": "9", "MASTER_ADDR": "host-a", **local}


def _jsrun(rank: int) -> Mapping[str, str]:
    return {
        "LSB_JOBID": "77",
        "LSB_MCPU_HOSTS": "batch1 1 gpu07 42 gpu08 42",
        "JSM_NAMESPACE_SIZE": str(SIZE),
        "JSM_NAMESPACE_RANK": str(rank),
        "JSM_NAMESPACE_LOCAL_RANK": str(rank % PROCESSES),
        "JSM_NAMESPACE_LOCAL_SIZE": str(PROCESSES),
    }


class TestPlain(_Known):
    name, variables = "plain", _plain


class TestSlurm(_Known):
    name, variables = "slurm", _slurm


class TestOpenMPI(_Known):
    name, variables = "openmpi", _open_mpi


class TestPMIx(_Known):
    name, variables = "pmix", _pmix


class TestMPICH(_Known):
    name, variables = "mpich", _mpich


class TestLSF(_Known):
    name, variables = "lsf", _jsrun


class TestKubeflow(_Known):
    name = "kubeflow"

    @pytest.fixture
    def cluster(self, backend: BackendUnderTest) -> Cluster:
        pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_PORT": "tcp://10.0.0.1:443"}
        return Cluster(1, 3, [{**pod, **_at_host(rank, 3)} for rank in range(3)])
