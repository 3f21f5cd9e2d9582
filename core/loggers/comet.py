"""CometLogger: Comet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from .base import Logger
from .values import flat, import_package


class CometLogger(Logger):
    """Writes an experiment of Comet. :attr:`experiment` is its ``comet_ml.CometExperiment``.

    Args:
        project: The name of the project.
        **options: Further arguments of ``comet_ml.start``, such as ``online=False`` for files only.
    """

    name: ClassVar[str] = "comet_ml"
    package: ClassVar[str] = "comet_ml"

    def __init__(self, project: str | None = None, **options: Any) -> None:
        super().__init__()
        self.project = project
        self._options = options if project is None else {"project_name": project, **options}

    @classmethod
    def for_project(cls, project: str, save_dir: str | None, **options: Any) -> Self:
        """See :meth:`Logger.for_project`."""
        return cls(project, **options)

    @property
    def version(self) -> str | None:
        """The experiment's key, once it is known."""
        return self._options.get("experiment_key") if self._experiment is None else str(self._experiment.get_key())

    @property
    def writer(self) -> Any:
        """Accelerate's name of :attr:`experiment`."""
        return self.experiment

    def open(self) -> Any:
        """Start or continue the experiment."""
        return import_package("comet_ml", "comet_ml", type(self).__name__).start(**self._options)

    def write_metrics(self, values: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Write numbers as metrics and text as other values."""
        for name, value in flat(values).items():
            write = self.experiment.log_other if isinstance(value, str) else self.experiment.log_metric
            write(name, value, **({} if isinstance(value, str) else {"step": step, **options}))

    def write_hyperparams(self, values: Mapping[str, Any]) -> None:
        """Write parameters."""
        self.experiment.log_parameters(dict(values))

    def write_images(self, images: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Write each list of images."""
        for name, batch in images.items():
            for image in batch:
                self.experiment.log_image(image, name=name, step=step, **options)

    def write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int | None) -> None:
        """Write a table as the file ``name.csv``."""
        self.experiment.log_table(f"{name}.csv", tabular_data=rows, headers=columns)

    def flush(self) -> None:
        """Send what is buffered."""
        self.experiment.flush()

    def close(self, status: str) -> None:
        """End the experiment."""
        self.experiment.end()
