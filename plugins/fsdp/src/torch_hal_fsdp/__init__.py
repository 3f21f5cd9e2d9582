"""torch's FSDP2 in torch-hal: a module's parameters, gradients and optimizer state divided among processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_hal_fsdp.strategy import FSDPStrategy

__all__ = ["FSDPStrategy"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torch_hal_fsdp import strategy

    return getattr(strategy, name)
