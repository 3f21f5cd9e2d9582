"""The patch of Accelerate: its PartialState is created with the planned device, backend and type of distribution."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType

from torch_hal.errors import ConfigurationError
from torch_hal.strategies import Strategy
from torch_hal_accelerate.active import Active
from torch_hal_accelerate.planning import check_engines

__all__ = ["plan_states"]


def plan_states(made: Active) -> None:
    """From now on, each first PartialState of this process is as planned.

    Accelerate decides how a run is distributed by a list of device types that it knows, and Transformers' arguments
    create the state anew; so its constructor is wrapped. The attributes that are set are public.
    """
    original = PartialState.__init__
    strategy = made.strategy
    named: str | None = None
    """The collective backend, as Accelerate is told."""

    @wraps(original)
    def planned_init(self: Any, cpu: bool = False, **kwargs: Any) -> None:
        nonlocal named
        check_engines(os.environ)  # set since activation, by arguments of Accelerate and Transformers
        if self.initialized:
            original(self, cpu, **kwargs)
            return
        is_cpu = strategy.root_device.type == "cpu"
        if cpu and not is_cpu:
            raise ConfigurationError(
                f"cpu=True contradicts the planned device {strategy.root_device}. Leave cpu and use_cpu out, or call "
                "activate(accelerator='cpu')."
            )
        if strategy.world_size == 1:
            with _without_local_rank():
                original(self, is_cpu, **{name: value for name, value in kwargs.items() if name != "backend"})
        else:
            backend = made.plan.process_group_backend
            original(self, is_cpu, **{**kwargs, "backend": "gloo" if is_cpu else backend})
            if named is None:
                # Accelerate gathers from all backends but gloo in a way that some others do not support either.
                named = backend if is_cpu or _gathers_flat(strategy) else "gloo"
            self.backend = named
            if is_cpu:
                # Accelerate's own names a device, which torch takes for one of the card that may be there too.
                self.wait_for_everyone = torch.distributed.barrier
            else:
                self.distributed_type = DistributedType.MULTI_GPU  # Accelerate's type for one device in each process

    PartialState.__init__ = planned_init
    made.restore.append(lambda: setattr(PartialState, "__init__", original))


def _gathers_flat(strategy: Strategy) -> bool:
    """Whether the collective backend joins tensors of any shape in one with a single dimension."""
    part = torch.zeros(1, 2, device=strategy.root_device)
    try:
        torch.distributed.all_gather_into_tensor(part.new_empty(2 * strategy.world_size), part)
    except RuntimeError:
        return False
    return True


@contextmanager
def _without_local_rank() -> Iterator[None]:
    """Accelerate joins a process group wherever there is a local rank, also if the process is alone."""
    rank = os.environ.pop("LOCAL_RANK", None)
    try:
        yield
    finally:
        if rank is not None:
            os.environ["LOCAL_RANK"] = rank
