"""``configure_optimizers`` from the arguments ``--optimizer`` and ``--lr_scheduler``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ..trainer import Module

__all__ = ["configure"]

Config = Mapping[str, Any]
"""``class_path`` and ``init_args``."""


def configure(module: Module, optimizer: Config, scheduler: Config | None) -> None:
    """Give ``module`` a ``configure_optimizers`` that makes these; its class becomes one that is derived from it.

    Args:
        module: A module whose class does not define ``configure_optimizers``.
        optimizer: The class of the optimizer, and its arguments without the parameters.
        scheduler: The class of the learning rate scheduler, and its arguments without the optimizer.
    """
    module.__class__ = _derived(type(module))
    module.__dict__.update(_optimizer_config=optimizer, _scheduler_config=scheduler)


def _derived(kind: type[Module]) -> type[Module]:
    members = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__reduce__": _reduce,
        "configure_optimizers": _configure_optimizers,
    }
    return type(kind.__name__, (kind,), members)


def _configure_optimizers(module: Any) -> Any:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = _made(module._optimizer_config, parameters)
    if module._scheduler_config is None:
        return optimizer
    return [optimizer], [_made(module._scheduler_config, optimizer)]


def _made(config: Config, first: Any) -> Any:
    module, _, name = config["class_path"].rpartition(".")
    return getattr(importlib.import_module(module), name)(first, **config.get("init_args", {}))


def _reduce(module: Any) -> tuple[Any, ...]:
    """Pickle: the derived class cannot be imported, so it is derived again."""
    return _restored, (type(module).__mro__[1],), module.__getstate__()


def _restored(kind: type[Module]) -> Module:
    derived = _derived(kind)
    return derived.__new__(derived)
