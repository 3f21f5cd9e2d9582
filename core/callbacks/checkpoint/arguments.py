"""The arguments of a ModelCheckpoint: their checks, and what they decide at one point of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import attrs

from ...checkpoints.commit import commit_link
from ...errors import CheckpointError, ConfigurationError, WrongTypeError
from ...hints.argument_checks import check_count, is_below, is_url
from ...strategies.base import Strategy


@attrs.frozen(kw_only=True)
class Decision:
    """The decision of process 0 at one point of the run."""

    state: dict[str, Any] | None = None
    """The new state of the callback; ``None`` if it stays as it is, since the metric is not there yet."""
    save: str | None = None
    """The checkpoint among the best, or the newest one, to write."""
    last: str | None = None
    """The checkpoint to write as the last one."""
    link: tuple[str, str] | None = None
    """In place of writing the last one: the link, and the checkpoint that it points to."""
    remove: tuple[str, ...] = ()
    """The checkpoints to remove, after everything else."""


def check_choice(save_last: Any, save_top_k: Any, monitor: Any, mode: Any) -> None:
    """Check the arguments of these names.

    Raises:
        ConfigurationError: One is out of range, or they contradict each other.
        WrongTypeError: ``monitor`` is not a name.
    """
    if save_last not in (None, True, False, "link"):
        raise ConfigurationError(f"save_last={save_last!r}: must be True, False or 'link'.")
    check_count("save_top_k", save_top_k, -1)
    if monitor is not None and not isinstance(monitor, str):
        raise WrongTypeError(f"monitor={monitor!r}: must be the name of a metric, or None.")
    if mode not in ("min", "max"):
        raise ConfigurationError(f"mode={mode!r}: must be 'min' or 'max'.")
    if monitor is None and mode != "min":
        raise ConfigurationError(f"mode={mode!r}, monitor=None: has no effect without a metric. Give monitor.")
    if monitor is None and save_top_k not in (-1, 0, 1):
        raise ConfigurationError(
            f"save_top_k={save_top_k}, monitor=None: there is no metric to choose the best by. Give monitor; "
            "monitor='step', mode='max' keeps the newest."
        )


def checked_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """``state`` of a ModelCheckpoint, if the checkpoints that it names are in its own directory.

    Raises:
        CheckpointError: One is not, so that it could be another run's, or no checkpoint at all.
    """
    # The best one may be that of a run in another directory, from which this one was resumed: it is only read.
    for path in (*state["best_k_models"], state["kth_best_model_path"], state["last_model_path"]):
        if path and not is_below(path, state["dirpath"] or os.curdir):
            raise CheckpointError(
                f"it names the checkpoint {path!r}, which is not in its directory {state['dirpath']!r}."
            )
    return state


def check_interval(every_n_train_steps: Any, every_n_epochs: Any, train_time_interval: Any) -> None:
    """Check the arguments of these names.

    Raises:
        ConfigurationError: One is out of range, or more than one is given.
        WrongTypeError: ``train_time_interval`` is not a ``timedelta``.
    """
    check_count("every_n_train_steps", every_n_train_steps, 0, optional=True)
    check_count("every_n_epochs", every_n_epochs, 0, optional=True)
    if train_time_interval is not None and not isinstance(train_time_interval, timedelta):
        raise WrongTypeError(
            f"train_time_interval={train_time_interval!r}: must be a datetime.timedelta, such as "
            "timedelta(minutes=30), or None."
        )
    if bool(every_n_train_steps) + bool(every_n_epochs) + (train_time_interval is not None) > 1:
        raise ConfigurationError(
            f"every_n_train_steps={every_n_train_steps!r}, every_n_epochs={every_n_epochs!r}, train_time_interval="
            f"{train_time_interval!r}: give one of them, or use two ModelCheckpoints."
        )


def check_link(save_last: Any, dirpath: Any) -> None:
    """Check that the directory can have the link that ``save_last`` asks for.

    Raises:
        ConfigurationError: It is a URL.
    """
    if save_last == "link" and is_url(dirpath):
        raise ConfigurationError(
            f"save_last='link', dirpath={dirpath!r}: a URL has no links. Set save_last=True, or resume with "
            "ckpt_path='last', which finds the newest checkpoint without one."
        )


def make_link(strategy: Strategy, link: str, target: str) -> None:
    """Make ``link`` point to the checkpoint ``target`` once that is committed; every process calls it."""
    if os.path.isdir(link) and not os.path.islink(link):
        strategy.remove_checkpoint(link)  # a whole one, written where nothing was among the best
    if strategy.is_global_zero:
        strategy.checkpoint_io.when_committed(lambda: commit_link(link, target))
