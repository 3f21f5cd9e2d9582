"""Names that scripts import from ``core`` and that are in another module, or are called otherwise."""

from __future__ import annotations

import importlib

from ..utilities.lazy import written

__all__ = ["check_elsewhere"]

RENAMED = {
    "CLI": "from core.cli import CLI",
    "DataLoader": "from torch.utils.data import DataLoader",
    "Fabric": "from core import Runtime",
    "LightningCLI": "from core.cli import CLI as LightningCLI",
    "LightningDataModule": "from core import DataModule as LightningDataModule",
    "LightningModule": "from core import Module as LightningModule",
}
"""By name, the line to write."""
MODULES = ("callbacks", "loggers", "strategies", "accelerators")
"""Packages whose names are known without importing torch."""


def check_elsewhere(name: str, asking: str) -> None:
    """Raise the error for a name that ``core`` does not have, if it is known where it is.

    Args:
        name: The name.
        asking: The name of the function that asks for it.

    Raises:
        ImportError: It is known, and ``from core import name`` asks, which replaces an AttributeError by one that does
            not say where.
        AttributeError: It is known, and something else asks, such as ``hasattr``.
    """
    line = RENAMED.get(name)
    if line is None:
        module = next((one for one in MODULES if name in importlib.import_module(f"torch_hal.{one}").__all__), None)
        line = None if module is None else f"from core.{module} import {name}"
    if line is not None:
        error = ImportError if asking == "_handle_fromlist" else AttributeError
        own = written("torch_hal")
        raise error(f"{own} has no {name!r}. Write: {line.replace('from core', f'from {own}')}")
