"""The strategy's arguments, checked before any process starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs

from torch_hal.errors import ConfigurationError, quoted

__all__ = ["HorovodOptions"]

_COMPRESSIONS = ("none", "fp16")
_OPERATIONS = ("average", "sum", "adasum")


def _one_of(valid: Sequence[str]) -> Any:
    def check(_: Any, attribute: attrs.Attribute[str], value: object) -> None:
        if value not in valid:
            raise ConfigurationError(f"{attribute.name}={value!r} is unknown. Valid: {quoted(valid)}.")

    return check


def _flag(_: Any, attribute: attrs.Attribute[bool], value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{attribute.name}={value!r} must be True or False.")


@attrs.frozen(kw_only=True)
class HorovodOptions:
    """The arguments of :class:`torch_hal_horovod.HorovodStrategy` for Horovod."""

    compression: str = attrs.field(validator=_one_of(_COMPRESSIONS))
    backward_passes_per_step: int = attrs.field()
    op: str = attrs.field(validator=_one_of(_OPERATIONS))
    gradient_predivide_factor: float = attrs.field()
    sparse_as_dense: bool = attrs.field(validator=_flag)
    scale_learning_rate: bool = attrs.field(validator=_flag)

    @backward_passes_per_step.validator
    def _check_passes(self, _: Any, value: object) -> None:
        if type(value) is not int or value < 1:
            raise ConfigurationError(f"backward_passes_per_step={value!r} must be an integer ≥ 1.")

    @gradient_predivide_factor.validator
    def _check_factor(self, _: Any, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 and math.isfinite(value)):
            raise ConfigurationError(f"gradient_predivide_factor={value!r} must be a finite number > 0.")

    def __attrs_post_init__(self) -> None:
        if self.gradient_predivide_factor != 1 and self.op != "average":
            raise ConfigurationError(
                f"gradient_predivide_factor={self.gradient_predivide_factor!r} has no effect with op={self.op!r}. Set "
                "op='average', or leave it out."
            )
        if self.op == "adasum" and (self.sparse_as_dense or self.backward_passes_per_step != 1):
            option = "sparse_as_dense" if self.sparse_as_dense else "backward_passes_per_step"
            raise ConfigurationError(
                f"{option}={getattr(self, option)!r} with op='adasum', which does not reduce gradients: it combines "
                f"the changes of steps. Omit {option}, or use another op."
            )
        if self.scale_learning_rate and self.op == "adasum":
            raise ConfigurationError(
                "scale_learning_rate=True contradicts op='adasum', which scales steps by itself. Set only one of them."
            )
