"""Arguments of the constructor under Accelerate's names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader

from core import GradientAccumulationPlugin, Runtime
from core.data import DataSettings
from core.errors import CoreError

from .problem import runtime


def recipe() -> Any:
    """An object of a class with the name of one of Accelerate's."""
    return type("AORecipeKwargs", (), {})()


def sizes(**given: Any) -> Any:
    """An object with attributes of Accelerate's ``ParallelismConfig``."""
    names = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size")
    return SimpleNamespace(**dict.fromkeys(names, 1) | given)


@pytest.mark.parametrize(("name", "precision"), [("no", "32-true"), ("fp16", "16-mixed"), ("bf16", "bf16-mixed")])
def test_mixed_precision(name: str, precision: str) -> None:
    """Also together with the same precision under torch-hal's name."""
    assert runtime(mixed_precision=name).plan.precision.name == precision
    assert runtime(mixed_precision=name, precision=precision).plan.precision.name == precision


def test_cpu() -> None:
    """The same as ``accelerator="cpu"``."""
    assert Runtime(cpu=True, devices=1).plan.accelerator.name == "cpu"
    assert Runtime(cpu=True, accelerator="cpu", devices=1).plan.accelerator.name == "cpu"


def test_settings_of_data_reach_prepared_loaders() -> None:
    """As plain arguments or as one object, also of another class with these attributes."""
    values: dict[str, Any] = {
        "split_batches": True,
        "dispatch_batches": None,
        "even_batches": False,
        "use_seedable_sampler": True,
        "data_seed": 3,
        "use_stateful_dataloader": False,
        "non_blocking": False,
    }
    settings = DataSettings(**values)
    for one in (
        runtime(**{name: value for name, value in values.items() if value is not None}),
        runtime(dataloader_config=settings),
        runtime(dataloader_config=SimpleNamespace(**values)),
    ):
        assert one.dataloader_config == settings
    numbers: Any = list(range(8))
    loader: DataLoader[Any] = DataLoader(numbers, shuffle=True)
    orders = [[*map(int, runtime(data_seed=seed).prepare(loader))] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert runtime(even_batches=False).prepare(loader).even_batches is False


@pytest.mark.parametrize(
    "given",
    [
        {"gradient_accumulation_steps": 4},
        {"gradient_accumulation_steps": GradientAccumulationPlugin(num_steps=4)},
        {"gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=4)},
        {
            "gradient_accumulation_plugin": SimpleNamespace(
                num_steps=4, adjust_scheduler=True, sync_with_dataloader=True, sync_each_batch=False
            )
        },
    ],
)
def test_accumulation(given: dict[str, Any]) -> None:
    """A number, or settings."""
    one = runtime(**given)
    assert one.gradient_accumulation_steps == 4
    assert one.gradient_state.plugin_kwargs == {
        "num_steps": 4,
        "adjust_scheduler": True,
        "sync_with_dataloader": True,
        "sync_each_batch": False,
    }


def test_rng_types() -> None:
    """The order of data is drawn alike in all processes in any case."""
    runtime(rng_types=["generator"])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"mixed_precision": "fp9"}, ["mixed_precision='fp9'", "'bf16', 'fp8'"]),
        ({"mixed_precision": "fp8"}, ["'fp8-mixed'", "pip install torch-hal-torchao"]),
        ({"mixed_precision": "fp8", "kwargs_handlers": [recipe()]}, ["'fp8-mixed'", "pip install torch-hal-torchao"]),
        ({"mixed_precision": "bf16", "kwargs_handlers": [recipe()]}, ["'AORecipeKwargs' is for mixed_precision='fp8'"]),
        ({"mixed_precision": "fp16", "precision": "bf16-mixed"}, ["mixed_precision='fp16'", "precision='bf16-mixed'"]),
        ({"cpu": True, "accelerator": "gpu"}, ["cpu=True", "accelerator='gpu'"]),
        ({"cpu": "yes"}, ["cpu='yes'", "True or False"]),
        ({"rng_types": ["torch", "acme"]}, ["no generator 'acme'", "'cpu'", "Valid: 'torch', 'generator'"]),
        ({"fp16": True, "mixed_precision": "bf16"}, ["fp16=True", "mixed_precision='bf16'"]),
        ({"fp16": False, "precision": "16-mixed"}, ["fp16=False", "precision='16-mixed'"]),
        ({"fp16": 1}, ["fp16=1", "True or False"]),
        ({"even_batches": "yes"}, ["even_batches='yes'"]),
        ({"device_placement": 1}, ["device_placement=1", "True or False"]),
        ({"step_scheduler_with_optimizer": None}, ["step_scheduler_with_optimizer=None"]),
        ({"dataloader_config": DataSettings(), "data_seed": 1}, ["dataloader_config=", "'data_seed'"]),
        ({"dataloader_config": object()}, ["dataloader_config=", "DataSettings"]),
        (
            {"gradient_accumulation_steps": 2, "gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=3)},
            ["gradient_accumulation_steps=2", "gradient_accumulation_plugin="],
        ),
        ({"gradient_accumulation_plugin": 3}, ["gradient_accumulation_plugin=3"]),
        ({"fsdp_plugin": SimpleNamespace()}, ["'fsdp'", "pip install torch-hal-fsdp"]),
        ({"fsdp_plugin": SimpleNamespace(), "strategy": "ddp"}, ["fsdp_plugin=", "strategy='ddp': both were given"]),
        (
            {"fsdp_plugin": SimpleNamespace(), "deepspeed_plugin": SimpleNamespace()},
            ["'deepspeed_plugin', 'fsdp_plugin': were given together"],
        ),
        ({"dynamo_plugin": SimpleNamespace(backend="INDUCTOR")}, ["torch.compile(model, backend='inductor')"]),
        ({"parallelism_config": 3}, ["parallelism_config=3: has no number 'dp_replicate_size'"]),
        ({"parallelism_config": sizes(sp_size=2)}, ["sp_size=2: torch-hal has no such strategy. Use cp_size"]),
        ({"parallelism_config": sizes(ep_size=2)}, ["ep_size=2: has no counterpart here"]),
        (
            {"parallelism_config": sizes(cp_size=2, cp_handler=SimpleNamespace(cp_comm_strategy="alltoall"))},
            ["cp_handler: cp_comm_strategy='alltoall': has no counterpart here. Leave it out"],
        ),
        ({"parallelism_config": sizes(dp_shard_size=2, cp_size=2)}, ["dp_shard_size=2, cp_size=2: no strategy"]),
        ({"parallelism_config": sizes(tp_size=2)}, ["'tensor_parallel'", "pip install torch-hal-parallel"]),
        (
            {"parallelism_config": sizes(dp_replicate_size=3), "cpu": True, "devices": 2},
            ["dp_replicate_size=3, dp_shard_size=1", "are for 3 process(es), and this run has 2"],
        ),
        ({"sync_each_batch": True}, ["unknown argument 'sync_each_batch'", "GradientAccumulationPlugin(num_steps="]),
        ({"dynamo_backend": "inductor"}, ["dynamo_backend='inductor'", "torch.compile(model, backend='inductor')"]),
    ],
)
def test_what_is_refused(given: dict[str, Any], named: list[str]) -> None:
    """By an error that names the arguments and what to do."""
    with pytest.raises(CoreError) as caught:
        Runtime(**given)
    for text in named:
        assert text in str(caught.value)


def test_objects_that_ask_for_nothing_more() -> None:
    """Scripts pass them whatever they are to do."""
    config = sizes()
    one = Runtime(cpu=True, fsdp_plugin=None, parallelism_config=config, dynamo_plugin=SimpleNamespace(backend="NO"))
    assert one.plan.strategy.name == "single_device"
    assert one.parallelism_config is config
    assert Runtime(cpu=True, dynamo_backend="NO").dynamo_plugin.backend == "NO"
    handlers = sizes(cp_backend="torch", cp_handler=SimpleNamespace(cp_comm_strategy="allgather"), tp_handler=None)
    assert Runtime(cpu=True, parallelism_config=handlers).plan.strategy.name == "single_device"
    two = Runtime(cpu=True, devices=2, parallelism_config=sizes(dp_replicate_size=2))
    assert two.plan.strategy.name == "ddp"
