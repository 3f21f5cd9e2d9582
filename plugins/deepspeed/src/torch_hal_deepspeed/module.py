"""The module that a front end calls: DeepSpeed's engine, once it exists."""

from __future__ import annotations

import copy
from collections.abc import Callable
from inspect import signature
from typing import Any

from torch import Tensor, is_inference_mode_enabled, nn

from torch_hal.errors import ConfigurationError
from torch_hal.strategies import ModuleWrapper, call_without_gradients
from torch_hal.utilities.nested import map_tensors

__all__ = ["EngineModule"]

_OF_MODULE = (
    "register_forward_pre_hook",
    "register_forward_hook",
    "register_full_backward_pre_hook",
    "register_full_backward_hook",
    "compile",
)
"""Methods that are the wrapped module's."""


class EngineModule(ModuleWrapper):
    """``module``, called through the engine as soon as there is one.

    An engine needs a module and its optimizer, and the optimizer is prepared later. Calls go straight to the engine,
    not through ``nn.Module.__call__``: hooks registered here, and ``compile``, apply to ``module``.

    Args:
        module: The user's module.
        start: Makes an engine that gathers sharded parameters for a forward pass before the optimizer is prepared;
            ``None`` if nothing is sharded, and the module runs by itself.
        batch_size: Batch size that the first forward pass must have; ``None`` for any.
    """

    _target: nn.Module

    def __init__(self, module: nn.Module, start: Callable[[], object] | None, batch_size: int | None) -> None:
        super().__init__(module)
        self._start = start
        self._batch_size = batch_size
        self.__dict__.update({name: getattr(module, name) for name in _OF_MODULE})
        self.__dict__["__signature__"] = signature(self.forward)  # independent of how calls are forwarded
        self.attach(None)

    def attach(self, engine: nn.Module | None) -> None:
        """Call ``engine`` from now on; ``None`` means the module itself."""
        self.__dict__["_target"] = self.module if engine is None else engine  # not registered as a submodule
        self._settle()

    def _settle(self) -> None:
        """Let calls go straight to what runs the module, unless something must be checked first."""
        lacks_engine = self._start is not None and self._target is self.module
        is_due = lacks_engine or self._batch_size is not None
        call = self._decide if is_due else self._target.__call__
        if self._start is not None:
            call = _out_of_inference(call)
        # Without a Python function in between, which costs microseconds after each step of the engine.
        self.__class__ = type(EngineModule.__name__, (EngineModule,), {"__call__": staticmethod(call)})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the engine."""
        return self(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        """A copy of the user's module, without the engine, as :class:`torch.optim.swa_utils.AveragedModel` needs it."""
        return copy.deepcopy(self.module, memo)

    def _decide(self, *args: Any, **kwargs: Any) -> Any:
        """Check the batch size and start an engine, where needed."""
        if self._batch_size is not None and self.training:
            self._check_batch_size((args, kwargs))
        if self._start is not None and self._target is self.module:
            self._start()
        self._settle()
        return self._target(*args, **kwargs)

    def _check_batch_size(self, data: Any) -> None:
        sizes: list[int] = []

        def look(tensor: Tensor) -> Tensor:
            sizes.extend(tensor.shape[:1])
            return tensor

        map_tensors(look, data)
        expected, self._batch_size = self._batch_size, None  # the last batch may be smaller
        if sizes and sizes[0] != expected:
            raise ConfigurationError(
                f"the data loader's batch size in each process is {sizes[0]}, but config"
                f"['train_micro_batch_size_per_gpu'] or ['train_batch_size'] sets {expected}. Set it in the data "
                "loader only, or the same in both."
            )


def _out_of_inference(call: Callable[..., Any]) -> Callable[..., Any]:
    """``call`` outside of inference mode: parameters gathered in it would stay inference tensors."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if is_inference_mode_enabled():
            return call_without_gradients(call, *args, **kwargs)
        return call(*args, **kwargs)

    return run
