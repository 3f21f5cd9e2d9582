"""Each class breaks one rule."""

from __future__ import annotations

import copy
import io
import os
import pickle
import threading
import time
from collections.abc import Callable
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
        before = self.load_checkpoint(path) if os.path.exists(path) else {}
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


# -- values ------------------------------------------------------------------------------------------------------------


def _changed(change: Callable[[Any], Any], value: Any) -> Any:
    """``value`` with each leaf and each container changed by ``change``, from the inside."""
    if isinstance(value, dict):
        return change({name: _changed(change, part) for name, part in value.items()})
    if isinstance(value, list | tuple):
        return change(type(value)(_changed(change, part) for part in value))
    return change(value)


class _Changing(TorchCheckpointIO):
    """Saves something else than it is given."""

    @staticmethod
    def change(value: Any) -> Any:
        raise NotImplementedError

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        super().save_checkpoint(_changed(self.change, checkpoint), path, storage_options)


class CountsInDoubles(_Changing):
    """Integers go through a double: 2**53 + 1 comes back as 2**53."""

    @staticmethod
    def change(value: Any) -> Any:
        return int(float(value)) if type(value) is int and abs(value) < 2**62 else value


class CountsTensorsInDoubles(_Changing):
    """Integer tensors go through float64."""

    @staticmethod
    def change(value: Any) -> Any:
        whole = isinstance(value, torch.Tensor) and value.dtype == torch.int64
        return value.double().clamp(-(2.0**62), 2.0**62).long() if whole else value


class DropsNothings(_Changing):
    """Entries of dicts that are ``None`` are left out."""

    @staticmethod
    def change(value: Any) -> Any:
        return {name: part for name, part in value.items() if part is not None} if isinstance(value, dict) else value


class ReadsNaNAsNone(_Changing):
    """NaN is read as ``None``, as from JSON."""

    @staticmethod
    def change(value: Any) -> Any:
        return None if isinstance(value, float) and value != value else value


class SortsKeys(_Changing):
    """Dicts are written with sorted keys."""

    @staticmethod
    def change(value: Any) -> Any:
        return dict(sorted(value.items(), key=lambda item: str(item[0]))) if isinstance(value, dict) else value


class RoundsNumbers(_Changing):
    """Floats are written with 15 digits."""

    @staticmethod
    def change(value: Any) -> Any:
        return float(f"{value:.15g}") if type(value) is float else value


class HasNoTruth(_Changing):
    """``True`` is written as 1."""

    @staticmethod
    def change(value: Any) -> Any:
        return int(value) if value is True or value is False else value


class MakesListsOfTuples(_Changing):
    """Tuples come back as lists."""

    @staticmethod
    def change(value: Any) -> Any:
        return list(value) if type(value) is tuple else value


class NamesKeys(_Changing):
    """Keys of dicts come back as texts."""

    @staticmethod
    def change(value: Any) -> Any:
        return {str(name): part for name, part in value.items()} if isinstance(value, dict) else value


class TidiesLines(_Changing):
    """Line ends of texts are made alike."""

    @staticmethod
    def change(value: Any) -> Any:
        return value.replace("\r\n", "\n") if isinstance(value, str) else value


