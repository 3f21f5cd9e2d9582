"""Pickles that hold data and never run code: reading those that anyone may have written, refusing to write others."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError
from .checksums import files_are_mapped
from .manifest import open_file

_BUILTIN = {
    ("collections", "OrderedDict"),
    ("builtins", "set"),
    ("builtins", "frozenset"),
}


class AllowedUnpickler(pickle.Unpickler):
    """An unpickler that makes only objects of the given classes, besides plain values and torch's own small types.

    A pickle calls what it names, and can set attributes of it. So it is given a new stand-in for each name, which makes
    instances of the class: what the pickle does to a stand-in is gone with it.

    Args:
        file: Where the pickle is.
        name: The file's name, for messages.
        allowed: Functions and classes by module and name.
    """

    def __init__(self, file: IO[bytes], name: str, allowed: Mapping[tuple[str, str], Callable[..., Any]]) -> None:
        super().__init__(file)
        self._name = name
        self._allowed = allowed
        self._made_by: dict[Any, Callable[..., Any]] = {}
        """The class or function that each stand-in stands for."""

    def find_class(self, module: str, name: str, /) -> Any:
        """The stand-in for a class, or one of torch's dtypes.

        Raises:
            CheckpointError: The class is not allowed.
        """
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in _BUILTIN:
            return self._stand_in(super().find_class(module, name))
        if (module, name) in self._allowed:
            return self._stand_in(self._allowed[module, name])
        if (module, name) == ("builtins", "getattr"):
            return lambda *values: self._member(*values)
        raise self._refused(f"{module}.{name}")

    def _stand_in(self, made: Callable[..., Any]) -> Any:
        stand_in = _stand_in(made)
        self._made_by[stand_in] = made
        return stand_in

    def _member(self, stand_in: Any, member: Any) -> Any:
        """A member of an allowed Enum: Python 3.11.0 to 3.11.3 pickles it as ``getattr(the class, its name)``."""
        kind = self._made_by.get(stand_in)
        if isinstance(kind, type) and issubclass(kind, Enum) and member in kind.__members__:
            return kind[member]
        raise self._refused(f"builtins.getattr of {member!r}")

    def _refused(self, found: str) -> CheckpointError:
        return CheckpointError(
            f"{self._name} is not read: it contains {found}, which does not belong in a checkpoint and could run code. "
            "Load only checkpoints that you trust; this one is damaged or was tampered with."
        )


def _stand_in(made: Callable[..., Any]) -> Any:
    """A new object that pickle can call or instantiate; the instances are of the class ``made``."""
    if not isinstance(made, type):
        return lambda *values: made(*values)
    kind: type[Any] = made

    class StandIn:
        def __new__(cls, *values: Any) -> Any:
            if values or kind.__module__ in ("builtins", "collections"):
                return kind(*values)
            return object.__new__(kind)

    return StandIn


def load_tensors(path: Path, map_location: Any = None) -> Any:
    """Like :func:`torch.load` with ``weights_only=True``; refuses files that would unpack to more than their size.

    Args:
        path: The file.
        map_location: As in :func:`torch.load`.

    Raises:
        CheckpointError: The file cannot be loaded.
    """
    try:
        with open_file(path) as file:
            refuse_compressed(file, str(path))
            is_mapped = files_are_mapped.get()  # which torch does for a path only
            return torch.load(path if is_mapped else file, map_location, weights_only=True, mmap=is_mapped)
    except CheckpointError:
        raise
    except Exception as error:
        # Garbled bytes make torch's unpickler raise almost anything.
        raise CheckpointError(
            f"{path} cannot be loaded with map_location={map_location!r}: {type(error).__name__}: {error}"
        ) from error


def refuse_code(path: Path, allowed: Collection[str] = ()) -> None:
    """Refuse a file of :func:`torch.save` whose unpickling calls something that could run code, for engines that do it.

    Args:
        path: The file.
        allowed: Classes and functions, such as ``"package.module.Class"``, that it may contain in addition to those
            that ``torch.load(weights_only=True)`` allows.

    Raises:
        CheckpointError: The file contains another name, or is damaged.
    """
    try:
        with open_file(path) as file:
            refuse_compressed(file, str(path))
            found = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except CheckpointError:
        raise
    except Exception as error:  # garbled bytes
        raise CheckpointError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    unknown = sorted(set(found) - set(allowed))
    if unknown:
        raise CheckpointError(
            f"{path} is not read: it contains {', '.join(unknown[:5])}, which could run code. If you trust the "
            "checkpoint, allow the class with torch.serialization.add_safe_globals([...])."
        )


def refuse_compressed(file: IO[bytes], name: str) -> None:
    """Refuse a file that is not an archive as :func:`torch.save` writes it: its entries as they are, not compressed.

    Raises:
        CheckpointError: It is another kind of file, or its entries are larger than itself.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{name} is damaged: it is not a file that torch.save has written ({error}).") from error
    finally:
        file.seek(0)
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > size or any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise CheckpointError(
            f"{name} is not read: it is compressed, and would unpack from {size} to {unpacked} bytes. torch.save "
            "writes no compressed files; this one is damaged or was tampered with."
        )


