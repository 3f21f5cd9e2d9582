"""What the strategy is told, checked before anything starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs

from core.errors import ConfigurationError, quoted

__all__ = ["HorovodOptions"]

_COMPRESSIONS = ("none", "fp16")
_OPERATIONS = ("average", "sum", "adasum")


def _word(valid: Sequence[str]) -> Any:
    def check(_: Any, attribute: attrs.Attribute[str], value: object) -> None:
        if value not in valid:
            raise ConfigurationError(f"{attribute.name}={value!r}: unknown. Valid: {quoted(valid)}.")

    return check


def _flag(_: Any, attribute: attrs.Attribute[bool], value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{attribute.name}={value!r}. Valid: True or False.")


@attrs.frozen(kw_only=True)
class HorovodOptions:
    """The arguments of :class:`torch_hal_horovod.HorovodStrategy` that are Horovod's own."""

    compression: str = attrs.field(validator=_word(_COMPRESSIONS))
    backward_passes_per_step: int = attrs.field()
    op: str = attrs.field(validator=_word(_OPERATIONS))
    gradient_predivide_factor: float = attrs.field()
    sparse_as_dense: bool = attrs.field(validator=_flag)
    scale_learning_rate: bool = attrs.field(validator=_flag)

    @backward_passes_per_step.validator
    def _check_passes(self, _: Any, value: object) -> None:
        if type(value) is not int or value < 1:
            raise ConfigurationError(f"backward_passes_per_step={value!r}. Valid: a whole number from 1.")

    @gradient_predivide_factor.validator
    def _check_factor(self, _: Any, value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not (value > 0 and math.isfinite(value)):
            raise ConfigurationError(f"gradient_predivide_factor={value!r}. Valid: a number above 0.")

    def __attrs_post_init__(self) -> None:
        if self.gradient_predivide_factor != 1 and self.op != "average":
            raise ConfigurationError(
                f"gradient_predivide_factor={self.gradient_predivide_factor!r} with op={self.op!r}. Valid: with "
                "op='average'."
            )
        if self.op == "adasum" and (self.sparse_as_dense or self.backward_passes_per_step != 1):
            word = "sparse_as_dense" if self.sparse_as_dense else "backward_passes_per_step"
            raise ConfigurationError(
                f"{word}={getattr(self, word)!r} with op='adasum', which reduces no gradients: it combines what steps "
                f"have changed. Valid: to leave {word} out, or another op."
            )
        if self.scale_learning_rate and self.op == "adasum":
            raise ConfigurationError(
                "scale_learning_rate=True with op='adasum', which finds a step's length by itself. Valid: one of them."
            )
