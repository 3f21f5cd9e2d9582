"""Bad arguments are refused by the constructor of either front end, before any process starts.

Each error is a CoreError and one of Python's own, and names the argument, what was given and what is valid.
"""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from core import (
    AcceleratorRegistry,
    CheckpointIORegistry,
    ClusterEnvironmentRegistry,
    PrecisionRegistry,
    StrategyRegistry,
    Trainer,
)
from core.accelerators import CPUAccelerator
from core.checkpoints import TorchCheckpointIO
from core.environments import LocalEnvironment
from core.errors import BackendError, ConfigurationError, CoreError, DeviceError, UnknownNameError, WrongTypeError
from core.precisions import FullPrecision, MixedPrecision
from core.strategies import DDPStrategy, SingleDeviceStrategy

from .backends import AbsentAccelerator, BrokenAccelerator, MyIO, TwoAccelerator, refuse

pytestmark = pytest.mark.usefixtures("no_processes", "registered")


class _OthersStrategy(DDPStrategy):
    accelerators: ClassVar[tuple[str, ...] | None] = ("two", "other")


class _FewStrategy(DDPStrategy):
    min_processes: ClassVar[int] = 2
    max_processes: ClassVar[int | None] = 3


class _IdleStrategy(DDPStrategy):
    def __init__(self) -> None:
        super().__init__()
        self.launcher = None


class _NoStrategy:
    pass


@pytest.fixture
def registered() -> None:
    """Backends of this process, good and bad."""
    AcceleratorRegistry.register("two", TwoAccelerator)
    AcceleratorRegistry.register("absent", AbsentAccelerator, aliases=("gpu",))
    AcceleratorRegistry.register("broken", BrokenAccelerator, aliases=("gpu",))
    StrategyRegistry.register("others", _OthersStrategy)
    StrategyRegistry.register(
        "with_parts", DDPStrategy, accelerator="two", checkpoint_io=MyIO(), precision_plugin="bf16"
    )
    StrategyRegistry.register("bad_option", DDPStrategy, find_unused_parameter=True)
    StrategyRegistry.register("bad_argument", SingleDeviceStrategy, bucket_cap_mb=3)
    StrategyRegistry.register("bad_target", "core.strategies.ddp:DPDStrategy")
    StrategyRegistry.register("no_strategy", f"{__name__}:_NoStrategy")
    PrecisionRegistry.register("bad_precision", MixedPrecision, dtype="float8")
    CheckpointIORegistry.register("bad_io", MyIO, bucket="here")
    ClusterEnvironmentRegistry.register("bad_module", "core.environments.nowhere:Environment")


UNKNOWN: list[tuple[str, str, str]] = [
    ("accelerator", "cup", "Did you mean 'cpu'?"),
    ("accelerator", "twoo", "Did you mean 'two'?"),
    ("accelerator", "", "Valid: 'absent', 'broken', 'cpu'"),
    ("strategy", "dpp", "Did you mean 'ddp'"),
    ("strategy", "ddp_find_unused_parameters", "'ddp_find_unused_parameters_true'"),
    ("strategy", "DDQ", "Valid: "),
    ("precision", "bf17", "Did you mean 'bf16'"),
    ("precision", "fp16-mixed", " or '16-mixed'?"),
    ("precision", "8", "'16-mixed'"),
    ("checkpoint_io", "troch", "Did you mean 'torch'?"),
    ("cluster_environment", "torchelastik", "Did you mean 'torchelastic'?"),
    ("cluster_environment", "slurmm", "'local'"),
]


@pytest.mark.parametrize(("argument", "given", "says"), UNKNOWN)
def test_unknown_names(front_end: Any, argument: str, given: str, says: str) -> None:
    """An unknown name is refused with the valid ones, and the nearest of them."""
    refuse(front_end, {argument: given}, UnknownNameError, (f"{argument}={given!r}", "Valid: ", says))


