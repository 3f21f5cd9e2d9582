"""The module that a front end calls: DeepSpeed's engine, once there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from core.errors import ConfigurationError
from core.nested import map_tensors

__all__ = ["EngineModule", "Inference"]


class EngineModule(nn.Module):
    """``inner``, called through the engine from the moment that there is one.

    An engine takes a module and its optimizer at once, and the optimizer comes later.

    Args:
        inner: The user's own module.
        start: Makes an engine that gathers divided parameters, for a forward pass before there is one; ``None`` where
            nothing is divided, and the module runs by itself.
        batch_size: Items that the first tensor a forward pass takes must have; ``None`` for any number.
    """

    inner: nn.Module
    _call: Callable[..., Any]

    def __init__(self, inner: nn.Module, start: Callable[[], object] | None, batch_size: int | None) -> None:
        super().__init__()
        self.inner = inner
        self._start = start
        self._batch_size = batch_size
        self.attach(None)
        self.training = inner.training  # and not train(), which would wake parts that the user has put to evaluation

    def attach(self, engine: Any) -> None:
        """Call ``engine`` from now on; ``None`` for the module itself."""
        self.__dict__["_call"] = self.inner if engine is None else engine  # not registered as a part of this
        self._is_attached = engine is not None
        self.__dict__.pop("forward", None)
        if engine is not None and self._start is None and self._batch_size is None:
            self.__dict__["forward"] = engine  # no call has anything to decide

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The engine's."""
        if self._batch_size is not None and self.training:
            self._check_batch_size((args, kwargs))
        if self._start is not None and not self._is_attached:
            with torch.inference_mode(False):
                self._start()
        if self._start is not None and torch.is_inference_mode_enabled():
            return Inference.call(self._call, args, kwargs)
        return self._call(*args, **kwargs)

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
