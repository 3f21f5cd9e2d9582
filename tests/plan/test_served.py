"""What a strategy serves and hardware lacks, by their own declarations, is known before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch

from core import AcceleratorRegistry, Runtime, StrategyRegistry, Trainer
from core.errors import ConfigurationError, DeviceError
from core.strategies import DDPStrategy, SingleDeviceStrategy

from .backends import TORCHRUN, TwoAccelerator, plan_of


class _PoorAccelerator(TwoAccelerator):
    name = "poor"
    unsupported: ClassVar[Mapping[str, str]] = {
        "float64": "its arithmetic units have 32 bits",
        "autocast": "torch has none for it",
        "loss_scaling": "torch has no scaler for it",
        "collectives": "its cards know nothing of each other",
    }


@pytest.mark.parametrize("front_end", [Runtime, Trainer])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"precision": "64-true"},
            "'64-true' needs float64, which accelerator 'poor' does not support: its arithmetic units",
        ),
        ({"precision": "bf16-mixed"}, "'bf16-mixed' needs autocast.*torch has none for it"),
        ({"precision": "16-mixed"}, "'16-mixed' needs autocast"),
        (
            {"devices": 2},
            "devices and num_nodes give 2 processes.*does not support collectives: its cards know nothing",
        ),
    ],
    ids=str,
)
def test_what_the_hardware_lacks_is_refused_by_name(front_end: Any, arguments: dict[str, Any], message: str) -> None:
    """A precision or a number of processes is refused with the accelerator's own reason; what it has is not."""
    with pytest.raises(ConfigurationError, match=message):
        front_end(accelerator=_PoorAccelerator(), **{"devices": 1, **arguments})
    assert (
        front_end(accelerator=_PoorAccelerator(), devices=1, precision="bf16-true").plan.precision.name == "bf16-true"
    )


@pytest.mark.parametrize("front_end", [Runtime, Trainer])
def test_auto_is_one_device_without_collectives(front_end: Any) -> None:
    """A script that names no devices trains on such hardware; one that names all, or a strategy, is told the reason."""
    plan = front_end(accelerator=_PoorAccelerator()).plan
    assert (plan.devices, plan.world_size, plan.strategy.name) == (("cpu",), 1, "single_device")
    assert plan.devices_reason == "the default: one device, as 'poor' does not support collectives"
    for arguments in ({"devices": -1}, {"strategy": "ddp"}):
        with pytest.raises(ConfigurationError, match="does not support collectives: its cards know nothing"):
            front_end(accelerator=_PoorAccelerator(), **arguments)

    class _Driven(SingleDeviceStrategy):
        one_process_per_node = True

    class _OneProcess(_PoorAccelerator):
        default_parallel_strategy = "driven"

    StrategyRegistry.register("driven", _Driven, description="drives all cards from one process")
    assert front_end(accelerator=_OneProcess()).plan.devices == ("cpu", "cpu")


def test_an_unknown_capability_is_refused() -> None:
    """A slip in ``unsupported`` is an error where the class is defined, as it would declare the capability to work."""
    with pytest.raises(ConfigurationError, match=r"_Slip\.unsupported.*'float46'.*'float64'"):

        class _Slip(TwoAccelerator):
            unsupported: ClassVar[Mapping[str, str]] = {"float46": "of a slip"}


class _Picky(SingleDeviceStrategy):
    precisions = ("32-true", "bf16-mixed")


def test_precisions_that_a_strategy_does_not_serve() -> None:
    """The error names those that are served, which work."""
    with pytest.raises(ConfigurationError, match=r"does not support precision '16-mixed'.*'32-true', 'bf16-mixed'"):
        Runtime(accelerator="cpu", devices=1, strategy=_Picky(), precision="16-mixed")
    assert (
        Runtime(accelerator="cpu", devices=1, strategy=_Picky(), precision="bf16-mixed").plan.precision.name
        == "bf16-mixed"
    )


class _WholeSteps(SingleDeviceStrategy):
    name = "whole_steps"
    supports_custom_loop = False