WRONG: list[tuple[str, Any, str]] = [
    ("accelerator", CPUAccelerator, "the class CPUAccelerator"),
    ("accelerator", None, "None of type NoneType"),
    ("accelerator", torch.device("cpu"), "type device"),
    ("accelerator", 1, "1 of type int"),
    ("accelerator", SingleDeviceStrategy(), "type SingleDeviceStrategy"),
    ("strategy", DDPStrategy, "the class DDPStrategy"),
    ("strategy", None, "None of type NoneType"),
    ("strategy", FullPrecision(), "type FullPrecision"),
    ("strategy", ["ddp"], "['ddp'] of type list"),
    ("precision", MixedPrecision, "the class MixedPrecision"),
    ("precision", None, "None of type NoneType"),
    ("precision", True, "True of type bool"),
    ("precision", 1.5, "1.5 of type float"),
    ("precision", 16.0, "16.0 of type float"),
    ("precision", torch.bfloat16, "torch.bfloat16 of type dtype"),
    ("checkpoint_io", TorchCheckpointIO, "the class TorchCheckpointIO"),
    ("checkpoint_io", None, "None of type NoneType"),
    ("checkpoint_io", b"torch", "b'torch' of type bytes"),
    ("cluster_environment", LocalEnvironment, "the class LocalEnvironment"),
    ("cluster_environment", None, "None of type NoneType"),
    ("cluster_environment", {}, "{} of type dict"),
]


@pytest.mark.parametrize(("argument", "given", "says"), WRONG)
def test_the_wrong_type_of_object(front_end: Any, argument: str, given: Any, says: str) -> None:
    """A class in place of an instance, ``None``, an object of another kind: refused, saying what it takes."""
    valid = "Pass a name, 'auto', or an instance of "
    refuse(front_end, {argument: given}, WrongTypeError, (f"{argument} has the wrong type: ", says, valid))


@pytest.mark.parametrize(
    ("argument", "given", "says"),
    [
        ("accelerator", 3, "accelerator has the wrong type: 3"),
        ("accelerator", CPUAccelerator, "the class CPUAccelerator"),
        ("precision_plugin", MixedPrecision, "precision has the wrong type: the class MixedPrecision"),
        ("precision_plugin", CPUAccelerator(), "precision has the wrong type: <"),
        ("checkpoint_io", MyIO, "checkpoint_io has the wrong type: the class MyIO"),
        ("cluster_environment", False, "cluster_environment has the wrong type: False"),
    ],
)
def test_the_wrong_kind_of_object_in_a_strategy(front_end: Any, argument: str, given: Any, says: str) -> None:
    """What a strategy was given is checked as the front end's own arguments are, registered or not."""
    refuse(front_end, {"strategy": DDPStrategy(**{argument: given})}, WrongTypeError, (says, "an instance of "))
    StrategyRegistry.register("wrong", DDPStrategy, **{argument: given})
    refuse(front_end, {"strategy": "wrong"}, WrongTypeError, (says, "an instance of "))


def test_unknown_names_in_a_strategy(front_end: Any) -> None:
    """A name that was given to a strategy is refused under the argument's name there."""
    strategy = DDPStrategy(precision_plugin="bf17")
    refuse(front_end, {"strategy": strategy}, UnknownNameError, ("precision='bf17'", "Did you mean 'bf16'"))


DEVICES: list[Any] = [0, [], "", None, True, 1.5, -2, "1-3", "abc", [0, 0], 4097, [4096], "4096,", "0", False, (), [-1]]


@pytest.mark.parametrize("devices", DEVICES, ids=repr)
def test_devices(front_end: Any, devices: Any) -> None:
    """What is outside the grammar, or not there, is refused in one way, saying what was given and what is there."""
    says = (f"devices={devices!r}", "accelerator 'cpu'", "Valid: 'auto' or -1 for all, a count k >= 1", "available: ")
    refuse(front_end, {"devices": devices, "accelerator": "cpu"}, DeviceError, says)


@pytest.mark.parametrize("devices", [3, "3", [2], "1,2", 0, None], ids=repr)
def test_devices_that_are_not_there(front_end: Any, devices: Any) -> None:
    """Where there are two devices, a third is refused, never taken from elsewhere."""
    says = (f"devices={devices!r}", "accelerator 'two'", "available: devices 0 to 1.")
    refuse(front_end, {"devices": devices, "accelerator": "two"}, DeviceError, says)


@pytest.mark.parametrize("num_nodes", [0, -1, 1.0, True, None, "two", ""], ids=repr)
def test_num_nodes(front_end: Any, num_nodes: Any) -> None:
    """A number of machines is a whole number from 1, or ``auto``."""
    says = ("num_nodes (number of machines) must be 'auto' or an integer ≥ 1", f"got {num_nodes!r}")
    refuse(front_end, {"num_nodes": num_nodes}, ConfigurationError, says)


