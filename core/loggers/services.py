"""Loggers of tracking services, whose libraries are imported when a run is opened."""

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
STEP = "trainer/global_step"
"""The step of each set of values, as a value: wandb's own step cannot go back."""


def _library(logger: Logger) -> Any:
    """The package that ``logger`` writes with."""
    return import_package(logger.package, logger.package, type(logger).__name__)


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
        return _library(self).start(**self._options)

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
        mlflow = _library(self)
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
        _library(self).log_metrics(numbers(type(self).__name__, values), step=step, run_id=run_id, **options)

    def write_hyperparams(self, values: Mapping[str, Any]) -> None:
        """Write parameters as text, at most 500 characters of each."""
        self.start()
        items = [(name, str(value)[:LONGEST_PARAMETER]) for name, value in flat(values).items()]
        for start in range(0, len(items), PARAMETERS_AT_ONCE):
            _library(self).log_params(dict(items[start : start + PARAMETERS_AT_ONCE]))

    def write_images(self, images: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Write each list of images; ``options`` are arguments of ``mlflow.log_image``."""
        self.start()
        for name, batch in images.items():
            for image in batch:
                _library(self).log_image(image, key=name, step=step, **options)

    def write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int | None) -> None:
        """Write a table as the artifact ``name.json``."""
        self.start()
        data = {column: [row[position] for row in rows] for position, column in enumerate(columns)}
        _library(self).log_table(data, f"{name}.json")

    def close(self, status: str) -> None:
        """End the run."""
        _library(self).end_run("FINISHED" if status == "success" else "FAILED")


class WandbLogger(Logger):
    """Writes a run of Weights & Biases. :attr:`experiment` is its ``wandb.Run``.

    wandb drops values of a step before its newest, such as those of evaluation after those of training. So each set of
    values is a step of wandb's, and has its own step as the value ``trainer/global_step``, the axis of all curves.

    Args:
        name: The name of the run as it is shown.
        save_dir: The folder for its files; wandb's own choice unless given.
        version: The run's id, with which a run is continued.
        offline: Whether to write files only, for ``wandb sync``.
        project: The name of the project.
        **options: Further arguments of ``wandb.init``.
    """

    name: ClassVar[str] = "wandb"
    package: ClassVar[str] = "wandb"

    def __init__(
        self,
        name: str | None = None,
        save_dir: str | os.PathLike[str] | None = None,
        version: str | None = None,
        offline: bool = False,
        project: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.project = project
        given = {"name": name, "dir": save_dir and os.fspath(save_dir), "id": version, "project": project}
        self._options = {**{key: value for key, value in given.items() if value is not None}, **options}
        if offline:
            self._options["mode"] = "offline"

    @classmethod
    def for_project(cls, project: str, save_dir: str | None, **options: Any) -> Self:
        """See :meth:`Logger.for_project`; wandb decides where its files are unless ``dir`` is given."""
        return cls(**{"project": project, **options})

    @property
    def version(self) -> str | None:
        """The run's id, once it is known."""
        return self._options.get("id") if self._experiment is None else str(self._experiment.id)

    @property
    def save_dir(self) -> str | None:
        """The folder for its files; ``None`` if wandb decides."""
        return self._options.get("dir")

    @property
    def run(self) -> Any:
        """Accelerate's name of :attr:`experiment`."""
        return self.experiment

    def open(self) -> Any:
        """Start or continue the run."""
        run = _library(self).init(**self._options)
        run.define_metric(STEP)
        run.define_metric("*", step_metric=STEP, step_sync=True)
        return run

    def write_metrics(self, values: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Write values; wandb's own objects, such as images, are values as well."""
        self._log(dict(values), step, **options)

    def write_hyperparams(self, values: Mapping[str, Any]) -> None:
        """Add to the run's configuration."""
        self.experiment.config.update(dict(values), allow_val_change=True)

    def write_images(self, images: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Write each list of images; ``options`` are arguments of ``wandb.Image``."""
        wandb = _library(self)
        shown = {name: [wandb.Image(image, **options) for image in batch] for name, batch in images.items()}
        self._log(shown, step)

    def write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int | None) -> None:
        """Write a ``wandb.Table``."""
        wandb = _library(self)
        self._log({name: wandb.Table(columns=columns, data=rows)}, step)

    def _log(self, values: dict[str, Any], step: int | None, **options: Any) -> None:
        self.experiment.log(values if step is None else {**values, STEP: step}, **options)

    def close(self, status: str) -> None:
        """Finish the run."""
        self.experiment.finish(exit_code=0 if status == "success" else 1)
