"""A checkpoint at the end of each epoch."""

from __future__ import annotations

import os
from typing import Any

from core.callbacks.base import Callback
from core.checking import check_count, check_path
from core.errors import ConfigurationError

__all__ = ["ModelCheckpoint"]


class ModelCheckpoint(Callback):
    """Writes a checkpoint at the end of each epoch, after its validation and all other callbacks.

    Args:
        dirpath: The directory; by default ``checkpoints`` in the trainer's ``default_root_dir``.
        filename: The file name, in which ``{epoch}`` (from 0) and ``{step}`` are replaced.
        every_n_epochs: The number of epochs between two checkpoints.
        keep_last: How many to keep; an older one is removed after the newer one is committed. ``None`` keeps all.

    Raises:
        ConfigurationError: A number is not an integer ≥ 1, or ``filename`` is not a format of a file name.
        WrongTypeError: ``dirpath`` is not a path.
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str = "epoch={epoch}-step={step}",
        every_n_epochs: int = 1,
        keep_last: int | None = None,
    ) -> None:
        check_count("every_n_epochs", every_n_epochs, 1)
        check_count("keep_last", keep_last, 1, optional=True)
        check_path("dirpath", dirpath)
        _check_filename(filename)
        self.dirpath = None if dirpath is None else os.fspath(dirpath)
        self.filename = filename
        self.every_n_epochs = every_n_epochs
        self.keep_last = keep_last
        self.saved: list[str] = []
        """The checkpoints that are kept, oldest first."""

    @property
    def last_path(self) -> str | None:
        """The newest checkpoint; ``None`` if there is none yet."""
        return self.saved[-1] if self.saved else None

    def directory(self, trainer: Any) -> str:
        """The directory that checkpoints are written to."""
        return self.dirpath or os.path.join(trainer.default_root_dir, "checkpoints")

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Write a checkpoint, then remove those that are no longer kept."""
        if trainer.fast_dev_run or (trainer.current_epoch + 1) % self.every_n_epochs:
            return
        directory = self.directory(trainer)
        path = os.path.join(directory, self.filename.format(epoch=trainer.current_epoch, step=trainer.global_step))
        # A resumed run may know checkpoints in other directories, such as those of the run it continues: keep them.
        ours = [saved for saved in self.saved if saved != path and os.path.dirname(saved) == os.path.dirname(path)]
        # Before saving: the checkpoint holds this callback's state, which must be true when it is loaded.
        self.saved = [*ours, path][-(self.keep_last or 0) :]
        trainer.save_checkpoint(path)
        for saved in ours:
            if saved not in self.saved:
                trainer.runtime.strategy.remove_checkpoint(saved)

    def state_dict(self) -> dict[str, Any]:
        """The checkpoints that are kept."""
        return {"saved": list(self.saved)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the checkpoints that are kept."""
        self.saved = list(state["saved"])


def _check_filename(filename: Any) -> None:
    try:
        filled = filename.format(epoch=0, step=0)
    except (AttributeError, LookupError, ValueError):
        filled = ""
    if not filled or os.path.basename(filled) != filled:
        raise ConfigurationError(
            f"filename={filename!r}: must be a file name without directories, in which only {{epoch}} and {{step}} are "
            "replaced."
        )
