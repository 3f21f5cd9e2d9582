"""Who starts a run's processes, and what those that were started know: environments and the launcher's Plan."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from core import AcceleratorRegistry, ClusterEnvironmentRegistry, Runtime, StrategyRegistry, Trainer
from core.discovery.registry import Registry
from core.environments import LocalEnvironment
from core.errors import ConfigurationError, DeviceError, LaunchError
from core.strategies import DDPStrategy

from .backends import ORDER, TORCHRUN, ForeignEnvironment, MyIO, TwoAccelerator, plan_of, rejected

# -- the cluster environment -------------------------------------------------------------------------------------------


def test_a_process_without_a_launcher() -> None:
    """With no launcher's variables the processes are the strategy's own to start."""
    plan = plan_of()
    assert plan.cluster_environment.name == "local"
    assert rejected(plan.cluster_environment) == dict.fromkeys(ORDER[:-1], "did not start this process")


@pytest.mark.parametrize("devices", ["auto", -1, "-1", 2, [0, 1]])
@pytest.mark.parametrize("front_end", [Runtime, Trainer])
def test_torchrun_says_how_many(front_end: Any, devices: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun ``auto`` is as many processes as it started, of which this is one; none is started."""
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    given = front_end(devices=devices)
    plan = given.plan
    assert (plan.cluster_environment.name, plan.strategy.name, plan.world_size) == ("torchelastic", "ddp", 2)
    assert plan.launcher is None
    assert rejected(plan.cluster_environment) == {
        name: f"its priority ({priority}) is lower than that of torchelastic (50)"
        for name, priority in zip(ORDER[1:], (46, 44, 40, 37, 35, 30, 10, 0), strict=True)
    }
    runtime = given if isinstance(given, Runtime) else given.runtime
    assert (runtime.process_index, runtime.num_processes) == (1, 2)
    if devices in ("auto", -1, "-1"):
        assert plan.devices_reason == "torchelastic started 2 process(es) on this machine"


def test_torchrun_on_two_machines() -> None:
    """The number of machines comes from the launcher, too."""
    plan = plan_of({**TORCHRUN, "WORLD_SIZE": "4", "RANK": "3", "GROUP_RANK": "1"})
    assert (plan.num_nodes, plan.num_nodes_reason, plan.world_size) == (2, "reported by torchelastic", 4)


def test_ranks_set_by_hand() -> None:
    """Whoever sets RANK, WORLD_SIZE, LOCAL_RANK and where to meet by hand is heard as torchrun is."""
    by_hand = {name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
    plan = plan_of(by_hand)
    assert (plan.cluster_environment.name, plan.world_size) == ("torchelastic", 2)


def test_a_single_process_may_say_so() -> None:
    """RANK=0 of WORLD_SIZE=1, as some containers set it, is not a reason to refuse."""
    assert plan_of({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}).world_size == 1


def test_an_environment_of_the_user_s() -> None:
    """A registered environment that knows how this process was started is chosen by ``auto``."""
    ClusterEnvironmentRegistry.register("foreign", ForeignEnvironment)
    plan = plan_of({"FOREIGN_JOB": "7"})
    assert plan.cluster_environment.name == "foreign"
    assert plan_of().cluster_environment.name == "local"


class _RaisingEnvironment(ForeignEnvironment):
    @staticmethod
    def detect(environ: Any = None) -> bool:
        raise KeyError("JOB")


def test_a_failing_environment_affects_nothing_else() -> None:
    """One whose detection raises is passed over with its cause."""
    ClusterEnvironmentRegistry.register("raising", _RaisingEnvironment)
    plan = plan_of()
    assert plan.cluster_environment.name == "local"
    reason = rejected(plan.cluster_environment)["raising"]
    assert reason == "detection failed: KeyError: 'JOB'"


# -- processes that a launcher of ours started -------------------------------------------------------------------------


def launched(plan: Any, local_rank: int = 1) -> dict[str, str]:
    """The variables of a process that was started for ``plan``."""
    environment = LocalEnvironment({})
    environment.connect(len(plan.devices), 1)
    environment.main_port = 29500
    return environment.launch_variables(local_rank, plan.for_ranks().to_json())


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"accelerator": "cpu", "precision": 16},
        {"strategy": "mine"},
        {"strategy": DDPStrategy(accelerator="cpu", checkpoint_io=MyIO(), precision_plugin=16)},  # type: ignore[arg-type]
        {"accelerator": TwoAccelerator(), "checkpoint_io": MyIO()},
        {"accelerator": "registered"},
    ],
    ids=["nothing", "names", "registered strategy", "strategy object", "objects", "registered accelerator"],
)
def test_ranks_take_the_launcher_s_plan(arguments: dict[str, Any]) -> None:
    """A process that was started has the Plan that started it, with its own live parts."""
    AcceleratorRegistry.register("registered", TwoAccelerator)
    StrategyRegistry.register("mine", DDPStrategy, checkpoint_io=MyIO(), precision_plugin="bf16")
    arguments = {"devices": 2, **arguments}
    plan = plan_of(**arguments)
    taken = plan_of(launched(plan), **arguments)
    assert taken == plan.for_ranks()
    assert taken.parts["cluster_environment"].global_rank == 1
    kinds = ("accelerator", "strategy", "precision", "checkpoint_io")
    assert [type(taken.parts[kind]) for kind in kinds] == [type(plan.parts[kind]) for kind in kinds]


