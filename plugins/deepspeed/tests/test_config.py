"""Config and the front end's arguments: contradictions and what DeepSpeed does not support are refused by name."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_hal_deepspeed import DeepSpeedStrategy
from torch_hal_deepspeed.config import complete, read_config, settle_zero
from torch_hal_deepspeed.library import part

import torch_hal
from torch_hal.errors import CheckpointError, CoreError
from torch_hal.precisions import Precision

from .conftest import prepared

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "stage": ({"stage": 4}, "stage=4 must be 0, 1, 2, 3"),
    "stage is a bool": ({"stage": True}, "stage=True"),
    "stage contradicts": (
        {"stage": 1, "config": {"zero_optimization": {"stage": 3}}},
        "stage=1 contradicts config['zero_optimization']['stage']=3",
    ),
    "offload contradicts": (
        {
            "stage": 2,
            "offload_optimizer": "cpu",
            "config": {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}},
        },
        "offload_optimizer='cpu' contradicts",
    ),
    "offload": ({"stage": 2, "offload_optimizer": "gpu"}, "offload_optimizer='gpu'. Valid: 'cpu', 'nvme'"),
    "offload without ZeRO": ({"stage": 0, "offload_optimizer": "cpu"}, "with stage=0"),
    "parameters of stage 2": ({"stage": 2, "offload_parameters": "cpu"}, "offload_parameters with stage=2"),
    "nvme of stage 2": ({"stage": 2, "offload_optimizer": "nvme"}, "'nvme' with stage=2"),
    "fast_init": (
        {"stage": 3, "config": {"zero_optimization": {"offload_optimizer": {"device": "nvme", "fast_init": True}}}},
        "['fast_init']=True is not supported: the optimizer would start with other weights",
    ),
    "two precisions": ({"config": {"fp16": {"enabled": True}, "bf16": {"enabled": True}}}, "contradict each other"),
    "autocast's dtype": ({"config": {"torch_autocast": {"enabled": True, "dtype": "float64"}}}, "float64"),
    "precision contradicts": (
        {"precision_plugin": "32-true", "config": {"bf16": {"enabled": True}}},
        "precision='32-true' contradicts the config",
    ),
    "a typing error": ({"config": {"zero_optimisation": {}}}, "Did you mean 'zero_optimization'?"),
    "a section": ({"config": {"bf16": True}}, "config['bf16']=True must be a mapping"),
    "an optimizer": ({"config": {"optimizer": {"type": "Adam"}}}, "config['optimizer'] is not supported"),
    "a scheduler": ({"config": {"scheduler": {}}}, "config['scheduler'] is not supported"),
    "universal": ({"config": {"checkpoint": {"load_universal": True}}}, "load_universal"),
    "another kind": ({"config": 3}, "config=3 must be a mapping"),
    "a CheckpointIO": ({"checkpoint_io": "torch"}, "checkpoint_io='torch': DeepSpeed's engine writes its own"),
    "recomputed": ({"activation_checkpointing": "Block"}, "must be a list of module classes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_are_held_against_the_config(name: str) -> None:
    """What contradicts, is out of range or means nothing is refused on construction, naming it."""
    arguments, said = REFUSED[name]
    with pytest.raises(CoreError, match=r".") as caught:
        DeepSpeedStrategy(**arguments)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read"), ("{", "not valid JSON"), ("[1]", "not [1]"), ('{"fp61": {}}', "'fp16'")],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    """A config file that is absent, no JSON, no object, or has a key that means nothing."""
    file = tmp_path / "ds.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(CoreError) as caught:
        DeepSpeedStrategy(config=file)
    assert said in str(caught.value)


def test_a_file_means_what_a_mapping_does(tmp_path: Path) -> None:
    """Both are read alike; 'auto' means that it is left to the front end."""
    config = {"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}, "gradient_clipping": "auto", "bf16": {}}
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(config))
    assert read_config(file) == read_config(config) == {"zero_optimization": {"stage": 3}, "bf16": {}}
    assert DeepSpeedStrategy(config=file).stage == 3
    assert config["gradient_clipping"] == "auto"  # the user's own is left as it was


def test_offload_is_settled_from_either_place() -> None:
    """Arguments complete what the config says of the same section."""
    config = {"zero_optimization": {"stage": 3, "offload_optimizer": {"pin_memory": False}}}
    settle_zero(config, None, "cpu", "nvme", "/drive")
    assert config["zero_optimization"] == {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": False},
        "offload_param": {"device": "nvme", "nvme_path": "/drive"},
    }
    unsaid = DeepSpeedStrategy(stage=3, offload_optimizer="nvme").config["zero_optimization"]
    assert unsaid["offload_optimizer"] == {"device": "nvme", "nvme_path": "/local_nvme"}


class Declared(Precision):
    """A declaration and nothing else."""

    def __init__(self, param: torch.dtype, compute: torch.dtype) -> None:
        self.param_dtype, self.compute_dtype = param, compute


def test_the_engine_is_told_what_the_precision_declares() -> None:
    """Parameters of 16 bits are the engine's own mode; 16 bits in computing alone are autocast."""
    full = complete({"zero_optimization": {"stage": 1}}, Declared(torch.float32, torch.float32))
    assert not {"fp16", "bf16", "torch_autocast"} & full.keys()
    assert full["gradient_clipping"] == 0.0
    narrow = complete({}, Declared(torch.bfloat16, torch.bfloat16))
    assert narrow["bf16"] == {"enabled": True}
    mixed = complete({}, Declared(torch.float32, torch.bfloat16))
    assert mixed["torch_autocast"] == {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
    half = complete({}, Declared(torch.float16, torch.float16))
    assert half["fp16"] == {"enabled": True, "loss_scale": 1.0}


# -- with the library ------------------------------------------------------------------------------------------------

FRONT_ENDS: list[Callable[..., Any]] = [torch_hal.Runtime, torch_hal.Trainer]
PLANS: dict[str, tuple[dict[str, Any], str]] = {
    "precision": ({"precision": "64-true"}, "does not support precision '64-true'"),
    "precision of the config": (
        {"strategy": DeepSpeedStrategy, "config": {"bf16": {"enabled": True}}, "precision": "bf16-mixed"},
        "contradicts",
    ),
    "ZeRO's keys": (
        {"strategy": DeepSpeedStrategy, "config": {"zero_optimization": {"stag": 2}}},
        "config['zero_optimization']: DeepSpeed rejects it",
    ),
    "batches": (
        {"strategy": DeepSpeedStrategy, "config": {"train_batch_size": 7}},
        "config['train_batch_size']=7 contradicts 2 process(es)",
    ),
    "CheckpointIO": ({"checkpoint_io": "torch"}, "checkpoint_io"),
    "NVMe": (
        {
            "strategy": DeepSpeedStrategy,
            "config": {
                "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/no/drive"}}
            },
        },
        "nvme_path='/no/drive': not a writable directory",
    ),
}


