"""The module that a front end calls: DeepSpeed's engine, once there is one."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor, is_inference_mode_enabled, nn

from core.errors import ConfigurationError
from core.nested import map_tensors

__all__ = ["EngineModule", "Inference"]

_OF_INNER = (
    "register_forward_pre_hook",
    "register_forward_hook",
    "register_full_backward_pre_hook",
    "register_full_backward_hook",
    "compile",
)
"""Methods that the module within has in place of the one around it."""


class EngineModule(nn.Module):
    """``inner``, called through the engine from the moment that there is one.

    An engine takes a module and its optimizer at once, and the optimizer comes later. A call goes straight to the
    engine, past torch's own way of calling a module: hooks registered here, and ``compile``, are ``inner``'s.

    Args:
        inner: The user's own module.
        start: Makes an engine that gathers divided parameters, for a forward pass before there is one; ``None`` where
            nothing is divided, and the module runs by itself.
        batch_size: Items that the first tensor a forward pass takes must have; ``None`` for any number.
    """

    inner: nn.Module
    _target: nn.Module

    def __init__(self, inner: nn.Module, start: Callable[[], object] | None, batch_size: int | None) -> None:
        super().__init__()
        self.inner = inner
        self._start = start
        self._batch_size = batch_size
        self.__dict__.update({name: getattr(inner, name) for name in _OF_INNER})
        self.__dict__["__signature__"] = signature(self.forward)  # whatever a call comes down to
        self.attach(None)
        self.training = inner.training  # and not train(), which would wake parts that the user has put to evaluation

    def attach(self, engine: nn.Module | None) -> None:
        """Call ``engine`` from now on; ``None`` for the module itself."""
        self.__dict__["_target"] = self.inner if engine is None else engine  # not registered as a part of this
        self._settle()

    def _settle(self) -> None:
        """Let calls go straight to what runs the module, unless there is something to decide first."""
        lacks_engine = self._start is not None and self._target is self.inner
        is_due = lacks_engine or self._batch_size is not None
        call = self._decide if is_due else self._target.__call__
        if self._start is not None:
            call = _out_of_inference(call)
        # Without a Python function in between: after a step of the engine's, each costs microseconds.
        self.__class__ = type(EngineModule.__name__, (EngineModule,), {"__call__": staticmethod(call)})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The engine's."""
        return self(*args, **kwargs)

    def _decide(self, *args: Any, **kwargs: Any) -> Any:
        """Look at the batch, and start an engine, where that is due."""
        if self._batch_size is not None and self.training:
            self._check_batch_size((args, kwargs))
        if self._start is not None and self._target is self.inner:
            self._start()
        self._settle()
        return self._target(*args, **kwargs)

    def _check_batch_size(self, data: Any) -> None:
        sizes: list[int] = []

        def look(tensor: Tensor) -> Tensor:
            sizes.extend(tensor.shape[:1])
            return tensor

        map_tensors(look, data)
        expected, self._batch_size = self._batch_size, None  # the last batch may be a smaller one
        if sizes and sizes[0] != expected:
            raise ConfigurationError(
                f"the data loader gives each process {sizes[0]} items a batch, which contradicts config"
                f"['train_micro_batch_size_per_gpu'] or ['train_batch_size'], by which it is {expected}. Valid: the "
                "loader's batch_size alone, or the same in both."
            )


def _out_of_inference(call: Callable[..., Any]) -> Callable[..., Any]:
    """``call``, not in inference mode, which parameters gathered by the engine would else keep for good."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if is_inference_mode_enabled():
            return Inference.call(call, args, kwargs)
        return call(*args, **kwargs)

    return run


class Inference(nn.Module):
    """``inner`` run without gradients, where parameters gathered for it must stay usable in training afterwards."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the module's own, outside of inference mode."""
        return self.call(self.inner, args, kwargs)

    @staticmethod
    def call(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call ``function``; tensors made in it are none of inference mode."""
        with torch.inference_mode(False), torch.no_grad():
            return function(*args, **kwargs)
