"""A checkpoint at the end of each epoch."""

from __future__ import annotations

import os
from typing import Any

from core.errors import ConfigurationError
from core.trainer.hooks import Callback
from core.trainer.words import check_count, check_path

__all__ = ["ModelCheckpoint"]


class ModelCheckpoint(Callback):
    """Writes a checkpoint at the end of each epoch, after its validation and all other callbacks.

    Args:
        dirpath: Where; ``checkpoints`` in the trainer's ``default_root_dir`` unless given.
        filename: The name, with ``{epoch}`` (from 0) and ``{step}`` filled in.
        every_n_epochs: How often.
        keep_last: How many to keep; an older one is removed once the newer is committed. ``None`` keeps all.

    Raises:
        ConfigurationError: A number is not a whole one from 1, or the name cannot be filled in.
        WrongTypeError: ``dirpath`` is no path.
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
        """The newest checkpoint; ``None`` before there is one."""
        return self.saved[-1] if self.saved else None

    def directory(self, trainer: Any) -> str:
        """Where checkpoints go."""
        return self.dirpath or os.path.join(trainer.default_root_dir, "checkpoints")

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Write one, then remove what is no longer kept."""
        if (trainer.current_epoch + 1) % self.every_n_epochs:
            return
        directory = self.directory(trainer)
        path = os.path.join(directory, self.filename.format(epoch=trainer.current_epoch, step=trainer.global_step))
        # A resumed run may know checkpoints from elsewhere, such as those of the run that it is a copy of: not ours.
        ours = [saved for saved in self.saved if saved != path and os.path.dirname(saved) == os.path.dirname(path)]
        # What the checkpoint says of its own kind is already true when it is read back.
        self.saved = [*ours, path][-(self.keep_last or 0) :]
        trainer.save_checkpoint(path)
        for saved in ours:
            if saved not in self.saved:
                trainer.runtime.strategy.remove_checkpoint(saved)

    def state_dict(self) -> dict[str, Any]:
        """The checkpoints that are kept."""
        return {"saved": list(self.saved)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on keeping them."""
        self.saved = list(state["saved"])


def _check_filename(filename: Any) -> None:
    try:
        filled = filename.format(epoch=0, step=0)
    except (AttributeError, LookupError, ValueError):
        filled = ""
    if not filled or os.path.basename(filled) != filled:
        raise ConfigurationError(
            f"filename={filename!r}: cannot be filled in. Valid: a file name in which {{epoch}} and {{step}} may stand."
        )