@pytest.mark.deepspeed
@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("name", PLANS)
def test_refused_before_any_process_starts(name: str, front_end: Callable[..., Any]) -> None:
    """On two processes both front ends refuse on construction, naming what contradicts."""
    options, said = PLANS[name]
    options = {"accelerator": "cpu", "devices": 2, "strategy": "deepspeed", **options}
    config = options.pop("config", None)
    if config is not None:
        options["strategy"] = DeepSpeedStrategy(config=config)
    with pytest.raises(CoreError) as caught:
        front_end(**options)
    assert said in str(caught.value)


@pytest.mark.deepspeed
@pytest.mark.parametrize("precision", ["16-mixed", "16-true"])
def test_float16_is_refused_where_deepspeed_has_none(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed itself is asked whether the device has float16, before anything starts."""
    monkeypatch.setattr(part("accelerator.cpu_accelerator").CPU_Accelerator, "is_fp16_supported", lambda self: False)
    with pytest.raises(CoreError, match=f"precision='{precision}': DeepSpeed does not support float16"):
        torch_hal.Runtime(accelerator="cpu", strategy="deepspeed", devices=2, precision=precision)


def _second_module(runtime: torch_hal.Runtime) -> None:
    prepared(runtime)
    runtime.prepare(nn.Linear(2, 2))


def _second_optimizer(runtime: torch_hal.Runtime) -> None:
    model, _ = prepared(runtime)
    runtime.prepare(torch.optim.SGD(model.parameters(), lr=0.1))


def _optimizer_alone(runtime: torch_hal.Runtime) -> None:
    runtime.prepare(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))


def _foreign_optimizer(runtime: torch_hal.Runtime) -> None:
    runtime.prepare(nn.Linear(2, 2), torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))


def _partly_foreign_optimizer(runtime: torch_hal.Runtime) -> None:
    model = nn.Linear(2, 2)
    runtime.prepare(model, torch.optim.SGD([*model.parameters(), *nn.Linear(2, 2).parameters()], lr=0.1))


def _stepped_optimizer(runtime: torch_hal.Runtime) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    runtime.prepare(model, optimizer)


def _some_clipped(runtime: torch_hal.Runtime) -> None:
    model, _ = prepared(runtime)
    runtime.clip_grad_norm_(list(model.parameters())[:1], 1.0)


def _by_value(runtime: torch_hal.Runtime) -> None:
    model, _ = prepared(runtime)
    runtime.clip_grad_value_(model.parameters(), 1.0)


def _by_another_norm(runtime: torch_hal.Runtime) -> None:
    model, _ = prepared(runtime)
    runtime.clip_grad_norm_(model.parameters(), 1.0, norm_type=1.0)


def _dropped(runtime: torch_hal.Runtime) -> None:
    model, optimizer = prepared(runtime)
    runtime.backward(model(torch.ones(1, 4)).sum())
    optimizer.zero_grad()


def _closure(runtime: torch_hal.Runtime) -> None:
    _, optimizer = prepared(runtime)
    optimizer.step(lambda: 0)


def _another_states(runtime: torch_hal.Runtime) -> None:
    _, optimizer = prepared(runtime)
    runtime.strategy.load_optimizer_state(optimizer, {"state": {}, "param_groups": []})


def _recomputed_nowhere(runtime: torch_hal.Runtime) -> None:
    runtime.strategy.activation_checkpointing = ["Block"]  # type: ignore[attr-defined]
    prepared(runtime)


LIVE: dict[str, tuple[Callable[[torch_hal.Runtime], None], str]] = {
    "second module": (_second_module, "the second with trainable or divided parameters"),
    "second optimizer": (_second_optimizer, "the second in this run"),
    "optimizer alone": (_optimizer_alone, "its module is not prepared"),
    "foreign optimizer": (_foreign_optimizer, "none of which is of the module that is trained"),
    "partly foreign optimizer": (_partly_foreign_optimizer, "not of the prepared module Linear"),
    "stepped optimizer": (_stepped_optimizer, "it has stepped before"),
    "some clipped": (_some_clipped, "clips all gradients as one vector"),
    "by value": (_by_value, "algorithm='value': strategy 'deepspeed'"),
    "by another norm": (_by_another_norm, "clips by the 2-norm"),
    "dropped gradients": (_dropped, "backward was called and no step followed"),
    "closure": (_closure, "step was given a closure"),
    "another's state": (_another_states, "is not DeepSpeed's"),
    "recomputed nowhere": (_recomputed_nowhere, "no 'Block' in Linear. Valid: 'Linear'"),
}


@pytest.mark.deepspeed
@pytest.mark.parametrize("name", LIVE)
def test_what_the_engine_cannot_do_is_refused(name: str) -> None:
    """In your own loop: what DeepSpeed would ignore is an error."""
    work, said = LIVE[name]
    with torch_hal.Runtime(accelerator="cpu", strategy="deepspeed", devices=1) as runtime:
        with pytest.raises((torch_hal.CoreError, CheckpointError)) as caught:
            work(runtime)
        assert said in str(caught.value)


@pytest.mark.deepspeed
def test_a_prepared_optimizer_may_be_prepared_again() -> None:
    """It comes back as it is, and is stepped by the one engine."""
    with torch_hal.Runtime(accelerator="cpu", strategy="deepspeed", devices=1) as runtime:
        model, optimizer = prepared(runtime)
        assert runtime.prepare(optimizer) is optimizer
        before = [parameter.detach().clone() for parameter in model.parameters()]
        runtime.backward(model(torch.ones(1, 4)).sum())
        optimizer.step()
        assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


class Lesson(torch_hal.Module):
    """The smallest that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.inner(batch).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


TRAINERS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "accumulation": (
        {"gradient_accumulation_steps": 4},
        {"accumulate_grad_batches": 2},
        "accumulate_grad_batches=2 contradicts config['gradient_accumulation_steps']=4",
    ),
    "clipping": (
        {"gradient_clipping": 1.0},
        {"gradient_clip_val": 0.5},
        "gradient_clip_val=0.5 contradicts config['gradient_clipping']=1.0",
    ),
    "clipping by value": (
        {},
        {"gradient_clip_val": 0.5, "gradient_clip_algorithm": "value"},
        "gradient_clip_algorithm='value': strategy 'deepspeed' cannot clip",
    ),
    "micro-batches": ({"train_micro_batch_size_per_gpu": 3}, {}, "batch size in each process is 2"),
    "batches": ({"train_batch_size": 8, "gradient_accumulation_steps": 2}, {"accumulate_grad_batches": 2}, "sets 4"),
}


