"""What of a fit goes into a checkpoint, and how it comes back.

On as many processes as wrote it the resumed run is bit for bit the uninterrupted one.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from torch import Generator

from core.checkpoints import latest
from core.errors import CheckpointError, WrongTypeError, quoted
from core.random import get_rng_state, set_rng_state
from core.runtime.loader import loader_parts
from core.runtime.state import run_facts, unfit
from core.strategies.base import Strategy
from core.trainer.hooks import bind_module_hook
from core.trainer.module import Module

if TYPE_CHECKING:
    from core.trainer.fit import FitLoop

logger = logging.getLogger(__name__)

__all__ = ["find_checkpoint", "load_module", "load_state", "restore_process", "save_state"]


def save_state(loop: FitLoop, path: str | os.PathLike[str]) -> None:
    """Write a checkpoint of ``loop``; every process calls it.

    Raises:
        CheckpointError: It could not be written.
    """
    trainer, module = loop.trainer, loop.module
    strategy = trainer.runtime.strategy
    checkpoint: dict[str, Any] = {
        "core": run_facts(trainer.runtime.plan),
        "epoch": loop.epochs_done,
        "is_mid_epoch": loop.is_mid_epoch,
        "global_step": trainer.global_step,
        "state_dict": strategy.module_state(module),
        "optimizer": strategy.optimizer_state(loop.optimization.optimizer),
        "lr_schedulers": [schedule.scheduler.state_dict() for schedule in loop.optimization.schedules],
        "precision": strategy.precision.state_dict(),
        "callbacks": {key: callback.state_dict() for key, callback in trainer.keyed_callbacks()},
        "processes": strategy.all_gather_object(_process_state(loop)),
    }
    for hook in bind_module_hook("on_save_checkpoint", module):
        hook(checkpoint)
    strategy.save_checkpoint(checkpoint, path)


def load_state(loop: FitLoop, path: str) -> dict[str, Any]:
    """Put ``loop`` where it was when the checkpoint was written; every process calls it.

    Where ``n`` processes wrote it and this run has another number, process ``r`` takes the random numbers of their
    process ``r % n``.

    Returns:
        What :func:`restore_process` takes, once nothing but the next epoch is to come.

    Raises:
        CheckpointError: The checkpoint is absent, uncommitted, damaged, not a Trainer's, written within an epoch, of
            another module, optimizer or scheduler, or of another number of processes where the strategy can take back
            its own number alone.
    """
    trainer, module, optimization = loop.trainer, loop.module, loop.optimization
    strategy = trainer.runtime.strategy
    checkpoint = _read(strategy, path, *_PARTS)
    processes = checkpoint["processes"]
    if checkpoint["is_mid_epoch"]:
        raise CheckpointError(
            f"ckpt_path={path!r}: written after some of the batches of epoch {checkpoint['epoch']}. Valid: one written "
            "at an epoch's end, for a resumed run to be exact."
        )
    if len(processes) != strategy.world_size and strategy.is_global_zero:
        logger.warning(
            "ckpt_path=%r: written by %d process(es), and this run has %d, which share the batches otherwise: it goes "
            "on, but not bit for bit as the first run would",
            path,
            len(processes),
            strategy.world_size,
        )
    _load_module(strategy, module, checkpoint, path)
    with unfit("optimizer", path):
        strategy.load_optimizer_state(optimization.optimizer, checkpoint["optimizer"])
    with unfit("lr_schedulers", path):
        for schedule, schedule_state in zip(optimization.schedules, checkpoint["lr_schedulers"], strict=True):
            schedule.scheduler.load_state_dict(schedule_state)
    with unfit("precision", path):
        strategy.precision.load_state_dict(checkpoint["precision"])
    for key, callback in trainer.keyed_callbacks():
        if key in checkpoint["callbacks"]:
            with unfit(f"callbacks {key}", path):
                callback.load_state_dict(checkpoint["callbacks"][key])
    trainer.current_epoch, trainer.global_step = checkpoint["epoch"], checkpoint["global_step"]
    for hook in bind_module_hook("on_load_checkpoint", module):
        hook(checkpoint)
    state: dict[str, Any] = processes[strategy.global_rank % len(processes)]
    if len(state["generators"]) != len(_generators(loop)):
        raise CheckpointError(
            f"ckpt_path={path!r}: written with {len(state['generators'])} generators in the loaders, and these have "
            f"{len(_generators(loop))}. Valid: loaders like those of the first run."
        )
    return state


def load_module(strategy: Strategy, module: Module, path: str) -> None:
    """Give ``module`` the parameters that the checkpoint has for it; every process calls it.

    Raises:
        CheckpointError: The checkpoint is absent, uncommitted, damaged, or of another module.
    """
    _load_module(strategy, module, _read(strategy, path, "state_dict"), path)


def find_checkpoint(ckpt_path: str | os.PathLike[str] | None, directory: str) -> str | None:
    """The path that ``ckpt_path`` means; ``"last"`` is the newest committed one in ``directory``.

    Raises:
        WrongTypeError: It is no path.
        CheckpointError: ``"last"`` was asked for and there is none.
    """
    if ckpt_path is None:
        return None
    if not isinstance(ckpt_path, str | os.PathLike):
        raise WrongTypeError(f"ckpt_path={ckpt_path!r}: given no path. Valid: a path, 'last', or None.")
    if ckpt_path != "last":
        return os.fspath(ckpt_path)
    found = latest(directory)
    if found is None:
        raise CheckpointError(f"ckpt_path='last': no committed checkpoint in {directory!r}. Valid: a path, or None.")
    return os.fspath(found)


def restore_process(loop: FitLoop, state: dict[str, Any]) -> None:
    """Put this process's generators back, at the last moment before they are drawn from again."""
    for loader in loop.loaders:
        loader = getattr(loader, "loader", loader)
        if getattr(loader, "persistent_workers", False):
            iter(loader)  # its workers, started once, draw a seed then; the first run did so before its checkpoint
    for generator, generator_state in zip(_generators(loop), state["generators"], strict=True):
        generator.set_state(generator_state)
    strategy = loop.trainer.runtime.strategy
    set_rng_state(state["rng"], strategy.accelerator, strategy.root_device)


_PARTS = (
    "epoch",
    "is_mid_epoch",
    "global_step",
    "state_dict",
    "optimizer",
    "lr_schedulers",
    "precision",
    "callbacks",
    "processes",
)


def _read(strategy: Strategy, path: str, *parts: str) -> dict[str, Any]:
    checkpoint = strategy.load_checkpoint(path)
    missing = [part for part in parts if part not in checkpoint]
    if missing:
        raise CheckpointError(f"ckpt_path={path!r}: {quoted(missing)} not in it. Valid: one written by a Trainer.")
    return checkpoint


def _load_module(strategy: Strategy, module: Module, checkpoint: dict[str, Any], path: str) -> None:
    with unfit("state_dict", path):
        strategy.load_module_state(module, checkpoint["state_dict"])


def _process_state(loop: FitLoop) -> dict[str, Any]:
    strategy = loop.trainer.runtime.strategy
    return {
        "rng": get_rng_state(strategy.accelerator, strategy.root_device),
        "generators": [generator.get_state() for generator in _generators(loop)],
    }


def _generators(loop: FitLoop) -> list[Generator]:
    """The generators of their own that the loaders, their data sets and samplers draw from, each once."""
    owners = [part for loader in loop.loaders for part in loader_parts(loader)]
    found = {id(g): g for owner in owners if isinstance(g := getattr(owner, "generator", None), Generator)}
    return list(found.values())
