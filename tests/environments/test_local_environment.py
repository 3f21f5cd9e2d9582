"""This machine alone: the process that the user started is rank 0, and its launcher tells the others who they are."""

from __future__ import annotations

import os

import pytest

from core.environments import LocalEnvironment, TorchElasticEnvironment
from core.errors import ConfigurationError

MEETING = {"MASTER_ADDR": "192.0.2.7", "MASTER_PORT": "29500"}


def connected(processes: int, machines: int = 1, **environ: str) -> LocalEnvironment:
    """The environment of the process that the user started, for a run of that size."""
    environment = LocalEnvironment(environ)
    environment.connect(processes, machines)
    return environment


def ranks(environment: LocalEnvironment) -> tuple[int, int, int]:
    """Global, local and node rank."""
    return environment.global_rank, environment.local_rank, environment.node_rank


def sizes(environment: LocalEnvironment) -> tuple[int, int, int]:
    """Processes in all, processes on this machine, machines."""
    return environment.world_size, environment.local_world_size, environment.num_nodes


def test_before_a_run() -> None:
    """A process that no one started is the only one until it is told the size of a run."""
    environment = LocalEnvironment({})
    assert LocalEnvironment.detect({})
    assert sizes(environment) == (1, 1, 1)
    assert ranks(environment) == (0, 0, 0)
    assert not environment.creates_processes_externally
    assert not environment.hosts_store
    assert (environment.main_address, environment.main_port) == ("127.0.0.1", 0)


def test_the_process_that_the_user_started() -> None:
    """It is rank 0 of as many as the run asked for, and starts the others itself."""
    environment = connected(3)
    assert sizes(environment) == (3, 3, 1)
    assert ranks(environment) == (0, 0, 0)
    assert not environment.creates_processes_externally
    environment.main_port = 12345
    assert (environment.main_address, environment.main_port) == ("127.0.0.1", 12345)


@pytest.mark.parametrize("local_rank", [0, 1, 2])
def test_processes_that_were_started_know_who_they_are(local_rank: int) -> None:
    """The variables that a launcher gives a process make it that rank of that run, and none that starts another."""
    launcher = connected(3)
    launcher.main_port = 12345
    started = LocalEnvironment(launcher.launch_variables(local_rank, "{}"))
    started.connect(3, 1)
    assert sizes(started) == (3, 3, 1)
    assert ranks(started) == (local_rank, local_rank, 0)
    assert started.creates_processes_externally
    assert (started.main_address, started.main_port) == ("127.0.0.1", 12345)


@pytest.mark.parametrize("node_rank", [0, 1])
@pytest.mark.parametrize("local_rank", [0, 2])
def test_on_several_machines(node_rank: int, local_rank: int) -> None:
    """With the script started on each machine, ranks count through the machines, and all meet where they were told."""
    launcher = connected(3, 2, NODE_RANK=str(node_rank), **MEETING)
    assert sizes(launcher) == (6, 3, 2)
    assert ranks(launcher) == (3 * node_rank, 0, node_rank)
    assert (launcher.main_address, launcher.main_port) == ("192.0.2.7", 29500)
    started = LocalEnvironment(launcher.launch_variables(local_rank, "{}"))
    started.connect(3, 2)
    assert sizes(started) == (6, 3, 2)
    assert ranks(started) == (3 * node_rank + local_rank, local_rank, node_rank)
    assert (started.main_address, started.main_port) == ("192.0.2.7", 29500)


def test_gloo_listens_where_only_this_machine_reaches_it() -> None:
    """The started processes of one machine use its loopback interface, unless the user has chosen one."""
    name = "GLOO_SOCKET_IFNAME"
    assert connected(2).launch_variables(1, "{}")[name] in {"lo", "lo0"}
    assert name not in connected(2, 1, GLOO_SOCKET_IFNAME="eth7").launch_variables(1, "{}")
    assert name not in connected(2, 2, NODE_RANK="0", **MEETING).launch_variables(1, "{}")


def test_started_processes_are_seen_by_others_as_torchrun_s() -> None:
    """Libraries that look for torchrun's variables find the same ranks; we ourselves know our own processes."""
    launcher = connected(2, 2, NODE_RANK="1", **MEETING)
    variables = launcher.launch_variables(1, "{}")
    others = TorchElasticEnvironment(variables)
    assert (others.global_rank, others.local_rank, others.node_rank, others.world_size) == (3, 1, 1, 4)
    assert not TorchElasticEnvironment.detect(variables)


def test_a_second_run_of_another_size_is_refused_where_processes_were_started() -> None:
    """A process that is one of two cannot be one of three in the next run, nor alone."""
    launcher = connected(2)
    started = LocalEnvironment(launcher.launch_variables(1, "{}"))
    started.validate_settings(2, 1)
    for processes, machines in ((1, 1), (3, 1), (2, 2)):
        with pytest.raises(ConfigurationError, match=r"devices and num_nodes ask for .*'ddp_spawn'"):
            started.validate_settings(processes, machines)


def test_several_runs_of_any_size_where_none_was_started() -> None:
    """The process that the user started takes the size of each run."""
    environment = connected(1)
    environment.connect(4, 1)
    assert sizes(environment) == (4, 4, 1)
    environment.connect(1, 1)
    assert sizes(environment) == (1, 1, 1)


@pytest.mark.parametrize(
    "environ",
    [{"RANK": "1"}, {"WORLD_SIZE": "2"}, {"LOCAL_RANK": "1"}, {"LOCAL_WORLD_SIZE": "2"}, {"RANK": "x"}, {"RANK": ""}],
)
def test_ranks_of_somebody_else_are_refused(environ: dict[str, str]) -> None:
    """Who is told to be one of several never takes itself for the only one."""
    with pytest.raises(ConfigurationError, match="say that another launcher started this process"):
        LocalEnvironment(environ).validate_settings(1, 1)


@pytest.mark.parametrize("missing", ["NODE_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_machines_that_cannot_meet(missing: str) -> None:
    """For several machines each variable is needed, and the one that is missing is named."""
    environ = {name: value for name, value in {"NODE_RANK": "0", **MEETING}.items() if name != missing}
    with pytest.raises(ConfigurationError, match=rf"num_nodes=2 needs .*\(not set: {missing}\)"):
        LocalEnvironment(environ).connect(1, 2)
    LocalEnvironment({name: value for name, value in environ.items() if name != "NODE_RANK"}).connect(1, 1)


def test_variables_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes in the process's variables after the environment was made changes nothing."""
    monkeypatch.setenv("NODE_RANK", "0")
    environment = LocalEnvironment()
    monkeypatch.setenv("NODE_RANK", "5")
    assert environment.node_rank == 0
    assert environment.environ is not os.environ
