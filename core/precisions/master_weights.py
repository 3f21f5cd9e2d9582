"""Optimizer state in float32 for parameters of 16 bits.

Source: Micikevicius et al., Mixed Precision Training, ICLR 2018, section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["MASTER", "MasterWeights"]

MASTER = "master_weight"
"""The key of a parameter's float32 value in the optimizer's state."""


class MasterWeights:
    """Lets optimizers work on float32 copies of parameters of ``dtype``, which stay in the optimizer's state.

    So the state is in float32 too, and updates that are too small for the parameter's dtype add up. The parameters get
    the rounded values after each step.

    Args:
        dtype: The parameters' dtype.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._handles: list[Any] = []

    def prepare(self, optimizer: Optimizer) -> None:
        """Let a state that is loaded stay in float32, where torch would convert it to the dtype of the parameters."""
        taken: list[Any] = []

        def before(loading: Optimizer, state: dict[str, Any]) -> None:
            taken.append(self._taken(loading))
            taken[-1].__enter__()

        def after(loading: Optimizer) -> None:
            taken.pop().__exit__(None, None, None)

        self._handles.append(optimizer.register_load_state_dict_pre_hook(before))
        self._handles.append(optimizer.register_load_state_dict_post_hook(after))

    def release(self) -> None:
        """Undo :meth:`prepare`."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def step(self, optimizer: Optimizer) -> Any:
        """Step ``optimizer`` on the copies, and round them into the parameters."""
        with self._taken(optimizer) as copies:
            values = {parameter: optimizer.state[own].pop(MASTER, None) for parameter, own in copies}
            for parameter, own in copies:
                if values[parameter] is not None:
                    own.data = values[parameter]
                own.grad = None if parameter.grad is None else parameter.grad.to(own.dtype)
            result = optimizer.step()
            with torch.no_grad():
                for parameter, own in copies:
                    parameter.copy_(own)
                    optimizer.state[own][MASTER] = own.detach()
        return result

    @contextmanager
    def _taken(self, optimizer: Optimizer) -> Iterator[list[tuple[Tensor, nn.Parameter]]]:
        """A context in which the optimizer has float32 copies in place of its parameters of 16 bits."""
        copies: dict[Tensor, nn.Parameter] = {}
        given = [list(group["params"]) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.dtype is self._dtype:
                    copies[parameter] = nn.Parameter(parameter.detach().float(), parameter.requires_grad)
            group["params"] = [copies.get(parameter, parameter) for parameter in group["params"]]
        _rename(optimizer, copies)
        try:
            yield list(copies.items())
        finally:
            for group, parameters in zip(optimizer.param_groups, given, strict=True):
                group["params"] = parameters
            _rename(optimizer, {own: parameter for parameter, own in copies.items()})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": []}


def _rename(optimizer: Optimizer, names: Any) -> None:
    """Move the state of each tensor to another."""
    for old, new in names.items():
        if old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)
