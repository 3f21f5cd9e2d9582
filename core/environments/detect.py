"""Detecting from environment variables, without torch, which cluster started this process."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ConfigurationError
from .variables import whole_number

__all__ = [
    "LAUNCHED",
    "TORCHRUN_VARIABLES",
    "kubeflow",
    "local",
    "lsf",
    "mpich",
    "openmpi",
    "plain",
    "pmix",
    "requeue_command",
    "slurm",
    "slurm_tasks",
    "torchelastic",
]

LAUNCHED = "CORE_LAUNCHED_PLAN"
"""Set by a strategy's launcher in the processes that it starts: the Plan that they run, as JSON."""

TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""The variables that torchrun sets. Whoever starts processes by hand must set them too."""

_SIZES = (
    *("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "JSM_NAMESPACE_SIZE", "FLUX_JOB_SIZE", "PALS_SIZE"),
    *("MV2_COMM_WORLD_SIZE", "PMIX_SIZE"),
)
"""How many processes a launcher has started; not all of these launchers have a cluster environment."""
_RANKS = ("PMIX_RANK", "PALS_RANKID", "FLUX_TASK_RANK", "JSM_NAMESPACE_RANK")
"""A process with another rank than 0 is not alone."""


def local(environ: Mapping[str, str]) -> bool:
    """True, unless a launcher has started this process as one of several: then each would train by itself.

    Raises:
        ConfigurationError: It has, by a variable that the error names.
    """
    if LAUNCHED in environ:
        return True
    named = [(name, whole_number(environ, name) > 1) for name in _SIZES if name in environ]
    named += [(name, whole_number(environ, name) > 0) for name in _RANKS if name in environ]
    for name, is_one_of_several in named:
        if is_one_of_several:
            raise ConfigurationError(
                f"environment variable {name} is {environ[name]!r}: a launcher has started this process as one of "
                "several, and each would train by itself. Set cluster_environment to that launcher's, set RANK, "
                "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in each process, or set "
                "cluster_environment='local' if each is a run of its own"
            )
    return True


def torchelastic(environ: Mapping[str, str]) -> bool:
    """Whether all of torchrun's variables are set, and were not set by a strategy's launcher.

    Raises:
        ConfigurationError: They contradict those of another launcher, and torchrun has not set them.
    """
    if LAUNCHED in environ or not all(variable in environ for variable in TORCHRUN_VARIABLES):
        return False
    if "TORCHELASTIC_RUN_ID" not in environ:
        _refuse_ambiguous("torchelastic", environ)
    return True


def kubeflow(environ: Mapping[str, str]) -> bool:
    """Whether this is one of several replicas of a PyTorchJob, and no launcher in it has set a local rank.

    Raises:
        ConfigurationError: The replicas' number contradicts that of another launcher.
    """
    in_pod = "KUBERNETES_SERVICE_HOST" in environ or "KUBERNETES_PORT" in environ
    if not in_pod or not _has_env_variables(environ):
        return False
    _refuse_ambiguous("kubeflow", environ)
    return True


def plain(environ: Mapping[str, str]) -> bool:
    """Whether the variables for torch's ``env://`` are set for several processes, without a local rank.

    Raises:
        ConfigurationError: Their number contradicts that of another launcher.
    """
    if not _has_env_variables(environ):
        return False
    _refuse_ambiguous("plain", environ)
    return True


def _has_env_variables(environ: Mapping[str, str]) -> bool:
    needed = [name for name in TORCHRUN_VARIABLES if name != "LOCAL_RANK"]
    if LAUNCHED in environ or "LOCAL_RANK" in environ or not all(name in environ for name in needed):
        return False
    return whole_number(environ, "WORLD_SIZE", low=1) > 1


def _refuse_ambiguous(asked: str, environ: Mapping[str, str]) -> None:
    """Refuse ``WORLD_SIZE`` where a launcher that sets other variables has started another number of processes."""
    for name, is_it in (("lsf", lsf), ("openmpi", openmpi), ("mpich", mpich), ("slurm", slurm)):
        size = next((variable for variable in _SIZES if variable in environ), "SLURM_NTASKS")
        if is_it(environ) and environ.get(size) != environ["WORLD_SIZE"]:
            raise ConfigurationError(
                f"the environment variables WORLD_SIZE={environ['WORLD_SIZE'][:100]} and {size}="
                f"{environ.get(size, '')[:100]} contradict each other. Set cluster_environment to {asked!r} or "
                f"{name!r}, or unset RANK and WORLD_SIZE"
            )


def lsf(environ: Mapping[str, str]) -> bool:
    """Whether ``jsrun`` has started this process as one of several in a job of LSF."""
    return LAUNCHED not in environ and "LSB_JOBID" in environ and whole_number(environ, "JSM_NAMESPACE_SIZE", 1) > 1


def pmix(environ: Mapping[str, str]) -> bool:
    """Whether SLURM has several tasks for this program, and has told them their ranks by PMIx."""
    return "PMIX_RANK" in environ and slurm(environ)


def openmpi(environ: Mapping[str, str]) -> bool:
    """Whether Open MPI has started this process as one of several."""
    return LAUNCHED not in environ and whole_number(environ, "OMPI_COMM_WORLD_SIZE", 1) > 1


def mpich(environ: Mapping[str, str]) -> bool:
    """Whether MPICH's launcher, or one with the same variables, has started this process as one of several.

    In a job of SLURM its processes also have the variables of the task that started them; ``srun --mpi=pmi2`` sets
    ``PMI_SIZE``, but no ``MPI_LOCALRANKID``.
    """
    return LAUNCHED not in environ and "MPI_LOCALRANKID" in environ and whole_number(environ, "PMI_SIZE", 1) > 1


def slurm(environ: Mapping[str, str]) -> bool:
    """Whether SLURM has several tasks for this program. An interactive shell is one task, whatever was allocated."""
    is_task = LAUNCHED not in environ and "SLURM_PROCID" in environ
    if is_task and "SLURM_STEP_NUM_TASKS" not in environ and environ.get("SLURM_JOB_NAME") in ("bash", "interactive"):
        return False
    return is_task and slurm_tasks(environ) > 1


def slurm_tasks(environ: Mapping[str, str]) -> int:
    """The number of tasks of this step; of the job, if the step's is not set."""
    names = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    return whole_number(environ, next((name for name in names if name in environ), names[0]), 1, low=1)


def requeue_command(environ: Mapping[str, str]) -> list[str]:
    """The scheduler's command that starts the job of this process again from its beginning; empty without a job."""
    if environ.get("SLURM_ARRAY_JOB_ID") and environ.get("SLURM_ARRAY_TASK_ID"):
        return ["scontrol", "requeue", f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"]
    return ["scontrol", "requeue", environ["SLURM_JOB_ID"]] if environ.get("SLURM_JOB_ID") else []
