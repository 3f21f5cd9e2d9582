"""What will run, on what, and why: each choice with its reason, each candidate passed over with its reason."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from core import (
    Accelerator,
    AcceleratorRegistry,
    CheckpointIORegistry,
    Plan,
    PrecisionRegistry,
    Request,
    Runtime,
    StrategyRegistry,
    Trainer,
    resolve,
)
from core.accelerators import CPUAccelerator
from core.checkpoints import ShardedCheckpointIO, TorchCheckpointIO
from core.discovery.registry import Registry
from core.discovery.selection import survey
from core.environments import LocalEnvironment
from core.errors import BackendError, ConfigurationError, UnknownNameError
from core.kinds import KINDS
from core.precisions import FullPrecision, MixedPrecision
from core.specs import AcceleratorSpec, BackendSpec, StrategySpec
from core.strategies import DDPStrategy, SingleDeviceStrategy

from .backends import AbsentAccelerator, BrokenAccelerator, MyIO, TwoAccelerator, plan_of, rejected

# -- auto: what is there -----------------------------------------------------------------------------------------------


def test_only_the_cpu_is_there() -> None:
    """With no other hardware ``auto`` means the CPU, and says that torch reports no device that it could have taken."""
    plan = plan_of()
    assert (plan.accelerator.name, plan.devices, plan.strategy.name) == ("cpu", ("cpu",), "single_device")
    assert plan.accelerator.reason == "has the highest priority of the accelerators present"
    assert rejected(plan.accelerator) == {"torch": "no device found"}
    assert plan.accelerator.origin.startswith("torch-hal ")


@pytest.mark.parametrize("front_end", [Runtime, Trainer])
def test_registered_hardware_that_is_there_is_chosen(front_end: Any) -> None:
    """``auto`` takes a present accelerator that was registered in code before the CPU, with all of its devices."""
    AcceleratorRegistry.register("two", TwoAccelerator)
    plan = front_end().plan
    assert (plan.accelerator.name, plan.accelerator.origin) == ("two", "this process")
    assert (plan.world_size, plan.devices_reason) == (2, "the default: all devices present")
    assert rejected(plan.accelerator)["cpu"] == "its priority (0) is lower than that of two (50)"


def test_registered_hardware_that_is_absent_is_passed_over() -> None:
    """``auto`` passes over an accelerator with no device, and says so."""
    AcceleratorRegistry.register("absent", AbsentAccelerator)
    plan = plan_of()
    assert plan.accelerator.name == "cpu"
    assert rejected(plan.accelerator)["absent"] == "no device found"


class _ExitsAccelerator(TwoAccelerator):
    def __init__(self) -> None:
        raise SystemExit(7)


class _WantsAccelerator(TwoAccelerator):
    def __init__(self, card: int) -> None:
        self.card = card


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (BrokenAccelerator, "OSError: the driver does not answer"),
        (_ExitsAccelerator, "SystemExit: 7"),
        (_WantsAccelerator, "missing 1 required positional argument: 'card'"),
    ],
)
def test_broken_hardware_is_recorded_and_affects_nothing_else(
    cls: type[Accelerator], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """``auto`` passes over an accelerator whose class raises; Plan and log have the cause. Its name gives the error."""
    AcceleratorRegistry.register("broken", cls)
    plan = plan_of()
    assert plan.accelerator.name == "cpu"
    assert reason in rejected(plan.accelerator)["broken"]
    assert "'broken' cannot be used" in caplog.text
    with pytest.raises(BackendError, match="accelerator='broken'") as caught:
        plan_of(accelerator="broken")
    assert reason in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError | SystemExit | TypeError)


def test_priority_then_name_decides() -> None:
    """Of several that are there the highest priority goes first, and the first name among equals."""
    for name, priority in (("b", 60), ("c", 70), ("a", 60)):
        AcceleratorRegistry.register(name, TwoAccelerator, priority=priority)
    assert rejected(plan_of().accelerator)["a"] == "its priority (60) is lower than that of c (70)"
    AcceleratorRegistry.remove("c")
    plan = plan_of()
    assert plan.accelerator.name == "a"
    assert rejected(plan.accelerator)["b"] == "a has the same priority (60) and comes first by name"


def test_a_failing_device_type_affects_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where finding out which device types torch reports raises, ``auto`` records it and takes what is left."""

    def device_types() -> Sequence[str]:
        raise RuntimeError("no such library")

    monkeypatch.setattr("core.accelerators.torch_device.device_types", device_types)
    plan = plan_of()
    assert plan.accelerator.name == "cpu"
    assert rejected(plan.accelerator)["torch"] == "discovering its devices failed: RuntimeError: no such library"


