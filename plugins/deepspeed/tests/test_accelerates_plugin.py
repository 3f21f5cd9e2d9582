"""``Runtime(deepspeed_plugin=...)``: each field is read, changes no result, or is refused by name."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import pytest
from torch_hal_deepspeed import DeepSpeedPlugin, DeepSpeedStrategy

from torch_hal.errors import ConfigurationError, WrongTypeError

NVME = {"device": "nvme", "nvme_path": "/fast"}


@pytest.mark.parametrize("is_accelerates", [False, True])
def test_settings_in_accelerates_names(is_accelerates: bool) -> None:
    """Our object, and one with the attributes of Accelerate's, whose config is in an object too, mean the same."""
    settings: dict[str, Any] = {"zero_stage": 3, "offload_optimizer_device": "cpu", "offload_param_device": "none"}
    settings |= {"gradient_accumulation_steps": 4, "gradient_clipping": 1.0}
    config = {"gradient_accumulation_steps": 4, "zero_optimization": {"stage": 3}, "train_batch_size": "auto"}
    if is_accelerates:
        wrapped = SimpleNamespace(config=config)
        plugin: Any = SimpleNamespace(**settings, hf_ds_config=wrapped, deepspeed_config=config, _selected=False)
    else:
        plugin = DeepSpeedPlugin(**settings, hf_ds_config=config)
    strategy = DeepSpeedStrategy.of_script(plugin)
    assert strategy.stage == 3
    assert strategy.config == {
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"stage": 2}),
        ({"is_train_batch_min": False, "zero3_init_flag": True, "zero_stage": 3}, {"stage": 3}),
        ({"enable_msamp": False, "msamp_opt_level": "O1", "hf_ds_config": "none"}, {"stage": 2}),
        ({"zero3_save_16bit_model": True}, {"stage": 2, "stage3_gather_16bit_weights_on_model_save": True}),
        ({"transformer_moe_cls_names": "A, B"}, {"stage": 2, "leaf_module": {"classes": ["A", "B"]}}),
        ({"offload_param_nvme_path": "none"}, {"stage": 2}),
        (
            {"zero_stage": 3, "offload_param_device": "nvme", "offload_param_nvme_path": "/fast"},
            {"stage": 3, "offload_param": NVME},
        ),
        (
            {
                "hf_ds_config": {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}},
                "offload_optimizer_nvme_path": "/fast",
            },
            {"stage": 3, "offload_optimizer": NVME},
        ),
    ],
)
def test_fields(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """They become what they stand for in the config."""
    for plugin in (SimpleNamespace(**given), DeepSpeedPlugin(**given)):
        assert DeepSpeedStrategy.of_script(plugin).config["zero_optimization"] == expected


CPU = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"enable_msamp": True}, "enable_msamp=True: has no counterpart here. Set precision= of the Runtime"),
        ({"msamp_opt_level": "O2"}, "msamp_opt_level='O2': has no counterpart here. Set precision="),
        ({"unheard_of": 1}, "unheard_of=1: has no counterpart here. Leave it out, or pass strategy=DeepSpeedStrategy"),
        ({"offload_param_nvme_path": "/fast"}, "offload_param_nvme_path='/fast': has no effect without offload_param_"),
        ({"gradient_clipping": 1.0, "hf_ds_config": {"gradient_clipping": 0.5}}, "gradient_clipping=1.0 contradicts"),
        ({"offload_optimizer_device": "none", "hf_ds_config": CPU}, "offload_optimizer_device='none' contradicts"),
        ({"hf_ds_config": {"gradient_accumulation_steps": 4}}, ".*Set gradient_accumulation_steps=4 of the plugin"),
        ({"hf_ds_config": {}, "deepspeed_config": CPU}, "hf_ds_config and deepspeed_config: differ"),
    ],
)
def test_what_has_no_counterpart(given: dict[str, Any], text: str) -> None:
    """The field is named, with what to do."""
    with pytest.raises(ConfigurationError, match=f"deepspeed_plugin: {text}"):
        DeepSpeedStrategy.of_script(SimpleNamespace(**given))


@pytest.mark.parametrize("given", [{"student": DeepSpeedPlugin()}, "zero3", ("a",)])
def test_other_objects(given: Any) -> None:
    """Not the defaults without a word, as of an object without one of the fields."""
    with pytest.raises(WrongTypeError, match=r"must be one object of torch_hal_deepspeed\.DeepSpeedPlugin"):
        DeepSpeedStrategy.of_script(given)


OWN: list[dict[str, Any]] = [
    {},
    {"zero_stage": 3, "offload_optimizer_device": "nvme", "offload_optimizer_nvme_path": "/fast"},
    {"zero_stage": 3, "zero3_save_16bit_model": True, "gradient_clipping": 0.5, "gradient_accumulation_steps": 2},
    {"hf_ds_config": {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}},
]


@pytest.mark.parametrize("given", OWN)
def test_an_object_of_accelerates_own(given: dict[str, Any]) -> None:
    """Its class fills in all fields; it asks for what ours asks for."""
    utils = pytest.importorskip("accelerate.utils", reason="accelerate is not installed")
    kept = json.loads(json.dumps(given))
    strategy = DeepSpeedStrategy.of_script(utils.DeepSpeedPlugin(**given))
    ours = DeepSpeedStrategy.of_script(DeepSpeedPlugin(**kept))
    assert strategy.stage == ours.stage
    steps = strategy.config.pop("steps_per_print", None)  # Accelerate silences DeepSpeed by this
    assert steps == float("inf")
    saves = "stage3_gather_16bit_weights_on_model_save"
    zero, other = strategy.config.pop("zero_optimization"), ours.config.pop("zero_optimization")
    assert (bool(zero.pop(saves, False)), zero) == (bool(other.pop(saves, False)), other)
    assert strategy.config == ours.config


def test_all_of_accelerates_fields_are_known() -> None:
    """A field that a version of Accelerate adds fails here first."""
    utils = pytest.importorskip("accelerate.utils", reason="accelerate is not installed")
    ours = {field.name for field in dataclasses.fields(DeepSpeedPlugin)}
    assert ours == {field.name for field in dataclasses.fields(utils.DeepSpeedPlugin)}
    with pytest.raises(ConfigurationError, match="deepspeed_plugin: enable_msamp=True: has no counterpart here"):
        DeepSpeedStrategy.of_script(utils.DeepSpeedPlugin(enable_msamp=True))
