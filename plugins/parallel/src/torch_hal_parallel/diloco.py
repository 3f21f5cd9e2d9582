"""Strategy ``diloco``: processes train on their own, and seldom agree on new weights by an outer optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Optimizer

from torch_hal.errors import CheckpointError, ConfigurationError, WrongTypeError
from torch_hal.hints.argument_checks import check_count
from torch_hal.strategies import ProcessGroupParts, ProcessGroupStrategy, average_gradients
from torch_hal.utilities.nested import map_tensors

__all__ = ["DiLoCoStrategy"]

STATE_KEY = "diloco"
"""The key in an optimizer's state."""


class DiLoCoStrategy(ProcessGroupStrategy):
    """Local steps in each process, and every ``sync_every`` steps one of an outer optimizer in all of them.

    The outer optimizer is SGD with Nesterov momentum. Its gradient is the difference between the weights that the
    processes agreed on last and the mean of those that they have now; all go on with the result. Processes communicate
    at these steps only. Between them their weights differ, and so do buffers always, such as the statistics of batch
    norm. Weights take three times the memory: the own, the common ones and the momentum.

    Source: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, arXiv 2311.08105.

    Args:
        sync_every: The number of steps of the optimizer from one outer step to the next.
        outer_lr: The learning rate of the outer optimizer; 1 with ``outer_momentum=0`` averages the weights.
        outer_momentum: Its momentum.
        **parts: As in :class:`core.strategies.ProcessGroupStrategy`.

    Raises:
        ConfigurationError: An argument is unknown or out of range.
        WrongTypeError: An argument has the wrong type.
    """

    name = "diloco"
    keeps_replicas_equal = False
    keeps_buffers_equal = False
    supports_manual_optimization = False  # an outer step belongs to each step of the loop

    def __init__(
        self,
        *,
        sync_every: int = 500,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.9,
        **parts: Unpack[ProcessGroupParts],
    ) -> None:
        super().__init__(**parts)
        check_count("sync_every", sync_every, 1)
        self.sync_every = sync_every
        self.outer_lr = _number("outer_lr", outer_lr, math.inf)
        self.outer_momentum = _number("outer_momentum", outer_momentum, 1)
        if self.outer_lr == 0:
            raise ConfigurationError("outer_lr=0: the weights would never change. Set it above 0.")
        self._modules: list[nn.Module] = []
        self._outers: dict[Optimizer, _Outer] = {}
        self._restored: dict[int, Mapping[str, Any]] = {}

    def teardown(self, failed: bool = False) -> None:
        """See the base class."""
        super().teardown(failed)
        self._modules.clear()
        self._outers.clear()
        self._restored.clear()

    # -- modules, optimizers and the step ------------------------------------------------------------------------

    def setup_module(self, module: nn.Module) -> nn.Module:
        """See the base class; all processes start with the values of rank 0."""
        prepared = super().setup_module(module)
        self.broadcast_module(prepared)
        self._modules.append(prepared)
        return prepared

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """The optimizers themselves, with rank 0's state in every process.

        Raises:
            ConfigurationError: Two of them change the same weights.
        """
        ready = super().setup_optimizers(optimizers)
        for optimizer in ready:
            self.broadcast_optimizer(optimizer)
            outer = _Outer(optimizer, self.outer_lr, self.outer_momentum)
            others = {id(one) for other in self._outers.values() for one in other.own}
            if any(id(parameter) in others for parameter in outer.own):
                raise ConfigurationError(
                    "strategy='diloco': two optimizers have the same parameters, which would take two outer steps. Use "
                    "one optimizer with parameter groups."
                )
            self._outers[optimizer] = outer
        return ready

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """A step of this process; each ``sync_every``-th is followed by one of the outer optimizer in all of them."""
        result = super().optimizer_step(optimizer, closure)
        outer = self._outers.get(optimizer)
        if outer is not None:  # none after the run: an optimizer that was prepared in it takes plain steps
            self._restored.clear()
            outer.steps += 1
            if outer.steps % self.sync_every == 0:
                outer.take_step(self)
        return result

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def saving_is_collective(self) -> bool:
        """True with several processes: each has its own weights."""
        return self.world_size > 1

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """Load the same weights in every process, or this process's, if its optimizer's state has been loaded."""
        super().load_module_state(module, state)
        if not self._restored:
            for outer in self._outers.values():
                outer.begin()
        for position, own in self._restored.items():
            self._modules[position].load_state_dict(own)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """That of rank 0, with the weights and the optimizer's state of every process."""
        state = super().optimizer_state(optimizer)
        outer = self._outers.get(optimizer)
        if outer is None:
            return state
        own = {
            "optimizer": None if self.is_global_zero else state,  # rank 0's is in ``state``
            "modules": [dict(module.state_dict()) for module in self._modules],
        }
        gathered: list[Any] | None = [None] * self.world_size if self.is_global_zero else None
        dist.gather_object(map_tensors(lambda tensor: tensor.detach().cpu(), own), gathered, dst=0)
        return {**state, STATE_KEY: {"processes": gathered or [], "outer": outer.state()}}

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load what :meth:`optimizer_state` returned; from another strategy's, the outer optimizer starts afresh.

        Raises:
            CheckpointError: Another number of processes wrote it.
        """
        plain = {name: value for name, value in state.items() if name != STATE_KEY}
        saved = state.get(STATE_KEY)
        outer = self._outers.get(optimizer)
        if saved is None or outer is None:
            super().load_optimizer_state(optimizer, plain)
            return
        if len(saved["processes"]) != self.world_size:
            raise CheckpointError(
                f"strategy='diloco': {len(saved['processes'])} process(es) wrote the checkpoint, each with weights of "
                f"its own, but this run has {self.world_size}. Use the same number of processes."
            )
        own = saved["processes"][self.global_rank]
        super().load_optimizer_state(optimizer, own["optimizer"] or plain)
        outer.load(saved["outer"])
        for position, (module, weights) in enumerate(zip(self._modules, own["modules"], strict=True)):
            module.load_state_dict(weights)
            self._restored[position] = weights


class _Outer:
    """The weights that the processes agreed on last, and the optimizer that changes them.

    Args:
        optimizer: The user's.
        lr: The learning rate.
        momentum: The momentum.
    """

    def __init__(self, optimizer: Optimizer, lr: float, momentum: float) -> None:
        self.own = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
        self.common = [nn.Parameter(parameter.detach().clone()) for parameter in self.own]
        self._optimizer = SGD(self.common, lr, momentum, nesterov=momentum > 0)
        self.steps = 0
        """How many the user's optimizer has taken."""

    @torch.no_grad()
    def take_step(self, strategy: ProcessGroupStrategy) -> None:
        """All processes call it; then they have the same weights."""
        for own, common in zip(self.own, self.common, strict=True):
            common.grad = common - own
        average_gradients(self.common, strategy)
        self._optimizer.step()
        for own, common in zip(self.own, self.common, strict=True):
            own.copy_(common)
            common.grad = None

    @torch.no_grad()
    def begin(self) -> None:
        """Start afresh from the module's current weights."""
        for own, common in zip(self.own, self.common, strict=True):
            common.copy_(own)

    def state(self) -> dict[str, Any]:
        """With tensors on the CPU."""
        state: dict[str, Any] = {
            "steps": self.steps,
            "common": [*self.common],
            "optimizer": self._optimizer.state_dict(),
        }
        copied: dict[str, Any] = map_tensors(lambda tensor: tensor.detach().cpu().clone(), state)
        return copied

    @torch.no_grad()
    def load(self, state: Mapping[str, Any]) -> None:
        """What :meth:`state` returned."""
        self.steps = state["steps"]
        for common, saved in zip(self.common, state["common"], strict=True):
            common.copy_(saved)
        self._optimizer.load_state_dict(state["optimizer"])


def _number(name: str, value: Any, limit: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongTypeError(f"{name}={value!r}: must be a number.")
    if not 0 <= value < limit:
        below = "" if limit == math.inf else f" and below {limit:g}"
        raise ConfigurationError(f"{name}={value!r}: must be a finite number of at least 0{below}.")
    return float(value)
