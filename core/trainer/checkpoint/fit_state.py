"""The state of a fit in a checkpoint, and how it is loaded.

On as many processes as wrote it, the resumed run is bit for bit the uninterrupted one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import attrs
from torch import nn

from ...callbacks.base import Callback
from ...callbacks.checkpoint.paths import newest_checkpoint, run_folders
from ...checkpoints import read_manifest
from ...checkpoints.agreement import decide_on_rank_zero
from ...checkpoints.foreign import LIGHTNING, is_foreign, is_lightnings, load_any, weights_for
from ...data.combined import step_back
from ...data.rank_comparison import facts_of_state
from ...errors import CheckpointError, nearest, quoted
from ...runtime.checkpoint.process_state import (
    ABSENT,
    ProcessStates,
    class_of,
    load_errors,
    load_open_state,
    load_optimizer,
    open_state,
    own_state,
    read_parts,
    run_facts,
)
from ...strategies.base import Strategy
from ...strategies.own_buffers import load_own_buffers, own_buffers
from ...strategies.partial_save import Meeting
from ...strategies.time_limits import STATES_SECONDS
from ...utilities.torch_private import mark_stepped
from ..metrics.metric import load_metric_states, metric_states
from ..metrics.stage_metrics import StageMetrics
from ..module.datamodule import DataModule
from ..module.hparams import hyperparameters_of
from ..module.module import Module
from ..run_context import RunContext, parts_in_evaluation
from ..step.configure_optimizers import Optimization
from ..step.optimizer_controls import Controls
from .lightning_checkpoint import datamodule_in, resumable

if TYPE_CHECKING:
    from ..trainer import Trainer

logger = logging.getLogger(__name__)

PARTS = ("progress", "state_dict", "optimizer_states", "lr_schedulers", "callbacks", "metrics", "processes")
"""The parts of a Trainer's checkpoint that a resumed fit needs."""

REPEATED = "%r: within batch %d: a resumed run repeats it, and may add its gradients again. Save in on_train_batch_end"

KEYS_OF_LIGHTNING = "2.0.0"
"""The version of Lightning that the keys ``state_dict``, ``optimizer_states``, ``lr_schedulers`` and so on follow."""


