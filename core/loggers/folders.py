"""Loggers that write files into their own folder: ``save_dir/project/version``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from core.errors import ConfigurationError
from core.loggers.base import Logger
from core.loggers.values import write_json

__all__ = ["FolderLogger"]


class FolderLogger(Logger):
    """A logger whose files are in ``save_dir/name/version``, with the hyperparameters in ``hparams.json``.

    Args:
        save_dir: The folder below which all runs are.
        name: The name of the project or experiment (attribute ``project``); if empty, there is no folder for it.
        version: What tells this run from others: an integer ``n`` for the folder ``version_n``, or the folder's name;
            empty for none. By default the number after the highest that exists.
    """

    requires_logging_directory: ClassVar[bool] = True

    def __init__(
        self, save_dir: str | os.PathLike[str], name: str = "core_logs", version: int | str | None = None
    ) -> None:
        super().__init__()
        self.project = name
        self._save_dir = os.fspath(save_dir)
        self._version = version

    @classmethod
    def for_project(cls, project: str, save_dir: str | None, **options: Any) -> Self:
        """See :meth:`Logger.for_project`: the files are in ``save_dir/project``."""
        if save_dir is None:
            raise ConfigurationError(f"log_with={cls.name!r} writes files. Set project_dir to the folder for them.")
        return cls(save_dir, **{"name": project, "version": "", **options})

    @property
    def save_dir(self) -> str:
        """The folder below which all runs are."""
        return self._save_dir

    @property
    def version(self) -> int | str:
        """The version, decided when it is first needed.

        Raises:
            ConfigurationError: None was given and this is not process 0, which decides it.
        """
        if self._version is None:
            if self.process_index != 0:
                raise ConfigurationError(
                    f"{type(self).__name__}: process 0 decides the version, and process {self.process_index} does not "
                    "know it. Set version=, or read it in process 0."
                )
            self._version = self._next_version()
        return self._version

    @property
    def log_dir(self) -> str:
        """The folder of this run's files."""
        folder = f"version_{self.version}" if isinstance(self.version, int) else self.version
        return os.path.join(self._save_dir, self.project, folder).rstrip(os.sep)

    def write_hyperparams(self, values: Mapping[str, Any]) -> None:
        """Write ``hparams.json``."""
        self.start()
        write_json(Path(self.log_dir) / "hparams.json", values)

    def _next_version(self) -> int:
        folder = Path(self._save_dir, self.project)
        names = [path.name.removeprefix("version_") for path in folder.glob("version_*") if path.is_dir()]
        return max((int(name) for name in names if name.isdecimal()), default=-1) + 1
