"""Horovod's DistributedOptimizer, as the engine that averages a module's gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

__all__ = ["GradientReducer"]

_NEVER = 2**31
"""Backward passes before Horovod reduces gradients by itself, within ``no_sync``."""


class _Gradients(Optimizer):
    """An optimizer that only holds parameters: the user's own takes the step."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Nothing."""
        del closure


class GradientReducer:
    """Averages gradients of some parameters over Horovod's processes while backward computes them.

    The user's own optimizer is left as it is, so that schedulers, checkpoints and parameter groups stay with it:
    ``horovod.torch.DistributedOptimizer`` wraps one that takes no steps.

    Args:
        hvd: ``horovod.torch``.
        parameters: By name; the names are the same in every process and unlike those of other reducers.
        backward_passes: After how many backward passes gradients are reduced, as they have added up by then.
        **options: What ``DistributedOptimizer`` takes beside.
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
        """Whether any of ``parameters`` is one of those reduced here."""
        return any(id(parameter) in self._ids for parameter in parameters)

    @property
    def is_pending(self) -> bool:
        """Whether there are gradients that are not reduced, or not yet."""
        return bool(self._distributed._handles)

    def finish_started(self) -> None:
        """Wait for the reductions that backward has started, if it was the pass to do so."""
        for handle, _ in self._distributed._handles.values():
            if handle is not None:
                self._distributed.synchronize()
                break

    def finish(self) -> None:
        """Reduce what is not reduced; nothing if all is."""
        if self._distributed._handles:
            self._distributed.synchronize()

    def hold(self) -> None:
        """Let gradients add up in this process from now on."""
        self._distributed.set_backward_passes_per_step(_NEVER)

    def resume(self) -> None:
        """Reduce them again after so many passes as usual."""
        self._distributed.set_backward_passes_per_step(self.backward_passes)

    def forget(self) -> None:
        """Drop reductions that have failed, as the optimizer does where a state is loaded."""
        self._distributed.load_state_dict(self._distributed.state_dict())

    def release(self) -> None:
        """Take the hooks from the parameters: they hang on what Horovod keeps in this list, and nowhere else."""
        self._distributed._handles.clear()
        self._distributed._grad_accs.clear()
