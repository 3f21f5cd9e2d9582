"""The folder of a run's checkpoints, and the names of the files in it.

Two runs never write into the same folder unless the user names it: without a logger that has a folder for each run,
the folders are numbered, ``<default_root_dir>/checkpoints/version_0`` and so on. A resumed run continues in the folder
of the checkpoint that it is resumed from.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from string import Formatter
from typing import TYPE_CHECKING, Any

import torch

from ...checkpoints import absolute, is_in, latest, parent, read_manifest, store_of
from ...errors import CheckpointError, ConfigurationError, nearest, quoted
from ...hints.argument_checks import is_url
from ...logging import get_logger
from ..agreement import decide_in_process_zero

if TYPE_CHECKING:
    from ...trainer.trainer import Trainer

logger = get_logger(__name__)

FOLDER = "checkpoints"
"""The folder in ``default_root_dir``, or in a logger's ``log_dir``, that checkpoints are written to."""

PREFIX = "version_"
VERSION = re.compile(rf"{PREFIX}(\d+)")


def claim_run_folder(root: str, loggers: Iterable[Any], ckpt_path: str | None) -> str:
    """The folder for the checkpoints of a new run; process 0 calls it once in each run.

    A numbered folder is created, so that no other run takes the same number.

    Args:
        root: The trainer's ``default_root_dir``.
        loggers: The trainer's loggers. The first one that has a folder for each run decides.
        ckpt_path: The checkpoint that the run is resumed from.

    Raises:
        CheckpointError: The folder cannot be created.
    """
    own = None if is_url(root) else next(_logger_folders(loggers), None)  # loggers write to this machine
    if own is not None:
        return os.path.join(own, FOLDER)
    top = os.path.join(root, FOLDER)
    if ckpt_path is not None:
        before = parent(absolute(ckpt_path))
        if is_in(before, top) and VERSION.fullmatch(before.rpartition("/")[2]):
            return before
    try:
        return store_of(top).new_folder(PREFIX)
    except CheckpointError as error:
        raise CheckpointError(
            f"default_root_dir={root!r}: {error} Choose another one, or set enable_checkpointing=False."
        ) from error


def run_folder(trainer: Trainer) -> str | None:
    """The folder for the checkpoints of a run that begins, if a callback needs one; every process calls it."""
    needed = [callback for callback in trainer.checkpoint_callbacks if callback._given_dirpath is None]
    if not needed or trainer.fast_dev_run:
        return None
    return decide_in_process_zero(
        trainer, lambda: claim_run_folder(trainer.default_root_dir, trainer.loggers, trainer.ckpt_path)
    )


def run_folders(root: str, loggers: Iterable[Any]) -> list[str]:
    """The folders in which runs with this root and these loggers have their checkpoints, in no particular order."""
    folders = [os.path.join(root, FOLDER), *_versions(os.path.join(root, FOLDER))]
    for own in _logger_folders(loggers):
        siblings = {own, *_versions(os.path.dirname(os.path.abspath(own)))}
        folders += [os.path.join(sibling, FOLDER) for sibling in sorted(siblings)]
    return folders


def newest_checkpoint(folders: Iterable[str]) -> str | None:
    """The checkpoint in ``folders`` that was committed last; ``None`` if there is none.

    Raises:
        CheckpointError: As :func:`core.checkpoints.latest`.
    """
    found = [os.fspath(path) for path in map(latest, folders) if path is not None]
    return max(found, key=lambda path: read_manifest(path).saved_at, default=None)


def _logger_folders(loggers: Iterable[Any]) -> Iterator[str]:
    """The folder of this run, of each logger that has one for each run; that of the first run, if it is not decided."""
    for logger in loggers:
        if not getattr(logger, "is_decided", True):  # reading log_dir would make the folder of a new run
            yield os.path.join(logger.root_dir, f"{PREFIX}0")
            continue
        folder, top = getattr(logger, "log_dir", None), getattr(logger, "save_dir", None)
        if folder is not None and (top is None or os.path.abspath(folder) != os.path.abspath(top)):
            yield os.fspath(folder)


def _versions(top: str) -> list[str]:
    return [os.path.join(top, name) for name in sorted(store_of(top).names()) if VERSION.fullmatch(name)]


DEFAULT = "{epoch}-{step}"

