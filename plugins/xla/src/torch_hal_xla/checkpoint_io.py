"""Checkpoints that any machine can load."""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor

from torch_hal.checkpoints import TorchCheckpointIO
from torch_hal.utilities.nested import map_tensors

__all__ = ["XLACheckpointIO", "on_host"]


class XLACheckpointIO(TorchCheckpointIO):
    """torch-hal's own format, with all tensors on the host, since XLA tensors can only be loaded with torch_xla."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """See the base class."""
        super().save_checkpoint(on_host(checkpoint), path, storage_options)


def on_host(data: Any) -> Any:
    """Return the nested structure ``data`` with all tensors on the CPU."""
    return map_tensors(Tensor.cpu, data)