def test_a_name_taken_from_an_installed_backend() -> None:
    """A class registered under an installed name is refused with both, by name and by ``auto``; nothing is guessed."""
    AcceleratorRegistry.register("cpu", TwoAccelerator)
    for name in ("cpu", "auto"):
        with pytest.raises(BackendError) as caught:
            plan_of(accelerator=name)
        assert "this process" in str(caught.value)
        assert "torch-hal" in str(caught.value)


def test_what_is_installed_and_unusable_is_a_candidate_passed_over(tmp_path: Path) -> None:
    """An installed accelerator that is denied or incompatible is named with the reason: it may be what is missed."""
    for name, requires in (("acme", "torch-hal"), ("newer", "torch-hal>=99")):
        metadata = tmp_path / f"torch_hal_{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: torch-hal-{name}\nVersion: 1.0\nRequires-Dist: {requires}\n"
        )
        (metadata / "entry_points.txt").write_text(f"[core.accelerators]\n{name} = torch_hal_{name}.plugin\n")
    environ = {"CORE_PLUGINS": "-acme"}
    plan = resolve(Request.read(environ=environ), Registry.read(environ, path=[*sys.path, str(tmp_path)]))
    assert plan.accelerator.name == "cpu"
    reasons = rejected(plan.accelerator)
    assert reasons["acme"].startswith("denied: ")
    assert reasons["newer"].startswith("incompatible: ")
    assert ">=99" in reasons["newer"]


# -- names that several claim ------------------------------------------------------------------------------------------


def test_a_shared_alias_means_the_best_present_one() -> None:
    """An alias that several claim is the present one of highest priority; the others are passed over with reasons."""
    AcceleratorRegistry.register("best", AbsentAccelerator, aliases=("gpu",), priority=90)
    AcceleratorRegistry.register("good", TwoAccelerator, aliases=("gpu",), priority=80)
    AcceleratorRegistry.register("fair", TwoAccelerator, aliases=("gpu",), priority=70)
    plan = plan_of(accelerator="gpu")
    assert plan.accelerator.name == "good"
    assert plan.accelerator.reason == (
        "requested by accelerator='gpu', an alias of 'best', 'good', 'fair'; has the highest priority of those present"
    )
    assert rejected(plan.accelerator) == {
        "best": "no device found",
        "fair": "its priority (70) is lower than that of good (80)",
    }


def test_a_shared_alias_of_which_none_is_there() -> None:
    """Where no backend that claims a name is available, the error has the reason of each, and nothing else is used."""
    AcceleratorRegistry.register("absent", AbsentAccelerator, aliases=("gpu",))
    AcceleratorRegistry.register("broken", BrokenAccelerator, aliases=("gpu",))
    with pytest.raises(BackendError, match="accelerator='gpu'") as caught:
        plan_of(accelerator="gpu")
    assert "absent: no device found" in str(caught.value)
    assert "broken: OSError: the driver does not answer" in str(caught.value)
    assert not {"'absent'", "'broken'"} & set(str(caught.value).partition("Valid: ")[2].split(", "))


def test_an_explicit_name_never_falls_back() -> None:
    """Hardware that was named and is absent is an error, though another is there."""
    AcceleratorRegistry.register("absent", AbsentAccelerator, aliases=("nothing",))
    AcceleratorRegistry.register("two", TwoAccelerator)
    for name in ("absent", "nothing"):
        error = rf"accelerator='{name}' cannot be used here: no device found\. Valid: (?!.*'absent')"
        with pytest.raises(BackendError, match=error):
            plan_of(accelerator=name)
    with pytest.raises(BackendError, match="no device found"):
        plan_of(accelerator=AbsentAccelerator())
    with pytest.raises(BackendError, match="the driver does not answer"):
        plan_of(accelerator=BrokenAccelerator())


