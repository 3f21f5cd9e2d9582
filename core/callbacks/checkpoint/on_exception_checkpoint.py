"""A checkpoint when a run fails."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from ...checkpoints import absolute
from ...errors import ConfigurationError, CoreError
from ...hints.argument_checks import check_path
from ..base import Checkpoint, is_training

if TYPE_CHECKING:
    from ...trainer.trainer import Trainer

logger = logging.getLogger(__name__)


class OnExceptionCheckpoint(Checkpoint):
    """Writes a checkpoint when an exception ends ``fit``, also if it is Ctrl+C.

    Args:
        dirpath: The directory; ``~`` is the home directory.
        filename: The file name, without extension.

    Raises:
        ConfigurationError: ``filename`` is empty or has directories.
        WrongTypeError: ``dirpath`` is not a path.
    """

    FILE_EXTENSION = ".ckpt"

    def __init__(self, dirpath: str | os.PathLike[str], filename: str = "on_exception") -> None:
        check_path("dirpath", dirpath)
        if not filename or os.path.basename(filename) != filename:
            raise ConfigurationError(f"filename={filename!r}: must be a file name without directories.")
        self._given_dirpath = absolute(dirpath)
        self.filename = filename

    @property
    def ckpt_path(self) -> str:
        """The path of the checkpoint."""
        return os.path.join(self._given_dirpath or "", self.filename + self.FILE_EXTENSION)

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Write the checkpoint, if training has begun."""
        if not is_training(trainer) or not trainer.progress.total_batches:
            return
        try:
            trainer.save_checkpoint(self.ckpt_path)
        except CoreError as failure:  # the error that ends the run must not be hidden by this one
            logger.warning("OnExceptionCheckpoint: no checkpoint could be written: %s", failure)
