"""A checkpoint of Lightning's Trainer, translated so that ``fit`` can resume from it.

Lightning's checkpoints contain neither the states of random number generators nor a position within an epoch. So
``fit`` resumes from the end of an epoch, and a warning lists what is not restored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...callbacks.base import Callback
from ...callbacks.early_stopping import EarlyStopping
from ...callbacks.finetuning import BaseFinetuning
from ...callbacks.weight_averaging import WeightAveraging
from ...checkpoints.foreign import LIGHTNING, is_lightnings
from ...errors import CheckpointError
from ...runtime.checkpoint.process_state import own_state
from ..module.datamodule import DataModule
from ..run_context import RunContext, parts_in_evaluation
from ..step.lr_schedulers import LRSchedulerConfig
from ..trainer_state import Progress

logger = logging.getLogger(__name__)

SCALERS = ("MixedPrecision", "MixedPrecisionPlugin", "NativeMixedPrecisionPlugin")
"""The parts that may hold the state of the loss scaler, by the class of the Lightning that wrote it."""

PLATEAU = "plateau"
ADVICE = "Load its weights before, and start a new fit: module = {module}.load_from_checkpoint(path)."


def datamodule_in(checkpoint: Mapping[str, Any], datamodule: DataModule | None) -> dict[str, Any]:
    """The parts of a checkpoint of ours for what Lightning has saved of a DataModule of the same class."""
    kind = type(datamodule).__qualname__
    if datamodule is None or not is_lightnings(checkpoint) or kind not in checkpoint:
        return {}
    return {"datamodule": checkpoint[kind], "datamodule_class": kind}


def resumable(
    checkpoint: Mapping[str, Any],
    path: str,
    context: RunContext,
    loaders: Sequence[Any],
    schedules: Sequence[LRSchedulerConfig],
    keyed: Sequence[tuple[str, Callback]],
) -> dict[str, Any]:
    """The parts of a checkpoint of ours for what Lightning has saved, next to Lightning's own.

    Args:
        checkpoint: What Lightning has saved.
        path: Where, for messages.
        context: Of the fit that resumes.
        loaders: What it reads.
        schedules: What its optimizers' learning rates follow.
        keyed: Its callbacks, with their names in checkpoints.

    Raises:
        CheckpointError: It was saved within an epoch, it holds weights only, or the result would be another than that
            of Lightning.
    """
    strategy = context.runtime.strategy
    advice = ADVICE.format(module=type(context.module).__name__)
    if "optimizer_states" not in checkpoint:
        raise CheckpointError(
            f"ckpt_path={path!r}: Lightning has written it with save_weights_only=True, so fit cannot be resumed from "
            f"it. {advice}"
        )
    try:
        progress, skipped = _position(checkpoint, path, advice)
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"ckpt_path={path!r}: Lightning {checkpoint[LIGHTNING]} has written it, and its part 'loops' has another "
            f"form ({type(error).__name__}: {error}). {advice}"
        ) from error
    callbacks, without = _callbacks(checkpoint, path, keyed, advice)
    if not any(schedule.reduce_on_plateau for schedule in schedules):
        skipped.pop(PLATEAU, None)
    if strategy.is_global_zero:
        logger.warning(
            "ckpt_path=%r: written by Lightning %s. Restored: weights, optimizers, schedulers, epoch %d and step %d. "
            "Not restored, since the checkpoint does not contain it: random number generators (dropout, the order of "
            "shuffled data), logged metrics%s.%s",
            path,
            checkpoint[LIGHTNING],
            progress.epoch,
            progress.step,
            "".join(f", {name}" for name in without),
            f" Left out, since it came after the save: {'; '.join(skipped.values())}." if skipped else "",
        )
    own = own_state(
        strategy,
        loaders,
        metrics=[],
        evaluating=parts_in_evaluation(context.module),
        frozen=[name for name, parameter in context.module.named_parameters() if not parameter.requires_grad],
        metric_objects={},
        buffers={},
        precision=next((checkpoint[name] for name in SCALERS if name in checkpoint), {}),
    )
    return {
        **checkpoint,
        "callbacks": callbacks,
        "metrics": context.metric_log.state_dict(),
        "progress": progress.state_dict(),
        "processes": [own] * strategy.world_size,
    }


def _position(checkpoint: Mapping[str, Any], path: str, advice: str) -> tuple[Progress, dict[str, str]]:
    """The start of an epoch, and what Lightning had not done of the epoch before it."""
    loop = checkpoint["loops"]["fit_loop"]
    epochs, batches = loop["epoch_progress"]["current"], loop["epoch_loop.batch_progress"]
    running, now = epochs["started"] - epochs["processed"], batches["current"]
    if batches["total"]["ready"] and not (batches["is_last_batch"] and now["processed"] == now["ready"]):
        raise CheckpointError(
            f"ckpt_path={path!r}: Lightning has written it within epoch {epochs['started'] - 1}, after batch "
            f"{now['processed']} of it, and keeps no position in the data: those batches would be trained on twice. "
            f"Use a checkpoint from the end of an epoch. Or: {advice[0].lower()}{advice[1:]}"
        )
    epoch = epochs["processed"] + running
    skipped: dict[str, str] = {}
    if running:
        skipped["end"] = f"validation and hooks that follow the last batch of epoch {epoch - 1}"
    if epochs["completed"] < epoch:
        skipped[PLATEAU] = f"the step of ReduceLROnPlateau after epoch {epoch - 1}, whose metric is not in it"
    progress = Progress(epoch=epoch, step=checkpoint["global_step"], batches_before=batches["total"]["processed"])
    return progress, skipped


def _callbacks(
    checkpoint: Mapping[str, Any], path: str, keyed: Sequence[tuple[str, Callback]], advice: str
) -> tuple[dict[str, Any], list[str]]:
    """The states that callbacks of this run take, and the names of the others."""
    saved = dict(checkpoint.get("callbacks", {}))
    taken: dict[str, Any] = {}
    for key, callback in keyed:
        name = type(callback).__qualname__
        theirs = next((one for one in _names(callback) if one in saved), None)
        if theirs is None:
            continue
        if isinstance(callback, BaseFinetuning | WeightAveraging):
            raise CheckpointError(
                f"ckpt_path={path!r}: Lightning has written it with {name}. Its state has another form here, and "
                f"without it the result would differ. {advice}"
            )
        taken[key] = saved.pop(theirs)
    if "averaging_state" in checkpoint:
        raise CheckpointError(
            f"ckpt_path={path!r}: Lightning has written it with WeightAveraging: its weights are the average, from "
            f"which training does not go on. {advice}"
        )
    return taken, list(dict.fromkeys(key.partition("{")[0] for key, state in saved.items() if state))


def _names(callback: Callback) -> Iterator[str]:
    """The names that Lightning may have for the state of a callback of this kind."""
    if isinstance(callback, EarlyStopping):
        of = {"monitor": callback.monitor, "mode": callback.mode}
        yield f"{type(callback).__qualname__}{of!r}"
    yield callback.state_key
