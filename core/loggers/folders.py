"""Loggers that write files into their own folder: ``save_dir/project/version``."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

from ..errors import CheckpointError, ConfigurationError
from ..hints.argument_checks import check_path, is_below, is_url
from .base import Logger
from .values import write_json

MARK = ".core-run"
"""The file of a run's folder that distinguishes it from others."""


class FolderLogger(Logger):
    """A logger whose files are in ``save_dir/name/version``, with the hyperparameters in ``hparams.json``.

    Args:
        save_dir: The folder below which all runs are.
        name: The name of the project or experiment (attribute ``project``); if empty, there is no folder for it.
        version: What distinguishes this run from others: an integer ``n`` for the folder ``version_n``, or the folder's
            name; empty for none. By default the number after the highest that exists.
        prefix: What the names of metrics start with, followed by a hyphen.
    """

    requires_logging_directory: ClassVar[bool] = True

    def __init__(
        self,
        save_dir: str | os.PathLike[str],
        name: str | None = "core_logs",
        version: int | str | None = None,
        prefix: str = "",
    ) -> None:
        super().__init__()
        check_path("save_dir", save_dir, optional=False)
        if is_url(save_dir):
            raise ConfigurationError(
                f"save_dir={save_dir!r} is a URL, and {type(self).__name__} writes to this machine. Set a directory."
            )
        self.project = name or ""
        self.prefix = prefix
        self._save_dir = os.path.expanduser(os.fspath(save_dir))
        self._version = version
        self._is_fixed = version is not None
        """Whether the version stays what it is: the user has given it, or it has files."""
        self._reserved: str | None = None
        """The folder that was made for this run, once there is one."""

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
        """The version. When it is first read, its folder is made, so that no other run takes the same one.

        Raises:
            ConfigurationError: None was given and this is not process 0, which decides it.
        """
        if self._version is None:
            if self.process_index != 0:
                raise ConfigurationError(
                    f"{type(self).__name__}: process 0 decides the version and its log_dir when the run begins, and "
                    f"process {self.process_index} does not know them yet. Read them in a hook, such as setup, or "
                    "after the run; or set version=."
                )
            return self.reserve()
        return self._version

    @property
    def log_dir(self) -> str:
        """The folder of this run's files."""
        return self._folder_of(self.version)

    def _folder_of(self, version: int | str) -> str:
        name = f"version_{version}" if isinstance(version, int) else version
        return os.path.join(self.root_dir, name).rstrip(os.sep)

    @property
    def root_dir(self) -> str:
        """The folder of all versions: ``save_dir/name``."""
        return os.path.join(self._save_dir, self.project).rstrip(os.sep)

    @property
    def is_decided(self) -> bool:
        """Whether the version was given, or taken by an earlier run of this object."""
        return self._is_fixed or self._reserved is not None

    def reserve(self, makes_files: bool = True) -> int | str:
        """Decide the version in process 0, and make its folder, so that no other run takes the same one."""
        while True:
            if self._version is None:
                self._version = self._next_version()
            if not makes_files:
                return self._version
            chosen = not self._is_fixed and self._reserved is None
            try:
                os.makedirs(self.log_dir, exist_ok=not chosen)
            except FileExistsError:  # another run was quicker
                self._version = None
                continue
            except OSError as error:
                raise ConfigurationError(
                    f"save_dir={self._save_dir!r}: no folder for {type(self).__name__} can be created in "
                    f"{self.log_dir}: {error}. Choose another one, or set logger=False."
                ) from error
            self._reserved = self.log_dir
            return self._version

    def adopt(self, version: int | str) -> None:
        """Take the version that process 0 has decided."""
        self._version = version
        self._reserved = self.log_dir

    def continue_at(self, path: str | os.PathLike[str]) -> None:
        """Take the version in whose folder the checkpoint ``path`` is, unless a version was given."""
        if self._is_fixed or self._reserved is not None:
            return
        try:
            folder = Path(path).absolute().relative_to(Path(self.root_dir).absolute()).parts[0]
        except (ValueError, IndexError):
            return
        number = folder.removeprefix("version_")
        if number != folder and number.isdecimal():
            self._version, self._is_fixed = int(number), True

    def state_dict(self) -> dict[str, Any]:
        """The run's folder, and how far its files have been written."""
        self.save()
        own = {"root_dir": os.path.abspath(self.root_dir), "version": self.version, "mark": self._mark()}
        return {**own, **self.written()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the same run from there, unless another version was given or its folder is gone.

        Raises:
            CheckpointError: The folder is not below ``save_dir/name``.
        """
        if state.get("root_dir") != os.path.abspath(self.root_dir):
            return
        folder = self._folder_of(state["version"])
        if state["version"] != self._version and not is_below(os.path.join(folder, MARK), self.root_dir):
            raise CheckpointError(f"version={state['version']!r} is outside of {self.root_dir}.")
        if state.get("mark") is None or _mark_in(folder) != state["mark"]:
            return  # what is there, another run has written
        if state["version"] != self._version:
            if self._is_fixed:
                return
            if self.process_index == 0 and self._reserved is not None:
                with suppress(OSError):  # it holds files, or is gone: loggers may share it
                    os.rmdir(self._reserved)
            self._version = state["version"]
            self._reserved = self.log_dir
        self._is_fixed = True
        if self.process_index == 0:
            self._close_files("success")
            self.rewind(state)

    def _mark(self) -> str | None:
        """What distinguishes this run's folder from others, made if there is none yet; ``None`` without a folder.

        A checkpoint that has it was saved by a run that wrote there. Others cannot have files there cut or removed.
        """
        folder = self._folder_of(self.version)
        mark = _mark_in(folder)
        if mark is None and os.path.isdir(folder):
            mark = secrets.token_hex(16)
            Path(folder, MARK).write_text(mark, "ascii")
        return mark

    def written(self) -> dict[str, Any]:
        """How far this run's files have been written; part of :meth:`state_dict`."""
        return {}

    def rewind(self, state: Mapping[str, Any]) -> None:
        """Drop what was written after ``state``; the files are closed."""

    def finalize(self, status: str = "success") -> None:
        """Write what is buffered, and close the files until more is logged."""
        super().finalize(status)
        self._close_files(status)

    def _close_files(self, status: str) -> None:
        if self._experiment is not None:
            self.close(status)
            self._experiment = None

    def write_hyperparams(self, values: Mapping[str, Any]) -> None:
        """Write ``hparams.json``."""
        self.start()
        write_json(Path(self.log_dir) / "hparams.json", values)

    def _next_version(self) -> int:
        folder = Path(self._save_dir, self.project)
        names = [path.name.removeprefix("version_") for path in folder.glob("version_*") if path.is_dir()]
        return max((int(name) for name in names if name.isdecimal()), default=-1) + 1


def _mark_in(folder: str) -> str | None:
    try:
        return Path(folder, MARK).read_text("ascii")
    except (OSError, ValueError):
        return None
