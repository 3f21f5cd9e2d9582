"""What scripts written for Accelerate read as ``state.fsdp_plugin``, and the mesh."""

from __future__ import annotations

import copy

import pytest
from torch_hal_fsdp import FSDPStrategy

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
