"""Gradients of a loop that calls backward within the forward pass, as a Module with manual optimization does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..errors import ConfigurationError

BUCKET_BYTES = 25 * 2**20
"""Gradients are averaged in parts of about this size, as DistributedDataParallel does."""


class Reduces(Protocol):
    """A strategy that averages gradients over processes."""

    name: str

    @property
    def world_size(self) -> int:
        """The number of processes."""

    @property
    def root_device(self) -> torch.device:
        """The device of this process."""

    def all_reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        """See :meth:`core.strategies.ParallelStrategy.all_reduce`."""


class ManualGradients:
    """Gradients that ``backward`` itself reduces, if they are reduced at all.

    Args:
        backward: Computes gradients of a loss.
        no_sync: Returns a context in which backward does not reduce.
    """

    def __init__(self, backward: Callable[..., None], no_sync: Callable[[], AbstractContextManager[Any]]) -> None:
        self.backward = backward
        """``backward(loss, *args, **kwargs)``, called any number of times within the forward pass."""
        self.no_sync = no_sync
        """Returns a context in which :attr:`backward` does not reduce gradients."""
        self.has_unreduced = False
        """Whether there are gradients of backward passes that the next one reduces too; a resumed run loads it."""

    def forward_context(self) -> AbstractContextManager[Any]:
        """The context of the forward pass in which backward is called."""
        return nullcontext()

    def holds(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Whether there are gradients of ``parameters``. Override it if an engine keeps them elsewhere."""
        return any(parameter.grad is not None for parameter in parameters)


class AveragedGradients(ManualGradients):
    """Gradients that are averaged over the processes after each backward pass.

    Each call of ``backward`` averages what it has computed. The processes first agree on the parameters that any of
    them has a gradient for; those that have none contribute zeros. So every process must call it equally often.

    Args:
        strategy: Its processes average.
        parameters: All parameters that backward may compute gradients of.
        backward: Computes gradients of a loss in this process alone.
        forward_context: Makes the context of the forward pass in which backward is called.
    """

    def __init__(
        self,
        strategy: Reduces,
        parameters: Sequence[nn.Parameter],
        backward: Callable[..., None],
        forward_context: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        super().__init__(self._backward, self._paused)
        self._strategy, self._parameters = strategy, tuple(parameters)
        self._local_backward, self._forward_context = backward, forward_context
        self._is_paused = False

    def forward_context(self) -> AbstractContextManager[Any]:
        """See :class:`ManualGradients`."""
        return self._forward_context()

    @contextmanager
    def _paused(self) -> Iterator[None]:
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def _backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if self._is_paused:
            self._local_backward(loss, *args, **kwargs)
            self.has_unreduced = True
            return
        # What was averaged before stays out of the next average, which then holds the gradients of this pass alone.
        # What was not averaged is averaged together with them.
        set_aside = [] if self.has_unreduced else self._set_aside()
        try:
            self._local_backward(loss, *args, **kwargs)
            average_gradients(self._parameters, self._strategy)
            self.has_unreduced = False
        finally:
            for parameter, gradient in set_aside:
                parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)

    def _set_aside(self) -> list[tuple[nn.Parameter, Tensor]]:
        found = [(parameter, parameter.grad) for parameter in self._parameters if parameter.grad is not None]
        for parameter, _ in found:
            parameter.grad = None
        return found


@torch.no_grad()
def average_gradients(parameters: Sequence[nn.Parameter], strategy: Reduces) -> None:
    """Average the gradients of ``parameters`` over the processes of ``strategy``, in place; each of them calls this.

    The processes first agree on the parameters that any of them has a gradient for; those that have none contribute
    zeros. Of sharded gradients, a process's own shard is averaged.

    Args:
        parameters: The same in every process, in the same order.
        strategy: A strategy, or what reduces over some of its processes.

    Raises:
        ConfigurationError: A gradient is sparse.
    """
    own = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
    in_any = strategy.all_reduce(own.to(strategy.root_device), "max").tolist()
    touched = [parameter for parameter, is_touched in zip(parameters, in_any, strict=True) if is_touched]
    for bucket in _buckets(touched):
        for parameter in bucket:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.layout is not torch.strided:
                raise ConfigurationError(
                    f"manual_backward: a gradient of shape {tuple(parameter.shape)} is sparse, and cannot be "
                    f"averaged over processes by strategy {strategy.name!r}. Create its layer with sparse=False."
                )
        gradients = [_own(parameter.grad) for parameter in bucket if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        mean = strategy.all_reduce(flat, "mean").div_(strategy.world_size)  # its mean is a sum
        for gradient, part in zip(gradients, torch.split(mean, [one.numel() for one in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


def _own(gradient: Any) -> Tensor:
    local: Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return local


def _buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parts of about equal size, each of one dtype and device, the same in every process."""
    by_kind: dict[Any, list[list[nn.Parameter]]] = {}
    sizes: dict[Any, int] = {}
    for parameter in parameters:
        kind, size = (parameter.dtype, parameter.device), parameter.numel() * parameter.element_size()
        if kind not in by_kind or sizes[kind] + size > BUCKET_BYTES:
            by_kind.setdefault(kind, []).append([])
            sizes[kind] = 0
        by_kind[kind][-1].append(parameter)
        sizes[kind] += size
    return [bucket for buckets in by_kind.values() for bucket in buckets]