@attrs.frozen(kw_only=True)
class FitState:
    """Everything of a fit that goes into a checkpoint."""

    context: RunContext
    optimization: Optimization
    loaders: Sequence[Any]
    """The loaders of training and, if there is one, of validation, as they were prepared."""

    model: nn.Module
    """The module that the loop calls, as the strategy set it up."""
    metrics: StageMetrics
    """What was logged in the running epoch of training."""
    controls: Controls | None
    """Knows which gradients wait for a step in manual optimization; ``None`` after the end of the fit."""

    def save(
        self, path: str | os.PathLike[str], weights_only: bool = False, storage_options: Any = None, fails: bool = False
    ) -> None:
        """Write a checkpoint; every process calls it, or process 0 where each has the whole state.

        Args:
            path: Where to.
            weights_only: Write only the module's state and the position.
            storage_options: Passed to the CheckpointIO.
            fails: Whether an error ends the run.

        Raises:
            CheckpointError: It could not be written, or a process that is needed did not call this.
        """
        context, strategy, progress = self.context, self.context.runtime.strategy, self.context.progress
        meeting = Meeting(strategy, "save_checkpoint", patience=STATES_SECONDS, is_ending=fails)
        if meeting.is_late:
            logger.warning(ABSENT, "save_checkpoint", f"{strategy.global_rank} (too late)")
            return
        checkpoint = fit_facts(context) | hyperparameters_of(context.module, context.datamodule)
        first = progress.first_to_repeat(context.settings.accumulate_grad_batches)
        if first < progress.batch and self.loaders[0].state_dict().get("loader", self) is not None:
            first = progress.batch  # several loaders as one, and one with its own state, go back by one batch only
        if first < progress.batch:
            checkpoint["progress"] |= {"batch": first, "validated": min(progress.validated, first)}
        if not weights_only:
            checkpoint |= self.training_state()
        checkpoint["state_dict"] = strategy.module_state(context.module)
        for hook in context.hooks.bind("on_save_checkpoint"):
            hook(checkpoint)
        if not weights_only:  # after the hooks, which may draw random numbers
            own = {**self._own(), "callbacks": _differing(meeting, checkpoint["callbacks"])}
            has_open = self.controls is not None and self.controls.has_open_gradients
            is_open = has_open or (progress.is_accumulating and first == progress.batch)
            if is_open:
                if progress.computed == progress.batch:
                    logger.warning(REPEATED, os.fspath(path), progress.batch)
                own["open"] = open_state([(context.module, self.model)], strategy)
                own["has_unreduced"] = self.controls is not None and self.controls.has_unreduced
            processes = ProcessStates.gather(meeting, strategy, self.loaders, is_open, **own)
            for state in processes.by_rank:
                if state is not None and progress.phase == "batches":
                    step_back(self.loaders[0], state["loaders"][0], first)
            checkpoint["processes"] = processes.by_rank
        meeting.save(lambda: checkpoint, path, storage_options)
        if strategy.is_global_zero:
            logger.info("checkpoint of epoch %d, step %d: %s", progress.epoch, progress.step, os.fspath(path))

    def process_states(self) -> list[dict[str, Any]]:
        """At the end of the fit, what is each process's own, by rank; every process calls it."""
        strategy = self.context.runtime.strategy
        return strategy.all_gather_object(own_state(strategy, self.loaders, **self._own()))

    def _own(self) -> dict[str, Any]:
        context, begun = self.context, self.context.pass_begun
        before: dict[str, Any] = {"metric_objects": metric_states(context.module)}
        if begun is not None:
            before = {"rng": begun["rng"], "loaders": [self.loaders[0].state_dict(), *begun["loaders"]]}
            before["metric_objects"] = begun["metric_objects"]
        required = self.controls.requires_grad if self.controls is not None else attrgetter("requires_grad")
        return {
            **before,
            "frozen": [name for name, parameter in context.module.named_parameters() if not required(parameter)],
            "metrics": self.metrics.state_dict() if context.progress.is_in_epoch else [],
            "evaluating": parts_in_evaluation(context.module) if context.evaluating is None else context.evaluating,
            "buffers": own_buffers(context.runtime.strategy, context.module),
        }

    def training_state(self) -> dict[str, Any]:
        """What training needs, and evaluation does not, that is the same in all processes."""
        context, strategy, begun = self.context, self.context.runtime.strategy, self.context.pass_begun
        state: dict[str, Any] = {
            "optimizer_states": [strategy.optimizer_state(optimizer) for optimizer in self.optimization.optimizers],
            "optimizer_classes": [class_of(optimizer) for optimizer in self.optimization.optimizers],
            "lr_schedulers": [schedule.scheduler.state_dict() for schedule in self.optimization.schedules],
            "callbacks": callback_states(context.hooks.callbacks),
            "metrics": context.metric_log.state_dict(),
            "loggers": context.metric_log.loggers_state() if strategy.is_global_zero else [],
        }
        if begun is not None:
            state["metrics"] |= {"evaluated": begun["evaluated"]}
            state["loggers"] = begun["loggers"]
        if context.datamodule is None:
            return state
        kind = type(context.datamodule).__qualname__
        return {**state, "datamodule": context.datamodule.state_dict(), "datamodule_class": kind}

    def load(self, checkpoint: dict[str, Any], path: str) -> ProcessStates:
        """Load what :func:`read_for_fit` has read from ``path``; every process calls it.

        Returns:
            What :meth:`restore_process` takes, immediately before the next batch.

        Raises:
            CheckpointError: The checkpoint is not a Trainer's, from another module, optimizer or scheduler; or from
                another number of processes, if it was saved within an accumulation or the strategy can load only its
                own number.
        """
        context, strategy = self.context, self.context.runtime.strategy
        if strategy.is_global_zero:
            logger.info("resuming from %s", path)
        if is_lightnings(checkpoint):
            keyed, schedules = list(_keyed(context.hooks.callbacks)), self.optimization.schedules
            checkpoint = resumable(checkpoint, path, context, self.loaders, schedules, keyed)
        _check_parts(checkpoint, path, *PARTS)
        optimizers = self.optimization.optimizers
        _check_number(checkpoint, len(optimizers), path)
        states = ProcessStates.read(checkpoint["processes"], strategy, path, reshard=True)
        if len(states.by_rank) == strategy.world_size and states.own is not None:
            checkpoint = {**checkpoint, "callbacks": checkpoint["callbacks"] | states.own.get("callbacks", {})}
        if len(states.by_rank) != strategy.world_size and strategy.is_global_zero:
            logger.warning(
                "ckpt_path=%r: written by %d process(es), but this run has %d. Each sample that is left of the epoch "
                "is still seen once, but in other batches and with other random numbers: the results are not bit for "
                "bit equal to an uninterrupted run. For equal bits, resume on %d process(es)",
                path,
                len(states.by_rank),
                strategy.world_size,
                len(states.by_rank),
            )
        further = [key for callback in context.hooks.callbacks for key in callback.further_weights if key in checkpoint]
        _call_load_hooks(context.hooks.bind_module("on_load_checkpoint"), checkpoint, further)
        _load_module(strategy, context.module, checkpoint, path)
        for key, callback in _keyed(context.hooks.callbacks):
            if key in checkpoint["callbacks"]:
                callback.before_optimizers_load(context.module, optimizers, checkpoint["callbacks"][key])
        with load_errors("optimizer_states", path):
            facts, states_of = checkpoint.get("core", {}), checkpoint["optimizer_states"]
            classes = checkpoint.get("optimizer_classes", [None] * len(states_of))
            for optimizer, state, saved in zip(optimizers, states_of, classes, strict=True):
                load_optimizer(strategy, optimizer, state, context.runtime.plan, facts, saved)
        with load_errors("lr_schedulers", path):
            for schedule, schedule_state in zip(self.optimization.schedules, checkpoint["lr_schedulers"], strict=True):
                schedule.scheduler.load_state_dict(schedule_state)
        states.restore_precision(path)
        self._load_callbacks(checkpoint["callbacks"], path)
        context.progress.load_state_dict(checkpoint["progress"])
        if context.progress.step:
            for schedule in self.optimization.schedules:
                scheduled: Any = getattr(schedule.scheduler, "optimizer", None)
                if scheduled is not None:
                    mark_stepped(scheduled)  # in the run that wrote the checkpoint
        context.metric_log.load_state_dict(checkpoint["metrics"])
        with load_errors("loggers", path):
            context.metric_log.load_loggers_state(checkpoint.get("loggers", ()))
        for hook in context.hooks.bind_callbacks("on_load_checkpoint"):
            hook(checkpoint)
        # A run may leave out the validation that the first one had, or add one.
        states.restore_loaders(self.loaders, path)
        weights = checkpoint["state_dict"]
        known = weights if isinstance(weights, Mapping) else dict(context.module.named_parameters())
        for state in states.by_rank:
            if state is not None:
                state["requires_grad"] = {name: name not in state["frozen"] for name in known}
        return states

    def _load_callbacks(self, states: dict[str, Any], path: str) -> None:
        left = dict(states)
        for key, callback in _keyed(self.context.hooks.callbacks):
            if key in left:
                with load_errors(f"callbacks {key}", path):
                    callback.load_state_dict(left.pop(key))
        unused = [key for key, state in left.items() if state]
        if unused and self.context.runtime.strategy.is_global_zero:
            logger.warning(
                "ckpt_path=%r: it has the state of callbacks that this run lacks: %s. Their state is ignored",
                path,
                quoted(unused),
            )

    def restore_process(self, states: ProcessStates) -> None:
        """Restore what is this process's own, at the last moment before random numbers are drawn again."""
        own = states.own
        self.metrics.load_state_dict([] if own is None else own["metrics"], self.context.module)
        if len(states.by_rank) != self.context.runtime.strategy.world_size or None in states.by_rank:
            self.metrics.drop_pending()  # not all processes have theirs
        if own is not None:
            load_own_buffers(self.context.module, own["buffers"])
        evaluating = states.first["evaluating"] if own is None else own["evaluating"]
        for name, part in self.context.module.named_modules():
            part.training = name not in evaluating
        self._restore_requires_grad((states.first if own is None else own)["requires_grad"])
        load_metric_states(self.context.module, {} if own is None else own["metric_objects"])
        if self.context.metric_log.is_step_due:  # the checkpoint was written by a hook of the newest step
            self.context.metric_log.send_step(self.metrics)
        if states.is_accumulating:
            modules = [(self.context.module, self.model)]
            load_open_state(modules, None if own is None else own["open"], self.context.runtime.strategy)
            if self.controls is not None and own is not None:
                self.controls.load_open_gradients(own["has_unreduced"])
            self.context.progress.is_accumulating = self.context.module.automatic_optimization
        states.restore_generators()

    def _restore_requires_grad(self, wanted: Mapping[str, bool]) -> None:
        """Freeze and unfreeze what hooks had, when the checkpoint was written, of the parameters that it has."""
        changed = [
            name
            for name, parameter in self.context.module.named_parameters()
            if parameter.requires_grad != wanted.get(name, parameter.requires_grad)
        ]
        for name in changed:
            self.context.module.get_parameter(name).requires_grad = wanted[name]
        if changed and self.context.runtime.strategy.is_global_zero:
            logger.warning(
                "resuming: requires_grad of %d parameter(s) is %s as when the checkpoint was written, and not as the "
                "module has set it: %s. To train others from here on, load the weights with load_from_checkpoint, and "
                "fit without ckpt_path",
                len(changed),
                " or ".join(sorted({str(wanted[name]) for name in changed})),
                quoted(changed[:5]),
            )


