"""Writing and reading checkpoints of a loop's own parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import PurePath
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...checkpoints import committed_file
from ...checkpoints.torch_io import write_shard
from ...errors import ConfigurationError, WrongTypeError, quoted
from ...hints.argument_checks import check_path
from ...strategies.partial_save import Meeting
from ...strategies.wrapping.optimizer_wrapper import unwrap_optimizer
from ..prepare.optimizers import PreparedOptimizer
from ..prepare.preparing import Preparing
from .model_files import save_tensors
from .parts import restore, run_facts

__all__ = ["Checkpointing"]

FILE_SUFFIXES = (".bin", ".pkl", ".pt", ".pth", ".safetensors")
"""Paths that end in one of these name a single file, not a checkpoint."""


class Checkpointing(Preparing):
    """The part of :class:`core.Runtime` that writes and reads what it is given."""

    def save(self, obj: Any, f: str | os.PathLike[str], safe_serialization: bool = False) -> None:
        """Write a checkpoint, or an object into one file; process 0 writes, and may be the only one that calls this.

        A mapping becomes a committed checkpoint with these parts, which :meth:`load` reads: tensors, plain values,
        modules, optimizers, schedulers and other objects with a ``state_dict``, which is what is written. Where the
        strategy divides the state among the processes, every process has to call this.

        Where ``f`` ends in ``.pt``, ``.pth``, ``.bin``, ``.pkl`` or ``.safetensors``, and for any other object, it is
        one file, committed by a rename, as :func:`torch.save` writes it.

        Args:
            obj: A mapping of parts by name, or any object.
            f: The path of the checkpoint or of the file.
            safe_serialization: Write ``obj``, a mapping of names to tensors, as a safetensors file.

        Raises:
            WrongTypeError: ``obj`` is a module, an optimizer or a scheduler, or not a mapping of tensors although
                ``safe_serialization`` is set; or ``f`` is not a path.
            ConfigurationError: A part is named ``core``, a name that torch-hal uses for facts about the run, or
                safetensors is not installed.
            CheckpointError: It could not be written; or processes that are needed did not call this.
        """
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
        meeting = Meeting(self._live_strategy(), "save", needs_all=False)
        if not meeting.is_late:
            meeting.lead(partial(_save_file, obj, f, safe_serialization))

    def _save_parts(self, parts: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
        if "core" in parts:
            raise ConfigurationError("save: the name 'core' is reserved for torch-hal's own part. Use another name.")
        meeting = Meeting(self._live_strategy(), "save")
        if meeting.is_late:
            return
        meeting.save(
            lambda: {**{name: self._state_of(part) for name, part in parts.items()}, "core": run_facts(self.plan)}, path
        )

    def load(self, path: str | os.PathLike[str], state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Read a checkpoint that :meth:`save` has written; every process calls it.

        Args:
            path: The checkpoint.
            state: The objects to load, by the name of their part. Each needs a ``load_state_dict``.

        Returns:
            The other parts of the checkpoint, by name, with tensors on the CPU.

        Raises:
            WrongTypeError: ``path`` is not a path, ``state`` is not a mapping, or an object in it has no
                ``load_state_dict``.
            CheckpointError: The checkpoint is absent, uncommitted or damaged, or a part is missing or could not be
                loaded.
        """
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
        loads = {name: self._load_of(f"state[{name!r}]", value) for name, value in (state or {}).items()}
        checkpoint = self._live_strategy().load_checkpoint(path)
        checkpoint.pop("core", None)
        return restore(checkpoint, loads, path)

    def _state_of(self, value: Any) -> Any:
        if isinstance(value, nn.Module):
            return self._live_strategy().module_state(self.unwrap_model(value))
        if isinstance(value, Optimizer):
            return self._live_strategy().optimizer_state(_own_optimizer(value))
        return value.state_dict() if hasattr(value, "state_dict") else value

    def _load_of(self, name: str, value: Any) -> Callable[[Any], Any]:
        if isinstance(value, nn.Module):
            return partial(self._live_strategy().load_module_state, self.unwrap_model(value))
        if isinstance(value, Optimizer):
            return partial(self._live_strategy().load_optimizer_state, _own_optimizer(value))
        load: Callable[[Any], Any] | None = getattr(value, "load_state_dict", None)
        if not callable(load):
            raise WrongTypeError(
                f"{name}: an object of type {type(value).__name__} has no load_state_dict. Without it in `state`, load "
                "returns its part."
            )
        return load


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