def test_a_shared_alias_of_another_kind_means_the_highest_priority() -> None:
    """Where there is nothing to be present, priority alone decides, and the Plan says so."""
    PrecisionRegistry.register("mine-high", FullPrecision, aliases=("mine",), priority=60)
    PrecisionRegistry.register("mine-low", FullPrecision, aliases=("mine",), priority=40)
    choice = plan_of(precision="mine").precision
    assert choice.name == "mine-high"
    assert rejected(choice) == {"mine-low": "its priority (40) is lower than that of mine-high (60)"}


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("auto", "32-true"),
        (64, "64-true"),
        (32, "32-true"),
        (16, "16-mixed"),
        ("64", "64-true"),
        ("32", "32-true"),
        ("16", "16-mixed"),
        ("bf16", "bf16-mixed"),
        ("64-true", "64-true"),
        ("32-true", "32-true"),
        ("16-true", "16-true"),
        ("bf16-true", "bf16-true"),
        ("16-mixed", "16-mixed"),
        ("bf16-mixed", "bf16-mixed"),
    ],
)
def test_every_spelling_of_a_precision(spelling: Any, name: str) -> None:
    """Six names, their numbers and aliases; the strategy gets the precision that the Plan names."""
    runtime = Runtime(precision=spelling)
    assert runtime.plan.precision.name == name
    assert runtime.strategy.precision.name == name
    runtime.teardown()


# -- devices, processes and the strategy -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "count"), [("auto", 1), (-1, 1), ("-1", 1), (2, 2), ("2", 2), ([3, 1], 2), ("1,", 1), ("0, 2", 2)]
)
def test_devices_of_the_cpu(devices: Any, count: int) -> None:
    """On the CPU a device is a process; several of them get the accelerator's strategy for several."""
    plan = plan_of(devices=devices)
    assert plan.devices == ("cpu",) * count
    assert plan.world_size == count
    assert plan.strategy.name == ("ddp" if count > 1 else "single_device")
    assert plan.strategy.reason == (
        f"the default of accelerator 'cpu' for {'several processes' if count > 1 else 'one process'}"
    )
    assert plan.launcher == ("script" if count > 1 else None)
    assert plan.process_group_backend == ("gloo" if count > 1 else None)


class _SpawningAccelerator(TwoAccelerator):
    default_strategy: ClassVar[str] = "ddp"
    default_parallel_strategy: ClassVar[str] = "ddp_spawn"


@pytest.mark.parametrize("by_name", [False, True])
def test_an_accelerator_says_its_default_strategies(by_name: bool) -> None:
    """What its class says is honoured alike by name and by instance."""
    AcceleratorRegistry.register("spawning", _SpawningAccelerator)
    accelerator = "spawning" if by_name else _SpawningAccelerator()
    assert plan_of(accelerator=accelerator).strategy.name == "ddp_spawn"
    assert plan_of(accelerator=accelerator, devices=1).strategy.name == "ddp"


def test_a_default_strategy_that_is_not_there() -> None:
    """An accelerator whose default strategy is not installed is refused by that name, and told whose wish it was."""
    AcceleratorRegistry.register("wishing", type("W", (TwoAccelerator,), {"default_parallel_strategy": "wish"}))
    with pytest.raises(UnknownNameError, match=r"wishing\.default_parallel_strategy='wish'"):
        plan_of(accelerator="wishing")
    assert plan_of(accelerator="wishing", strategy="ddp").strategy.name == "ddp"


@pytest.mark.parametrize(("start_method", "launcher"), [("script", "script"), ("spawn", "spawn"), ("fork", "fork")])
def test_the_plan_knows_how_a_registered_strategy_starts_processes(start_method: str, launcher: str) -> None:
    """The launcher is what the strategy says once its arguments are given, by name and by instance."""
    StrategyRegistry.register("mine", DDPStrategy, start_method=start_method)
    StrategyRegistry.register("by_text", "core.strategies.ddp:DDPStrategy", start_method=start_method)
    for strategy in ("mine", "by_text", DDPStrategy(start_method=start_method)):
        assert plan_of(strategy=strategy, devices=2).launcher == launcher
        assert plan_of(strategy=strategy, devices=1).launcher is None


def test_a_process_group_backend_of_the_user_s() -> None:
    """What was given to the strategy is used, by types of device as well, and the Plan says who asked for it."""
    assert plan_of(devices=2).process_group_reason == "the default of strategy 'ddp' on accelerator 'cpu'"
    for backend in ("gloo", "cpu:gloo", "Gloo"):
        plan = plan_of(devices=2, strategy=DDPStrategy(process_group_backend=backend))
        assert plan.process_group_backend == backend
        assert plan.process_group_reason == f"requested by the strategy's process_group_backend={backend!r}"


class _PickyStrategy(SingleDeviceStrategy):
    accelerators: ClassVar[tuple[str, ...] | None] = ("two",)


