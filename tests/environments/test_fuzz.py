"""Any values of any launcher's variables, in any combination: ranks, or an error of ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from drawing import drawn
from hypothesis import given
from hypothesis import strategies as st

from core import environments
from core.discovery.ranks import launched_ranks
from core.environments import ClusterEnvironment
from core.environments.local import own_environ
from core.environments.slurm import first_host
from core.errors import CoreError

NAMES = [
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "CORE_RANKS_OF"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
    *("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_STEP_NODELIST", "SLURM_NODELIST"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_JOB_NAME"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    *("PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SIZE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    *("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
    *("LSB_JOBID", "LSB_MCPU_HOSTS", "KUBERNETES_PORT", "KUBERNETES_SERVICE_HOST", "PET_NPROC_PER_NODE"),
]
VALUES = [
    *("0", "1", "2", "3", "4", "8", "127.0.0.1", "host", "localhost", "True"),
    *("", " ", "-1", "x", "1e999", "nan", "9" * 100, "٣", "1.5", "0x1", "1\n", "\udcff", "ü", "65536", "²"),
    *("2(x2)", "2(x999999)", "2,1", "2(x", ",", "(x3)", "0", "2(x2),", "999999(x999999),1"),
    *("node[07-08]", "a,b", "node[", "[]", "a[1]" * 3000, "[1-2" * 50, "a" * 10_000),
    *("batch 1 a 4 b 4", "a 4 b", "a x", "a 4 b 4", "4 a 4", "a ² b 2", "a 1"),
]
CLASSES = [
    found
    for name in environments.__all__
    if isinstance(found := getattr(environments, name), type) and issubclass(found, ClusterEnvironment) and found.name
]
PROPERTIES = (
    *("main_address", "main_port", "world_size", "local_world_size", "global_rank", "local_rank", "node_rank"),
    *("num_nodes", "creates_processes_externally", "hosts_store"),
)


def asked(question: Callable[[], Any]) -> Any:
    """The answer; or an error of ours, which is not endless."""
    try:
        return question()
    except CoreError as error:
        return error


def check(environ: dict[str, str]) -> None:
    answers = [asked(partial(kind.detect, dict(environ))) for kind in CLASSES]
    assert all(isinstance(answer, bool | CoreError) for answer in answers)
    answers += [asked(partial(ask, dict(environ))) for ask in (own_environ, launched_ranks)]
    for kind in CLASSES:
        environment = asked(partial(kind, environ))
        if isinstance(environment, CoreError):
            continue
        for name in PROPERTIES:
            answers.append(asked(partial(getattr, environment, name)))
            assert isinstance(answers[-1], (CoreError, str if name == "main_address" else int))
        for numbers in ((1, 1), (2, 1), (2, 2), (1, 3)):
            answers.append(asked(partial(environment.validate_settings, *numbers)))
    assert all(len(str(answer)) < 2000 for answer in answers if isinstance(answer, CoreError))


@st.composite
def variables(draw: st.DrawFn) -> dict[str, str]:
    """Some variables; in some draws all values are likely ones."""
    values = draw(
        st.sampled_from([st.sampled_from(VALUES[:10]), st.one_of(st.sampled_from(VALUES), st.text(max_size=10))])
    )
    return draw(st.dictionaries(st.sampled_from(NAMES), values, min_size=1))


@drawn(2)
@given(variables())
def test_any_variables(environ: dict[str, str]) -> None:
    """Each class of environment and each detection, asked for all that they tell."""
    check(environ)


def test_many_brackets_are_one_host() -> None:
    """The notation may repeat them as often as it likes."""
    assert first_host("a[1-2]" * 3000) == "a1" * 3000