def _differing(meeting: Meeting, states: Mapping[str, Any]) -> dict[str, Any]:
    """The states of callbacks that differ between the processes."""
    gathered = meeting.gather({key: facts_of_state(state) for key, state in states.items()})
    first, *others = [facts for facts in gathered if facts is not None]
    return {key: states[key] for key in states if any(facts.get(key) != first.get(key) for facts in others)}


def _call_load_hooks(hooks: Sequence[Callable[..., Any]], checkpoint: dict[str, Any], further: Sequence[str]) -> None:
    """Call the module's ``on_load_checkpoint``: once for each set of weights, which it gets as ``state_dict``."""
    as_read = [{**_copied(checkpoint), "state_dict": checkpoint[key]} for key in further] if hooks else []
    for content in (checkpoint, *as_read):
        for hook in hooks:
            hook(content)
    checkpoint |= {key: content["state_dict"] for key, content in zip(further, as_read, strict=bool(hooks))}


def _copied(content: Any) -> Any:
    """``content`` with new dicts and lists, and the same tensors."""
    if type(content) is dict:
        return {key: _copied(value) for key, value in content.items()}
    return [_copied(value) for value in content] if type(content) is list else content


def read_for_fit(context: RunContext, path: str) -> dict[str, Any]:
    """Read a checkpoint to resume from, and load the DataModule's state, by which it may create its loaders.

    Every process calls it, before there are loaders.

    Raises:
        CheckpointError: The checkpoint is absent, uncommitted, damaged, or not a Trainer's.
    """
    checkpoint = _read(context, path, is_fit=True)
    _load_datamodule(context.datamodule, checkpoint, path)
    return checkpoint


