"""A module whose forward pass runs in the precision's context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from core.precisions.base import Precision

__all__ = ["PreparedModule", "needs_forward_context"]


def needs_forward_context(precision: Precision) -> bool:
    """Whether ``precision`` does anything around a forward pass."""
    return any(precision.acts_in(hook) for hook in ("forward_context", "convert_input", "convert_output"))


class PreparedModule(nn.Module):
    """``module``, its forward pass in the precision's context.

    Attributes that this wrapper lacks are those of ``inner``, the user's own module. The state dict is the user's
    own module's, without a prefix.

    Args:
        wrapped: The module as the strategy set it up.
        inner: The user's own module.
        precision: Whose context.
    """

    inner: nn.Module

    def __init__(self, wrapped: nn.Module, inner: nn.Module, precision: Precision) -> None:
        super().__init__()
        self.wrapped = wrapped
        # A plain attribute: registered as a submodule as well, its parameters would stand here twice.
        self.__dict__["inner"] = inner
        self._precision = precision
        # Not train(), which would wake the parts that the user has put in evaluation mode.
        self.training = inner.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's, with inputs and outputs converted."""
        precision = self._precision
        with precision.forward_context():
            output = self.wrapped(*precision.convert_input(args), **precision.convert_input(kwargs))
        return precision.convert_output(output)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["inner"], name)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The user's own module's."""
        return self.__dict__["inner"].state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Into the user's own module."""
        return self.__dict__["inner"].load_state_dict(state_dict, *args, **kwargs)
