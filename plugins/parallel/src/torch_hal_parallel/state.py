"""The state of a model that is spread over processes: gathered whole, and taken apart again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_hal.errors import CheckpointError
from torch_hal.strategies.sharding import like, to_whole
from torch_hal_parallel.gradients import Line

__all__ = ["OwnParameters", "gather_states", "load_module", "load_optimizer", "whole_tensors"]


class OwnParameters:
    """Which of an optimizer's parameters this process holds, by their numbers in the user's optimizer."""

    def __init__(self) -> None:
        self._places: WeakKeyDictionary[Optimizer, tuple[list[int], list[list[int]]]] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return {"_places": None}  # a started process prepares its own optimizers

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._places = WeakKeyDictionary()

    def keep(self, optimizer: Optimizer) -> None:
        """Remove the parameters that other processes of the pipeline hold from the groups of ``optimizer``."""
        if optimizer in self._places:
            return
        own: list[int] = []
        groups: list[list[int]] = []
        number = 0
        for group in optimizer.param_groups:
            groups.append(list(range(number, number + len(group["params"]))))
            own += [number + place for place, parameter in enumerate(group["params"]) if not parameter.is_meta]
            number += len(group["params"])
            group["params"] = [parameter for parameter in group["params"] if not parameter.is_meta]
        self._places[optimizer] = own, groups

    def global_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The state of ``optimizer`` with the numbers of the user's optimizer, of this process's parameters only."""
        own, groups = self._places[optimizer]
        state = optimizer.state_dict()
        return {
            **state,
            "state": {own[index]: entry for index, entry in state["state"].items()},
            "param_groups": [
                {**group, "params": numbers} for group, numbers in zip(state["param_groups"], groups, strict=True)
            ],
        }

    def own_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
        """The part of a whole ``state`` that is of this process's parameters, with their numbers here.

        Raises:
            CheckpointError: It is of an optimizer with other parameters.
        """
        own, groups = self._places[optimizer]
        given = [len(group["params"]) for group in state["param_groups"]]
        if given != [len(numbers) for numbers in groups]:
            raise CheckpointError(
                f"optimizer {type(optimizer).__name__}: its groups have {[len(one) for one in groups]} parameters, but "
                f"those in the checkpoint have {given}. Create it as in the run that saved."
            )
        numbers = [index for group in state["param_groups"] for index in group["params"]]
        place = {numbers[index]: here for here, index in enumerate(own)}
        kept = iter(range(len(own)))
        held = set(own)
        return {
            **state,
            "state": {place[index]: entry for index, entry in state["state"].items() if index in place},
            "param_groups": [
                {**group, "params": [next(kept) for number in mine if number in held]}
                for group, mine in zip(state["param_groups"], groups, strict=True)
            ],
        }


def whole_tensors(state: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """``state`` with whole tensors on the CPU; the processes that hold shards of them all call it."""
    return {
        name: to_whole(value, device).detach().cpu() if isinstance(value, Tensor) else value
        for name, value in state.items()
    }


def gather_states(state: dict[Any, Any], line: Line | None) -> list[dict[Any, Any]]:
    """``state`` of each process of the pipeline, in its first one; in the others, nothing."""
    if line is None:
        return [state]
    gathered: list[Any] | None = [None] * line.world_size if line.rank == 0 else None
    dist.gather_object(state, gathered, line.global_rank(0), group=line.group)
    return gathered or []


def load_module(module: nn.Module, state: Mapping[str, Any], device: torch.device) -> None:
    """Load what this process holds of ``module`` from a ``state`` with whole tensors."""
    current = module.state_dict()
    taken = {}
    for name, value in state.items():
        target = current.get(name)
        if isinstance(target, Tensor) and isinstance(value, Tensor) and target.shape == value.shape:
            taken[name] = target if target.is_meta else like(target, value, device)
        else:
            taken[name] = value  # torch's own errors name it
    module.load_state_dict(taken)


def load_optimizer(optimizer: Optimizer, own: OwnParameters, state: dict[str, Any], device: torch.device) -> None:
    """Load what this process holds from a ``state`` with whole tensors."""
    taken = own.own_state(optimizer, state)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entry in taken["state"].items():
        parameter = parameters[index]
        taken["state"][index] = {
            name: like(parameter, value, device)
            if isinstance(value, Tensor) and value.shape == parameter.shape
            else value
            for name, value in entry.items()
        }
    optimizer.load_state_dict(taken)