def load_module(context: RunContext, path: str) -> None:
    """Load the module's parameters from a Trainer's checkpoint, and the state of a DataModule of the same class.

    Every process calls it.

    Raises:
        CheckpointError: The checkpoint is absent, uncommitted, damaged, or from another module.
    """
    checkpoint = _read(context, path)
    _check_parts(checkpoint, path, "state_dict")
    for hook in context.hooks.bind_module("on_load_checkpoint"):
        hook(checkpoint)
    _load_module(context.runtime.strategy, context.module, checkpoint, path)
    # What is evaluated may come from another DataModule than what was trained on.
    if checkpoint.get("datamodule_class") == type(context.datamodule).__qualname__:
        _load_datamodule(context.datamodule, checkpoint, path)


def find_checkpoint(ckpt_path: str | os.PathLike[str], trainer: Trainer) -> str:
    """The path that ``ckpt_path`` means in this process.

    ``"last"`` is the checkpoint that was committed last in the directories of the trainer's ModelCheckpoints, or in
    those of all runs with its ``default_root_dir`` and loggers; ``"best"`` the best one of its last fit.

    Raises:
        CheckpointError: ``"last"`` or ``"best"`` was given and there is none.
    """
    if ckpt_path == "best":
        callback = trainer.checkpoint_callback
        best = getattr(callback, "best_model_path", "")
        if not best:
            raise CheckpointError(
                "ckpt_path='best': no ModelCheckpoint of this trainer has written a checkpoint. Call fit before, or "
                "give a path."
            )
        return str(best)
    if ckpt_path != "last":
        path = os.path.expanduser(os.fspath(ckpt_path))
        if (meant := nearest(path, ("last", "best"))) and not os.path.exists(path):
            raise CheckpointError(f"ckpt_path={path!r}: it does not exist.{meant}")
        return path
    folders = _checkpoint_folders(trainer)
    found = newest_checkpoint(folders)
    if found is None:
        raise CheckpointError(
            f"ckpt_path='last': there is no committed checkpoint in {quoted(folders)}. Give a path, or None to start "
            "from the beginning. For a script that does both: ModelCheckpoint(folder), and "
            "ckpt_path=None if core.checkpoints.latest(folder) is None else 'last'."
        )
    return found