def fit(config: dict[str, Any], tmp_path: Path, **options: Any) -> torch_hal.Trainer:
    trainer = torch_hal.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=DeepSpeedStrategy(config=config),
        max_epochs=1,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
        default_root_dir=tmp_path,
        **options,
    )
    trainer.fit(Lesson(), torch.utils.data.DataLoader(torch.ones(6, 4), batch_size=2))  # type: ignore[arg-type]
    return trainer


@pytest.mark.deepspeed
@pytest.mark.parametrize("name", TRAINERS)
def test_the_trainers_arguments_are_compared_with_the_config(name: str, tmp_path: Path) -> None:
    """How batches are accumulated, gradients clipped, and how large a batch is: one of the two, or the same in both."""
    config, options, said = TRAINERS[name]
    with pytest.raises(CoreError) as caught:
        fit(config, tmp_path, **options)
    assert said in str(caught.value)


@pytest.mark.deepspeed
def test_the_same_in_both_is_no_contradiction(tmp_path: Path) -> None:
    """A config that agrees with the Trainer's arguments is accepted, and a second fit in this process works."""
    config = {"gradient_accumulation_steps": 2, "gradient_clipping": 0.5, "train_micro_batch_size_per_gpu": 2}
    for _ in range(2):
        trainer = fit(config, tmp_path, accumulate_grad_batches=2, gradient_clip_val=0.5)
        assert trainer.global_step == 2


