"""Weights in files for other programs: safetensors, or torch's own format, in parts of a given size."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...checkpoints import committed_file, remove_committed, store_of
from ...checkpoints.safetensors_io import write_safetensors
from ...checkpoints.torch_io import write_shard
from ...errors import ConfigurationError, WrongTypeError

__all__ = ["parse_size", "save_in_parts", "save_tensors"]

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}

NAMES = {True: ("model", "safetensors"), False: ("pytorch_model", "bin")}
"""Name and suffix as Hugging Face's libraries look for them, by whether the files are in safetensors' format."""


def parse_size(max_shard_size: int | str) -> int:
    """Bytes of ``"10GB"``, ``"500MiB"`` or a number.

    Raises:
        ConfigurationError: It is not a size > 0.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(max_shard_size))
    size = int(float(match[1]) * UNITS.get(match[2].upper(), 0)) if match else 0
    if size < 1 or isinstance(max_shard_size, bool):
        raise ConfigurationError(f"max_shard_size={max_shard_size!r}: must be a size such as '10GB', '500MB' or 10**9.")
    return size


def save_tensors(tensors: Any, path: str | os.PathLike[str]) -> None:
    """Write one safetensors file, committed by a rename. Of tensors that are the same, the first one is written.

    Raises:
        WrongTypeError: ``tensors`` is not a mapping of names to tensors.
        ConfigurationError: safetensors is not installed.
        CheckpointError: The file could not be written.
    """
    if not isinstance(tensors, Mapping) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise WrongTypeError(
            f"safetensors: holds tensors by name, not an object of type {type(tensors).__name__} with other values. "
            "Give a mapping such as model.state_dict(), or set safe_serialization=False and another suffix."
        )
    kept, same = _without_ties(tensors)
    _write(kept, same, path, safe=True)


def save_in_parts(state: Mapping[str, Any], directory: str | os.PathLike[str], max_size: int, safe: bool) -> None:
    """Write a module's state into ``directory``: one file, or several of at most ``max_size`` bytes and their index.

    Replaces the files of an earlier save into the same directory. The old index is removed first, so that a save that
    is interrupted leaves no index that refers to files of both.
    """
    kept, same = _without_ties({name: value for name, value in state.items() if isinstance(value, Tensor)})
    parts, stem, suffix = _divided(kept, max_size), *NAMES[safe]
    names = [f"{stem}.{suffix}"]
    if len(parts) > 1:
        names = [f"{stem}-{number + 1:05d}-of-{len(parts):05d}.{suffix}" for number in range(len(parts))]
    index = os.path.join(directory, f"{stem}.{suffix}.index.json")
    old = {name for name in store_of(directory).names() if re.fullmatch(rf"{stem}(-\d+-of-\d+)?\.{suffix}", name)}
    if old.intersection(names):
        remove_committed(index)
    for name, part in zip(names, parts, strict=True):
        _write(part, same, os.path.join(directory, name), safe)
    if len(parts) > 1:
        places = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
        total = sum(tensor.nbytes for tensor in kept.values())
        with committed_file(index) as file:
            content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
            file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    else:
        remove_committed(index)
    for name in old - set(names):
        remove_committed(os.path.join(directory, name))


def _divided(tensors: Mapping[str, Tensor], max_size: int) -> list[dict[str, Tensor]]:
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if parts[-1] and size + tensor.nbytes > max_size:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.nbytes
    return parts


def _without_ties(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, each once and copied to separate memory; and for each omitted name, the name of the same tensor."""
    kept: dict[str, Tensor] = {}
    same: dict[str, str] = {}
    first: dict[Any, str] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        dense = tensor.detach()
        place = dense.untyped_storage().data_ptr()
        key = (dense.device, dense.data_ptr(), dense.dtype, tuple(dense.shape), dense.stride())
        if dense.numel() and key in first:
            same[name] = first[key]
            continue
        first[key] = name
        # A view would be written with all of the memory that it is a view of.
        is_view = place in storages or dense.nbytes != dense.untyped_storage().nbytes()
        storages.add(place)
        kept[name] = dense.clone(memory_format=torch.contiguous_format) if is_view else dense.contiguous()
    return kept, same


def _write(tensors: dict[str, Tensor], same: dict[str, str], path: str | os.PathLike[str], safe: bool) -> None:
    if not safe:
        with committed_file(path) as file:
            tied = {name: tensors[kept] for name, kept in same.items() if kept in tensors}
            write_shard({**tensors, **tied}, file, path)
        return
    if importlib.util.find_spec("safetensors") is None:
        raise ConfigurationError("safe_serialization: safetensors is not installed. Run: pip install safetensors")
    with committed_file(path) as file:
        # Ties as safetensors' own save_model writes them, whose load_model reads them.
        write_safetensors(tensors, file, path, {name: kept for name, kept in same.items() if kept in tensors})