def find_for_all(
    strategy: Strategy, ckpt_path: str | os.PathLike[str] | None, trainer: Trainer, *, is_fit: bool
) -> str | None:
    """The path that ``ckpt_path`` means in process 0; every process calls it.

    A fit that its cluster environment starts again after a failure goes on from its own last checkpoint, if it has one.

    Raises:
        CheckpointError: As in :func:`find_checkpoint`, in every process.
    """
    since = strategy.cluster_environment.restarted_since if is_fit else None
    if ckpt_path not in ("last", "best") and since is None:
        return None if ckpt_path is None else find_checkpoint(ckpt_path, trainer)

    def find() -> str | None:
        found = None if since is None else _committed_since(since, trainer)
        return find_checkpoint(ckpt_path, trainer) if found is None and ckpt_path is not None else found

    return decide_on_rank_zero(
        find, strategy.is_global_zero, strategy.broadcast, lambda error: CheckpointError(str(error)), CheckpointError
    )


def _committed_since(moment: float, trainer: Trainer) -> str | None:
    """The newest checkpoint of a run that was started at ``moment`` and starts again after a failure."""
    found = newest_checkpoint(_checkpoint_folders(trainer))
    if found is None or datetime.fromisoformat(read_manifest(found).saved_at).timestamp() < moment:
        return None
    logger.info("this run was started again after a failure; it goes on from its last checkpoint, %s", found)
    return found