CONTRADICTIONS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (
        {"strategy": DDPStrategy(accelerator="two"), "accelerator": "cpu"},
        ("accelerator='cpu' contradicts accelerator='two' of strategy 'DDPStrategy'",),
    ),
    (
        {"strategy": DDPStrategy(accelerator=TwoAccelerator()), "accelerator": "cpu"},
        ("accelerator='cpu' contradicts accelerator='<", "TwoAccelerator>'"),
    ),
    (
        {"strategy": DDPStrategy(accelerator=CPUAccelerator()), "accelerator": CPUAccelerator()},
        ("contradicts accelerator='<torch_hal.accelerators.cpu:CPUAccelerator>'",),
    ),
    (
        {"strategy": DDPStrategy(accelerator=TwoAccelerator()), "accelerator": "nowhere"},
        ("accelerator='nowhere' contradicts",),
    ),
    (
        {"strategy": DDPStrategy(precision_plugin=MixedPrecision("bfloat16")), "precision": "32-true"},
        ("precision='32-true' contradicts precision='<torch_hal.precisions.mixed:MixedPrecision>'",),
    ),
    (
        {"strategy": DDPStrategy(precision_plugin="bf16"), "precision": 16},
        ("precision='16' contradicts precision='bf16'",),
    ),
    (
        {"strategy": DDPStrategy(checkpoint_io=MyIO()), "checkpoint_io": "torch"},
        ("checkpoint_io='torch' contradicts checkpoint_io='<", "MyIO>'"),
    ),
    (
        {"strategy": DDPStrategy(cluster_environment=LocalEnvironment({})), "cluster_environment": "torchelastic"},
        ("cluster_environment='torchelastic' contradicts cluster_environment=",),
    ),
    (
        {"strategy": "with_parts", "accelerator": "cpu"},
        ("accelerator='cpu' contradicts accelerator='two' of ", "'with_"),
    ),
    ({"strategy": "with_parts", "precision": 32}, ("precision='32' contradicts precision='bf16'",)),
    ({"strategy": "with_parts", "checkpoint_io": "torch"}, ("checkpoint_io='torch' contradicts checkpoint_io='<",)),
]


@pytest.mark.parametrize(("arguments", "says"), CONTRADICTIONS, ids=[says[0][:40] for _, says in CONTRADICTIONS])
def test_contradictory_arguments(front_end: Any, arguments: dict[str, Any], says: tuple[str, ...]) -> None:
    """A strategy that brings one part and an argument that names another: neither wins."""
    refuse(front_end, arguments, ConfigurationError, (*says, "Pass only one of them"))


