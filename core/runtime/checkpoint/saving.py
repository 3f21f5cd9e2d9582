"""Writing and reading checkpoints of a loop's own parts, and weights for other programs, in parts of a given size."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...checkpoints import committed_file, remove_committed, store_of
from ...checkpoints.foreign import compiled_alike, is_foreign, load_any, weights_for
from ...checkpoints.safetensors_io import write_safetensors
from ...checkpoints.torch_io import write_shard
from ...errors import ConfigurationError, WrongTypeError, quoted
from ...hints.argument_checks import check_path
from ...strategies.partial_save import Meeting
from ...strategies.wrapping import unwrap_optimizer
from ...utilities.torch_private import uncompiled_names
from ..lifecycle import Life
from ..prepare.wrappers import PreparedOptimizer, own_module
from .process_state import class_of, load_optimizer, read_parts, restore, run_facts
from .project import ProjectConfiguration

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


FILE_SUFFIXES = (".bin", ".pkl", ".pt", ".pth", ".safetensors")
"""Paths that end in one of these name a single file, not a checkpoint."""


class Checkpointing:
    """Writes and reads checkpoints of the parts that a loop passes.

    Args:
        life: Of the run.
        project: Says whether each machine writes its own file.
    """

    def __init__(self, life: Life, project: ProjectConfiguration) -> None:
        self._life, self._project = life, project

    def save(self, obj: Any, f: str | os.PathLike[str], safe_serialization: bool = False) -> None:
        """See :meth:`core.Runtime.save`."""
        if isinstance(obj, str | os.PathLike) and not isinstance(f, str | os.PathLike):
            raise WrongTypeError(
                f"save: obj is the path {os.fspath(obj)!r}, and f an object of type {type(f).__name__}. The path comes "
                "last: save(obj, path)."
            )
        check_path("save: f", f, optional=False)
        if isinstance(obj, nn.Module):
            raise WrongTypeError(
                f"save: a module of type {type(obj).__name__} cannot be saved by itself. Give the parts names: "
                "save({'model': model}, path); or save its get_state_dict(model)."
            )
        if isinstance(obj, Optimizer | LRScheduler):
            raise WrongTypeError(
                f"save: an object of type {type(obj).__name__} cannot be saved by itself. Give the parts names: "
                "save({'model': model, 'optimizer': optimizer}, path)."
            )
        if not safe_serialization and isinstance(obj, Mapping) and _suffix(f) not in FILE_SUFFIXES:
            self._save_parts(obj, f)
            return
        strategy, write = self._life.live(), partial(_save_file, obj, f, safe_serialization)
        meeting = Meeting(strategy, "save", needs_all=False)
        if not meeting.is_late:
            meeting.lead(write)
        if self._project.save_on_each_node and strategy.local_rank == 0 and not strategy.is_global_zero:
            write()

    def _save_parts(self, parts: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
        if "core" in parts:
            raise ConfigurationError("save: the name 'core' is reserved for torch-hal's own part. Use another name.")
        meeting = Meeting(self._life.live(), "save")
        if meeting.is_late:
            return
        meeting.save(
            lambda: {**{name: self.state_of(part) for name, part in parts.items()}, "core": self.facts_of(parts)},
            path,
        )

    def load(self, path: str | os.PathLike[str], state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """See :meth:`core.Runtime.load`."""
        if isinstance(path, Mapping):
            raise WrongTypeError(
                f"load: path is a mapping with {quoted(list(map(str, path)))}. The path comes first: load(path, state)."
            )
        check_path("load: path", path, optional=False)
        if state is not None and not isinstance(state, Mapping):
            raise WrongTypeError(
                f"state: must be a mapping of names to objects, not an object of type {type(state).__name__}. Give it "
                "the name that it was saved under, such as {'model': model}."
            )
        strategy = self._life.live()
        parts = [name for name, part in (state or {}).items() if isinstance(part, nn.Module | Optimizer)]
        checkpoint = read_parts(strategy, lambda: load_any(lambda: strategy.load_checkpoint(path), path), parts)
        if is_foreign(checkpoint):
            for name, obj in (state or {}).items():
                if isinstance(obj, nn.Module) and isinstance(checkpoint.get(name), dict):
                    checkpoint[name] = weights_for(own_module(obj, strategy), checkpoint[name])
        facts = checkpoint.pop("core", {})
        loads = {name: self.load_of(name, value, facts) for name, value in (state or {}).items()}
        return restore(checkpoint, loads, path)

    def facts_of(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """The checkpoint's part ``"core"``, if it has these parts."""
        classes = {name: class_of(part) for name, part in parts.items() if isinstance(part, Optimizer)}
        return {**run_facts(self._life.plan), "optimizer_classes": classes}

    def state_of(self, value: Any) -> Any:
        """What a checkpoint holds of ``value``."""
        if isinstance(value, nn.Module):
            return self._life.live().module_state(own_module(value, self._life.strategy))
        if isinstance(value, Optimizer):
            return self._life.live().optimizer_state(_own_optimizer(value))
        return value.state_dict() if hasattr(value, "state_dict") else value

    def load_of(self, name: str, value: Any, facts: Mapping[str, Any]) -> Callable[[Any], Any]:
        """The function that loads into ``value`` what a checkpoint holds of it.

        Args:
            name: The part's name in the checkpoint.
            value: The object.
            facts: The checkpoint's part ``"core"``, or empty.

        Raises:
            WrongTypeError: It has no ``load_state_dict``.
        """
        if isinstance(value, nn.Module):
            strategy, own = self._life.live(), own_module(value, self._life.strategy)
            return lambda saved: strategy.load_module_state(own, compiled_alike(own, saved))
        if isinstance(value, Optimizer):
            optimizer = _own_optimizer(value)
            saved_class = facts.get("optimizer_classes", {}).get(name)
            return lambda state: load_optimizer(
                self._life.live(), optimizer, state, self._life.plan, facts, saved_class
            )
        load: Callable[[Any], Any] | None = getattr(value, "load_state_dict", None)
        if not callable(load):
            raise WrongTypeError(
                f"state[{name!r}]: an object of type {type(value).__name__} has no load_state_dict. Without it in "
                "`state`, load returns its part."
            )
        return load

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """See :meth:`core.Runtime.get_state_dict`."""
        if not isinstance(model, nn.Module):
            raise WrongTypeError(f"get_state_dict: model is an object of type {type(model).__name__}. Pass a module.")
        strategy = self._life.live()
        own = own_module(model, strategy)
        if strategy.saving_is_collective:
            Meeting(strategy, "get_state_dict")
            return strategy.whole_module_state(own)
        return strategy.whole_module_state(own) if unwrap else model.state_dict()

    def save_model(
        self,
        model: nn.Module,
        save_directory: str | os.PathLike[str],
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """See :meth:`core.Runtime.save_model`."""
        if not isinstance(model, nn.Module):
            raise WrongTypeError(f"save_model: model is an object of type {type(model).__name__}. Pass a module.")
        check_path("save_model: save_directory", save_directory, optional=False)
        size = parse_size(max_shard_size)
        strategy = self._life.live()
        meeting = Meeting(strategy, "save_model")
        if meeting.is_late:
            return
        state = strategy.whole_module_state(own_module(model, strategy))
        meeting.lead(lambda: save_in_parts(uncompiled_names(state), save_directory, size, safe_serialization))


def _own_optimizer(optimizer: Optimizer) -> Optimizer:
    return unwrap_optimizer(optimizer) if isinstance(optimizer, PreparedOptimizer) else optimizer


def _suffix(path: Any) -> str:
    return PurePath(path).suffix if isinstance(path, str | os.PathLike) else ""


def _save_file(obj: Any, f: str | os.PathLike[str], safe_serialization: bool) -> None:
    if safe_serialization or _suffix(f) == ".safetensors":
        save_tensors(obj, f)
        return
    with committed_file(f) as file:
        write_shard(obj, file, f)
