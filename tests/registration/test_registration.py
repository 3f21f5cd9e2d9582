"""Backends of one process: registered in code, given as an object, or by a class that registers itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core import (
    Accelerator,
    AcceleratorRegistry,
    CheckpointIORegistry,
    ClusterEnvironmentRegistry,
    PrecisionRegistry,
    Request,
    Runtime,
    StrategyRegistry,
    resolve,
)
from core.accelerators import CPUAccelerator
from core.checkpoints import TorchCheckpointIO
from core.discovery.registry import Registry
from core.environments import LocalEnvironment
from core.errors import BackendError, ConfigurationError, UnknownNameError, WrongTypeError
from core.kinds import KINDS
from core.precisions import FullPrecision
from core.registration import CodeRegistry
from core.strategies import DDPStrategy, SingleDeviceStrategy

BY_KIND: list[tuple[str, CodeRegistry, type[Any], type[Any]]] = [
    ("accelerator", AcceleratorRegistry, CPUAccelerator, DDPStrategy),
    ("strategy", StrategyRegistry, SingleDeviceStrategy, CPUAccelerator),
    ("precision", PrecisionRegistry, FullPrecision, TorchCheckpointIO),
    ("checkpoint_io", CheckpointIORegistry, TorchCheckpointIO, FullPrecision),
    ("cluster_environment", ClusterEnvironmentRegistry, LocalEnvironment, FullPrecision),
]


def found(kind: str, name: str) -> Any:
    """What ``name`` means to a front end made now, without asking hardware."""
    (spec,) = Registry.read({}).find(kind, name)
    return spec


def plan_of(**arguments: Any) -> Any:
    """The Plan of these arguments, with no environment variables."""
    return resolve(Request.read(environ={}, **arguments))


@pytest.mark.parametrize(("kind", "registry", "cls", "other"), BY_KIND)
def test_registering_a_class(kind: str, registry: CodeRegistry, cls: type[Any], other: type[Any]) -> None:
    """A class of any kind is asked for by its name from then on, and is of this process."""
    assert registry.register("mine", cls, description="one sentence", aliases=("m", "my")) is cls
    assert "mine" in registry
    assert list(registry) == ["mine"]
    assert len(registry) == 1
    assert repr(registry) == f"<{KINDS[kind].registry}: 'mine'>"
    spec = found(kind, "mine")
    assert (spec.target, spec.description, spec.aliases) == (cls, "one sentence", ("m", "my"))
    assert found(kind, "my") is spec
    choice = getattr(plan_of(**{kind: "mine"}), kind)
    assert (choice.name, choice.origin) == ("mine", "this process")


@pytest.mark.parametrize(("kind", "registry", "cls", "other"), BY_KIND)
def test_registering_the_wrong_thing(kind: str, registry: CodeRegistry, cls: type[Any], other: type[Any]) -> None:
    """An object, a class of another kind or a function is refused on the line that registers it."""
    for target in (other, object, lambda: None, None, 3):
        with pytest.raises(WrongTypeError, match=r"'mine' is not a subclass of core\.") as caught:
            registry.register("mine", target)
        assert repr(target) in str(caught.value)
    assert "mine" not in registry


def test_registering_an_object() -> None:
    """An instance is given to a front end, not registered: the error says what is."""
    with pytest.raises(WrongTypeError, match=r"is not a subclass of core\.Accelerator\. Give such a class, or a"):
        AcceleratorRegistry.register("mine", CPUAccelerator())


def test_registering_a_target_by_text() -> None:
    """``"module:Class"`` is imported when the name is asked for, and not before."""
    StrategyRegistry.register("mine", "core.strategies.single_device:SingleDeviceStrategy")
    StrategyRegistry.register("later", "not.there.yet:Strategy")
    assert plan_of(strategy="mine").strategy.name == "mine"
    with pytest.raises(BackendError, match=r"'not\.there\.yet:Strategy' cannot be imported"):
        plan_of(strategy="later")


def test_further_arguments_reach_the_class() -> None:
    """What is not the registry's own goes to the class each time it is made."""
    StrategyRegistry.register("mine", DDPStrategy, bucket_cap_mb=3, process_group_backend="gloo")
    first, second = (plan_of(strategy="mine").parts["strategy"] for _ in range(2))
    assert first is not second
    assert first.ddp_kwargs == second.ddp_kwargs == {"bucket_cap_mb": 3}
    assert first.process_group_backend == "gloo"


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("", {}, "name=''"),
        (" mine", {}, "name=' mine'"),
        ("a\nb", {}, "name='a\\nb'"),
        (3, {}, "name=3"),
        ("auto", {}, "other than 'auto'"),
        ("mine", {"aliases": ("",)}, "aliases=''"),
        ("mine", {"aliases": ("auto",)}, "other than 'auto'"),
        ("mine", {"aliases": 3}, "int"),
        ("mine", {"priority": "high"}, "priority='high'"),
    ],
)
def test_bad_arguments(name: Any, options: dict[str, Any], says: str) -> None:
    """A name that could never be asked for and other slips are refused when they are made."""
    with pytest.raises(ConfigurationError) as caught:
        AcceleratorRegistry.register(name, CPUAccelerator, **options)
    assert says in str(caught.value)
    assert len(AcceleratorRegistry) == 0


@pytest.mark.parametrize("target", ["nonsense", "a.b", ":C", "a b:C", ""])
def test_text_that_is_no_target(target: str) -> None:
    """Text that names no class is refused when it is registered."""
    with pytest.raises(ConfigurationError, match=r"expected 'package\.module:attribute'"):
        AcceleratorRegistry.register("mine", target)


def _cell() -> type[CPUAccelerator]:
    """A notebook's cell, which defines its class again each time it is run."""

    class CellAccelerator(CPUAccelerator):
        pass

    return CellAccelerator


