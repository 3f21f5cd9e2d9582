"""What scripts written for Accelerate read as ``state.fsdp_plugin``, and the mesh."""

from __future__ import annotations

import copy
import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy
from torch_hal_fsdp import FSDPStrategy, FullyShardedDataParallelPlugin

from torch_hal import Runtime
from torch_hal.errors import ConfigurationError


def test_settings_show_the_arguments() -> None:
    """Before anything is started; they cannot set anything else."""
    strategy = FSDPStrategy(reshard_after_forward=False, cpu_offload=True, activation_checkpointing="blocks")
    runtime = Runtime(accelerator="cpu", strategy=strategy, devices=2)
    plugin = runtime.state.fsdp_plugin
    assert (plugin.fsdp_version, plugin.reshard_after_forward, plugin.cpu_offload) == (2, False, True)
    assert (plugin.activation_checkpointing, plugin.state_dict_type) == (True, "SHARDED_STATE_DICT")
    assert runtime.is_fsdp2
    assert runtime.distributed_type == "FSDP"
    assert runtime.state.deepspeed_plugin is None
    plugin.set_state_dict_type("SHARDED_STATE_DICT")
    plugin.cpu_offload = True
    with pytest.raises(ConfigurationError, match=r"fsdp_plugin.state_dict_type='FULL_STATE_DICT'.*FSDPStrategy"):
        plugin.set_state_dict_type("FULL_STATE_DICT")
    with pytest.raises(ConfigurationError, match=r"fsdp_plugin.activation_checkpointing=False"):
        plugin.activation_checkpointing = False
    assert copy.deepcopy(plugin).cpu_offload


def test_the_mesh_is_there_while_the_processes_run() -> None:
    """An error before, which says what to do."""
    with Runtime(accelerator="cpu", strategy="fsdp", devices=1) as runtime:
        with pytest.raises(ConfigurationError, match=r"device_mesh: .*runtime.launch\(\)"):
            assert runtime.torch_device_mesh
        runtime.launch()
        assert runtime.torch_device_mesh.mesh_dim_names == ("shard",)
    with pytest.raises(ConfigurationError, match=r"device_mesh: .*runtime.launch\(\)"):
        assert runtime.torch_device_mesh


