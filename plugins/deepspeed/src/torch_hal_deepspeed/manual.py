"""Gradients of a loop that calls backward within the forward pass of DeepSpeed's engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from torch_hal.strategies import ManualGradients
from torch_hal_deepspeed.engine import Engine
from torch_hal_deepspeed.library import part

__all__ = ["EngineGradients"]


class EngineGradients(ManualGradients):
    """Gradients that the engine adds up until its step.

    Args:
        engine: Computes, reduces and keeps the gradients.
        no_sync: As in the base class.
    """

    def __init__(self, engine: Engine, no_sync: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__(self._backward, no_sync)
        self._engine = engine
        self._register_hooks = part("runtime.utils").register_output_backward_hooks

    def _backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Prepare the engine for ``loss``, as its own forward pass does when it ends, and run its backward pass.

        Otherwise the gradients of stage 3 would replace those of an earlier backward pass within the forward pass.
        """
        engine = self._engine.engine
        if hasattr(engine.optimizer, "clear_backward_seen_flag"):
            engine.optimizer.clear_backward_seen_flag()
        self._register_hooks(loss, engine._backward_prologue, engine._backward_prologue_per_tensor)
        self._engine.backward(loss, *args, **kwargs)

    def holds(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Whether backward was called since the last step: the parameters themselves may have no gradients."""
        del parameters
        return self._engine.has_gradients