STRATEGIES: list[tuple[dict[str, Any], type[CoreError], tuple[str, ...]]] = [
    (
        {"strategy": "others", "accelerator": "cpu"},
        ConfigurationError,
        ("strategy='others' does not support accelerator 'cpu'", "Valid accelerators: 'two', 'other'"),
    ),
    (
        {"strategy": _OthersStrategy(), "accelerator": CPUAccelerator()},
        ConfigurationError,
        ("strategy='_OthersStrategy' does not support accelerator 'cpu'", "Valid accelerators: 'two', 'other'"),
    ),
    (
        {"strategy": "single_device", "devices": 2},
        ConfigurationError,
        ("strategy='single_device' runs on 1 process; devices=2 asks for 2. Set devices=1, or set strategy='auto'.",),
    ),
    (
        {"strategy": SingleDeviceStrategy(), "accelerator": "two"},
        ConfigurationError,
        ("strategy='single_device' runs on 1 process; devices='auto' means 2 here. Set devices=1, or",),
    ),
    (
        {"strategy": _FewStrategy(), "devices": 4, "accelerator": "cpu"},
        ConfigurationError,
        ("strategy='_FewStrategy' runs on 2 to 3 processes; devices=4 asks for 4. Set devices=3, or",),
    ),
    (
        {"strategy": _FewStrategy(), "devices": 1},
        ConfigurationError,
        ("runs on 2 to 3 processes; devices=1 asks for 1. Set devices=2, or",),
    ),
    (
        {"strategy": _IdleStrategy(), "devices": 2},
        ConfigurationError,
        ("strategy='_IdleStrategy'", "starts no processes", "devices=2", "Set devices=1", "'torchrun'"),
    ),
    (
        {"strategy": "bad_option"},
        ConfigurationError,
        ("DDPStrategy: unknown argument 'find_unused_parameter'", "Did you mean 'find_unused_parameters'"),
    ),
    (
        {"strategy": "bad_argument"},
        ConfigurationError,
        ("SingleDeviceStrategy: unknown argument 'bucket_cap_mb'", "Valid: 'accelerator', 'checkpoint_io'"),
    ),
    ({"strategy": "bad_target"}, BackendError, ("strategy 'bad_target'", "does not exist", "'DDPStrategy'")),
    (
        {"strategy": "no_strategy"},
        BackendError,
        ("strategy 'no_strategy'", "not a subclass of torch_hal.strategies.base"),
    ),
    (
        {"strategy": DDPStrategy(process_group_backend="nope")},
        BackendError,
        (
            "process_group_backend='nope'",
            "torch.distributed has no backend 'nope' here",
            "Valid for device type 'cpu': 'gloo'",
        ),
    ),
    (
        {"strategy": DDPStrategy(process_group_backend="mpi"), "devices": 2},
        BackendError,
        (
            "process_group_backend='mpi'",
            "torch.distributed has no backend 'mpi' here",
            "Valid for device type 'cpu': 'gloo'",
        ),
    ),
    (
        {"strategy": DDPStrategy(process_group_backend=""), "devices": 2},
        BackendError,
        ("process_group_backend=''", "Valid for device type 'cpu': 'gloo'"),
    ),
    (
        {"strategy": DDPStrategy(process_group_backend="undefined"), "devices": 2},
        BackendError,
        ("process_group_backend='undefined'", "Valid for device type 'cpu': 'gloo'"),
    ),
    (
        {"strategy": DDPStrategy(process_group_backend="cpu:gloo,"), "devices": 2},
        BackendError,
        ("process_group_backend='cpu:gloo,'", "Valid for device type 'cpu': 'gloo'"),
    ),
    (
        {"strategy": DDPStrategy(process_group_backend="meta:gloo"), "devices": 2},
        BackendError,
        ("process_group_backend='meta:gloo'", "it names no backend for device type 'cpu'"),
    ),
    (
        {"strategy": DDPStrategy(process_group_backend=3), "devices": 2},  # type: ignore[arg-type]
        WrongTypeError,
        ("process_group_backend must be a name such as 'gloo'", "got 3"),
    ),
]


@pytest.mark.parametrize(("arguments", "error", "says"), STRATEGIES, ids=[says[0] for *_, says in STRATEGIES])
def test_strategies(front_end: Any, arguments: dict[str, Any], error: type[CoreError], says: tuple[str, ...]) -> None:
    """A strategy that does not serve what was asked for, or cannot be made as it was registered."""
    refuse(front_end, arguments, error, says)


BACKENDS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"accelerator": "absent"}, ("accelerator='absent'", "no device found", "Valid: 'auto', ")),
    ({"accelerator": "gpu"}, ("accelerator='gpu'", "absent: no device found", "broken: OSError: the driver")),
    ({"accelerator": "torch"}, ("accelerator='torch'", "no device found")),
    ({"accelerator": AbsentAccelerator()}, ("accelerator=", "no device found", "Use 'auto'")),
    ({"accelerator": BrokenAccelerator()}, ("accelerator=", "is_available() raises OSError: the driver")),
    ({"checkpoint_io": "bad_io"}, ("checkpoint_io 'bad_io'", "MyIO(bucket='here')", "no arguments")),
    ({"cluster_environment": "bad_module"}, ("cluster_environment 'bad_module'", "core.environments.nowhere")),
]


@pytest.mark.parametrize(("arguments", "says"), BACKENDS, ids=[f"{says[0]} {says[1]}"[:50] for _, says in BACKENDS])
def test_named_backends_that_cannot_be_used(front_end: Any, arguments: dict[str, Any], says: tuple[str, ...]) -> None:
    """What was named and is absent or broken is refused with its true cause, and nothing else is taken."""
    refuse(front_end, arguments, BackendError, says)


