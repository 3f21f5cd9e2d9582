"""MLFlowLogger: MLflow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from .base import Logger
from .values import flat, import_package, numbers

LONGEST_PARAMETER = 500
"""Characters of a parameter that every MLflow server takes."""
PARAMETERS_AT_ONCE = 100
"""Parameters that one call takes."""


class MLFlowLogger(Logger):
    """Writes a run of MLflow. :attr:`experiment` is the active run, so MLflow's own functions write into it too.

    Args:
        experiment_name: The name of the experiment.
        run_name: The name of the run; MLflow's choice unless given.
        tracking_uri: Where MLflow writes; its own setting unless given.
        tags: Tags of the run.
        save_dir: The folder for files, if there is no ``tracking_uri``; MLflow's own setting unless given.
        run_id: The run to continue.
        **options: Further arguments of ``mlflow.start_run``.
    """

    name: ClassVar[str] = "mlflow"
    package: ClassVar[str] = "mlflow"

    def __init__(
        self,
        experiment_name: str = "core_logs",
        run_name: str | None = None,
        tracking_uri: str | None = None,
        tags: Mapping[str, Any] | None = None,
        save_dir: str | os.PathLike[str] | None = None,
        run_id: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.project = experiment_name
        self._save_dir = None if save_dir is None else os.fspath(save_dir)
        self._tracking_uri = tracking_uri
        self._options = {"run_name": run_name, "tags": tags, "run_id": run_id, **options}

    @classmethod
    def for_project(cls, project: str, save_dir: str | None, **options: Any) -> Self:
        """See :meth:`Logger.for_project`; MLflow decides where to write unless ``tracking_uri`` is given."""
        return cls(**{"experiment_name": project, **options})

    @property
    def version(self) -> str | None:
        """The run's id, once it is known."""
        return self._options["run_id"] if self._experiment is None else str(self._experiment.info.run_id)

    @property
    def save_dir(self) -> str | None:
        """The folder for files; ``None`` if MLflow decides."""
        return self._save_dir

    @property
    def active_run(self) -> Any:
        """Accelerate's name of :attr:`experiment`."""
        return self.experiment

    def open(self) -> Any:
        """Start or continue the run."""
        mlflow = self._library()
        if self._tracking_uri is not None:
            mlflow.set_tracking_uri(self._tracking_uri)
        elif self._save_dir is not None:
            os.makedirs(self._save_dir, exist_ok=True)
            mlflow.set_tracking_uri("sqlite:///" + os.path.join(os.path.abspath(self._save_dir), "mlflow.db"))
        if self._options["run_id"] is None:
            mlflow.set_experiment(self.project)
        return mlflow.start_run(**{name: value for name, value in self._options.items() if value is not None})

    def write_metrics(self, values: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Write numbers."""
        run_id = self.experiment.info.run_id
        self._library().log_metrics(numbers(type(self).__name__, values), step=step, run_id=run_id, **options)

    def write_hyperparams(self, values: Mapping[str, Any]) -> None:
        """Write parameters as text, at most 500 characters of each."""
        self.start()
        items = [(name, str(value)[:LONGEST_PARAMETER]) for name, value in flat(values).items()]
        for start in range(0, len(items), PARAMETERS_AT_ONCE):
            self._library().log_params(dict(items[start : start + PARAMETERS_AT_ONCE]))

    def write_images(self, images: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Write each list of images; ``options`` are arguments of ``mlflow.log_image``."""
        self.start()
        for name, batch in images.items():
            for image in batch:
                self._library().log_image(image, key=name, step=step, **options)

    def write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int | None) -> None:
        """Write a table as the artifact ``name.json``."""
        self.start()
        data = {column: [row[position] for row in rows] for position, column in enumerate(columns)}
        self._library().log_table(data, f"{name}.json")

    def close(self, status: str) -> None:
        """End the run."""
        self._library().end_run("FINISHED" if status == "success" else "FAILED")

    def _library(self) -> Any:
        return import_package("mlflow", "mlflow", type(self).__name__)