def test_ranks_do_not_scan_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was started for installed backends looks for nothing: it cannot find others than its launcher."""
    arguments: dict[str, Any] = {"devices": 2, "strategy": "ddp_spawn", "precision": "bf16"}
    environ = launched(plan_of(**arguments))
    monkeypatch.setattr(Registry, "read", lambda *args, **kwargs: pytest.fail("it scans"))
    assert plan_of(environ, **arguments).precision.name == "bf16-mixed"


def test_other_arguments_in_a_process_that_was_started() -> None:
    """A script's later run with other arguments is resolved again, in the same processes; another size is refused."""
    environ = launched(plan_of(devices=2))
    later = plan_of(environ, devices=2, precision="bf16-mixed")
    assert (later.precision.name, later.cluster_environment.name, later.launcher) == ("bf16-mixed", "local", None)
    assert plan_of(environ, precision="64-true").world_size == 2
    for arguments in ({"devices": 1}, {"devices": 3}, {"devices": 2, "num_nodes": 2}):
        with pytest.raises(ConfigurationError, match="an earlier run in it, has asked for these"):
            plan_of(environ, **arguments)


class _AcmeStrategy(DDPStrategy):
    """Another strategy that starts processes as ``ddp`` does."""


@pytest.mark.parametrize(("start_method", "argument"), [("script", "-c"), ("spawn", "a lambda"), ("fork", "in use")])
def test_launchers_name_the_strategy_that_was_asked_for(
    start_method: str, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message about starting processes never names a strategy that the user has not asked for as the subject."""
    StrategyRegistry.register("acme", _AcmeStrategy, start_method=start_method)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-c", "pass"])
    runtime = Runtime(accelerator="cpu", strategy="acme", devices=2)
    monkeypatch.setattr(runtime.plan.parts["accelerator"], "fork_unsafe_reason", lambda: "the card is in use")
    with pytest.raises(LaunchError, match="strategy='acme'") as caught:
        runtime.launch(lambda runtime: None)
    assert argument in str(caught.value)
    assert "strategy='ddp' starts" not in str(caught.value)


class OneAccelerator(TwoAccelerator):
    """One device is there, or visible."""

    def auto_device_count(self) -> int:
        return 1


@pytest.mark.parametrize("devices", ["auto", 2, "2"])
@pytest.mark.parametrize("variable", ["ACME_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
def test_each_task_sees_its_own_device(variable: str, devices: Any) -> None:
    """As under ``srun --gpus-per-task=1``: in each process it is the first one, and the processes are as many."""
    plan = plan_of({**TORCHRUN, variable: "1"}, accelerator=OneAccelerator(), devices=devices)
    assert (plan.world_size, len(plan.devices), plan.strategy.name) == (2, 2, "ddp")
    assert f"by {variable}, each of them sees one device" in plan.devices_reason


@pytest.mark.parametrize("variables", [{}, {"ACME_VISIBLE_DEVICES": ""}, {"ACME_VISIBLE_DEVICES": "0,1"}])
def test_several_processes_on_the_only_device(variables: dict[str, str]) -> None:
    """It is not known to be each process's own."""
    with pytest.raises(DeviceError, match=r"2 requested.*let each process see all devices of the machine"):
        plan_of({**TORCHRUN, **variables}, accelerator=OneAccelerator())
