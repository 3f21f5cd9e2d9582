"""The suite of strategies."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from inspect import signature
from typing import Any, ClassVar

import attrs
import pytest
import torch

from torch_hal import Accelerator, Precision, Request, Runtime, resolve
from torch_hal.errors import ConfigurationError, CoreError
from torch_hal.strategies import ProcessGroupStrategy, Strategy
from torch_hal_devkit.backend import BackendUnderTest
from torch_hal_devkit.marks import not_run, skip_by_declaration, tier
from torch_hal_devkit.suites.accelerator import counted, named_accelerator, present_accelerator
from torch_hal_devkit.suites.base import Suite
from torch_hal_devkit.suites.collectives import CollectiveTests
from torch_hal_devkit.suites.contract_of_runs import ContractOfRunsTests
from torch_hal_devkit.suites.distributed_training import DistributedTrainingTests
from torch_hal_devkit.suites.failing import FailureTests
from torch_hal_devkit.suites.importing import ImportTests
from torch_hal_devkit.suites.metadata import MetadataTests
from torch_hal_devkit.suites.modules import ModuleTests
from torch_hal_devkit.suites.multi_process import MULTI_DEVICE, Runs, StartCommand
from torch_hal_devkit.suites.steps import StepTests

__all__ = ["Declaration", "StrategySuite"]


_PARTS = {"precision": "64-true", "checkpoint_io": "torch", "cluster_environment": "local", "accelerator": "cpu"}
"""Arguments of every strategy, and values that are no defaults."""

_OF_A_GROUP = {"timeout": timedelta(seconds=77), "process_group_backend": "gloo", "start_method": "spawn"}
"""Arguments of strategies over a process group."""


@attrs.frozen
class Declaration:
    """What a strategy supports, by its spec and its class combined."""

    accelerators: tuple[str, ...] | None
    precisions: tuple[str, ...] | None
    min_processes: int
    max_processes: int | None
    one_process_per_node: bool
    supports_custom_loop: bool
    launcher: str | None
    launch_command: str

    @classmethod
    def of(cls, backend: BackendUnderTest) -> Declaration:
        """What ``backend`` declares."""
        spec, made = backend.spec, backend.create()
        highest = [limit for limit in (spec.max_processes, made.max_processes) if limit is not None]
        return cls(
            accelerators=_both(spec.accelerators, made.accelerators),
            precisions=_both(spec.precisions, made.precisions),
            min_processes=max(spec.min_processes, made.min_processes),
            max_processes=min(highest, default=None),
            one_process_per_node=made.one_process_per_node,
            supports_custom_loop=made.supports_custom_loop,
            launcher=made.launcher,
            launch_command=made.launch_command,
        )

    @property
    def is_started_by_torchrun(self) -> bool:
        """Whether torchrun can start its processes."""
        return self.launch_command == Strategy.launch_command


class StrategySuite(
    MetadataTests,
    ImportTests,
    CollectiveTests,
    DistributedTrainingTests,
    StepTests,
    ModuleTests,
    ContractOfRunsTests,
    FailureTests,
    Suite,
):
    """The conformance suite of strategies: on one device, and on the smallest number above one."""

    kind: ClassVar[str] = "strategy"
    sizes: ClassVar[tuple[str, ...]] = ("one_device", "multi_device")

    @pytest.fixture
    def declared(self, backend: BackendUnderTest) -> Declaration:
        """What the strategy supports."""
        return Declaration.of(backend)

    @pytest.fixture
    def accelerator(self, backend: BackendUnderTest, declared: Declaration) -> BackendUnderTest:
        """The accelerator of the runs: the first available one that the strategy supports, or that of ``"auto"``."""
        if declared.accelerators is None:
            return present_accelerator(backend)
        supported = (named_accelerator(name, backend) for name in declared.accelerators)
        found = next((accelerator for accelerator in supported if counted(accelerator) != 0), None)
        if found is None:
            not_run(f"none of the supported accelerators ({', '.join(declared.accelerators)}) is available")
        return found

    @pytest.fixture
    def unsupported(self, accelerator: BackendUnderTest, declared: Declaration) -> Mapping[str, str]:
        """What the accelerator declares as unsupported, as far as the strategy needs it."""
        unneeded = {"collectives"} if declared.one_process_per_node else set()
        return {name: reason for name, reason in accelerator.load().unsupported.items() if name not in unneeded}

    @pytest.fixture
    def devices(self, accelerator: BackendUnderTest) -> int | None:
        """The number that the accelerator counts."""
        return counted(accelerator)

    @pytest.fixture
    def arguments(self, backend: BackendUnderTest, accelerator: BackendUnderTest) -> Mapping[str, Any]:
        """The strategy and the accelerator that it runs on."""
        return {"accelerator": accelerator.name, "strategy": backend.name}

    @pytest.fixture
    def device_counts(
        self, declared: Declaration, launches_processes: bool, start_command: StartCommand | None
    ) -> Mapping[str, int | str]:
        """One process, and the smallest number above one, if the strategy supports it and they can be started."""
        multiple: int | str = max(2, declared.min_processes)
        if not (launches_processes or start_command or declared.is_started_by_torchrun):
            command = declared.launch_command
            multiple = f"launch_command={command!r}, and the suite's fixture start_command returns no command"
        if declared.max_processes is not None and declared.max_processes < 2 and not declared.one_process_per_node:
            multiple = f"max_processes={declared.max_processes}: it supports one process only"
        return {
            "one_device": 1
            if declared.min_processes <= 1
            else f"min_processes={declared.min_processes}: it needs several processes",
            "multi_device": multiple,
        }

    @pytest.fixture
    def launches_processes(self, declared: Declaration) -> bool:
        """Whether it has a launcher, or needs none."""
        return declared.launcher is not None or declared.one_process_per_node

    # -- what it declares ----------------------------------------------------------------------------------------

    @tier("T1")
    def test_some_number_of_processes_is_served(self, declared: Declaration) -> None:
        """The minimum number of processes is at least 1, and at most the maximum."""
        low, high = declared.min_processes, declared.max_processes
        fits = low >= 1 and (high is None or high >= low)
        assert fits, f"spec and class support {low} to {high} processes. Expected: 1 <= minimum <= maximum"

    @tier("T1")
    @pytest.mark.parametrize("what", ["accelerators", "precisions"])
    def test_some_name_is_served(self, declared: Declaration, what: str) -> None:
        """Spec and class have at least one supported name in common."""
        supported = getattr(declared, what)
        assert supported is None or supported, f"spec and class have no {what} in common. Expected: at least one"

    @tier("T1")
    def test_the_launcher_can_be_named(self, declared: Declaration) -> None:
        """``launcher`` is a name, or ``None`` if the strategy starts no processes."""
        launcher = declared.launcher
        assert launcher is None or (isinstance(launcher, str) and launcher.isidentifier()), (
            f"launcher={launcher!r}. Expected: a name such as 'script' or 'spawn', or None"
        )

    @tier("T1")
    def test_arguments_of_its_base_arrive(self, backend: BackendUnderTest) -> None:
        """What its constructor takes for a base class, it passes on; or refuses by name."""
        cls, init_args = backend.load(), dict(backend.spec.init_args)
        attributes = {name: "launcher" if name == "start_method" else name for name in _OF_A_GROUP}
        given = {**_PARTS, **(_OF_A_GROUP if issubclass(cls, ProcessGroupStrategy) else {})}
        for name, value in given.items():
            if name not in signature(cls).parameters:
                continue
            try:
                made = cls(**{**init_args, name: value})
            except CoreError as error:
                if name not in str(error):
                    pytest.fail(f"{name}={value!r} is refused without its name: {error}")
                continue
            found = made.requested_parts.get(name) if name in _PARTS else getattr(made, attributes[name])
            assert found == value, f"{cls.__name__}({name}={value!r}) has {found!r}. Expected: the argument arrives"

    # -- what it refuses -----------------------------------------------------------------------------------------

    @tier("T2")
    def test_another_accelerator_is_refused(self, backend: BackendUnderTest, declared: Declaration) -> None:
        """An unsupported accelerator is refused by name, before any process starts."""
        if declared.accelerators is None:
            skip_by_declaration("accelerators is None: it supports all")
        message = _refused(backend, accelerator=_Elsewhere(), devices=declared.min_processes)
        _check_named(message, "elsewhere", *declared.accelerators)

    @tier("T2")
    def test_another_precision_is_refused(
        self, backend: BackendUnderTest, accelerator: BackendUnderTest, declared: Declaration
    ) -> None:
        """An unsupported precision is refused by name, before any process starts."""
        if declared.precisions is None:
            skip_by_declaration("precisions is None: it supports all")
        simulated = _simulated(accelerator)
        message = _refused(backend, accelerator=simulated, devices=declared.min_processes, precision=_Odd())
        _check_named(message, "odd", *declared.precisions)

    @tier("T2")
    @pytest.mark.parametrize("which", ["fewer", "more"])
    def test_another_number_of_processes_is_refused(
        self, backend: BackendUnderTest, accelerator: BackendUnderTest, declared: Declaration, which: str
    ) -> None:
        """One process fewer than the minimum and one more than the maximum are refused, before any process starts."""
        if declared.one_process_per_node:
            skip_by_declaration("one_process_per_node is True: any number of devices is one process")
        if which == "fewer" and declared.min_processes == 1:
            skip_by_declaration("min_processes=1: there is no smaller number")
        if which == "more" and declared.max_processes is None:
            skip_by_declaration("max_processes is None: it supports any number")
        count = declared.min_processes - 1 if which == "fewer" else (declared.max_processes or 0) + 1
        _check_named(_refused(backend, accelerator=_simulated(accelerator), devices=count), backend.name, str(count))

    @tier("T2")
    def test_custom_loop_is_refused(
        self, backend: BackendUnderTest, accelerator: BackendUnderTest, declared: Declaration
    ) -> None:
        """A Runtime refuses a strategy that only runs whole training steps, and names it."""
        if declared.supports_custom_loop:
            skip_by_declaration("supports_custom_loop is True")
        try:
            Runtime(accelerator=accelerator.name, strategy=backend.name, devices=declared.min_processes)
        except ConfigurationError as error:
            _check_named(str(error), backend.name)
        else:
            pytest.fail(f"Runtime(strategy={backend.name!r}) raised nothing. Expected: core.errors.ConfigurationError")

    # -- processes that a launcher started -----------------------------------------------------------------------

    @MULTI_DEVICE
    def test_processes_that_were_started_already(
        self, multi_device: Runs, declared: Declaration, tolerances: Mapping[str, float]
    ) -> None:
        """In processes that torchrun started, the strategy starts none and trains as in its own processes."""
        if declared.one_process_per_node:
            skip_by_declaration("one_process_per_node is True: one process drives all devices")
        if not declared.is_started_by_torchrun:
            skip_by_declaration(f"launch_command={declared.launch_command!r}: torchrun cannot start its processes")
        outcome = multi_device.run("started", dict(multi_device.arguments), started_here=multi_device.devices)
        found_ranks = [(who["rank"], who["world_size"]) for who in outcome.values("who")]
        expected = [(rank, multi_device.devices) for rank in range(multi_device.devices)]
        assert found_ranks == expected, (
            f"processes started as by torchrun have (rank, world size) {found_ranks}. Expected: {expected}"
        )
        own = [found["losses"] for found in multi_device.full_run.values("fit")]
        for rank, found in enumerate(outcome.values("fit")):
            pairs = zip(found["losses"], own[rank], strict=True)
            error = max(abs(loss - other) for loss, other in pairs)
            assert error <= tolerances["32-true"], (
                f"losses of rank {rank} differ by {error:.3g} from those in its own processes"
            )
        assert outcome.code == 0, f"{outcome.end}. Expected: exit code 0\n{outcome.output[-4000:]}"
        assert not outcome.left, f"still running: {outcome.left}. Expected: no process of the run"


def _both(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if one is None or other is None:
        return other if one is None else one
    return tuple(name for name in one if name in other)


class _Odd(Precision):
    """A precision that no strategy supports."""

    name = "odd"


class _Elsewhere(Accelerator):
    """An accelerator that no strategy supports."""

    name = "elsewhere"

    def is_available(self) -> bool:
        return True

    def auto_device_count(self) -> int:
        return 64

    def get_parallel_devices(self, devices: list[int]) -> list[torch.device]:
        return [torch.device("cpu") for _ in devices]


def _simulated(accelerator: BackendUnderTest) -> Any:
    """The accelerator with any number of simulated devices, of which only the names are used."""
    cls = accelerator.load()
    overrides = {
        "name": accelerator.name,
        "device_limit": lambda self: None,
        "pick_devices": lambda self, n: [*range(n)],
    }
    return type(cls.__name__, (cls,), overrides)(**accelerator.spec.init_args)


def _refused(backend: BackendUnderTest, **arguments: Any) -> str:
    try:
        plan = resolve(Request.read(environ=backend.environ, strategy=backend.name, **arguments), backend.registry)
    except ConfigurationError as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"{arguments} raised {error!r}. Expected: core.errors.ConfigurationError") from error
    raise AssertionError(
        f"{arguments} resolved to {plan.world_size} process(es). Expected: core.errors.ConfigurationError"
    )


def _check_named(message: str, *names: str) -> None:
    for name in names:
        assert name in message, f"the error does not name {name!r}: {message}"