def test_a_strategy_that_runs_whole_steps_is_the_trainers() -> None:
    """The Runtime refuses it by name; the Trainer takes it."""
    with pytest.raises(ConfigurationError, match=r"strategy='whole_steps': it runs whole training steps.*Trainer"):
        Runtime(accelerator="cpu", devices=1, strategy=_WholeSteps())
    assert Trainer(accelerator="cpu", devices=1, strategy=_WholeSteps()).plan.strategy.name == "whole_steps"


class _CompilingAccelerator(TwoAccelerator):
    name = "compiling"
    unsupported: ClassVar[Mapping[str, str]] = {"eager": "it runs compiled steps only"}


class _CompilingStrategy(SingleDeviceStrategy):
    accelerators: ClassVar[tuple[str, ...] | None] = ("compiling",)


def test_hardware_that_runs_compiled_steps_only() -> None:
    """It takes a strategy that names it as served; any other is refused, with the hardware's reason."""
    with pytest.raises(
        ConfigurationError, match=r"'single_device' runs operations one by one.*it runs compiled steps only"
    ):
        Trainer(accelerator=_CompilingAccelerator(), devices=1)
    Trainer(accelerator=_CompilingAccelerator(), devices=1, strategy=_CompilingStrategy())


class _AllInOne(DDPStrategy):
    one_process_per_node = True


def test_one_process_for_all_devices_of_a_machine() -> None:
    """It is one process that has all the devices, so none is started; machines are counted as processes."""
    strategy = _AllInOne()
    runtime = Runtime(accelerator=TwoAccelerator(), devices=2, strategy=strategy)
    assert (runtime.plan.world_size, runtime.plan.launcher, len(runtime.plan.devices)) == (1, None, 2)
    assert (strategy.local_processes, len(strategy.parallel_devices), strategy.world_size) == (1, 2, 1)
    environ = {"NODE_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    plan = plan_of(accelerator=TwoAccelerator(), devices=2, num_nodes=2, strategy=_AllInOne(), environ=environ)
    assert (plan.world_size, plan.launcher) == (2, None)


def test_one_process_for_all_devices_under_torchrun() -> None:
    """``devices="auto"`` is all devices of the machine there, not as many as torchrun has started processes."""
    environ = {**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    all_in_one = plan_of(accelerator=TwoAccelerator(), strategy=_AllInOne(), environ=environ)
    assert (len(all_in_one.devices), all_in_one.world_size) == (2, 1)
    assert len(plan_of(accelerator=TwoAccelerator(), strategy="ddp", environ=environ).devices) == 1


class _AllAlone(SingleDeviceStrategy):
    one_process_per_node = True


class _PickingAccelerator(TwoAccelerator):
    name = "picking"

    def pick_devices(self, count: int) -> list[int]:
        if count > 1:
            raise DeviceError(f"only 1 of {count} is idle")
        return [1]

    def get_parallel_devices(self, devices: list[int]) -> list[torch.device]:
        return [torch.device("meta", index) for index in devices]


def test_an_accelerator_picks_devices_for_a_bare_number() -> None:
    """A count means those that it picks; indices, and all there are, mean what they say."""
    picked = plan_of(accelerator=_PickingAccelerator(), devices=1, strategy="single_device")
    assert picked.devices == ("meta:1",)
    assert plan_of(accelerator=_PickingAccelerator(), devices=[0], strategy="single_device").devices == ("meta:0",)
    everything = plan_of(accelerator=_PickingAccelerator(), devices=-1, strategy=_AllAlone())
    assert everything.devices == ("meta:0", "meta:1")
    with pytest.raises(DeviceError, match="only 1 of 2 is idle"):
        plan_of(accelerator=_PickingAccelerator(), devices=2)


def test_import_backend_comes_before_a_device_is_named() -> None:
    """What gives torch the type of device is imported before the accelerator is asked for its devices."""
    order: list[str] = []

    class _Ordered(TwoAccelerator):
        def import_backend(self) -> None:
            order.append("import")

        def get_parallel_devices(self, devices: list[int]) -> list[torch.device]:
            order.append("devices")
            return super().get_parallel_devices(devices)

    AcceleratorRegistry.register("ordered", _Ordered)
    plan_of(accelerator="ordered", devices=1)
    assert order == ["import", "devices"]