def test_scripts_for_accelerate_read_the_settings() -> None:
    """``state.deepspeed_plugin``: what is set, a config to complete, and no other way to set anything."""
    strategy = DeepSpeedStrategy(stage=3, offload_optimizer="cpu", config={"gradient_clipping": 0.5, "bf16": "auto"})
    plugin = strategy.engine_settings["deepspeed_plugin"]
    assert (plugin.zero_stage, plugin.deepspeed_config["zero_optimization"]["stage"]) == (3, 3)
    assert (plugin.gradient_clipping, plugin.gradient_accumulation_steps) == (0.5, 1)
    assert (plugin.offload_optimizer_device, plugin.offload_param_device) == ("cpu", "none")
    assert "optimizer" not in plugin.deepspeed_config
    assert "bf16" not in plugin.deepspeed_config
    plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = 8
    assert strategy.config["train_micro_batch_size_per_gpu"] == 8
    plugin.zero_stage = 3
    with pytest.raises(CoreError, match=r"deepspeed_plugin.zero_stage=2.*DeepSpeedStrategy"):
        plugin.zero_stage = 2
    with plugin.zero3_init_context_manager(enable=False):
        assert torch.nn.Linear(1, 1).weight.numel() == 1
    assert pickle.loads(pickle.dumps(plugin)).zero_stage == 3


def test_compile_is_refused_by_stage_3_only() -> None:
    """DeepSpeed gathers the parameters of stage 3 in hooks that torch's compiler cannot trace."""
    with pytest.raises(CoreError, match="compile=True: DeepSpeed gathers the parameters of stage=3"):
        DeepSpeedStrategy(stage=3).check_compile("compile=True")
    DeepSpeedStrategy(stage=2).check_compile("compile=True")
