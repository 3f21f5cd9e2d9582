"""The folder of a run's checkpoints, and those of earlier runs.

Two runs never write into the same folder unless the user names it: without a logger that has a folder for each run,
the folders are numbered, ``<default_root_dir>/checkpoints/version_0`` and so on. A resumed run continues in the folder
of the checkpoint that it is resumed from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ...checkpoints import absolute, is_in, latest, parent, read_manifest, store_of
from ...errors import CheckpointError
from ...hints.argument_checks import is_url
from ..agreement import decide_in_process_zero

if TYPE_CHECKING:
    from ...trainer.trainer import Trainer

__all__ = ["claim_run_folder", "newest_checkpoint", "run_folder", "run_folders"]

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
    """The folder of this run, of each logger that has one for each run."""
    for logger in loggers:
        folder, top = getattr(logger, "log_dir", None), getattr(logger, "save_dir", None)
        if folder is not None and (top is None or os.path.abspath(folder) != os.path.abspath(top)):
            yield os.fspath(folder)


def _versions(top: str) -> list[str]:
    return [os.path.join(top, name) for name in sorted(store_of(top).names()) if VERSION.fullmatch(name)]
