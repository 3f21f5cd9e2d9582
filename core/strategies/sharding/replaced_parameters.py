"""Parameters that a strategy replaces, and the optimizers that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import ref

from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from ...errors import ConfigurationError

__all__ = ["FollowedParameters"]


class FollowedParameters:
    """For each parameter before its module was sharded, its sharded form; so optimizers made before can follow."""

    def __init__(self) -> None:
        self._followed = WeakTensorKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        # A started process prepares its own modules; weak dictionaries cannot be pickled.
        return {"_followed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._followed = WeakTensorKeyDictionary()

    def record(self, before: Mapping[str, nn.Parameter], module: nn.Module) -> None:
        """Remember what became of the parameters of ``module``.

        Args:
            before: Its parameters by name, duplicates included, before it was sharded.
            module: The module, sharded.
        """
        for name, parameter in module.named_parameters(remove_duplicate=False):
            self._followed[before[name]] = ref(parameter)

    def clear(self) -> None:
        """Forget all."""
        self._followed.clear()

    def form_of(self, parameter: nn.Parameter) -> nn.Parameter:
        """The sharded form of ``parameter``; itself, if its module was not sharded."""
        divided = self._followed[parameter]() if parameter in self._followed else None
        return parameter if divided is None else divided

    def follow(self, optimizer: Optimizer, strategy: str) -> None:
        """Let the groups of ``optimizer`` hold the sharded forms of their parameters.

        Args:
            optimizer: The user's, made before or after its module was sharded.
            strategy: The strategy's name, for errors.

        Raises:
            ConfigurationError: It has already stepped, or is ``foreach`` or ``fused`` but its parameters are on
                different meshes.
        """
        for group in optimizer.param_groups:
            followed = [self.form_of(parameter) for parameter in group["params"]]
            if optimizer.state and any(new is not old for new, old in zip(followed, group["params"], strict=True)):
                raise ConfigurationError(
                    f"optimizer {type(optimizer).__name__}: it has stepped before strategy {strategy!r} divided its "
                    "parameters. Prepare a new optimizer, then load the checkpoint."
                )
            group["params"] = followed
            meshes = {parameter.device_mesh for parameter in followed if isinstance(parameter, DTensor)}
            has_plain = any(not isinstance(parameter, DTensor) for parameter in followed)
            if len(meshes) + (has_plain and bool(meshes)) > 1 and (group.get("foreach") or group.get("fused")):
                raise ConfigurationError(
                    f"optimizer {type(optimizer).__name__}: foreach or fused, with some parameters that "
                    "tensor_parallel_plan divides and some that it does not. Set foreach=False and fused=False."
                )