def test_a_strategy_that_serves_the_accelerator() -> None:
    """A strategy that names the accelerators it serves is used on those, by name and by instance."""
    AcceleratorRegistry.register("two", TwoAccelerator)
    StrategyRegistry.register("picky", _PickyStrategy)
    StrategyRegistry.register("by_text", f"{__name__}:_PickyStrategy")
    for strategy in ("picky", "by_text", _PickyStrategy()):
        assert plan_of(accelerator="two", strategy=strategy, devices=1).accelerator.name == "two"
        with pytest.raises(ConfigurationError, match=r"does not support accelerator 'cpu'\. Valid accelerators: 'two'"):
            plan_of(accelerator="cpu", strategy=strategy)


# -- what a plugin's specs say -----------------------------------------------------------------------------------------


def registry_of(*specs: BackendSpec) -> Registry:
    """What is installed, and these specs as a plugin would hand them over."""
    by_kind = {kind: {spec.name: spec for spec in specs if spec.kind == kind} for kind in KINDS}
    return Registry(survey({}, None), by_kind)


def served() -> list[str]:
    """Names that one accelerator serves at this moment."""
    return ["two_b", "two_a", "cpu"]


class _ServingAccelerator(TwoAccelerator):
    def __init__(self, name: str) -> None:
        self.name = name


def test_a_spec_says_more_than_its_class() -> None:
    """Default strategies, accelerators, precisions and numbers of processes in a spec narrow what its class says."""
    registry = registry_of(
        AcceleratorSpec(name="two", target=_SpawningAccelerator, default_parallel_strategy="narrow"),
        StrategySpec(
            name="narrow", target=DDPStrategy, accelerators=("two",), max_processes=2, precisions=("32-true",)
        ),
    )
    assert resolve(Request.read(environ={}, accelerator="two"), registry).strategy.name == "narrow"
    for arguments in ({"accelerator": "cpu"}, {"devices": 2, "num_nodes": 2}, {"precision": "bf16-mixed"}):
        environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "NODE_RANK": "0"}
        with pytest.raises(ConfigurationError, match="strategy='narrow'"):
            resolve(Request.read(environ=environ, strategy="narrow", **arguments), registry)


def test_an_accelerator_that_serves_several_names() -> None:
    """Each name that it serves now, best first, is asked for like its other names; installed backends keep theirs."""
    serving = AcceleratorSpec(name="serving", target=_ServingAccelerator, discover=f"{__name__}:served")
    registry = registry_of(serving)

    def plan_here(**arguments: Any) -> Plan:
        return resolve(Request.read(environ={}, **arguments), registry)

    assert plan_here().accelerator.name == "two_b"
    assert rejected(plan_here().accelerator).keys() == {"torch", "two_a", "cpu"}
    plan = plan_here(accelerator="two_a")
    assert (plan.accelerator.name, plan.parts["accelerator"].name) == ("two_a", "two_a")
    assert type(plan_here(accelerator="cpu").parts["accelerator"]) is CPUAccelerator
    reason = (
        "requested by accelerator='serving', an alias of 'two_b', 'two_a'; has the highest priority of those present"
    )
    assert plan_here(accelerator="serving").accelerator.reason == reason
    given = _ServingAccelerator("two_a")
    assert plan_here(strategy=DDPStrategy(accelerator=given), accelerator="two_a").parts["accelerator"] is given


# -- parts that are given to a strategy --------------------------------------------------------------------------------


def test_parts_of_a_strategy_count_as_the_user_s_arguments() -> None:
    """What a strategy object was given is what runs, and the Plan says where it came from."""
    accelerator, precision, checkpoint_io = CPUAccelerator(), MixedPrecision("bfloat16"), MyIO()
    given = DDPStrategy(
        accelerator=accelerator,
        cluster_environment=LocalEnvironment(),
        checkpoint_io=checkpoint_io,
        precision=precision,
    )
    runtime = Runtime(strategy=given)
    assert runtime.strategy is given
    assert (given.accelerator, given.precision, given.checkpoint_io) == (accelerator, precision, checkpoint_io)
    assert runtime.plan.precision.name == "bf16-mixed"
    assert runtime.plan.checkpoint_io.name == "MyIO"
    for choice in (runtime.plan.accelerator, runtime.plan.precision, runtime.plan.checkpoint_io):
        assert choice.reason.startswith("requested by the strategy's ")
    runtime.teardown()


def test_parts_of_a_strategy_by_name() -> None:
    """Names, numbers and ``auto`` mean to a strategy what they mean to a front end."""
    AcceleratorRegistry.register("two", TwoAccelerator)
    CheckpointIORegistry.register("mine", MyIO)
    given: Any = DDPStrategy(accelerator="two", precision_plugin=16, checkpoint_io="mine")  # type: ignore[arg-type]
    plan = plan_of(strategy=given)
    assert (plan.accelerator.name, plan.precision.name, plan.checkpoint_io.name) == ("two", "16-mixed", "mine")
    assert plan_of(strategy=DDPStrategy(accelerator="auto"), accelerator="cpu").accelerator.name == "cpu"