class FlushesTheSmallest(_Changing):
    """Subnormal numbers of tensors become 0."""

    @staticmethod
    def change(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        return torch.where(value.abs() < 1e-37, value * 0, value) if floating else value


class CleansTensors(_Changing):
    """NaN in tensors becomes 0."""

    @staticmethod
    def change(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        return (
            torch.nan_to_num(value.detach(), nan=0.0, posinf=float("inf"), neginf=float("-inf")) if floating else value
        )


class UntiesTensors(_Changing):
    """Each tensor is written by itself, so that tied ones come apart."""

    @staticmethod
    def change(value: Any) -> Any:
        return value.clone() if isinstance(value, torch.Tensor) else value


# -- loading -----------------------------------------------------------------------------------------------------------


class HandsOutTheSame(TorchCheckpointIO):
    """A second load returns the objects of the first."""

    def __init__(self) -> None:
        super().__init__()
        self._read: dict[tuple[str, int], dict[str, Any]] = {}

    def load_checkpoint(self, path: Target, map_location: Any = None) -> dict[str, Any]:
        written = os.stat(path).st_mtime_ns if os.path.exists(path) else 0
        key = str(path), written
        if key not in self._read:
            self._read[key] = super().load_checkpoint(path, map_location)
        return self._read[key]


class MapsTheFile(_OneFile):
    """Loaded tensors are windows into the file, which the next save writes over."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        torch.save(checkpoint, content)
        with open(path, "r+b" if os.path.exists(path) else "wb") as file:
            file.write(content.getbuffer())
            file.truncate()

    def load_checkpoint(self, path: Target, map_location: Any = None) -> dict[str, Any]:
        found: dict[str, Any] = torch.load(path, map_location, weights_only=True, mmap=True)
        return found


class RemembersPaths(TorchCheckpointIO):
    """Only the instance that wrote a checkpoint finds it."""

    def __init__(self) -> None:
        super().__init__()
        self._known: set[str] = set()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, path, storage_options)
        self._known.add(str(path))

    def load_checkpoint(self, path: Target, map_location: Any = None) -> dict[str, Any]:
        if str(path) not in self._known:
            raise CheckpointError(f"{path}: unknown")
        return super().load_checkpoint(path, map_location)


class MeansItsOwnFolder(TorchCheckpointIO):
    """A relative path is meant from the working directory at the end of the run."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[dict[str, Any], Target]] = []

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        if os.path.isabs(path):
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            self._waiting.append((copy.deepcopy(checkpoint), path))

    def teardown(self) -> None:
        for checkpoint, path in self._waiting:
            super().save_checkpoint(checkpoint, path)
        self._waiting.clear()


class ClearsTheFolder(TorchCheckpointIO):
    """Removing a checkpoint removes what else begins with its name."""

    def remove_checkpoint(self, path: Target) -> None:
        super().remove_checkpoint(path)
        for other in Path(path).parent.glob(f"{Path(path).name}*"):
            if other.is_file():
                other.unlink()


class NotesEachLoad(_OneFile):
    """Loading appends to a file next to the checkpoint."""

    def load_checkpoint(self, path: Target, map_location: Any = None) -> dict[str, Any]:
        found = super().load_checkpoint(path, map_location)
        with open(f"{path}.log", "a", encoding="utf-8") as file:
            file.write("loaded\n")
        return found


class WritesTheLast(TorchCheckpointIO):
    """Of several saves before ``teardown`` only the last is written."""

    def __init__(self) -> None:
        super().__init__()
        self._last: Any = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        self._last = copy.deepcopy(checkpoint), path

    def teardown(self) -> None:
        if self._last is not None:
            super().save_checkpoint(*self._last)
        self._last = None


class KeepsAThread(TorchCheckpointIO):
    """A thread that writes is still there after ``teardown``."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, path, storage_options)
        threading.Thread(target=time.sleep, args=(3600,), name="writer", daemon=True).start()


class DrawsAName(TorchCheckpointIO):
    """Saving draws from torch's generator, so that a run that saves trains otherwise."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        torch.randint(10, ())
        super().save_checkpoint(checkpoint, path, storage_options)


# -- more values, and what is left behind ------------------------------------------------------------------------------


class DropsEmpties(_Changing):
    """Empty containers in dicts are left out."""

    @staticmethod
    def change(value: Any) -> Any:
        if type(value) is not dict:
            return value
        return {name: part for name, part in value.items() if part not in ({}, [], ())}


class TidiesKeys(_Changing):
    """Spaces around keys are removed."""

    @staticmethod
    def change(value: Any) -> Any:
        if type(value) is not dict:
            return value
        return {name.strip() if isinstance(name, str) else name: part for name, part in value.items()}


class NamesDtypes(_Changing):
    """A dtype comes back as its name."""

    @staticmethod
    def change(value: Any) -> Any:
        return str(value) if isinstance(value, torch.dtype) else value


class ListsSets(_Changing):
    """A set comes back as a list."""

    @staticmethod
    def change(value: Any) -> Any:
        return sorted(value) if isinstance(value, set) else value


class TidiesNames(TorchCheckpointIO):
    """Spaces in a path become underscores."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, str(path).replace(" ", "_"), storage_options)

    def load_checkpoint(self, path: Target, map_location: Any = None) -> dict[str, Any]:
        return super().load_checkpoint(str(path).replace(" ", "_"), map_location)


class KnowsDevicesByName(TorchCheckpointIO):
    """A ``map_location`` that is a dict or a function is ignored."""

    def load_checkpoint(self, path: Target, map_location: Any = None) -> dict[str, Any]:
        return super().load_checkpoint(path, map_location if isinstance(map_location, str | torch.device) else None)


class KeepsAll(TorchCheckpointIO):
    """Every checkpoint stays in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[dict[str, Any]] = []

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        self._kept.append(checkpoint)
        super().save_checkpoint(checkpoint, path, storage_options)


class LeavesFilesOpen(TorchCheckpointIO):
    """Each load leaves a file open."""

    def load_checkpoint(self, path: Target, map_location: Any = None) -> dict[str, Any]:
        os.open(Path(path).parent, os.O_RDONLY)
        return super().load_checkpoint(path, map_location)


class WritesForAll(TorchCheckpointIO):
    """Everybody can write to its files."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Target, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, path, storage_options)
        for file in Path(path).rglob("*"):
            file.chmod(0o666)
