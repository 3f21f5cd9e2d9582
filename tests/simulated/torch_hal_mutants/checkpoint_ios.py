"""Each class breaks one rule."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import torch

from core.checkpoints import CheckpointIO, TorchCheckpointIO, committed_file, remove_committed
from core.errors import CheckpointError

Target = str | os.PathLike[str]


class _OneFile(CheckpointIO):
    """Keeps the rules but for checksums: what a vendor may well write."""

    weights_only = True

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        with committed_file(path) as file:
            torch.save(checkpoint, file)

    def load_checkpoint(self, path: Target, map_location: Any = None) -> dict[str, Any]:
        try:
            found: dict[str, Any] = torch.load(path, map_location, weights_only=self.weights_only)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise CheckpointError(f"{path}: {error}") from error
        return found

    def remove_checkpoint(self, path: Target) -> None:
        remove_committed(path)


class WritesInPlace(_OneFile):
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.save(checkpoint, path)
        except (OSError, RuntimeError) as error:
            raise CheckpointError(f"{path}: {error}") from error


class RemovesFirst(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        self.remove_checkpoint(path)
        super().save_checkpoint(checkpoint, path, storage_options)


class TrustsPickles(_OneFile):
    weights_only = False


class HasNoChecksums(_OneFile):
    pass


class StaysWhereItWas(TorchCheckpointIO):
    def load_checkpoint(self, path: Target, map_location: Any = None) -> dict[str, Any]:
        return super().load_checkpoint(path)


class RaisesTheSystemsError(TorchCheckpointIO):
    def load_checkpoint(self, path: Target, map_location: Any = None) -> dict[str, Any]:
        if not os.path.exists(path):
            raise FileNotFoundError(path)
        return super().load_checkpoint(path, map_location)


class InsistsOnRemoving(TorchCheckpointIO):
    def remove_checkpoint(self, path: Target) -> None:
        if not os.path.exists(path):
            raise CheckpointError(f"{path}: nothing is there")
        super().remove_checkpoint(path)


class Merges(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        before = self.load_checkpoint(path) if os.path.isdir(path) else {}
        super().save_checkpoint({**before, **checkpoint}, path, storage_options)


class Rounds(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        narrow = {
            name: value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.float64 else value
            for name, value in checkpoint.items()
        }
        super().save_checkpoint(narrow, path, storage_options)


class LeavesALog(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, path, storage_options)
        Path(path).parent.joinpath("saved.log").touch()


class WritesLater(TorchCheckpointIO):
    """Writes in the background what it was given, without a copy."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        self.teardown()
        self._thread = threading.Timer(0.2, super().save_checkpoint, (checkpoint, path, storage_options))
        self._thread.start()

    def teardown(self) -> None:
        if self._thread is not None:
            self._thread.join()


class TidiesUp(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, path, storage_options)
        checkpoint.clear()