_PLAIN = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.Size}
)
_SMALL = 1 << 63


def refuse_unreadable(checkpoint: Any) -> None:
    """Check that every object in ``checkpoint`` could be read back.

    Containers, numbers, strings and ordinary tensors are recognized by their exact type. Any other object is pickled
    and loaded by itself, so that torch decides, with the classes that :func:`torch.serialization.add_safe_globals`
    allows.

    Raises:
        CheckpointError: An object could not be read back; the message names its place.
    """
    seen: set[int] = set()
    pending = [("checkpoint", checkpoint)]
    while pending:
        place, value = pending.pop()
        if type(value) in _PLAIN and not _is_rare(value):
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        parts = _parts(place, value)
        if parts is None:
            _read_back(place, value)
        else:
            # The last is taken first: so the error names the first place.
            pending.extend(reversed(list(parts)))


def _is_rare(value: Any) -> bool:
    # torch's unpickler does not support empty bytes, nor integers of more than 255 bytes.
    return value == b"" if type(value) is bytes else type(value) is int and not -_SMALL <= value < _SMALL


def _parts(place: str, value: Any) -> Iterator[tuple[str, Any]] | None:
    """The parts of ``value``; ``None`` if its type alone does not tell whether it can be read back."""
    kind = type(value)
    if kind is dict:
        return _items(place, value)
    if kind is OrderedDict:
        return _chain(_items(place, value), _attributes(place, value))
    if kind in (list, tuple, set):
        return ((f"{place}[{index}]", item) for index, item in enumerate(value))
    if kind in (Tensor, nn.Parameter) and value.layout is torch.strided and not (value.is_quantized or value.is_nested):
        return _attributes(place, value)
    return None


def _chain(*parts: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for part in parts:
        yield from part


def _items(place: str, mapping: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, item in mapping.items():
        if type(key) is not str:
            yield f"key {key!r} of {place}", key
        yield f"{place}[{key!r}]", item


def _attributes(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    return ((f"{place}.{name}", item) for name, item in vars(value).items())


def _read_back(place: str, value: Any) -> None:
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        torch.load(buffer, map_location="cpu", weights_only=True)
    except Exception as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        raise CheckpointError(
            f"{place} is of type {kind}, which torch.load(weights_only=True) could not read back: {_reason(error)} "
            f"Save tensors, numbers, strings, bytes (not empty), None, lists, tuples, dicts, sets, torch.Size, "
            f"torch.dtype or torch.device, or allow the class with torch.serialization.add_safe_globals([...])."
        ) from error


def _reason(error: Exception) -> str:
    """The sentence in torch's long message that says what is wrong."""
    text = str(error).rpartition("WeightsUnpickler error:")[2].strip()
    return text.partition("\n")[0].partition(" Please use ")[0].rstrip(".") + "."