def fit_facts(context: RunContext) -> dict[str, Any]:
    """The parts of a Trainer's checkpoint that say where a fit is.

    ``"core"`` has facts about the run for the manifest. ``"epoch"``, ``"global_step"`` and the version are for those
    who read Lightning's checkpoints; Lightning's ``load_from_checkpoint`` asks for the version.
    """
    progress, log = context.progress, context.metric_log
    position = progress.state_dict()
    here = {"epoch": position["epoch"], "step": progress.step}
    facts = {**run_facts(context.runtime.plan), **here, "metrics": log.measured_after(progress.step)}
    ours = {"core": facts, "progress": position}
    return {**ours, "epoch": progress.epoch, "global_step": progress.step, LIGHTNING: KEYS_OF_LIGHTNING}


def callback_states(callbacks: Sequence[Callback]) -> dict[str, Any]:
    """The states of all callbacks, by their names in checkpoints."""
    return {key: callback.state_dict() for key, callback in _keyed(callbacks)}


def _checkpoint_folders(trainer: Trainer) -> list[str]:
    given = [callback._given_dirpath for callback in trainer.checkpoint_callbacks]
    own = [folder for folder in given if folder is not None]
    return own if own and None not in given else own + run_folders(trainer.default_root_dir, trainer.loggers)


def _keyed(callbacks: Sequence[Callback]) -> Iterator[tuple[str, Callback]]:
    """The callbacks with their names in checkpoints."""
    seen: dict[str, int] = {}
    for callback in callbacks:
        name = callback.state_key
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}#{seen[name]}", callback


def _read(context: RunContext, path: str, is_fit: bool = False) -> dict[str, Any]:
    """A checkpoint of ours, or what another library has written."""
    strategy = context.runtime.strategy
    name, bound = "on_load_checkpoint", context.hooks
    # A hook gets everything, and may keep it.
    parts = () if bound.bind_module(name) or bound.bind_callbacks(name) else ("state_dict", "optimizer_states")
    load = partial(load_any, lambda: strategy.load_checkpoint(path), path, weights_only=True)
    checkpoint = read_parts(strategy, load, parts)
    if is_fit and "state_dict" in checkpoint and is_foreign(checkpoint) and not is_lightnings(checkpoint):
        raise CheckpointError(
            f"ckpt_path={path!r}: another library has written it, and fit cannot be resumed from its weights alone. "
            "Load them before, and start a new fit: "
            f"module = {type(context.module).__name__}.load_from_checkpoint(path)."
        )
    return {**checkpoint, **datamodule_in(checkpoint, context.datamodule)}


def _check_parts(checkpoint: dict[str, Any], path: str, *parts: str) -> None:
    missing = [part for part in parts if part not in checkpoint]
    if missing and "state_dict" in checkpoint and "core" in checkpoint:
        raise CheckpointError(
            f"ckpt_path={path!r}: it was saved with weights_only=True, so fit cannot be resumed from it. Load its "
            "'state_dict' into the module and start a new fit."
        )
    if missing:
        raise CheckpointError(
            f"ckpt_path={path!r}: the checkpoint has no {quoted(missing)}. Use one that a Trainer has written."
        )


def _check_number(checkpoint: Mapping[str, Any], given: int, path: str) -> None:
    """Reject a checkpoint of more or fewer optimizers than the module has."""
    saved = len(checkpoint["optimizer_states"])
    if saved != given:
        raise CheckpointError(
            f"ckpt_path={path!r}: the checkpoint has {saved} optimizer(s), but configure_optimizers returned {given}. "
            "Resume with the module that wrote it."
        )


def _load_module(strategy: Strategy, module: Module, checkpoint: dict[str, Any], path: str) -> None:
    with load_errors("state_dict", path):
        state = checkpoint["state_dict"]
        strategy.load_module_state(module, weights_for(module, state) if is_foreign(checkpoint) else state)


def _load_datamodule(datamodule: DataModule | None, checkpoint: Mapping[str, Any], path: str) -> None:
    if datamodule is not None and "datamodule" in checkpoint:
        with load_errors("datamodule", path):
            datamodule.load_state_dict(checkpoint["datamodule"])
