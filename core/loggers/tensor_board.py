"""TensorBoardLogger: event files that TensorBoard shows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from .folders import FolderLogger
from .text_files import cut_file
from .values import flat, import_package, inference, numbers, plain

EVENTS = "events.out.tfevents.*"
"""The names of event files."""


class TensorBoardLogger(FolderLogger):
    """Writes event files with ``torch.utils.tensorboard``. :attr:`experiment` is its ``SummaryWriter``.

    Numbers become scalars, text becomes text, and a mapping becomes scalars in one chart.

    Args:
        save_dir: See :class:`core.loggers.FolderLogger`.
        name: Likewise.
        version: Likewise.
        log_graph: Whether a Trainer writes the graph of its module, called with its ``example_input_array``.
        default_hp_metric: Whether the table of hyperparameters has a column ``hp_metric``, with -1, to sort runs by.
        prefix: See :class:`core.loggers.FolderLogger`.
        sub_dir: A folder for the event files within the run's.
        **options: Further arguments of ``SummaryWriter``.
    """

    name: ClassVar[str] = "tensorboard"
    package: ClassVar[str] = "tensorboard"

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "core_logs",
        version: int | str | None = None,
        log_graph: bool = False,
        default_hp_metric: bool = False,
        prefix: str = "",
        sub_dir: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(save_dir, name, version, prefix)
        self.logs_graph = log_graph
        self.sub_dir = None if sub_dir is None else os.fspath(sub_dir)
        self._default_hp_metric = default_hp_metric
        self._compared: Mapping[str, Any] = {}
        """Metrics in the table of hyperparameters."""
        self._options = options

    @property
    def log_dir(self) -> str:
        """The folder of this run's event files."""
        return super().log_dir if self.sub_dir is None else os.path.join(super().log_dir, self.sub_dir)

    @property
    def writer(self) -> Any:
        """Accelerate's name of :attr:`experiment`."""
        return self.experiment

    def open(self) -> Any:
        """Make the writer."""
        tensorboard = import_package("tensorboard", "torch.utils.tensorboard", type(self).__name__)
        return tensorboard.SummaryWriter(self.log_dir, **self._options)

    def write_metrics(self, values: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Write scalars, text, and each mapping of scalars as one chart; ``None`` is left out.

        Raises:
            WrongTypeError: A value is something else; nothing is written.
        """
        logger = type(self).__name__
        numbers(logger, {name: value for name, value in values.items() if not isinstance(value, str)})
        for name, value in values.items():
            if isinstance(value, str):
                self.experiment.add_text(name, value, global_step=step, **options)
            elif isinstance(value, Mapping):
                self.experiment.add_scalars(name, numbers(logger, value), global_step=step, **options)
            elif value is not None:
                self.experiment.add_scalar(name, value, global_step=step, **options)
        self.experiment.flush()

    def log_hyperparams(self, params: Any, metrics: Any = None, step: int | None = None) -> None:
        """Like :meth:`core.loggers.Logger.log_hyperparams`.

        Args:
            params: See there.
            metrics: Values by name that TensorBoard's table shows next to ``params``, to compare runs. Log them again
                by the same names when they are known. A number is that of ``hp_metric``.
            step: The step that they belong to; 0 unless given.

        Raises:
            WrongTypeError: ``params`` or ``metrics`` has the wrong type, or ``step`` is not an integer.
        """
        if metrics is not None:
            metrics = metrics if isinstance(metrics, Mapping) else {"hp_metric": metrics}
            self.log_metrics(metrics, 0 if step is None else step)
            self._compared = plain(metrics)
        super().log_hyperparams(params)

    def write_hyperparams(self, values: Mapping[str, Any]) -> None:
        """Write ``hparams.json`` and the table of hyperparameters."""
        super().write_hyperparams(values)
        summary = import_package("tensorboard", "torch.utils.tensorboard.summary", type(self).__name__)
        shown = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in flat(values).items()
        }
        if self._default_hp_metric and not self._compared:
            self._compared = {"hp_metric": -1}
            self.write_metrics(self._compared, 0)
        for part in summary.hparams(shown, dict(self._compared)):
            self.experiment.file_writer.add_summary(part)
        self.experiment.flush()

    def write_images(self, images: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Write each batch of images; ``dataformats`` is ``"NHWC"`` unless given."""
        for name, batch in images.items():
            self.experiment.add_images(name, batch, global_step=step, **{"dataformats": "NHWC", **options})

    def write_graph(self, model: Any, inputs: Any) -> None:
        """Write the graph of the module, traced in evaluation mode without gradients."""
        with inference(model):
            self.experiment.add_graph(model, inputs)

    def written(self) -> dict[str, Any]:
        """The sizes of the event files."""
        folder = Path(self.log_dir)
        return {"events": {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob(EVENTS)}}

    def rewind(self, state: Mapping[str, Any]) -> None:
        """Drop the events after those that were there."""
        folder = Path(self.log_dir)
        for path in list(folder.rglob(EVENTS)):
            size = state["events"].get(str(path.relative_to(folder)))
            if size is None:
                path.unlink()
            else:
                cut_file(path, size)

    def flush(self) -> None:
        """Write what is buffered."""
        self.experiment.flush()

    def close(self, status: str) -> None:
        """Close the event file."""
        self.experiment.close()
