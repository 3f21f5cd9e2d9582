"""The base class of algorithms, which synchronize the replicas of a module in all processes."""

from __future__ import annotations

import logging
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

logger = logging.getLogger(__name__)

UNSCALED_PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true", "16-true")
"""The precisions of algorithms that do not average every gradient: with loss scaling, each process would skip different
steps and have a different scale."""


@attrs.frozen
class Connection:
    """What an algorithm uses in one process of a run."""

    device: torch.device
    layout: Layout
    communicator: Communicator
    """For the training thread."""
    threads: CommunicationThreads
    bucket_cap_mb: float


class GradientBucket:
    """Gradients that are ready, flattened in ``values``.

    Args:
        bucket: The argument of a communication hook of DistributedDataParallel, valid only during the call.
    """

    def __init__(self, bucket: GradBucket) -> None:
        self.index = bucket.index()
        self.values: Tensor = bucket.buffer()
        self.gradients: Sequence[Tensor] = bucket.gradients()
        self.parameters: Sequence[Tensor] = bucket.parameters()


class Replica:
    """A module in this process whose weights an algorithm combines with those of other processes.

    Args:
        module: The user's module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def overrides(self, hook: str) -> bool:
        """Whether the subclass overrides the named method, which is called around each forward pass."""
        return getattr(type(self), hook) is not getattr(Replica, hook)

    def start(self) -> None:
        """Called once in every process when the module has an optimizer."""

    def before_forward(self) -> None:
        """Called before each forward pass, with or without gradients."""

    def after_forward(self) -> None:
        """Called after each forward pass, also if it raised."""

    def before_step(self) -> None:
        """Called after backward, before the optimizer applies the gradients."""

    def after_step(self) -> None:
        """Called after the optimizer's step."""

    def hold(self) -> AbstractContextManager[Any]:
        """Return a context in which only the training thread changes the weights."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return what this process needs, besides the weights, to resume exactly."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`, after the weights."""

    def restart(self) -> None:
        """Restart from the weights, which are the same in every process."""

    def close(self, failed: bool) -> None:
        """Stop background threads; if this process has failed, without waiting for the others."""


class Algorithm(ABC):
    """One of Bagua's algorithms; its options are attributes of the same name."""

    name: ClassVar[str]
    """The algorithm's name."""
    precisions: ClassVar[tuple[str, ...] | None] = None
    """See :class:`core.Strategy`."""
    threads: ClassVar[int] = 2
    """The number of buckets in flight: one communicates while another is computed."""
    hierarchical: bool = False
    """Whether it runs between one process of each machine."""
    compresses: ClassVar[bool] = False
    """Whether it sends 8 bits for each number."""

    _connection: Connection | None = None

    @property
    def wraps_module(self) -> bool:
        """Whether the module is wrapped in DistributedDataParallel to reduce its gradients."""
        return True

    @property
    def reduces_itself(self) -> bool:
        """Whether :meth:`reduce` reduces gradients instead of DistributedDataParallel's default."""
        return False

    def check(self, layout: Layout) -> None:
        """Check that the algorithm supports the numbers of processes and machines.

        Raises:
            ConfigurationError: The algorithm does not support the layout.
        """
        del layout

    def connect(self, connection: Connection) -> None:
        """Connect to a run; say so if nothing in it is compressed."""
        self._connection = connection
        layout = connection.layout
        if self.compresses and self.hierarchical and layout.num_nodes == 1 < layout.world_size and layout.rank == 0:
            logger.warning(
                "%s with hierarchical=True compresses between machines only, and this run has one machine: it averages "
                "in full precision. Set hierarchical=False to compress between processes.",
                self.name,
            )

    @property
    def connection(self) -> Connection:
        """What :meth:`connect` was given."""
        assert self._connection is not None, "the algorithm is not connected to a run"
        return self._connection

    def disconnect(self) -> None:
        """Release the run's process groups."""
        self._connection = None

    def reduce(self, bucket: GradientBucket, communicator: Communicator) -> None:
        """Combine ``bucket.values`` over all processes, in place; runs on a communication thread."""
        raise NotImplementedError  # only called if reduces_itself

    def replica(self, module: nn.Module, wrapped: nn.Module) -> Replica | None:
        """The object that synchronizes the weights of ``module``; ``None`` if reducing gradients is enough.

        Args:
            module: The user's module, on its device.
            wrapped: The same in DistributedDataParallel, if :attr:`wraps_module`.
        """
        del module, wrapped
        return None

    def take_optimizers(self, optimizers: Sequence[Optimizer]) -> None:
        """Called with the user's optimizers when they are prepared.

        Raises:
            ConfigurationError: The algorithm cannot work with one of them.
        """
        del optimizers


class WeightAlgorithm(Algorithm):
    """An algorithm that combines weights instead of gradients."""

    precisions = UNSCALED_PRECISIONS

    @property
    def wraps_module(self) -> bool:
        """False: each process keeps the gradients that it computed."""
        return False

    @abstractmethod
    def replica(self, module: nn.Module, wrapped: nn.Module) -> Replica:
        """See :meth:`Algorithm.replica`."""
