"""Replaces torch's optimizers by poptorch's, since only those return the state that they keep on the device."""

from __future__ import annotations

import inspect
from typing import Any

import poptorch
import torch
from torch.optim import Optimizer

from torch_hal.errors import ConfigurationError, quoted

__all__ = ["NativeOptimizer"]

_CLASSES: dict[type[Optimizer], str] = {
    torch.optim.SGD: "SGD",
    torch.optim.Adam: "Adam",
    torch.optim.AdamW: "AdamW",
    torch.optim.RMSprop: "RMSprop",
}


class NativeOptimizer:
    """An optimizer of poptorch with the settings of the user's optimizer.

    Learning rate schedulers change the user's optimizer; :meth:`follow` copies the changes.

    Args:
        given: The user's optimizer: from ``poptorch.optim``, which is used directly, or torch's SGD, Adam, AdamW or
            RMSprop.

    Raises:
        ConfigurationError: The optimizer or one of its settings is not supported by poptorch.
    """

    def __init__(self, given: Optimizer) -> None:
        self.given = given
        self.native: Any = given if isinstance(given, poptorch.optim.Optimizer) else _converted(given)
        self._followed = self._settings()
        self.is_changed = False
        """Whether the settings differ from those in the compiled step."""

    def follow(self) -> None:
        """Copy the settings of the user's optimizer."""
        settings = self._settings()
        if settings != self._followed:
            for group, values in zip(self.native.param_groups, settings, strict=True):
                group.update(values)
            self._followed = settings
            self.is_changed = True

    def lead(self) -> None:
        """Copy settings that were loaded to the user's optimizer."""
        for own, group in zip(self.given.param_groups, self.native.param_groups, strict=True):
            own.update({name: value for name, value in group.items() if name in own and name != "params"})
        self._followed = self._settings()
        self.is_changed = True

    def mark_stepped(self) -> None:
        """Tell schedulers that a step was made; otherwise torch warns."""
        self.given._opt_called = True  # type: ignore[attr-defined]

    def _settings(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in g.items() if name != "params"} for g in self.given.param_groups]


def _converted(given: Optimizer) -> Any:
    name = _CLASSES.get(type(given))
    if name is None:
        raise ConfigurationError(
            f"configure_optimizers: an IPU cannot run {type(given).__name__}. Valid: {quoted(_CLASSES.values())} of "
            "torch.optim, or an optimizer of poptorch.optim."
        )
    for group in given.param_groups:
        set_ = [setting for setting in ("amsgrad", "maximize", "differentiable") if group.get(setting)]
        if set_:
            raise ConfigurationError(
                f"configure_optimizers: poptorch's {name} does not support {quoted(set_)}. Turn it off."
            )
    cls: Any = getattr(poptorch.optim, name)
    # Constructor arguments passed by name can change later; all others are compiled into the step.
    takes = inspect.signature(cls).parameters
    defaults = {setting: value for setting, value in given.defaults.items() if setting in takes}
    return cls([dict(group) for group in given.param_groups], **defaults)