def test_parts_of_a_strategy_go_before_the_environment() -> None:
    """A strategy's own part is an argument: a variable that says another thing does not contradict it."""
    plan = plan_of({"CORE_PRECISION": "64-true"}, strategy=DDPStrategy(precision_plugin="bf16-true"))
    assert plan.precision.name == "bf16-true"


def test_the_same_value_twice_is_not_a_contradiction() -> None:
    """One object in both, or an object and its own name, agree; the object is used."""
    mixed, cpu, io = MixedPrecision("bfloat16"), CPUAccelerator(), TorchCheckpointIO()
    strategy = DDPStrategy(accelerator=cpu, checkpoint_io=io, precision_plugin=mixed)
    plan = plan_of(strategy=strategy, accelerator="cpu", precision="bf16", checkpoint_io=io)
    assert [plan.parts[kind] for kind in ("accelerator", "precision", "checkpoint_io")] == [cpu, mixed, io]
    plan = plan_of(strategy=DDPStrategy(accelerator="cpu", precision_plugin="bf16"), accelerator=cpu, precision=mixed)
    assert [plan.parts[kind] for kind in ("accelerator", "precision")] == [cpu, mixed]


def test_a_name_agrees_with_an_object_of_its_class() -> None:
    """Objects without a name of their own, such as CheckpointIOs; not one of a subclass, which does something else."""
    io = ShardedCheckpointIO()
    plan = plan_of(strategy=DDPStrategy(checkpoint_io=io), checkpoint_io="sharded")
    assert plan.parts["checkpoint_io"] is io
    own = type("OwnIO", (ShardedCheckpointIO,), {})()
    with pytest.raises(ConfigurationError, match="contradicts"):
        plan_of(strategy=DDPStrategy(checkpoint_io=own), checkpoint_io="sharded")


def test_parts_of_a_registered_strategy() -> None:
    """What a name was registered with counts as if it had been given to the strategy."""
    checkpoint_io = MyIO()
    StrategyRegistry.register("mine", DDPStrategy, checkpoint_io=checkpoint_io, precision_plugin="bf16-mixed")
    plan = plan_of(strategy="mine")
    assert plan.parts["checkpoint_io"] is checkpoint_io
    assert plan.precision.name == "bf16-mixed"
    with pytest.raises(ConfigurationError, match=r"checkpoint_io='torch' contradicts checkpoint_io='<.*MyIO>'"):
        plan_of(strategy="mine", checkpoint_io="torch")


def test_parts_of_an_accelerator_s_default_strategy() -> None:
    """A default strategy's own parts are used as well, and contradictions are errors."""
    AcceleratorRegistry.register("own", type("Own", (TwoAccelerator,), {"default_parallel_strategy": "own_ddp"}))
    StrategyRegistry.register("own_ddp", DDPStrategy, precision_plugin="bf16-true")
    assert plan_of(accelerator="own").precision.name == "bf16-true"
    with pytest.raises(ConfigurationError, match="precision='64-true' contradicts precision='bf16-true'"):
        plan_of(accelerator="own", precision="64-true")
    StrategyRegistry.register("own_ddp", DDPStrategy, accelerator="cpu")
    with pytest.raises(ConfigurationError, match="contradicts accelerator='cpu' of strategy 'own_ddp'"):
        plan_of(accelerator="own")


# -- one pure function ---------------------------------------------------------------------------------------------


def test_resolving_changes_nothing() -> None:
    """The same arguments give the same Plan again; neither the variables nor a given environment are changed by it."""
    before = dict(os.environ)
    environment = LocalEnvironment({})
    request = Request.read(environ={}, devices=2, cluster_environment=environment)
    assert resolve(request) == resolve(request)
    assert dict(os.environ) == before
    assert environment.world_size == 1


def test_the_plan_is_what_runs() -> None:
    """The live strategy has the devices, the precision and the names of the Plan."""
    AcceleratorRegistry.register("two", TwoAccelerator)
    runtime = Runtime(accelerator="two", devices=[1], precision="bf16-true")
    strategy = runtime.strategy
    assert [str(device) for device in strategy.parallel_devices] == list(runtime.plan.devices)
    assert (strategy.name, strategy.accelerator.name, strategy.precision.name) == ("single_device", "two", "bf16-true")
    assert runtime.device == torch.device("cpu")
    runtime.teardown()