def test_a_cell_run_twice() -> None:
    """The newer self of a class takes the older one's place, with its arguments."""
    first, second = _cell(), _cell()
    assert first is not second
    AcceleratorRegistry.register("cell", first, priority=1)
    AcceleratorRegistry.register("cell", second, priority=2)
    assert found("accelerator", "cell").target is second
    assert found("accelerator", "cell").priority == 2


def test_another_class_under_a_name_that_is_held() -> None:
    """Two classes under one name are refused with both, unless the newer is to replace the older."""
    AcceleratorRegistry.register("mine", CPUAccelerator)
    with pytest.raises(ConfigurationError) as caught:
        AcceleratorRegistry.register("mine", _cell())
    for part in ("name='mine'", "torch_hal.accelerators.cpu:CPUAccelerator", "CellAccelerator", "override=True"):
        assert part in str(caught.value)
    assert found("accelerator", "mine").target is CPUAccelerator
    replacement = _cell()
    AcceleratorRegistry.register("mine", replacement, override=True)
    assert found("accelerator", "mine").target is replacement


def test_removing() -> None:
    """What was removed is unknown; what never was registered is an error with the nearest name."""
    StrategyRegistry.register("mine", SingleDeviceStrategy)
    with pytest.raises(UnknownNameError, match=r"name='mime'.*Did you mean 'mine'\? Registered: 'mine'\."):
        StrategyRegistry.remove("mime")
    StrategyRegistry.remove("mine")
    with pytest.raises(UnknownNameError, match="strategy='mine'"):
        plan_of(strategy="mine")
    with pytest.raises(UnknownNameError, match=r"Registered: none\."):
        StrategyRegistry.remove("mine")


def test_a_name_of_an_installed_backend() -> None:
    """Another class under an installed name is refused with both when it is asked for; the same class is accepted."""
    StrategyRegistry.register("single_device", DDPStrategy)
    with pytest.raises(BackendError) as caught:
        plan_of(strategy="single_device")
    for part in ("strategy='single_device'", "DDPStrategy is registered in this process", "of torch-hal"):
        assert part in str(caught.value)
    assert plan_of(strategy="ddp").strategy.name == "ddp"
    StrategyRegistry.register("single_device", SingleDeviceStrategy, override=True)
    assert plan_of(strategy="single_device").strategy.origin.startswith("torch-hal ")


def test_earlier_front_ends_stay_as_they_were() -> None:
    """A registration is known to what is created after it."""
    runtime = Runtime(accelerator="cpu")
    AcceleratorRegistry.register("mine", CPUAccelerator, priority=99)
    assert runtime.plan.accelerator.name == "cpu"
    assert Runtime().plan.accelerator.name == "mine"


# -- classes that register themselves ----------------------------------------------------------------------------------


def test_an_accelerator_that_registers_itself() -> None:
    """The class method is called once, with the registry, when the class is defined; not so again for a subclass."""
    calls: list[type[Any]] = []

    class XAccelerator(CPUAccelerator):
        @classmethod
        def register_accelerators(cls, accelerator_registry: Any) -> None:
            calls.append(cls)
            accelerator_registry.register("x", cls, description="the X")

    class YAccelerator(XAccelerator):
        pass

    assert calls == [XAccelerator]
    assert found("accelerator", "x").target is XAccelerator
    assert found("accelerator", "x").description == "the X"
    assert plan_of(accelerator="x").accelerator.name == "x"
    assert YAccelerator.name == "y"


def test_a_strategy_that_registers_itself() -> None:
    """As for accelerators, under as many names as it likes, and with arguments."""

    class MyDDPStrategy(DDPStrategy):
        @classmethod
        def register_strategies(cls, strategy_registry: Any) -> None:
            strategy_registry.register("my_ddp", cls, description="DDP of mine")
            strategy_registry.register("my_ddp_spawn", cls, start_method="spawn")

    assert list(StrategyRegistry) == ["my_ddp", "my_ddp_spawn"]
    plan = plan_of(strategy="my_ddp_spawn", devices=2)
    assert type(plan.parts["strategy"]) is MyDDPStrategy
    assert plan.launcher == "spawn"


@pytest.mark.parametrize("times", [1, 2])
def test_a_cell_with_a_class_that_registers_itself(times: int) -> None:
    """A cell that is run again replaces its class without a warning."""
    for _ in range(times):

        class CellAccelerator(CPUAccelerator):
            @classmethod
            def register_accelerators(cls, accelerator_registry: Any) -> None:
                accelerator_registry.register("cell", cls)

    assert found("accelerator", "cell").target is CellAccelerator


# -- objects -----------------------------------------------------------------------------------------------------------


class OddAccelerator(Accelerator):
    """Hardware of this process that asks nothing of an instance."""

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        return devices[::-1]

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device("meta", index) for index in devices]

    @staticmethod
    def auto_device_count() -> int:
        return 3

    @staticmethod
    def is_available() -> bool:
        return True


@pytest.mark.parametrize("by_name", [False, True])
def test_by_object_and_by_name(by_name: bool) -> None:
    """One class serves as an object and by name, and decides which of its devices are meant."""
    AcceleratorRegistry.register("odd", OddAccelerator)
    accelerator = "odd" if by_name else OddAccelerator()
    plan = plan_of(accelerator=accelerator, devices=[1, 2], strategy=DDPStrategy(process_group_backend="meta:gloo"))
    assert (plan.accelerator.name, plan.devices, plan.world_size) == ("odd", ("meta:2", "meta:1"), 2)
    assert type(plan.parts["accelerator"]) is OddAccelerator
    assert plan_of(accelerator=accelerator, devices=1).devices == ("meta:0",)
