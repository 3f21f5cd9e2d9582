"""DistributedDataParallel with the optimizer state divided among the processes."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from ..checkpoints.agreement import GatherObject
from ..errors import ConfigurationError
from ..utilities.nested import map_tensors
from ..utilities.torch_private import mark_stepped, share_options
from .ddp import DDPStrategy
from .process_group import while_alive

with warnings.catch_warnings():
    # It compiles functions in a way that torch itself has deprecated.
    warnings.filterwarnings("ignore", message=r"`torch\.jit", category=DeprecationWarning)
    from torch.distributed.optim import ZeroRedundancyOptimizer

_SMALL = 1000
"""Elements up to which tensors are sent together, as an object."""


class DDPShardedStrategy(DDPStrategy):
    """A replica of the module in each process, and a part of the optimizer state.

    Each process updates its share of the parameters and sends them to the others. For optimizers that treat parameters
    one by one the result equals that of :class:`DDPStrategy`, whose arguments it takes.

    Source: Rajbhandari et al., ZeRO, SC 2020, stage 1; :class:`torch.distributed.optim.ZeroRedundancyOptimizer`.
    """

    name = "ddp_sharded"

    _sharded: Collection[_ShardedOptimizer] = ()

    def steps_taken(self, optimizer: Optimizer) -> int:
        """See the base class."""
        return super().steps_taken(next((one for one in self._sharded if one._followed is optimizer), optimizer))

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """Each optimizer's sharded form, which shares its ``param_groups`` with the user's optimizer.

        Raises:
            ConfigurationError: An optimizer has already stepped, cannot be created again from its defaults, or its
                parameters differ in dtype.
        """
        return [self._shard(optimizer) for optimizer in super().setup_optimizers(optimizers)]

    def _shard(self, optimizer: Optimizer) -> Optimizer:
        if any(entry.get("step", 1) > 0 for entry in optimizer.state.values()):  # Adagrad's has one of 0 from the start
            raise ConfigurationError(
                f"optimizer {type(optimizer).__name__} has already stepped, so strategy {self.name!r} cannot divide "
                "its state. Prepare a new optimizer, then load the checkpoint."
            )
        taken = inspect.signature(type(optimizer)).parameters
        options = {name: value for name, value in optimizer.defaults.items() if name in taken}
        named_alike = type(type(optimizer).__name__, (_ShardedOptimizer,), {})
        try:
            sharded: _ShardedOptimizer = named_alike(
                [dict(group) for group in optimizer.param_groups], optimizer_class=type(optimizer), **options
            )
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"optimizer {type(optimizer).__name__}: strategy {self.name!r} cannot divide its state: {error}. Use "
                "an optimizer that can be created from its defaults, with parameters of one dtype."
            ) from error
        sharded.follow(optimizer)
        self._sharded = WeakSet((*self._sharded, sharded))
        self.release_at_leave(while_alive(sharded, lambda optimizer: setattr(optimizer, "process_group", None)))
        return sharded

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The whole state in rank 0; only the groups in the others."""
        if not isinstance(optimizer, _ShardedOptimizer):
            return super().optimizer_state(optimizer)
        state = optimizer.gather_state(self.root_device, self.all_gather_object)
        return state or {"state": {}, "param_groups": [{**group, "params": []} for group in optimizer.param_groups]}


class _ShardedOptimizer(ZeroRedundancyOptimizer):
    """Reads its options from the param_groups of another optimizer, which schedulers change."""

    _followed: Optimizer | None = None

    def follow(self, optimizer: Optimizer) -> None:
        """Share the param_groups of ``optimizer``."""

        def note(*_: Any) -> None:
            mark_stepped(optimizer)

        self._followed = optimizer
        self.param_groups = optimizer.param_groups
        self.register_step_pre_hook(note)

    def gather_state(self, device: torch.device, gather: GatherObject) -> dict[str, Any] | None:
        """The whole state on the host, in rank 0; every process calls it.

        ``consolidate_state_dict`` takes eleven times the memory of a process's state to send it, and keeps the result.
        Here the memory is that of a tensor. A broadcast is what every backend has.

        Args:
            device: Of the tensors that the process group sends.
            gather: Returns the objects of all processes, by rank.
        """
        share_options(self)
        own = self.optim.state_dict()
        large: list[Tensor] = []

        def without_large(tensor: Tensor) -> Tensor:
            if tensor.device != device or tensor.numel() <= _SMALL:
                return tensor.cpu()
            large.append(tensor)
            return tensor.to("meta")

        parts: list[Any] = gather(map_tensors(without_large, own))
        parts[0] = map_tensors(Tensor.cpu, own) if self.rank == 0 else None
        for rank in range(1, self.world_size):
            source, mine = dist.get_global_rank(self.process_group, rank), iter(large)

            def sent(tensor: Tensor, rank: int = rank, source: int = source, mine: Iterator[Tensor] = mine) -> Tensor:
                if not tensor.is_meta:
                    return tensor
                value = next(mine) if rank == self.rank else torch.empty_like(tensor, device=device)
                value = value.contiguous()
                dist.broadcast(value.view(-1).view(torch.uint8), source, self.process_group)
                if self.rank != 0:
                    return tensor
                return value.cpu() if tensor.is_contiguous() else torch.empty_like(tensor, device="cpu").copy_(value)

            parts[rank] = map_tensors(sent, parts[rank])
        if self.rank != 0:
            return None
        self._all_state_dicts = parts  # where torch's state_dict finds what was gathered
        state = self.state_dict()
        self._all_state_dicts = []
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load this process's share of a saved state."""
        super().load_state_dict(state_dict)
        if self._followed is not None:
            for followed, loaded in zip(self._followed.param_groups, self.param_groups, strict=True):
                followed.update({name: value for name, value in loaded.items() if name != "params"})
            self.param_groups = self._followed.param_groups
