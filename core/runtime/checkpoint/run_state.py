"""The whole state of a run: saved after any step, and continued in new processes as if nothing had been."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ...checkpoints import (
    FileRecord,
    Manifest,
    absolute,
    committed_directory,
    is_in,
    latest,
    parent,
    read_manifest,
    store_of,
)
from ...checkpoints.agreement import check_shared, run_on_each_rank
from ...checkpoints.foreign import compiled_alike
from ...checkpoints.manifest import RUN_STATE, NotOursError
from ...data import PreparedLoader
from ...data.rank_comparison import facts_of_state
from ...errors import CheckpointError, ConfigurationError, WrongTypeError
from ...hints.argument_checks import check_path, is_url
from ...strategies.own_buffers import load_own_buffers, own_buffers
from ...strategies.partial_save import Meeting
from ...strategies.time_limits import STATES_SECONDS
from ..accumulation import OptimizerGate, Window
from ..checks import check_hook
from ..lifecycle import Life
from ..prepare.prepared import PreparedObjects
from ..prepare.wrappers import AccumulatingOptimizer, own_module, strategy_module
from ..process_control import Agreement
from .accelerate_state import is_accelerates, load_accelerate_state
from .process_state import ABSENT, ProcessStates, load_errors, read_gradients, read_parts, run_facts, write_gradients
from .project import ProjectConfiguration, next_checkpoint, remove_old_checkpoints
from .saving import Checkpointing

logger = logging.getLogger(__name__)

STATE = "state"
"""The part of the checkpoint's directory that the CheckpointIO writes."""

SaveHook = Callable[[list[nn.Module], list[Any], str], object]
LoadHook = Callable[[list[nn.Module], str], object]


