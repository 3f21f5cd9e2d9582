"""What of a fit goes into a checkpoint, and how it comes back: the resumed run is bit for bit the uninterrupted one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch import Generator

from core.checkpoints import latest
from core.errors import CheckpointError
from core.random import get_rng_state, set_rng_state
from core.runtime.state import run_facts
from core.trainer.hooks import bind_hooks

if TYPE_CHECKING:
    from core.trainer.fit import FitLoop

__all__ = ["find_checkpoint", "load_state", "save_state"]


def save_state(loop: FitLoop, path: str | os.PathLike[str]) -> None:
    """Write a checkpoint of ``loop`` at an epoch's end; every process calls it.

    Raises:
        CheckpointError: It could not be written.
    """
    trainer, module = loop.trainer, loop.module
    strategy = trainer.runtime.strategy
    checkpoint: dict[str, Any] = {
        "core": run_facts(trainer.runtime.plan),
        "epoch": trainer.current_epoch + 1,
        "global_step": trainer.global_step,
        "state_dict": strategy.module_state(module),
        "optimizer": strategy.optimizer_state(loop.optimization.optimizer),
        "lr_schedulers": [schedule.scheduler.state_dict() for schedule in loop.optimization.schedules],
        "precision": strategy.precision.state_dict(),
        "callbacks": {key: callback.state_dict() for key, callback in trainer.keyed_callbacks()},
        "processes": strategy.all_gather_object(_process_state(loop)),
    }
    for hook in bind_hooks("on_save_checkpoint", trainer, module, ()):
        hook(checkpoint)
    strategy.save_checkpoint(checkpoint, path)


def load_state(loop: FitLoop, path: str | os.PathLike[str]) -> None:
    """Put ``loop`` where it was when the checkpoint was written; every process calls it.

    Raises:
        CheckpointError: The checkpoint is absent, uncommitted, damaged, or of another number of processes.
    """
    trainer, module = loop.trainer, loop.module
    strategy = trainer.runtime.strategy
    checkpoint = strategy.load_checkpoint(path)
    missing = [part for part in ("epoch", "global_step", "state_dict", "optimizer", "processes") if part not in checkpoint]
    if missing:
        raise CheckpointError(f"ckpt_path={os.fspath(path)!r}: {', '.join(missing)} not in it. Valid: a Trainer's own.")
    processes = checkpoint["processes"]
    if len(processes) != strategy.world_size:
        raise CheckpointError(
            f"ckpt_path={os.fspath(path)!r}: written by {len(processes)} process(es), and this run has "
            f"{strategy.world_size}. Valid: the same number, for a resumed run to be exact."
        )
    strategy.load_module_state(module, checkpoint["state_dict"])
    strategy.load_optimizer_state(loop.optimization.optimizer, checkpoint["optimizer"])
    for schedule, state in zip(loop.optimization.schedules, checkpoint["lr_schedulers"], strict=True):
        schedule.scheduler.load_state_dict(state)
    strategy.precision.load_state_dict(checkpoint["precision"])
    for key, callback in trainer.keyed_callbacks():
        if key in checkpoint["callbacks"]:
            callback.load_state_dict(checkpoint["callbacks"][key])
    trainer.current_epoch, trainer.global_step = checkpoint["epoch"], checkpoint["global_step"]
    for hook in bind_hooks("on_load_checkpoint", trainer, module, ()):
        hook(checkpoint)
    _restore_process(loop, processes[strategy.global_rank])


def find_checkpoint(ckpt_path: str | os.PathLike[str] | None, directory: str) -> str | None:
    """The path that ``ckpt_path`` means; ``"last"`` is the newest committed one in ``directory``.

    Raises:
        CheckpointError: ``"last"`` was asked for and there is none.
    """
    if ckpt_path is None or os.fspath(ckpt_path) != "last":
        return None if ckpt_path is None else os.fspath(ckpt_path)
    found = latest(directory)
    if found is None:
        raise CheckpointError(f"ckpt_path='last': no committed checkpoint in {directory!r}. Valid: a path, or None.")
    return os.fspath(found)


def _process_state(loop: FitLoop) -> dict[str, Any]:
    strategy = loop.trainer.runtime.strategy
    return {
        "rng": get_rng_state(strategy.accelerator, strategy.root_device),
        "generators": [generator.get_state() for generator in _generators(loop)],
    }


def _restore_process(loop: FitLoop, state: dict[str, Any]) -> None:
    strategy = loop.trainer.runtime.strategy
    for generator, generator_state in zip(_generators(loop), state["generators"], strict=True):
        generator.set_state(generator_state)
    set_rng_state(state["rng"], strategy.accelerator, strategy.root_device)


def _generators(loop: FitLoop) -> list[Generator]:
    """The generators of their own that the loaders and their samplers draw from, each once."""
    loaders = [loop.loader] + ([loop.validation.loader] if loop.validation is not None else [])
    owners = [owner for loader in loaders for owner in (loader, getattr(loader, "sampler", None))]
    found = {id(g): g for owner in owners if isinstance(g := getattr(owner, "generator", None), Generator)}
    return list(found.values())
