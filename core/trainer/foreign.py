"""Objects of Lightning's classes that are passed to a Trainer, and what to do about them."""

from __future__ import annotations

from typing import Any

__all__ = ["change_import"]

OURS = {
    "LightningModule": "from core import Module as LightningModule",
    "LightningDataModule": "from core import DataModule as LightningDataModule",
    "Callback": "from core import Callback",
}
"""By Lightning's class, the import to write."""
PACKAGES = ("lightning", "pytorch_lightning")


def change_import(given: Any) -> str | None:
    """What to do if ``given`` derives from one of Lightning's classes; ``None`` if it does not."""
    for kind in type(given).__mro__:
        if kind.__name__ in OURS and kind.__module__.partition(".")[0] in PACKAGES:
            package = kind.__module__.partition(".")[0]
            return (
                f"It derives from {package}'s {kind.__name__}: change the import to '{OURS[kind.__name__]}', and run "
                "'torch-hal migrate FILE' on the script, which lists what else differs."
            )
    return None