class StateSaving:
    """Saves and loads the state of the whole run.

    Args:
        life: Of the run.
        prepared: What the run has prepared.
        window: The micro-batches between two steps.
        agreement: What compares the calls of the processes.
        checkpointing: Says what a checkpoint holds of an object.
        project: Where the files of the project go.
    """

    def __init__(
        self,
        life: Life,
        prepared: PreparedObjects,
        window: Window,
        agreement: Agreement,
        checkpointing: Checkpointing,
        project: ProjectConfiguration,
    ) -> None:
        self._life, self._prepared, self._window, self._checkpointing = life, prepared, window, checkpointing
        self._agreement = agreement
        self.project = project
        self._registered: list[Any] = []
        self._save_hooks: OrderedDict[int, SaveHook] = OrderedDict()
        self._load_hooks: OrderedDict[int, LoadHook] = OrderedDict()

    # -- registering -----------------------------------------------------------------------------------------------

    def register_for_checkpointing(self, *objects: Any) -> None:
        """See :meth:`core.Runtime.register_for_checkpointing`."""
        if not objects:
            raise ConfigurationError(
                "register_for_checkpointing: got no object. Pass those that have a state: "
                "register_for_checkpointing(obj, ...)."
            )
        wanted = ("state_dict", "load_state_dict")
        bad = [
            f"{'class ' * isinstance(obj, type)}{obj.__name__ if isinstance(obj, type) else type(obj).__name__} "
            f"(argument {number})"
            for number, obj in enumerate(objects)
            if isinstance(obj, type) or not all(callable(getattr(obj, name, None)) for name in wanted)
        ]
        if bad:
            raise WrongTypeError(
                f"register_for_checkpointing: no state_dict or no load_state_dict in {', '.join(bad)}. Give objects "
                "that have both methods."
            )
        for obj in objects:
            if self._prepared.has(obj):
                raise ConfigurationError(
                    f"register_for_checkpointing: the {type(obj).__name__} is prepared, so save_state writes it "
                    "anyway. Leave it out."
                )
        for obj in objects:
            if all(obj is not known for known in self._registered):
                self._registered.append(obj)

    def register_save_state_pre_hook(self, hook: SaveHook) -> RemovableHandle:
        """See :meth:`core.Runtime.register_save_state_pre_hook`."""
        check_hook("register_save_state_pre_hook", hook, "models", "weights", "output_dir")
        handle = RemovableHandle(self._save_hooks)
        self._save_hooks[handle.id] = hook
        return handle

    def register_load_state_pre_hook(self, hook: LoadHook) -> RemovableHandle:
        """See :meth:`core.Runtime.register_load_state_pre_hook`."""
        check_hook("register_load_state_pre_hook", hook, "models", "input_dir")
        handle = RemovableHandle(self._load_hooks)
        self._load_hooks[handle.id] = hook
        return handle

    # -- saving ----------------------------------------------------------------------------------------------------

    def save_state(self, output_dir: str | os.PathLike[str] | None = None, safe_serialization: bool = True) -> str:
        """See :meth:`core.Runtime.save_state`."""
        if not safe_serialization:
            raise ConfigurationError(
                "safe_serialization=False: save_state always writes data that is read without running code. Omit it."
            )
        check_path("save_state: output_dir", output_dir)
        strategy, project = self._life.live(), self.project
        meeting = Meeting(strategy, "save_state", patience=STATES_SECONDS)
        if meeting.is_late:
            logger.warning(ABSENT, "save_state", f"{strategy.global_rank} (too late)")
            return os.fspath(output_dir or project.checkpoints or "")
        path = meeting.lead(lambda: absolute(output_dir or next_checkpoint(project)))
        writer = strategy.global_rank - strategy.local_rank if project.save_on_each_node else 0
        if project.save_on_each_node and meeting.needs_all:
            raise ConfigurationError(
                f"save_on_each_node=True: strategy {strategy.name!r} with {type(strategy.checkpoint_io).__name__} "
                "writes one checkpoint from all processes, into a file system that they share. Set it to False."
            )
        if project.save_on_each_node and is_url(path):
            raise ConfigurationError(
                f"save_on_each_node=True, output_dir={path!r}: all machines would write to one URL. Set it to False."
            )
        is_writer = strategy.global_rank == writer
        told = [one for one in meeting.gather((self._window.has_unused, list(map(_facts, self._registered)))) if one]
        keeps_gradients = any(has_unused for has_unused, _ in told)
        by_object = enumerate(zip(*(facts for _, facts in told), strict=False))
        apart = [number for number, facts in by_object if any(one != facts[0] for one in facts)]
        window, gates = self._window.state_dict(), [gate.state_dict() for gate in self._gates()]
        loaders = self._prepared.of("loaders")
        buffers = [own_buffers(strategy, model) for model, _ in self._models()]
        more: dict[str, Any] = {"window": window, "gates": gates, "buffers": buffers}
        with ExitStack() as stack:
            folders = meeting.run(lambda: str(stack.enter_context(committed_directory(path))) if is_writer else "")
            staged = Path(folders[writer] or "")
            weights = self._run_save_hooks(meeting, staged)
            # After the hooks: they may draw random numbers, such as one that makes a model to write it.
            more["objects"] = {number: self._registered[number].state_dict() for number in apart}
            to_all = project.save_on_each_node
            states = ProcessStates.gather(meeting, strategy, loaders, keeps_gradients, to_all, **more)
            if keeps_gradients or meeting.needs_all:
                meeting.run(lambda: check_shared(staged))
            if keeps_gradients:
                meeting.run(lambda: write_gradients(self._models(), staged, strategy))
            if project.save_on_each_node:
                content = self._content(weights, states)
                meeting.run(lambda: strategy.checkpoint_io.save_checkpoint(content, staged / STATE) if is_writer else 0)
            else:
                meeting.save(lambda: self._content(weights, states), staged / STATE)
            meeting.run(strategy.checkpoint_io.wait)
            meeting.run(lambda: self._commit(staged, stack) if is_writer else None)
        if project.checkpoints is not None and is_in(path, project.checkpoints):
            project.iteration = max(project.iteration, _number(path) + 1)
            if project.total_limit is not None and is_writer and output_dir is None:
                remove_old_checkpoints(parent(path), project.total_limit)
        if strategy.is_global_zero:
            logger.info("save_state: %s", path)
        return path

    def _run_save_hooks(self, meeting: Meeting, staged: Path) -> list[Any]:
        """What is left of the models' states after the hooks."""
        models: list[nn.Module] = self._prepared.of("models")
        weights = [self._checkpointing.state_of(model) for model in models]

        def run_hooks() -> None:
            for hook in list(self._save_hooks.values()):
                hook(models, weights, str(staged))

        if self._save_hooks:
            meeting.run(run_hooks)
        return weights

    def _content(self, weights: list[Any], states: ProcessStates) -> dict[str, Any]:
        optimizers = self._prepared.of("optimizers")
        parts: dict[str, list[Any]] = {
            "model": weights,
            "optimizer": [self._checkpointing.state_of(each) for each in optimizers],
            "scheduler": [self._checkpointing.state_of(each) for each in self._prepared.of("schedulers")],
            "object": [self._checkpointing.state_of(each) for each in self._registered],
        }
        # Not nested: an engine that writes a part by itself finds it among the values of the checkpoint.
        content = {f"{name} {number}": state for name, found in parts.items() for number, state in enumerate(found)}
        return {
            **content,
            "core": self._checkpointing.facts_of({f"optimizer {n}": each for n, each in enumerate(optimizers)}),
            "counts": {name: len(found) for name, found in (*parts.items(), ("loader", self._prepared.of("loaders")))},
            "processes": states.by_rank,
        }

    def _commit(self, staged: Path, stack: ExitStack) -> None:
        files: dict[str, FileRecord] = {}
        if (staged / STATE / "manifest.json").is_file():  # its records are known: do not read large files again
            known = Manifest.read(staged / STATE).files
            files = {f"{STATE}/{name}": record for name, record in known.items()}
        for file in sorted(staged.rglob("*")):
            name = file.relative_to(staged).as_posix()
            if file.is_file() and name not in files:
                files[name] = FileRecord.of(file)
        Manifest.describe(run_facts(self._life.plan), files, RUN_STATE).write(staged)
        stack.close()

    @property
    def loaders(self) -> list[PreparedLoader]:
        """The loaders whose positions are in a checkpoint."""
        return self._prepared.of("loaders")

    # -- loading ---------------------------------------------------------------------------------------------------

    def load_state(
        self,
        input_dir: str | os.PathLike[str] | None = None,
        load_kwargs: None = None,
        reshard: bool = False,
        strict: bool = True,
    ) -> None:
        """See :meth:`core.Runtime.load_state`."""
        if load_kwargs is not None:
            raise ConfigurationError(f"load_kwargs={load_kwargs!r}: must be None; nothing can be set about loading.")
        check_path("load_state: input_dir", input_dir)
        strategy = self._life.live()
        self._agreement.agree("load_state")
        path, manifest = self._find(input_dir)
        if manifest is None:
            self._load_accelerates(Path(path), strict)
            return
        if manifest.checkpoint_io != RUN_STATE:
            raise CheckpointError(
                f"input_dir={os.fspath(path)!r}: holds no state of a run. Use load for what save has written, and "
                "Trainer.fit(ckpt_path=...) for a Trainer's checkpoint."
            )
        with store_of(path).copied_together(strategy.all_gather_object) as directory:
            self._load_from(directory, path, reshard, strict)
        if strategy.is_global_zero:
            logger.info("load_state: %s", path)

    def _load_from(self, directory: Path, path: str, reshard: bool, strict: bool) -> None:
        """Load everything from ``directory``; ``path`` is what the user knows it by."""
        strategy, manifest = self._life.strategy, Manifest.read(directory)
        manifest.verify(directory, [name for name in manifest.files if not name.startswith(f"{STATE}/")])
        models = self._models_after_hooks(directory)
        objects = {
            "model": models,
            "optimizer": self._prepared.of("optimizers"),
            "scheduler": self._prepared.of("schedulers"),
            "object": self._registered,
            "loader": self._prepared.of("loaders"),
        }
        parts = [f"{name} {number}" for name in ("model", "optimizer") for number in range(len(objects[name]))]
        checkpoint = read_parts(strategy, lambda: strategy.load_checkpoint(directory / STATE), parts)
        states = ProcessStates.read(checkpoint["processes"], strategy, path, reshard)
        _check_counts(checkpoint["counts"], {name: len(found) for name, found in objects.items()}, path)
        own = states.own or states.first
        if len(states.by_rank) == strategy.world_size:
            checkpoint |= {f"object {number}": state for number, state in own["objects"].items()}
        for name in ("model", "optimizer", "scheduler", "object"):
            for number, obj in enumerate(objects[name]):
                with load_errors(f"{name} {number}", path):
                    self._load(f"{name} {number}", obj, checkpoint[f"{name} {number}"], strict, checkpoint["core"])
        states.restore_precision(path)
        for (model, _), buffers in zip(self._models(), own["buffers"], strict=True):
            load_own_buffers(model, buffers)
        self._window.load_state_dict(own["window"], strategy.root_device)
        for gate, state in zip(self._gates(), own["gates"], strict=False):
            gate.load_state_dict(state)
        if states.is_accumulating:
            read_gradients(self._models(), directory, manifest, strategy)
        project = self.project
        if project.checkpoints is not None and is_in(path, project.checkpoints):
            project.iteration = max(project.iteration, _number(path) + 1)
        states.restore_loaders(objects["loader"], path, knows_epoch=any(map(_has_epoch, self._registered)))
        states.restore_generators()

    def _load_accelerates(self, directory: Path, strict: bool) -> None:
        objects = {
            "model": self._models_after_hooks(directory),
            "optimizer": self._prepared.of("optimizers"),
            "scheduler": self._prepared.of("schedulers"),
            "object": self._registered,
        }
        load = partial(self._load, "state", strict=strict, facts={})
        load_accelerate_state(directory, self._life.strategy, objects, load, self._window.num_steps)

    def _models_after_hooks(self, directory: Path) -> list[nn.Module]:
        """The models that are left to load after the hooks."""
        models: list[nn.Module] = list(self._prepared.of("models"))
        for hook in list(self._load_hooks.values()):
            hook(models, str(directory))
        return models

    def _find(self, input_dir: str | os.PathLike[str] | None) -> tuple[str, Manifest | None]:
        """The checkpoint to load, which every process finds; all of them raise if some do not.

        Without a manifest, it is one of Accelerate's.
        """
        strategy, project = self._life.strategy, self.project
        leads = strategy.is_global_zero and input_dir is None
        found = run_on_each_rank(lambda: _found(project) if leads else None, strategy.all_gather_object)[0]
        path = os.fspath(found or input_dir or "")
        manifest: Manifest | None = None
        fault: CheckpointError | None = None
        try:
            manifest = read_manifest(path)
        except CheckpointError as error:
            fault = error
        without = [rank for rank, lacks in enumerate(strategy.all_gather_object(manifest is None)) if lacks]
        if without and len(without) < strategy.world_size:
            raise CheckpointError(
                f"load_state: rank(s) {', '.join(map(str, without))} of {strategy.world_size} find no complete "
                f"checkpoint at {os.fspath(path)!r}, and the others do. Use a path in a file system that all processes "
                "share, or save with ProjectConfiguration(save_on_each_node=True)."
            ) from fault
        if manifest is None and not (isinstance(fault, NotOursError) and is_accelerates(path)):
            assert fault is not None
            raise fault
        return path, manifest

    def _gates(self) -> list[OptimizerGate]:
        optimizers = self._prepared.of("optimizers")
        return [each._core_gate for each in optimizers if isinstance(each, AccumulatingOptimizer)]

    def _models(self) -> list[tuple[nn.Module, nn.Module]]:
        return [
            (own_module(model, self._life.strategy), strategy_module(model)) for model in self._prepared.of("models")
        ]

    def _load(self, name: str, obj: Any, state: Any, strict: bool, facts: Mapping[str, Any]) -> None:
        load = self._checkpointing.load_of(name, obj, facts)
        if strict or not isinstance(obj, nn.Module):
            load(state)
            return
        own = own_module(obj, self._life.strategy)
        known, state = own.state_dict(), compiled_alike(own, state)
        load({**known, **{name: value for name, value in state.items() if name in known}})


