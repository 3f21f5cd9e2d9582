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
from ...checkpoints.foreign import is_foreign, load_any, weights_for
from ...checkpoints.torch_io import write_shard
from ...errors import ConfigurationError, WrongTypeError, quoted
from ...hints.argument_checks import check_path
from ...strategies.partial_save import Meeting
from ...strategies.wrapping import unwrap_optimizer
from ..lifecycle import Life
from ..prepare.modules import own_module
from ..prepare.optimizers import PreparedOptimizer
from .model_files import parse_size, save_in_parts, save_tensors
from .parts import restore, run_facts
from .project import ProjectConfiguration

__all__ = ["Checkpointing"]

FILE_SUFFIXES = (".bin", ".pkl", ".pt", ".pth", ".safetensors")
"""Paths that end in one of these name a single file, not a checkpoint."""


class Checkpointing:
    """What writes and reads the parts of a loop that it is given.

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
            lambda: {**{name: self.state_of(part) for name, part in parts.items()}, "core": run_facts(self._life.plan)},
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
        loads = {name: self.load_of(f"state[{name!r}]", value) for name, value in (state or {}).items()}
        strategy = self._life.live()
        checkpoint = load_any(lambda: strategy.load_checkpoint(path), path)
        if is_foreign(checkpoint):
            for name, obj in (state or {}).items():
                if isinstance(obj, nn.Module) and isinstance(checkpoint.get(name), dict):
                    checkpoint[name] = weights_for(own_module(obj, strategy), checkpoint[name])
        checkpoint.pop("core", None)
        return restore(checkpoint, loads, path)

    def state_of(self, value: Any) -> Any:
        """What a checkpoint holds of ``value``."""
        if isinstance(value, nn.Module):
            return self._life.live().module_state(own_module(value, self._life.strategy))
        if isinstance(value, Optimizer):
            return self._life.live().optimizer_state(_own_optimizer(value))
        return value.state_dict() if hasattr(value, "state_dict") else value

    def load_of(self, name: str, value: Any) -> Callable[[Any], Any]:
        """The function that loads into ``value`` what a checkpoint holds of it.

        Args:
            name: What it is called in messages.
            value: The object.

        Raises:
            WrongTypeError: It has no ``load_state_dict``.
        """
        if isinstance(value, nn.Module):
            return partial(self._life.live().load_module_state, own_module(value, self._life.strategy))
        if isinstance(value, Optimizer):
            return partial(self._life.live().load_optimizer_state, _own_optimizer(value))
        load: Callable[[Any], Any] | None = getattr(value, "load_state_dict", None)
        if not callable(load):
            raise WrongTypeError(
                f"{name}: an object of type {type(value).__name__} has no load_state_dict. Without it in `state`, load "
                "returns its part."
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
        meeting.lead(lambda: save_in_parts(state, save_directory, size, safe_serialization))


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
