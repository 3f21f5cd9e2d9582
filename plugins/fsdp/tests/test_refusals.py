"""What is refused before any process starts."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch_hal_fsdp import FSDPStrategy

from torch_hal import Runtime
from torch_hal.checkpoints import ShardedCheckpointIO, TorchCheckpointIO
from torch_hal.errors import ConfigurationError, CoreError, WrongTypeError
from torch_hal.precisions import HalfPrecision


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"wrap_policy": "layers"}, "wrap_policy='layers'"),
        ({"wrap_policy": 0}, "wrap_policy=0"),
        ({"wrap_policy": []}, "wrap_policy="),
        ({"activation_checkpointing": "all"}, "activation_checkpointing='all'"),
        ({"reshard_after_forward": -1}, "reshard_after_forward=-1"),
        ({"replicas": 0}, "replicas=0: must be an integer of at least 1, or 'nodes'"),
        ({"replicas": "node"}, "replicas='node'"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size=True"),
        ({"replicas": 2, "tensor_parallel_size": 2}, "replicas=2 contradicts tensor_parallel_size=2"),
        ({"tensor_parallel_plan": {}}, "tensor_parallel_plan={} is empty"),
        (
            {"tensor_parallel_plan": {"a": "columns"}},
            "tensor_parallel_plan['a']='columns' is unknown. Valid: 'colwise', 'rowwise'",
        ),
        ({"state_dict_type": "local"}, "state_dict_type='local'. Valid: 'sharded', 'full'"),
        ({"start_method": "thread"}, "start_method='thread'"),
    ],
)
def test_arguments(options: dict[str, Any], says: str) -> None:
    """An invalid value raises on construction, naming the argument and what is valid."""
    with pytest.raises(ConfigurationError) as error:
        FSDPStrategy(**options)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {"wrap_policy": 1.5},
        {"wrap_policy": [3]},
        {"wrap_policy": nn.Linear},
        {"tensor_parallel_plan": ["a"]},
        {"tensor_parallel_plan": {"a": 1}},
        {"init_fn": "zeros"},
        {"reshard_after_forward": "always"},
        {"reshard_after_forward": 2.0},
        {"cpu_offload": "no"},
        {"reduce_each_batch": 1},
        {"compile_blocks": "default"},
    ],
)
def test_types(options: dict[str, Any]) -> None:
    """So does an object of another kind."""
    with pytest.raises(WrongTypeError, match=next(iter(options))):
        FSDPStrategy(**options)


@pytest.mark.parametrize(
    ("options", "devices", "more", "says"),
    [
        ({"replicas": 3}, 2, {}, "replicas=3 does not divide 2 processes"),
        ({"tensor_parallel_size": 4}, 2, {}, "tensor_parallel_size=4 does not divide 2 processes"),
        ({"reshard_after_forward": 3}, 4, {}, "reshard_after_forward=3 with parameters divided among 4 processes"),
        ({"reshard_after_forward": 4}, 4, {}, "reshard_after_forward=4"),
        ({"tensor_parallel_size": 2}, 2, {"precision": "16-mixed"}, "precision='16-mixed' with tensor_parallel_size=2"),
        ({"checkpoint_io": TorchCheckpointIO()}, 2, {}, "TorchCheckpointIO with state_dict_type='sharded'"),
        ({}, 2, {"checkpoint_io": "torch"}, "TorchCheckpointIO with state_dict_type='sharded'"),
        ({"process_group_backend": "nothing"}, 2, {}, "process_group_backend='nothing'"),
    ],
)
def test_combinations(options: dict[str, Any], devices: int, more: dict[str, Any], says: str) -> None:
    """What cannot be combined raises when the front end is made."""
    with pytest.raises(CoreError) as error:
        Runtime(accelerator="cpu", strategy=FSDPStrategy(**options), devices=devices, **more)
    assert says in str(error.value)


@pytest.mark.parametrize("strategy", ["fsdp", FSDPStrategy()], ids=["name", "object"])
def test_the_default_checkpoint_io_may_be_named(strategy: Any) -> None:
    """``checkpoint_io="sharded"`` is what the strategy uses anyway."""
    runtime = Runtime(accelerator="cpu", strategy=strategy, devices=2, checkpoint_io="sharded")
    assert type(runtime.strategy.checkpoint_io) is ShardedCheckpointIO


@pytest.mark.parametrize("name", ["fsdp", "fsdp_cpu_offload", "fsdp_hybrid", "fsdp_tensor_parallel"])
def test_names(name: str) -> None:
    """Each name stands for the class, and a plan with it tells the process group's backend."""
    runtime = Runtime(accelerator="cpu", strategy=name, devices=2)
    assert runtime.plan.strategy.name == name
    assert runtime.plan.process_group_backend == "gloo"
    assert "torch-hal-fsdp" in runtime.plan.strategy.origin


@pytest.mark.parametrize(
    ("options", "says"), [({"keep_float32": nn.LayerNorm}, "keep_float32"), ({"state_dtype": "float32"}, "state_dtype")]
)
def test_settings_of_precisions(options: dict[str, Any], says: str) -> None:
    """FSDP reads what a precision declares, and cannot do what only its hooks do."""
    with pytest.raises(ConfigurationError, match=f"with {says}: strategy 'fsdp'"):
        Runtime(accelerator="cpu", devices=2, strategy=FSDPStrategy(), precision=HalfPrecision("bfloat16", **options))