def _found(project: ProjectConfiguration) -> str:
    """The newest committed checkpoint of the project, which process 0 determines for all."""
    folder = project.checkpoints
    if folder is None:
        raise ConfigurationError(
            "load_state: input_dir was not given, and there is no project_dir. Give a path, or create the Runtime with "
            "project_dir=..."
        )
    found = latest(folder)
    if found is None:
        raise CheckpointError(f"load_state: there is no committed checkpoint in {os.fspath(folder)!r}.")
    return os.fspath(found)


def _check_counts(saved: Mapping[str, int], present: Mapping[str, int], path: str) -> None:
    differ = [name for name, number in saved.items() if present[name] != number]
    if differ:
        raise CheckpointError(
            f"input_dir={os.fspath(path)!r}: saved with other objects than this run has: "
            + ", ".join(f"{saved[name]} {name}(s) instead of {present[name]}" for name in differ)
            + ". Prepare and register the same objects in the same order before load_state, and keep them: objects "
            "that nothing refers to any more do not count."
        )


def _number(path: str) -> int:
    number = path.rpartition("_")[2]
    return int(number) if number.isdecimal() else -1


def _has_epoch(registered: Any) -> bool:
    """Whether the state of a registered object tells the epoch of the script; a scheduler's does not."""
    state = registered.state_dict()
    return isinstance(state, Mapping) and any("epoch" in str(name) and name != "last_epoch" for name in state)


def _facts(registered: Any) -> list[int]:
    """What distinguishes the state of an object from another process's; nothing of what the strategy knows."""
    return [] if isinstance(registered, nn.Module | Optimizer) else facts_of_state(registered.state_dict())
