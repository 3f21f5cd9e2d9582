"""Forward passes without gradients, outside of torch's inference mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...utilities.nested import map_tensors
from ..wrapping.module_wrapper import ModuleWrapper

__all__ = ["InferenceModule", "call_without_gradients"]


def call_without_gradients(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` under :class:`torch.no_grad`, and outside of :class:`torch.inference_mode`.

    Tensors made in inference mode cannot take part in training later. So parameters that an engine gathers during
    validation must not be made there. Arguments that were made there are copied, since they cannot be changed in
    place outside of it.
    """
    with torch.inference_mode(False), torch.no_grad():
        return function(*map_tensors(_normal, args), **map_tensors(_normal, kwargs))


class InferenceModule(ModuleWrapper):
    """Runs the forward pass of ``module`` without gradients; for :meth:`core.Strategy.inference_module`.

    Args:
        module: The module that is called.
        after: Called after each forward pass; marks where a step ends, for instance.
        in_inference_mode: Whether the module may run in :class:`torch.inference_mode`; if not,
            :func:`call_without_gradients` calls it.
    """

    def __init__(
        self, module: nn.Module, *, after: Callable[[], None] | None = None, in_inference_mode: bool = False
    ) -> None:
        super().__init__(module)
        self._after = after
        self._in_inference_mode = in_inference_mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the module's forward pass."""
        if self._in_inference_mode:
            output = self.module(*args, **kwargs)
        else:
            output = call_without_gradients(self.module, *args, **kwargs)
        if self._after is not None:
            self._after()
        return output


def _normal(tensor: Tensor) -> Tensor:
    return tensor.clone() if tensor.is_inference() else tensor
