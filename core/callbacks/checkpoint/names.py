"""Names of checkpoints that contain metrics."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from string import Formatter
from typing import TYPE_CHECKING, Any

import torch

from ...errors import ConfigurationError, nearest, quoted
from ...logging import get_logger

if TYPE_CHECKING:
    from ...trainer.trainer import Trainer

__all__ = [
    "DEFAULT",
    "OLDER",
    "candidates",
    "check_filename",
    "fields_of",
    "format_name",
    "scores_as_yaml",
]

logger = get_logger(__name__)

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


def format_name(filename: str, metrics: Mapping[str, Any], insert_names: bool) -> str:
    """``filename`` with the values of ``metrics``; 0 where one is missing, with a warning.

    Args:
        filename: A format, whose fields are names of metrics; they may contain ``/`` and dots.
        metrics: Numbers or scalar tensors.
        insert_names: Whether ``{epoch}`` becomes ``epoch=0`` rather than ``0``.

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
            parts.append(f"{name}={shown}" if insert_names else shown)
    return "".join(parts)


def candidates(trainer: Trainer) -> tuple[dict[str, Any], set[str]]:
    """What a checkpoint can be chosen and named by; and the names of what was measured before the newest step.

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