BLOCKS = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={torch.nn.Linear})
BY_SIZE = functools.partial(size_based_auto_wrap_policy, min_num_params=9)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"fsdp_version": 2, "use_orig_params": True, "ignored_modules": None}, {}),
        ({"reshard_after_forward": False}, {"reshard_after_forward": False}),
        ({"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}, {"reshard_after_forward": False}),
        ({"sharding_strategy": 4}, {"replicas": "nodes", "reshard_after_forward": True}),
        ({"cpu_offload": SimpleNamespace(offload_params=True)}, {"cpu_offload": True}),
        ({"cpu_offload": torch.distributed.fsdp.CPUOffloadPolicy()}, {"cpu_offload": True}),
        ({"cpu_offload": torch.distributed.fsdp.OffloadPolicy()}, {}),
        ({"auto_wrap_policy": BLOCKS}, {"wrap_policy": [torch.nn.Linear]}),
        ({"auto_wrap_policy": BY_SIZE}, {"wrap_policy": 9}),
        (
            {"auto_wrap_policy": transformer_auto_wrap_policy, "transformer_cls_names_to_wrap": ["Block"]},
            {"wrap_policy": ["Block"]},
        ),
        (
            {"auto_wrap_policy": "transformer_based_wrap", "activation_checkpointing": True},
            {"wrap_policy": "model", "activation_checkpointing": "model"},
        ),
        ({"state_dict_type": "FULL_STATE_DICT"}, {"state_dict_type": "full"}),
        ({"param_init_fn": len}, {"init_fn": len}),
    ],
)
def test_an_object_of_accelerates_settings(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """It becomes the strategy with the same arguments; fields that change no result are taken as they are."""
    default = FSDPStrategy()
    names = "wrap_policy reshard_after_forward activation_checkpointing cpu_offload replicas init_fn state_dict_type"
    for plugin in (SimpleNamespace(**given), FullyShardedDataParallelPlugin(**given)):
        strategy: Any = Runtime(accelerator="cpu", devices=2, fsdp_plugin=plugin).strategy
        for name in names.split():
            assert getattr(strategy, name) == expected.get(name, getattr(default, name)), name


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"mixed_precision_policy": 3}, "mixed_precision_policy=3: has no counterpart here. Set precision="),
        ({"ignored_modules": ["a"]}, "ignored_modules="),
        ({"activation_checkpointing_offload": True}, "activation_checkpointing_offload=True: .* Set cpu_offload"),
        ({"unheard_of": 1}, "unheard_of=1: has no counterpart here. Leave it out, or pass strategy=FSDPStrategy"),
        ({"sharding_strategy": "NO_SHARD"}, "sharding_strategy='NO_SHARD'.*set strategy='ddp'"),
        ({"auto_wrap_policy": len}, "auto_wrap_policy=.*wrap_policy"),
        ({"state_dict_type": "LOCAL_STATE_DICT"}, "state_dict_type='LOCAL_STATE_DICT'. Valid: 'SHARDED_STATE_DICT'"),
    ],
)
def test_what_an_object_cannot_ask_for(given: dict[str, Any], text: str) -> None:
    """Each field that has no counterpart is named, with what to do."""
    with pytest.raises(ConfigurationError, match=f"fsdp_plugin: {text}"):
        Runtime(accelerator="cpu", devices=2, fsdp_plugin=SimpleNamespace(**given))


@pytest.mark.parametrize("given", [{}, {"fsdp_version": 2, "reshard_after_forward": False, "cpu_offload": True}])
def test_an_object_of_accelerates_own(given: dict[str, Any]) -> None:
    """Its class fills in all fields, also those that a script leaves out."""
    utils = pytest.importorskip("accelerate.utils", reason="accelerate is not installed")
    strategy: Any = Runtime(
        accelerator="cpu", devices=2, fsdp_plugin=utils.FullyShardedDataParallelPlugin(**given)
    ).strategy
    assert (strategy.cpu_offload, strategy.reshard_after_forward) == (bool(given), not given)


def test_the_class_refuses_what_has_no_counterpart() -> None:
    """A known field by the Runtime, an unknown one by Python."""
    plugin = FullyShardedDataParallelPlugin(mixed_precision_policy="bf16")
    with pytest.raises(ConfigurationError, match=r"mixed_precision_policy='bf16': has no counterpart here. Set prec"):
        Runtime(accelerator="cpu", devices=2, fsdp_plugin=plugin)
    unknown: dict[str, Any] = {"unheard_of": 1}
    with pytest.raises(TypeError, match="unheard_of"):
        FullyShardedDataParallelPlugin(**unknown)


def test_sizes_of_the_dimensions() -> None:
    """Replicas and processes that share a batch, with the settings of the other object."""
    sizes = {"dp_replicate_size": 2, "dp_shard_size": 2, "tp_size": 1, "cp_size": 1}
    plugin = SimpleNamespace(reshard_after_forward=False)
    config = SimpleNamespace(**sizes)
    runtime = Runtime(accelerator="cpu", devices=4, parallelism_config=config, fsdp_plugin=plugin)
    strategy: Any = runtime.strategy
    assert (strategy.replicas, strategy.tensor_parallel_size, strategy.reshard_after_forward) == (2, 1, False)
    assert runtime.parallelism_config is config
    sizes |= {"dp_replicate_size": 1, "tp_size": 2}
    strategy = Runtime(accelerator="cpu", devices=4, parallelism_config=SimpleNamespace(**sizes)).strategy
    assert (strategy.replicas, strategy.tensor_parallel_size) == (1, 2)
