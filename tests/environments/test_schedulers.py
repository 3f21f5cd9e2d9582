"""Processes that SLURM, Open MPI and MPICH started, from variables that these set; nobody trains alone by mistake."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from python_processes import run_python

from core import Request, resolve
from core.discovery.ranks import by_priority, launched_ranks
from core.discovery.registry import Registry
from core.environments import (
    KubeflowEnvironment,
    LSFEnvironment,
    MPICHEnvironment,
    OpenMPIEnvironment,
    PMIxEnvironment,
    SlurmEnvironment,
)
from core.environments.slurm import first_host
from core.errors import BackendError, ConfigurationError, CoreError

SLURM = {
    "SLURM_JOB_ID": "4242",
    "SLURM_JOB_NAME": "train",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NODELIST": "gpu[07-08]",
    "SLURM_NPROCS": "4",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}
"""In a task of ``srun --nodes=2 --ntasks-per-node=2``."""
SCRIPT = {name: SLURM[name] for name in SLURM if "STEP" not in name} | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
"""In the batch script of the same job, which runs once."""
SHELL = {
    **{name: SLURM[name] for name in SLURM if "STEP" not in name and name not in ("SLURM_PROCID", "SLURM_LOCALID")},
    "SLURM_JOB_NAME": "interactive",
}
"""In the shell that ``salloc`` starts."""
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
    "OMPI_COMM_WORLD_NODE_RANK": "2",
    "OMPI_MCA_ess_base_jobid": "1437073409",
    "PMIX_NAMESPACE": "1437073409",
    "PMIX_RANK": "2",
}
PMIX = {**SLURM, "PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.4242.0", "PMIX_SERVER_URI2": "pmix-server.1;tcp4://"}
"""In a task of ``srun --mpi=pmix``: PMIx sets no number of tasks."""
JSRUN = {
    "LSB_JOBID": "77",
    "LSB_MCPU_HOSTS": "batch1 1 gpu07 42 gpu08 42",
    "JSM_NAMESPACE_SIZE": "6",
    "JSM_NAMESPACE_RANK": "4",
    "JSM_NAMESPACE_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "4",
    "OMPI_COMM_WORLD_SIZE": "6",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "PMIX_RANK": "4",
}
"""In a process of ``jsrun --nrs 2 --tasks_per_rs 3``, whose MPI is Open MPI's."""
REPLICA = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "KUBERNETES_PORT": "tcp://10.0.0.1:443",
    "MASTER_ADDR": "train-master-0",
    "MASTER_PORT": "23456",
    "WORLD_SIZE": "3",
    "RANK": "2",
    "PET_NNODES": "3",
    "PET_NODE_RANK": "2",
    "PYTHONUNBUFFERED": "1",
}
"""In the second worker of a PyTorchJob."""
ENV = {"RANK": "2", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234"}
"""What torch's ``env://`` needs, and no more."""
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "3", "PMI_FD": "9", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"}

PROXY = {
    **SLURM,
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
"""The variables of SLURM that processes of MPICH's launcher inherit, which runs one task on each of two machines."""
SECOND = {"PMI_RANK": "5", "PMI_SIZE": "8", "PMI_FD": "9", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
"""On the second of two machines with four processes each."""


def plan(environ: dict[str, str], **arguments: Any) -> Any:
    return resolve(Request.read(environ=environ, accelerator="cpu", **arguments))


@pytest.mark.parametrize(
    ("environ", "name", "ranks"),
    [
        (SLURM, "slurm", (3, 4, 1, 2, 1, 2)),
        (OPEN_MPI, "openmpi", (2, 3, 2, 3, 0, 1)),
        # Open MPI 5 with three processes on two cores
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, "openmpi", (2, 3, 2, 3, 0, 1)),
        (MPICH, "mpich", (1, 3, 1, 3, 0, 1)),
        # Hydra, the launcher of MPICH and Intel MPI, in a job of SLURM: srun starts one of its proxies on each machine
        ({**SCRIPT, **MPICH}, "mpich", (1, 3, 1, 3, 0, 1)),
        ({**PROXY, **MPICH, "MASTER_ADDR": "a"}, "mpich", (1, 3, 1, 3, 0, 1)),
        ({**PROXY, **SECOND, "MASTER_ADDR": "a"}, "mpich", (5, 8, 1, 4, 1, 2)),
        ({**SLURM, "PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "9"}, "slurm", (3, 4, 1, 2, 1, 2)),  # srun --mpi=pmi2
        (PMIX, "pmix", (3, 4, 1, 2, 1, 2)),
        (JSRUN, "lsf", (4, 6, 1, 3, 1, 2)),
        ({**JSRUN, "JSM_NAMESPACE_LOCAL_SIZE": "3", "LSB_MCPU_HOSTS": ""}, "lsf", (4, 6, 1, 3, 1, 2)),
        (REPLICA, "kubeflow", (2, 3, 0, 1, 2, 3)),
        (ENV, "plain", (2, 3, 2, 3, 0, 1)),
        ({**ENV, "MASTER_ADDR": "host", "LOCAL_WORLD_SIZE": "1"}, "plain", (2, 3, 0, 1, 2, 3)),
        ({**ENV, "LOCAL_RANK": "2"}, "torchelastic", (2, 3, 2, 3, 0, 1)),
        ({**REPLICA, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, "torchelastic", (2, 3, 0, 1, 2, 3)),
        ({**ENV, **OPEN_MPI, "WORLD_SIZE": "2"}, "openmpi", (2, 3, 2, 3, 0, 1)),
        ({**SLURM, **OPEN_MPI, "MASTER_ADDR": "a"}, "openmpi", (2, 3, 2, 3, 0, 1)),  # srun starts mpirun's daemons
    ],
)
def test_ranks_are_the_launchers(environ: dict[str, str], name: str, ranks: tuple[int, ...]) -> None:
    """The Plan has the launcher's numbers, and the strategy starts nothing."""
    found = plan(environ)
    environment = found.parts["cluster_environment"]
    assert (found.cluster_environment.name, found.strategy.name, found.launcher) == (name, "ddp", None)
    assert (found.world_size, len(found.devices), found.num_nodes) == (ranks[1], ranks[3], ranks[5])
    assert ranks == (
        *(environment.global_rank, environment.world_size, environment.local_rank, environment.local_world_size),
        *(environment.node_rank, environment.num_nodes),
    )
    assert launched_ranks(environ) == ranks[:2]


def test_where_the_processes_meet() -> None:
    """The first host of the step, and a port that follows from the job; ``MASTER_ADDR`` and ``MASTER_PORT`` decide."""
    slurm = SlurmEnvironment(SLURM)
    assert slurm.main_address == "gpu07"
    assert 20000 <= slurm.main_port < 32000
    assert SlurmEnvironment({**SLURM, "SLURM_JOB_ID": "4243"}).main_port != slurm.main_port
    federated = {**SLURM, "SLURM_JOB_ID": str((63 << 26) + 4242), "SLURM_STEP_ID": "4294967290"}
    assert 20000 <= SlurmEnvironment(federated).main_port < 32000
    assert 20000 <= LSFEnvironment({**JSRUN, "LSB_JOBID": "2147483646"}).main_port < 32000
    one = {**SLURM, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
    assert SlurmEnvironment(one).main_address == "127.0.0.1"
    assert OpenMPIEnvironment(OPEN_MPI).main_address == "127.0.0.1"
    assert 20000 <= OpenMPIEnvironment(OPEN_MPI).main_port < 32000
    assert MPICHEnvironment(MPICH).main_port == 29500
    given = {"MASTER_ADDR": "head", "MASTER_PORT": "1234"}
    for environment in (
        SlurmEnvironment(SLURM | given),
        OpenMPIEnvironment(OPEN_MPI | given),
        MPICHEnvironment(MPICH | given),
    ):
        assert (environment.main_address, environment.main_port) == ("head", 1234)
    assert PMIxEnvironment(PMIX).main_address == "gpu07"
    assert 20000 <= PMIxEnvironment(PMIX).main_port < 32000
    assert PMIxEnvironment({**PMIX, "PMIX_NAMESPACE": "x"}).main_port != PMIxEnvironment(PMIX).main_port
    assert (LSFEnvironment(JSRUN).main_address, LSFEnvironment(JSRUN).main_port) == ("gpu07", 21309)
    even = {**JSRUN, "LSB_MCPU_HOSTS": "gpu01 42 gpu02 42"}
    assert LSFEnvironment(even).main_address == "gpu01"
    assert LSFEnvironment({**JSRUN, "MASTER_ADDR": "head"}).main_address == "head"
    assert (KubeflowEnvironment(REPLICA).main_address, KubeflowEnvironment(REPLICA).main_port) == (
        "train-master-0",
        23456,
    )
    with pytest.raises(ConfigurationError, match=r"MASTER_ADDR on several machines.*mpirun -x MASTER_ADDR"):
        _ = OpenMPIEnvironment({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}).main_address


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("host", "host"),
        ("a,b", "a"),
        ("node[07-12,20],login", "node07"),
        ("node[3]", "node3"),
        ("gpu-[001-128]-ib", "gpu-001-ib"),
        ("rack[1-2]node[05-06]", "rack1node05"),
        ("a.example.org,b.example.org", "a.example.org"),
    ],
)
def test_the_first_of_slurms_hosts(hosts: str, first: str) -> None:
    """As ``scontrol show hostnames`` prints it first."""
    assert first_host(hosts) == first


@pytest.mark.parametrize("hosts", ["", "[", "node[", "node[x]", ",", "node[]", "a b"])
def test_what_is_no_list_of_hosts(hosts: str) -> None:
    """The error says what to set instead."""
    with pytest.raises(ConfigurationError, match="Set MASTER_ADDR"):
        first_host(hosts)


@pytest.mark.parametrize(
    "environ",
    [
        SHELL,
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1"},
        {**SCRIPT, "SLURM_JOB_NAME": "bash"},
        {**SCRIPT, "SLURM_NTASKS": "1"},
    ],
    ids=["salloc", "one task", "bash", "batch"],
)
def test_a_process_that_is_alone_stays_alone(environ: dict[str, str]) -> None:
    """An interactive shell is one process, whatever was allocated to it; the strategy starts the others."""
    found = plan(environ, devices=2)
    assert (found.cluster_environment.name, found.launcher, found.world_size) == ("local", "script", 2)
    assert launched_ranks(environ) == (0, 1)


@pytest.mark.parametrize(
    ("environ", "arguments", "says"),
    [
        (SCRIPT, {}, "started without srun.*Start the script with 'srun"),
        (SLURM, {"devices": 4}, "Set devices=2.*srun --nodes=2 --ntasks-per-node=4"),
        (OPEN_MPI, {"devices": 2}, "Set devices=3.*mpirun -n 2"),
        ({**SLURM, "SLURM_LOCALID": "0"}, {}, "--distribution=block"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "3,1"}, {}, "(smaller than|same number)"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "two"}, {}, "'2\\(x3\\),1'"),
        ({**SLURM, "SLURM_NODEID": "7"}, {}, "SLURM_NODEID=7"),
        ({"JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_RANK": "0"}, {}, "JSM_NAMESPACE_SIZE is '4'.*cluster_environment"),
        ({"PMIX_RANK": "1"}, {}, "PMIX_RANK is '1'"),
        ({**PMIX, "PMIX_RANK": "0"}, {}, "PMIX_RANK=0 and SLURM_PROCID=3.*cluster_environment='slurm'"),
        ({**JSRUN, "LSB_MCPU_HOSTS": "a 1 b 1 c 1 d 1"}, {}, "not a multiple of the job's 4 hosts"),
        ({**JSRUN, "LSB_MCPU_HOSTS": "a b"}, {}, "LSB_MCPU_HOSTS is 'a b'"),
        ({**REPLICA, "PET_NPROC_PER_NODE": "4"}, {}, "nprocPerNode is '4'.*torchrun"),
        (REPLICA, {"devices": 2}, "Set devices=1.*torchrun --nproc_per_node 2"),
        ({**ENV, "MASTER_ADDR": "host"}, {}, "Set LOCAL_WORLD_SIZE, or cluster_environment='kubeflow'"),
        ({**ENV, "RANK": "3"}, {}, "a rank must be smaller"),
        (
            {**OPEN_MPI, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
            {"cluster_environment": "auto"},
            "",
        ),
    ],
)
def test_what_would_train_alone_by_mistake_is_refused(
    environ: dict[str, str], arguments: dict[str, Any], says: str
) -> None:
    """The error names the variable, or the setting that decides; or the launcher's processes are used together."""
    if not says:
        assert plan(environ, **arguments).world_size == 3
        return
    with pytest.raises((ConfigurationError, BackendError), match=says):
        plan(environ, **arguments)


def test_the_order_of_detection() -> None:
    """It is that of the priorities, and the one that the documentation shows."""
    specs = by_priority(Registry.read({}).specs("cluster_environment"))
    names = [spec.name for spec in specs if not spec.target.startswith("torch_hal_")]
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text("utf-8")
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")] == names


def test_each_process_alone_if_the_user_says_so() -> None:
    """Four runs with other seeds, as ``srun`` starts them."""
    found = plan(SLURM, cluster_environment="local")
    assert (found.world_size, found.launcher) == (1, None)


@pytest.mark.parametrize("value", ["", "x", "-1", "1e999", "9" * 100])
@pytest.mark.parametrize("name", sorted({*SLURM, *OPEN_MPI, *MPICH, *PMIX, *JSRUN, *REPLICA, *ENV}))
def test_any_value_of_any_variable(name: str, value: str) -> None:
    """A Plan, or an error of ours."""
    for environ in (SLURM, OPEN_MPI, MPICH, PMIX, JSRUN, REPLICA, ENV):
        if name in environ:
            try:
                found = plan({**environ, name: value})
            except CoreError:
                continue
            environment = found.parts["cluster_environment"]
            try:
                assert environment.main_address
                assert environment.main_port
            except CoreError:
                continue


RANKS = """
import torch
from core import Runtime
runtime = Runtime(accelerator="cpu")
runtime.launch()
total = runtime.reduce(torch.tensor(float(runtime.process_index + 1)), reduction="sum")
open(f"rank{runtime.process_index}", "w").write(f"{runtime.num_processes} {total.item()}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", ["mpirun.openmpi", "mpiexec.hydra"])
def test_three_real_processes(program: str, tmp_path: Path) -> None:
    """They have three ranks, and add up."""
    program = os.environ.get("OPENMPI_MPIRUN", program) if "openmpi" in program else program
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    (tmp_path / "train.py").write_text(RANKS)
    options = [] if "hydra" in program else ["--oversubscribe", "--allow-run-as-root"]
    call = (
        "import subprocess, sys; "
        f"sys.exit(subprocess.call([{program!r}, '-n', '3', *{options!r}, sys.executable, 'train.py']))"
    )
    run_python("-c", call, cwd=tmp_path, timeout=120)
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(3)] == ["3 6.0"] * 3
