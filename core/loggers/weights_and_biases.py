"""WandbLogger: Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from .base import Logger
from .values import import_package

STEP = "trainer/global_step"
"""The step of each set of values, as a value: wandb's own step cannot go back."""


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
        run = import_package("wandb", "wandb", type(self).__name__).init(**self._options)
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
        wandb = import_package("wandb", "wandb", type(self).__name__)
        shown = {name: [wandb.Image(image, **options) for image in batch] for name, batch in images.items()}
        self._log(shown, step)

    def write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int | None) -> None:
        """Write a ``wandb.Table``."""
        wandb = import_package("wandb", "wandb", type(self).__name__)
        self._log({name: wandb.Table(columns=columns, data=rows)}, step)

    def _log(self, values: dict[str, Any], step: int | None, **options: Any) -> None:
        self.experiment.log(values if step is None else {**values, STEP: step}, **options)

    def close(self, status: str) -> None:
        """Finish the run."""
        self.experiment.finish(exit_code=0 if status == "success" else 1)
