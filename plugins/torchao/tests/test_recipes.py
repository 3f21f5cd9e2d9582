"""Settings of float8 in Accelerate's names: objects of our classes, and of any with these attributes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from torch_hal import Runtime
from torch_hal.errors import ConfigurationError

pytest.importorskip("torchao", reason="torchao is not installed; run nox -s torchao")
from torch_hal_torchao import AORecipeKwargs, Float8Precision, FP8RecipeKwargs


def runtime(*handlers: Any, mixed_precision: str | None = "fp8", **options: Any) -> Runtime:
    return Runtime(cpu=True, mixed_precision=mixed_precision, kwargs_handlers=list(handlers), **options)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 24), nn.Linear(24, 32), nn.Linear(32, 2))


def changed(one: Runtime) -> list[str]:
    """The layers that multiply in float8 while the run has the module."""
    with one:
        module: Any = one.prepare(network())
        return [name for name, layer in module.named_modules() if type(layer).__name__ == "Float8Linear"]


def test_the_name_alone() -> None:
    """It is the precision of that name, which scripts compare with."""
    one = Runtime(cpu=True, mixed_precision="fp8")
    assert (one.mixed_precision, one.plan.precision.name, one.fp8_recipe_handler) == ("fp8", "fp8-mixed", None)
    assert changed(one) == ["0", "1", "2", "3", "4"]


def test_which_layers() -> None:
    """By default as in Accelerate: neither the first nor the last, nor those whose sizes 16 does not divide."""
    handler = AORecipeKwargs()
    one = runtime(handler)
    assert (one.mixed_precision, one.fp8_recipe_handler) == ("fp8", handler)
    assert changed(one) == ["1"]
    assert changed(runtime(FP8RecipeKwargs(fp8_format="hybrid", margin=0))) == ["1"]
    assert changed(runtime(AORecipeKwargs(module_filter_func=lambda layer, name: name == "3"))) == ["3"]
    assert changed(runtime(handler, precision="fp8-mixed", mixed_precision=None)) == ["1"]


def test_a_config_of_torchao() -> None:
    """It is used as it is, but for how FSDP gathers."""
    from torchao.float8 import Float8LinearConfig

    config = Float8LinearConfig(emulate=True, pad_inner_dim=True, enable_fsdp_float8_all_gather=True)
    theirs = type("AORecipeKwargs", (SimpleNamespace,), {})
    filled = theirs(config=config, module_filter_func=None, pad_inner_dim=True, enable_fsdp_float8_all_gather=True)
    for handler in (AORecipeKwargs(config=config), filled):
        precision: Any = runtime(handler).strategy.precision
        assert (type(precision), precision.recipe) == (Float8Precision, config)
        assert precision.emulate
        assert precision.pad_inner_dim


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (
            FP8RecipeKwargs(backend="te"),
            "FP8RecipeKwargs: backend='TE': has no counterpart here. Leave it out: torchao",
        ),
        (FP8RecipeKwargs(amax_history_len=32), "amax_history_len=32: has no counterpart here. Leave it out: each prod"),
        (FP8RecipeKwargs(opt_level="O2"), "opt_level='O2'.*MS-AMP"),
        (FP8RecipeKwargs(fp8_format="E4M3"), "fp8_format='E4M3'.*Float8Precision"),
        (FP8RecipeKwargs(use_autocast_during_eval=False), "use_autocast_during_eval=False.*evaluation is in float8"),
        (type("AORecipeKwargs", (SimpleNamespace,), {})(unheard_of=1), "AORecipeKwargs: unheard_of=1: has no count"),
    ],
)
def test_what_is_refused(handler: Any, text: str) -> None:
    """Each field that has no counterpart is named, with what to do."""
    with pytest.raises(ConfigurationError, match=text):
        runtime(handler)


def test_settings_without_the_precision() -> None:
    """They would have no effect."""
    for options in ({"mixed_precision": "bf16"}, {"mixed_precision": None}):
        with pytest.raises(ConfigurationError, match=r"'AORecipeKwargs' is for mixed_precision='fp8'. Set that, or"):
            runtime(AORecipeKwargs(), **options)
    with pytest.raises(
        ConfigurationError, match=r"has several recipes, 'AORecipeKwargs', 'FP8RecipeKwargs'\. Pass one"
    ):
        runtime(AORecipeKwargs(), FP8RecipeKwargs())


@pytest.mark.parametrize("given", [{"layers": "outer"}, {"pad_inner_dim": 1}, {"recipe": 3}])
def test_wrong_arguments(given: dict[str, Any]) -> None:
    """They are named."""
    with pytest.raises((ConfigurationError, TypeError), match=next(iter(given))):
        Float8Precision(**given)
