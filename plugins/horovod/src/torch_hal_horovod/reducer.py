"""Averages a module's gradients with Horovod's DistributedOptimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

__all__ = ["GradientReducer"]

_NEVER = 2**31
"""Number of backward passes that Horovod waits for within ``no_sync``: it never reduces."""


class _Gradients(Optimizer):
    """An optimizer that only holds parameters: the user's optimizer does the step."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Do nothing."""
        del closure


class GradientReducer:
    """Averages gradients over Horovod's processes while backward computes them.

    ``horovod.torch.DistributedOptimizer`` wraps an optimizer that does not step. The user's optimizer is left
    unchanged, with its schedulers, checkpoints and parameter groups.

    Args:
        hvd: ``horovod.torch``.
        parameters: By name; the names are the same in every process and unlike those of other reducers.
        backward_passes: After how many backward passes gradients are reduced, as they have added up by then.
        **options: Further arguments of ``DistributedOptimizer``.
    """

    def __init__(
        self, hvd: Any, parameters: Mapping[str, nn.Parameter], *, backward_passes: int, **options: Any
    ) -> None:
        self.backward_passes = backward_passes
        self._ids = {id(parameter) for parameter in parameters.values()}
        self._distributed = hvd.DistributedOptimizer(
            _Gradients(parameters.values()),
            named_parameters=list(parameters.items()),
            backward_passes_per_step=backward_passes,
            **options,
        )

    def covers(self, parameters: Iterable[Any]) -> bool:
        """Whether this reducer reduces any of ``parameters``."""
        return any(id(parameter) in self._ids for parameter in parameters)

    @property
    def is_pending(self) -> bool:
        """Whether there are gradients that are not reduced yet."""
        return bool(self._distributed._handles)

    def finish_started(self) -> None:
        """Wait for the reductions that backward has started, if any."""
        for handle, _ in self._distributed._handles.values():
            if handle is not None:
                self._distributed.synchronize()
                break

    def finish(self) -> None:
        """Reduce the gradients that are not reduced yet, if any."""
        if self._distributed._handles:
            self._distributed.synchronize()

    def hold(self) -> None:
        """Accumulate gradients in this process from now on."""
        self._distributed.set_backward_passes_per_step(_NEVER)

    def resume(self) -> None:
        """Reduce again after the usual number of backward passes."""
        self._distributed.set_backward_passes_per_step(self.backward_passes)

    def forget(self) -> None:
        """Drop failed reductions, as the optimizer does when a state is loaded."""
        self._distributed.load_state_dict(self._distributed.state_dict())

    def release(self) -> None:
        """Remove the hooks on parameters, which only Horovod's lists keep alive."""
        self._distributed._handles.clear()
        self._distributed._grad_accs.clear()
