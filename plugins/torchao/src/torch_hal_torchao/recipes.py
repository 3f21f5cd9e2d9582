"""Settings of float8 in the names of scripts for Accelerate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from torch_hal.errors import ConfigurationError

__all__ = ["AORecipeKwargs", "FP8RecipeKwargs", "read_recipe"]


@dataclass(frozen=True, kw_only=True)
class AORecipeKwargs:
    """Settings of float8 by torchao, for ``Runtime(mixed_precision="fp8", kwargs_handlers=[AORecipeKwargs(...)])``."""

    config: Any = None
    """A ``torchao.float8.Float8LinearConfig``: ``recipe`` of :class:`Float8Precision`."""
    module_filter_func: Callable[[nn.Module, str], bool] | None = None
    """``layers`` of :class:`Float8Precision`; by default ``"inner"``, as in Accelerate."""
    pad_inner_dim: bool | None = None
    """Without ``config``: pad products to multiples of 16, by default ``True``."""
    enable_fsdp_float8_all_gather: bool | None = None
    """No result depends on it: shards are gathered in the dtype of the precision."""


@dataclass(frozen=True, kw_only=True)
class FP8RecipeKwargs:
    """Settings of float8 by other libraries, of which only those are accepted that torchao has too.

    As in torchao, each product is scaled by its current largest values, not by a history of earlier ones, and
    evaluation is in float8 as well.
    """

    backend: str | None = None
    """Refused: torchao multiplies."""
    opt_level: str | None = None
    """Refused."""
    fp8_format: str | None = None
    """``"HYBRID"``."""
    margin: int | None = None
    """0."""
    interval: int | None = None
    """1."""
    amax_history_len: int | None = None
    """Refused."""
    amax_compute_algo: str | None = None
    """Refused."""
    override_linear_precision: tuple[bool, bool, bool] | None = None
    """``False`` for each."""
    use_mxfp8_block_scaling: bool | None = None
    """``False``."""
    use_autocast_during_eval: bool | None = None
    """``True``."""


_AS_HERE: dict[str, Any] = {
    "fp8_format": "HYBRID",
    "margin": 0,
    "interval": 1,
    "override_linear_precision": (False, False, False),
    "use_mxfp8_block_scaling": False,
    "use_autocast_during_eval": True,
}
"""Values of :class:`FP8RecipeKwargs` that say what torchao does."""

_INSTEAD = {
    "backend": "Leave it out: torchao multiplies, without TransformerEngine and MS-AMP.",
    "opt_level": "Leave it out: it is MS-AMP's, and parameters and the optimizer's state are float32 here.",
    "amax_history_len": "Leave it out: each product is scaled by its current largest values.",
    "amax_compute_algo": "Leave it out: each product is scaled by its current largest values.",
    "use_autocast_during_eval": "Leave it out, or set True: evaluation is in float8 too.",
}


def read_recipe(handler: Any) -> dict[str, Any]:
    """The arguments of :class:`Float8Precision` in an object of one of these classes, or of Accelerate's.

    Raises:
        ConfigurationError: A setting has no counterpart here.
    """
    given = {name: value for name, value in vars(handler).items() if value is not None and not name.startswith("_")}
    kind = type(handler).__name__
    if kind == "AORecipeKwargs":
        for name in given.keys() - AORecipeKwargs.__dataclass_fields__.keys():
            _refuse(kind, name, given[name])
        recipe = given.get("config", "tensorwise")
        padded = {} if "config" in given else {"pad_inner_dim": given.get("pad_inner_dim", True)}
        return {"recipe": recipe, "layers": given.get("module_filter_func", "inner"), **padded}
    for name, value in given.items():
        value = value.upper() if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
        if name not in _AS_HERE or value != _AS_HERE[name]:
            _refuse(kind, name, value)
    return {"layers": "inner", "pad_inner_dim": True}


def _refuse(kind: str, name: str, value: Any) -> None:
    instead = _INSTEAD.get(name, "Leave it out, or pass precision=Float8Precision(...) of torch_hal_torchao.")
    raise ConfigurationError(f"{kind}: {name}={value!r:.100}: has no counterpart here. {instead}")