def test_a_backend_s_own_refusal(front_end: Any) -> None:
    """The error that a backend's constructor raises about an argument comes through as it is."""
    refuse(front_end, {"precision": "bad_precision"}, ConfigurationError, ("float8", "Valid: "))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"find_unused_parameter": True}, ("'find_unused_parameter'", "Did you mean 'find_unused_parameters'")),
        ({"precision_plugins": 16}, ("'precision_plugins'", "Did you mean 'precision_plugin' or 'precision'")),
        ({"anything": 1}, ("'anything'", "Valid: 'accelerator', ", "'start_method'", "'static_graph'")),
        ({"precision": "16", "precision_plugin": "16"}, ("precision='16' and precision_plugin='16'", "Set one")),
        ({"start_method": "forkserver"}, ("start_method='forkserver'", "Valid: 'script', 'spawn', 'fork'")),
    ],
)
def test_options_of_ddp(options: dict[str, Any], says: tuple[str, ...]) -> None:
    """Arguments that neither the strategy nor DistributedDataParallel takes are refused by the constructor."""
    refuse(DDPStrategy, options, ConfigurationError, says)


def test_signatures_show_all_arguments() -> None:
    """``help`` and ``inspect`` show each argument that a strategy takes, also those that it passes on."""
    parts = {"accelerator", "cluster_environment", "checkpoint_io", "precision", "precision_plugin"}
    group = {"process_group_backend", "timeout", "start_method"}
    assert set(inspect.signature(SingleDeviceStrategy).parameters) == parts
    assert {*parts, *group, "communication_hook", "static_graph"} <= set(inspect.signature(DDPStrategy).parameters)

    class Mine(DDPStrategy):
        def __init__(self, factor: float, **kwargs: Any) -> None:
            super().__init__(**kwargs)

    names = list(inspect.signature(Mine).parameters)
    assert names[0] == "factor"
    assert set(names[1:]) == set(inspect.signature(DDPStrategy).parameters)
    refuse(Mine, {"factor": 1.0, "checkpointio": 1}, ConfigurationError, ("Mine: ", "Did you mean 'checkpoint_io'"))

    class Closed(DDPStrategy):
        def __init__(self, factor: float) -> None:
            super().__init__()

    assert list(inspect.signature(Closed).parameters) == ["factor"]


# -- the Trainer's own arguments ---------------------------------------------------------------------------------------


ARGUMENTS: list[tuple[dict[str, Any], type[CoreError], tuple[str, ...]]] = [
    ({"max_epochs": -2}, ConfigurationError, ("max_epochs=-2", "must be an integer ≥ 0")),
    ({"max_epochs": 1.5}, ConfigurationError, ("max_epochs=1.5", "must be an integer ≥ 0")),
    ({"max_epochs": True}, ConfigurationError, ("max_epochs=True", "must be an integer ≥ 0")),
    ({"max_steps": -2}, ConfigurationError, ("max_steps=-2", "must be an integer ≥ 0")),
    ({"max_steps": "3"}, ConfigurationError, ("max_steps='3'", "must be an integer ≥ 0")),
    (
        {"accumulate_grad_batches": 0},
        ConfigurationError,
        ("accumulate_grad_batches=0", "must be an integer ≥ 1"),
    ),
    (
        {"check_val_every_n_epoch": 0},
        ConfigurationError,
        ("check_val_every_n_epoch=0", "must be an integer ≥ 1"),
    ),
    (
        {"limit_train_batches": -1},
        ConfigurationError,
        ("limit_train_batches=-1", "must be an integer ≥ 0 (batches) or a float"),
    ),
    ({"log_every_n_steps": 0}, ConfigurationError, ("log_every_n_steps=0", "must be an integer ≥ 1")),
    (
        {"gradient_clip_algorithm": "x"},
        ConfigurationError,
        ("gradient_clip_algorithm='x'", "Valid: 'norm', 'value'"),
    ),
    ({"callbacks": [3]}, WrongTypeError, ("callbacks: 3 is not a Callback", "Pass objects")),
    ({"callbacks": nn.Module()}, WrongTypeError, ("callbacks: Module() is not a Callback", "Pass objects")),
    ({"logger": "tensorbord"}, UnknownNameError, ("logger='tensorbord'", "'tensorboard'")),
    (
        {"logger": timedelta},
        WrongTypeError,
        ("logger: <class 'datetime.timedelta'> is not a logger", "create an object"),
    ),
]


@pytest.mark.parametrize(("arguments", "error", "says"), ARGUMENTS, ids=[says[0] for *_, says in ARGUMENTS])
def test_arguments_of_the_trainer(arguments: dict[str, Any], error: type[CoreError], says: tuple[str, ...]) -> None:
    """The Trainer's own numbers and objects are checked on construction, too."""
    refuse(Trainer, arguments, error, says)
