"""A module that a strategy wraps around the user's."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["ModuleWrapper", "unwrap_module"]


class ModuleWrapper(nn.Module):
    """``module`` with another forward pass; the base class of what :meth:`core.Strategy.setup_module` returns.

    A subclass overrides :meth:`forward`, which calls ``self.module``. :meth:`core.Strategy.unwrap_module` finds the
    user's module inside. Users of a front end do not see the wrapper: what ``prepare`` returns has the attributes and
    the ``state_dict`` of their own module.

    Args:
        module: The user's module, or another wrapper.
    """

    module: nn.Module

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.training = module.training  # not train(), which would change submodules that the user has put in eval mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the module's forward pass."""
        return self.module(*args, **kwargs)


def unwrap_module(module: nn.Module) -> nn.Module:
    """The module inside all wrappers; a module without a wrapper is returned as it is."""
    while isinstance(module, ModuleWrapper):
        module = module.module
    return module
