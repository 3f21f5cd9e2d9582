"""What is refused, by name: mostly before any process starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from python_processes import run_python
from torch import nn
from torch_hal_parallel import ModelParallelStrategy, ParallelismConfig

from torch_hal import Runtime
from torch_hal.errors import ConfigurationError, WrongTypeError

from .conftest import SCRIPTS, run_script


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"data": 0}, "data=0"),
        ({"data": "node"}, "data='node'"),
        ({"tensor": True}, "tensor=True"),
        ({"pipeline": 1.5}, "pipeline=1.5"),
        ({"context": "nodes"}, "context='nodes'"),
        ({"expert": 2}, "expert=2: torch 2.13 has no expert parallelism"),
        ({"pipeline": 2, "context": 2}, "context=2 with pipeline=2"),
        ({"tensor_parallel_plan": {"a": "colwise"}}, "tensor_parallel_plan={'a': 'colwise'}: has no effect with"),
        ({"microbatches": 4}, "microbatches=4: has no effect with pipeline=1"),
        ({"pipeline_split": [1, 1], "tensor": 2}, "pipeline_split=[1, 1]: has no effect with pipeline=1"),
        ({"sequence_dim": 0}, "sequence_dim=0: has no effect with context=1"),
        ({"context": 2, "sequence_dim": -1}, "sequence_dim=-1: must be an integer of at least 0"),
        ({"tensor": 2, "tensor_parallel_plan": {"a": "columns"}}, "tensor_parallel_plan['a']='columns' is unknown"),
        ({"pipeline": 2, "schedule": "2F2B"}, "schedule='2F2B': unknown. Valid: 'GPipe', '1F1B'"),
        ({"pipeline": 2, "microbatches": 0}, "microbatches=0"),
        ({"pipeline": 2, "pipeline_plan": []}, "pipeline_plan"),
    ],
)
def test_arguments(options: dict[str, Any], says: str) -> None:
    """An invalid value, or one without an effect, raises on construction."""
    with pytest.raises(ConfigurationError) as error:
        ModelParallelStrategy(**options)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {"pipeline_plan": "layers.*", "pipeline": 2},
        {"pipeline_plan": [1], "pipeline": 2},
        {"tensor_parallel_plan": ["a"], "tensor": 2},
        {"model": nn.Linear(1, 1)},
    ],
)
def test_types(options: dict[str, Any]) -> None:
    """So does an object of another kind."""
    with pytest.raises(WrongTypeError, match=next(iter(options))):
        ModelParallelStrategy(**options)


@pytest.mark.parametrize(
    ("options", "devices", "precision", "says"),
    [
        ({"tensor": 3}, 2, "32-true", "tensor=3: these sizes are for 3 processes, but this run has 2"),
        ({"data": 2, "tensor": 2}, 2, "32-true", "these sizes are for 4 processes, but this run has 2"),
        ({"pipeline": 2, "microbatches": 1}, 2, "32-true", "microbatches=1: schedule='1F1B' over 2 processes needs at"),
        (
            {"pipeline": 2, "microbatches": 3, "schedule": "Interleaved1F1B"},
            2,
            "32-true",
            "needs a multiple of 2. Set it to 4",
        ),
        ({"tensor": 2}, 2, "16-mixed", "precision='16-mixed' with tensor=2, pipeline=1"),
    ],
)
def test_combinations(options: dict[str, Any], devices: int, precision: str, says: str) -> None:
    """What contradicts the number of processes or the precision raises before they are started."""
    with pytest.raises(ConfigurationError) as error:
        Runtime(accelerator="cpu", devices=devices, precision=precision, strategy=ModelParallelStrategy(**options))
    assert says in str(error.value)


@pytest.mark.slow
def test_models(tmp_path: Path) -> None:
    """What a model or a batch cannot do is refused in every process, with the argument or the names to change."""
    said = run_script(tmp_path, "refused.py")
    expected = {
        "outside": "parameters outside of its model 'model': outside.weight, outside.bias",
        "no plan": "pipeline_plan is missing: neither the strategy nor Blind has one",
        "too few parts": "names 1 parts for 2 stages",
        "meta": "are on 'meta'",
        "gradients": "runtime.strategy.forward_backward(model, inputs, targets, loss_fn)",
        "named": "was called with the named arguments 'text'",
        "microbatches": "microbatches=2: a batch of 3 items cannot be split",
        "a second": "pipeline=2: a second module was prepared",
        "after the run": "its pipeline ended with the run",
        "divided before": "has divided it over {'pipeline': 2}, but the processes of this run form {'context': 2}",
        "divided otherwise": "an earlier run has divided it with sequence_dim=1, but this run has sequence_dim=2",
        "odd length": "context=2: does not divide sequences of length 11",
        "uneven": "='colwise': dimension 0 of 0.weight, of length 5, does not divide into 2 equal shards",
        "apart": "different gradients of 'layers.0.scale.weight', 'layers.1.scale.weight', 'layers.2.scale.weight', ",
        "average": "EMAWeightAveraging: strategy 'model_parallel' has divided the parameter",
        "weight averaging": "Use a strategy in which each process has the whole module: 'ddp'",
        "own weights": "EMAWeightAveraging: with strategy 'diloco' the processes train different weights",
        "stochastic": "StochasticWeightAveraging: strategy 'model_parallel' has divided the parameter",
        "no attention": "Blind did not call torch.nn.functional.scaled_dot_product_attention",
    }
    assert said.keys() == expected.keys()
    for name, part in expected.items():
        assert part in said[name], name


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["reduce"], ["reduce", "before"], ["all_gather"], ["broadcast"], ["barrier"]])
def test_collectives_in_a_step(arguments: list[str], tmp_path: Path) -> None:
    """A collective in training_step, to which not all processes of a pipeline come, is refused and does not hang."""
    out = {"OUT": str(tmp_path)}
    ended = run_python(
        SCRIPTS / "alone.py", *arguments, cwd=tmp_path, warnings="ignore", expect=1, timeout=120, env=out
    )
    assert f"{arguments[0]}: called in a training step with a pipeline" in ended.stderr


def test_sizes_in_accelerates_names() -> None:
    """They select the strategy; what has no counterpart is refused when the Runtime is made."""
    config = ParallelismConfig(dp_replicate_size=2, tp_size=2)
    runtime = Runtime(cpu=True, devices=4, parallelism_config=config)
    strategy: Any = runtime.strategy
    assert (strategy.sizes["data"], strategy.sizes["tensor"], strategy.sizes["context"]) == (2, 2, 1)
    assert runtime.parallelism_config is config
    assert (config.total_size, config.data_parallel_size, config.non_data_parallel_size) == (4, 2, 2)
    assert [config.dp_replicate_enabled, config.dp_shard_enabled, config.tp_enabled] == [True, False, True]
    for given, says in (
        ({"sp_size": 2}, "sp_size=2: torch-hal has no such strategy. Use cp_size"),
        ({"sp_handler": 3}, "sp_handler=3: has no counterpart here"),
        ({"cp_size": 2, "cp_backend": "ring"}, "cp_backend='ring': has no counterpart here"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            Runtime(cpu=True, devices=2, parallelism_config=ParallelismConfig(**given))
