"""TensorBoardLogger: event files that TensorBoard shows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from core.loggers.folders import FolderLogger
from core.loggers.values import flat, import_package

__all__ = ["TensorBoardLogger"]


class TensorBoardLogger(FolderLogger):
    """Writes event files with ``torch.utils.tensorboard``. :attr:`experiment` is its ``SummaryWriter``.

    Numbers become scalars, text becomes text, and a mapping becomes scalars in one chart.

    Args:
        save_dir: See :class:`core.loggers.folders.FolderLogger`.
        name: Likewise.
        version: Likewise.
        **options: Further arguments of ``SummaryWriter``.
    """

    name: ClassVar[str] = "tensorboard"
    package: ClassVar[str] = "tensorboard"

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str = "core_logs",
        version: int | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(save_dir, name, version)
        self._options = options

    @property
    def writer(self) -> Any:
        """Accelerate's name of :attr:`experiment`."""
        return self.experiment

    def open(self) -> Any:
        """Make the writer."""
        tensorboard = import_package("tensorboard", "torch.utils.tensorboard", type(self).__name__)
        return tensorboard.SummaryWriter(self.log_dir, **self._options)

    def write_metrics(self, values: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Write scalars and text; other objects are refused by TensorBoard itself."""
        for name, value in values.items():
            if isinstance(value, str):
                self.experiment.add_text(name, value, global_step=step, **options)
            elif isinstance(value, Mapping):
                self.experiment.add_scalars(name, value, global_step=step, **options)
            else:
                self.experiment.add_scalar(name, value, global_step=step, **options)
        self.experiment.flush()

    def write_hyperparams(self, values: Mapping[str, Any]) -> None:
        """Write ``hparams.json`` and the table of hyperparameters."""
        super().write_hyperparams(values)
        summary = import_package("tensorboard", "torch.utils.tensorboard.summary", type(self).__name__)
        shown = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in flat(values).items()
        }
        for part in summary.hparams(shown, {}):
            self.experiment.file_writer.add_summary(part)
        self.experiment.flush()

    def write_images(self, images: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Write each batch of images; ``dataformats`` is ``"NHWC"`` unless given."""
        for name, batch in images.items():
            self.experiment.add_images(name, batch, global_step=step, **{"dataformats": "NHWC", **options})

    def flush(self) -> None:
        """Write what is buffered."""
        self.experiment.flush()

    def close(self, status: str) -> None:
        """Close the event file."""
        self.experiment.close()
