"""What an algorithm is: how the replicas of a module in all processes are kept in step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.optim import Optimizer

from torch_hal_bagua.communication import Communicator, Layout
from torch_hal_bagua.threads import CommunicationThreads

__all__ = ["UNSCALED_PRECISIONS", "Algorithm", "Connection", "GradientBucket", "Replica", "WeightAlgorithm"]

UNSCALED_PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true", "16-true")
"""The precisions of an algorithm that does not average every gradient: with a scaled loss each process would leave out
steps of its own, and come to a scale of its own."""


@attrs.frozen
class Connection:
    """What an algorithm has in a process that takes part in a run."""

    device: torch.device
    layout: Layout
    communicator: Communicator
    """For the training thread."""
    threads: CommunicationThreads
    bucket_cap_mb: float


class GradientBucket:
    """Gradients that are ready, one after another in ``values``.

    Args:
        bucket: As DistributedDataParallel hands it to a communication hook, where it is valid no longer than the call.
    """

    def __init__(self, bucket: GradBucket) -> None:
        self.index = bucket.index()
        self.values: Tensor = bucket.buffer()
        self.gradients: Sequence[Tensor] = bucket.gradients()
        self.parameters: Sequence[Tensor] = bucket.parameters()


class Replica:
    """A module in this process, whose weights an algorithm brings together with those in the others.

    Args:
        module: The user's own.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def acts_in(self, hook: str) -> bool:
        """Whether the method of that name, called around each forward pass, does anything."""
        return getattr(type(self), hook) is not getattr(Replica, hook)

    def start(self) -> None:
        """Called once in every process, when there is an optimizer for the module."""

    def before_forward(self) -> None:
        """Called before each forward pass, with gradients or without."""

    def after_forward(self) -> None:
        """Called after each forward pass, also one that raised."""

    def before_step(self) -> None:
        """Called when the gradients are there, before the optimizer applies them."""

    def after_step(self) -> None:
        """Called after the optimizer's step."""

    def hold(self) -> AbstractContextManager[Any]:
        """A context in which nobody but the training thread changes the weights."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """What this process needs, beside the weights, to go on exactly."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave; the weights are back already."""

    def restart(self) -> None:
        """Begin anew from the weights, which are the same in every process."""

    def close(self, failed: bool) -> None:
        """End what runs beside the training thread; where this process has failed, without waiting for the others."""


class Algorithm(ABC):
    """One of Bagua's algorithms with its options. Attributes of that name are the options."""

    name: ClassVar[str]
    """The word it is asked for by."""
    precisions: ClassVar[tuple[str, ...] | None] = None
    """As in :class:`core.Strategy`."""
    threads: ClassVar[int] = 2
    """How many buckets may be under way at once: one's messages fill the pauses in which another is worked out."""
    hierarchical: bool = False
    """Whether it runs among one process of each machine."""

    _connection: Connection | None = None

    @property
    def wraps_module(self) -> bool:
        """Whether the module goes into DistributedDataParallel, for its gradients to be reduced."""
        return True

    @property
    def reduces_itself(self) -> bool:
        """Whether gradients are reduced by :meth:`reduce` rather than by DistributedDataParallel's own means."""
        return False

    def check(self, layout: Layout) -> None:
        """Refuse a number of processes or machines that the algorithm cannot run on.

        Raises:
            ConfigurationError: As said.
        """
        del layout

    def connect(self, connection: Connection) -> None:
        """Take part in a run."""
        self._connection = connection

    @property
    def connection(self) -> Connection:
        """What :meth:`connect` was given."""
        assert self._connection is not None, "the algorithm takes part in no run"
        return self._connection

    def disconnect(self) -> None:
        """Let go of the run's process groups."""
        self._connection = None

    def reduce(self, bucket: GradientBucket, communicator: Communicator) -> None:
        """Combine ``bucket.values`` over all processes, in place; runs on a communication thread."""
        raise NotImplementedError  # of algorithms that say so in reduces_itself

    def replica(self, module: nn.Module, wrapped: nn.Module) -> Replica | None:
        """What keeps the weights of ``module`` in step; ``None`` where reducing gradients does.

        Args:
            module: The user's own, on its device.
            wrapped: The same in DistributedDataParallel, if :attr:`wraps_module`.
        """
        del module, wrapped
        return None

    def take_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Called with the user's optimizers as they are set up.

        Raises:
            ConfigurationError: The algorithm cannot work with one of them.
        """
        del optimizers


class WeightAlgorithm(Algorithm):
    """An algorithm that brings weights together instead of gradients."""

    precisions = UNSCALED_PRECISIONS

    @property
    def wraps_module(self) -> bool:
        """False: each process keeps the gradients that it computed."""
        return False

    @abstractmethod
    def replica(self, module: nn.Module, wrapped: nn.Module) -> Replica:
        """See :meth:`Algorithm.replica`."""
