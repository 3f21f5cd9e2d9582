"""torch's optimizers as poptorch's: only the latter hand out the state that they keep on the device."""

from __future__ import annotations

import inspect
from typing import Any

import poptorch
import torch
from torch.optim import Optimizer

from core.errors import ConfigurationError, quoted

__all__ = ["NativeOptimizer"]

_CLASSES: dict[type[Optimizer], str] = {
    torch.optim.SGD: "SGD",
    torch.optim.Adam: "Adam",
    torch.optim.AdamW: "AdamW",
    torch.optim.RMSprop: "RMSprop",
}


class NativeOptimizer:
    """An optimizer of poptorch, kept to the settings of the user's own.

    Learning rate schedulers change the settings of the optimizer that they were made with; :meth:`follow` takes them
    over.

    Args:
        given: The user's own: of ``poptorch.optim``, which is used as it is, or torch's SGD, Adam, AdamW or RMSprop.

    Raises:
        ConfigurationError: It is another one, or has a setting that poptorch has no counterpart of.
    """

    def __init__(self, given: Optimizer) -> None:
        self.given = given
        self.native: Any = given if isinstance(given, poptorch.optim.Optimizer) else _converted(given)
        self._followed = self._settings()
        self.is_changed = False
        """Whether a step that is compiled with it has other settings."""

    def follow(self) -> None:
        """Take over the settings of the user's own."""
        settings = self._settings()
        if settings != self._followed:
            for group, values in zip(self.native.param_groups, settings, strict=True):
                group.update(values)
            self._followed = settings
            self.is_changed = True

    def lead(self) -> None:
        """Give the user's own the settings that were loaded."""
        for own, group in zip(self.given.param_groups, self.native.param_groups, strict=True):
            own.update({name: value for name, value in group.items() if name in own and name != "params"})
        self._followed = self._settings()
        self.is_changed = True

    def mark_stepped(self) -> None:
        """Tell schedulers that a step was made; torch warns where it cannot know of one."""
        self.given._opt_called = True  # type: ignore[attr-defined]

    def _settings(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in g.items() if name != "params"} for g in self.given.param_groups]


def _converted(given: Optimizer) -> Any:
    name = _CLASSES.get(type(given))
    if name is None:
        raise ConfigurationError(
            f"configure_optimizers: given {type(given).__name__}, which no IPU runs. Valid: torch.optim's or "
            f"poptorch.optim's {quoted(_CLASSES.values())}, or another one of poptorch.optim."
        )
    for group in given.param_groups:
        set_ = [setting for setting in ("amsgrad", "maximize", "differentiable") if group.get(setting)]
        if set_:
            raise ConfigurationError(f"configure_optimizers: {name} with {quoted(set_)}, which poptorch has not.")
    cls: Any = getattr(poptorch.optim, name)
    # What its constructor is given by name can change later; all else is compiled into the step.
    takes = inspect.signature(cls).parameters
    defaults = {setting: value for setting, value in given.defaults.items() if setting in takes}
    return cls([dict(group) for group in given.param_groups], **defaults)
