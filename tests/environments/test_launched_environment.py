"""LaunchedEnvironment suffices for a scheduler that has its own variables and names the main node in a list."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from core import ClusterEnvironmentRegistry, Request, resolve
from core.environments import LaunchedEnvironment, RankVariables
from core.errors import ConfigurationError


class SchedulerEnvironment(LaunchedEnvironment):
    """Like SLURM: no MASTER_ADDR, the port follows from the job's number, tasks per node as in ``2(x3)``."""

    name = "scheduler"
    variables = RankVariables("SCHED_PROCID", "SCHED_NTASKS", "SCHED_LOCALID", "SCHED_TASKS_PER_NODE", "SCHED_NODEID")

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        return "SCHED_JOB_ID" in (environ or {})

    @property
    def main_address(self) -> str:
        return self.environ["SCHED_NODELIST"].partition(",")[0]

    @property
    def main_port(self) -> int:
        return 15000 + int(self.environ["SCHED_JOB_ID"]) % 4096

    @property
    def local_world_size(self) -> int:
        return int(self.environ["SCHED_TASKS_PER_NODE"].partition("(")[0])

    def command(self, processes_per_node: int, num_nodes: int) -> str:
        return f"sched --nodes={num_nodes} --ntasks-per-node={processes_per_node}"


ENVIRON = {
    "SCHED_JOB_ID": "77",
    "SCHED_PROCID": "5",
    "SCHED_NTASKS": "6",
    "SCHED_LOCALID": "1",
    "SCHED_TASKS_PER_NODE": "2(x3)",
    "SCHED_NODEID": "2",
    "SCHED_NODELIST": "node-a,node-b,node-c",
}


@pytest.fixture(autouse=True)
def registered() -> None:
    ClusterEnvironmentRegistry.register("scheduler", SchedulerEnvironment)


def test_a_scheduler_s_processes() -> None:
    """It is detected, and the Plan has its numbers; the strategy starts nothing."""
    plan = resolve(Request.read(environ=ENVIRON, accelerator="cpu"))
    environment = plan.parts["cluster_environment"]
    assert (plan.cluster_environment.name, plan.strategy.name, plan.launcher) == ("scheduler", "ddp", None)
    assert (plan.world_size, plan.num_nodes, len(plan.devices)) == (6, 3, 2)
    assert (environment.global_rank, environment.local_rank, environment.node_rank) == (5, 1, 2)
    assert (environment.main_address, environment.main_port) == ("node-a", 15077)


@pytest.mark.parametrize(("arguments", "argument"), [({"devices": 3}, "devices"), ({"num_nodes": 2}, "num_nodes")])
def test_other_numbers_are_rejected(arguments: dict[str, int], argument: str) -> None:
    """The error names the argument and what the launcher has started."""
    with pytest.raises(ConfigurationError, match=argument) as caught:
        resolve(Request.read(environ=ENVIRON, accelerator="cpu", **arguments))
    assert "SCHED_" in str(caught.value)