OLDER = (
    "%s: at step %d, there is no value of %s that was measured after this step. %s. To have one, let a validation end "
    "at each step at which a checkpoint is due, as with val_check_interval. For checkpoints that depend on no metric, "
    "use a further ModelCheckpoint without monitor"
)
"""The warning of a metric that was measured before the newest step."""


def fields_of(filename: str) -> list[str]:
    """The metrics in ``filename``, such as ``val_loss`` in ``{val_loss:.2f}``."""
    return [name for _, name, _, _ in Formatter().parse(filename) if name is not None]


def format_name(filename: str, metrics: Mapping[str, Any], insert_names: bool, equals: str = "=") -> str:
    """``filename`` with the values of ``metrics``; 0 where one is missing, with a warning.

    Args:
        filename: A format, whose fields are names of metrics; they may contain ``/`` and dots.
        metrics: Numbers or scalar tensors.
        insert_names: Whether ``{epoch}`` becomes ``epoch=0`` rather than ``0``.
        equals: What stands between a name and its value.

    Raises:
        ConfigurationError: A value cannot be written in the given format, such as a float as ``d``.
    """
    parts = []
    for text, name, spec, conversion in Formatter().parse(filename):
        parts.append(text)
        if name is not None:
            if name not in metrics:
                logger.warning_once(
                    "ModelCheckpoint: filename=%r: %r has not been logged before this checkpoint, so 0 stands in its "
                    "name.%s Logged: %s",
                    filename,
                    name,
                    nearest(name, metrics),
                    quoted(sorted(metrics)),
                )
            value = _number(metrics.get(name, 0))
            try:
                is_nan = isinstance(value, float) and math.isnan(value)  # which no format of integers takes
                shown = "nan" if is_nan else f"{value!r}" if conversion == "r" else format(value, spec or "")
            except ValueError as error:
                raise ConfigurationError(
                    f"filename={filename!r}: cannot write {name!r}, which is {value!r}: {error}. Use a format of such "
                    f"numbers, such as '{{{name}:.2f}}'."
                ) from error
            parts.append(f"{name}{equals}{shown}" if insert_names else shown)
    return "".join(parts)


def candidates(trainer: Trainer) -> tuple[dict[str, Any], set[str]]:
    """The metrics that can choose or name a checkpoint; and the names of those measured before the newest step.

    The latter says nothing about these weights, so it is NaN.
    """
    metrics, step = dict[str, Any](trainer.callback_metrics), trainer.global_step
    older = {name for name in metrics if trainer.metric_log.measured_at(name)[-1] != step}
    for name, count in (("epoch", trainer.current_epoch), ("step", step)):
        metrics[name] = int(metrics[name]) if name in metrics and name not in older else count
        older.discard(name)
    return {**metrics, **dict.fromkeys(older, math.nan)}, older


def check_filename(filename: Any, insert_names: bool) -> None:
    """Check that ``filename`` is the format of a file name without directories.

    Raises:
        ConfigurationError: It is not.
    """
    try:
        names = [name for name in fields_of(filename) if name not in ("epoch", "step")]
        filled = _filled(filename, names, insert_names)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"filename={filename!r}: must be the format of a file name with names of metrics, such as "
            f"'{{epoch}}-{{val_loss:.2f}}': {error}."
        ) from error
    if "" in fields_of(filename):
        raise ConfigurationError(
            f"filename={filename!r}: a field has no name. Write the name of a metric, such as '{{epoch}}'."
        )
    if not filled or os.path.basename(filled) != filled:
        remedy = (
            " Set auto_insert_metric_name=False and write the name yourself, such as 'val_loss={val/loss:.2f}'."
            if any(os.sep in name for name in names)
            else ""
        )
        raise ConfigurationError(f"filename={filename!r}: must be a file name without directories.{remedy}")


def _filled(filename: str, names: list[str], insert_names: bool) -> str:
    counts = {"epoch": 0, "step": 0}
    try:
        return format_name(filename, {**counts, **dict.fromkeys(names, 0.0)}, insert_names)
    except ConfigurationError:  # a format of integers, which a metric may be
        return format_name(filename, {**counts, **dict.fromkeys(names, 0)}, insert_names)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def scores_as_yaml(scores: Mapping[str, Any]) -> str:
    """Paths of checkpoints and their metrics as a mapping in YAML."""
    return "".join(f"{_quoted(path)}: {_yaml_number(float(score))}\n" for path, score in scores.items()) or "{}\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _yaml_number(value: float) -> str:
    return repr(value) if math.isfinite(value) else ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
