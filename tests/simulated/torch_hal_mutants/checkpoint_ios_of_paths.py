"""Each class breaks one rule about paths, or about the memory of tensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from core.checkpoints import TorchCheckpointIO
from core.utilities.nested import map_tensors

Target = str | os.PathLike[str]


class RemovesTheTarget(TorchCheckpointIO):
    """Removing a link removes the checkpoint that it leads to."""

    def remove_checkpoint(self, path: Target) -> None:
        target = Path(os.path.realpath(path))
        super().remove_checkpoint(target)
        Path(path).unlink(missing_ok=True)


class SplitsViews(TorchCheckpointIO):
    """Of views of one memory, each gets its own; a tensor that is there twice stays one."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        seen: dict[int, torch.Tensor] = {}

        def own(tensor: torch.Tensor) -> torch.Tensor:
            is_part = tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
            return seen.setdefault(id(tensor), tensor.detach().clone() if is_part else tensor)

        super().save_checkpoint(map_tensors(own, checkpoint), path, storage_options)


class _Cuts(TorchCheckpointIO):
    """Changes the path of each call."""

    def cut(self, path: Target) -> Path:
        raise NotImplementedError

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, self.cut(path), storage_options)

    def load_checkpoint(self, path: Target, map_location: Any = None) -> dict[str, Any]:
        return super().load_checkpoint(self.cut(path), map_location)

    def remove_checkpoint(self, path: Target) -> None:
        super().remove_checkpoint(self.cut(path))


class CutsNames(_Cuts):
    """Of a long name, the first hundred characters are used."""

    def cut(self, path: Target) -> Path:
        return Path(path).with_name(Path(path).name[:100])
