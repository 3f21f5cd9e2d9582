"""The folders of a project's files: checkpoints and logs."""

from __future__ import annotations

import logging
import os
import re
from typing import Any

import attrs

from ...checkpoints import is_committed, remove_committed, store_of
from ...errors import CheckpointError, ConfigurationError, WrongTypeError
from ...hints.argument_checks import check_count, check_path, instead_of_class, suggest_arguments_of

logger = logging.getLogger(__name__)

_NAME = re.compile(r"\.?checkpoint_(\d+)(\.core-old)?")


@suggest_arguments_of
@attrs.define
class ProjectConfiguration:
    """Where the files of a project go, and how many checkpoints are kept; with Accelerate's names.

    Raises:
        ConfigurationError: ``total_limit`` is not an integer ≥ 1, or ``iteration`` not one ≥ 0.
    """

    project_dir: str | os.PathLike[str] | None = None
    """The folder of the project; checkpoints go into its folder ``checkpoints``."""
    logging_dir: str | os.PathLike[str] | None = None
    """Where trackers write files; ``project_dir`` unless given."""
    automatic_checkpoint_naming: bool = False
    """Whether ``save_state()`` without a path writes ``checkpoints/checkpoint_0``, ``checkpoint_1``, …"""
    total_limit: int | None = None
    """How many automatically named checkpoints are kept; an older one goes after the newer one is committed."""
    iteration: int = 0
    """The least number of the next checkpoint. A number that is in use is never used again."""
    save_on_each_node: bool = False
    """Whether the first process of each machine writes, for machines that share no file system."""

    def __attrs_post_init__(self) -> None:
        check_count("total_limit", self.total_limit, 1, optional=True)
        check_count("iteration", self.iteration, 0)
        self.set_directories(self.project_dir)

    def set_directories(self, project_dir: str | os.PathLike[str] | None = None) -> None:
        """Set ``project_dir``, and ``logging_dir`` unless it is set.

        Raises:
            WrongTypeError: ``project_dir`` is not a path.
        """
        check_path("project_dir", project_dir)
        self.project_dir = project_dir
        if self.logging_dir is None:
            self.logging_dir = project_dir

    @property
    def checkpoints(self) -> str | None:
        """The folder of the automatically named checkpoints; ``None`` without a ``project_dir``."""
        return None if self.project_dir is None else os.path.join(self.project_dir, "checkpoints")


def read_project(
    project_dir: str | os.PathLike[str] | None, config: Any, logging_dir: str | os.PathLike[str] | None
) -> ProjectConfiguration:
    """The configuration of a project, from the constructor's three arguments for it.

    Raises:
        WrongTypeError: ``config`` is no configuration, or a folder is not a path.
        ConfigurationError: Both name a folder, and the folders differ.
    """
    if config is not None and not isinstance(config, ProjectConfiguration):
        raise WrongTypeError(
            f"project_config={config!r}: must be a core.ProjectConfiguration, not {type(config).__name__}."
            f"{instead_of_class(config)}"
        )
    project = ProjectConfiguration() if config is None else config
    logs = None if project.logging_dir == project.project_dir else project.logging_dir
    pairs = {"project_dir": (project_dir, project.project_dir), "logging_dir": (logging_dir, logs)}
    for name, (given, configured) in pairs.items():
        if None not in (given, configured) and given != configured:
            raise ConfigurationError(
                f"{name}={given!r} and ProjectConfiguration({name}={configured!r}): contradict each other. Give one of "
                "them."
            )
    if logging_dir is not None:
        check_path("logging_dir", logging_dir)
        project.logging_dir = logging_dir
    if project_dir is not None:
        project.set_directories(project_dir)
    return project


def next_checkpoint(project: ProjectConfiguration) -> str:
    """The path of the next automatically named checkpoint.

    Raises:
        ConfigurationError: There is no ``project_dir``, or checkpoints are not named automatically.
    """
    folder = project.checkpoints
    if folder is None or not project.automatic_checkpoint_naming:
        raise ConfigurationError(
            "save_state: output_dir was not given, and checkpoints are not named automatically. Give a path, or create "
            "the Runtime with project_config=ProjectConfiguration(project_dir=..., automatic_checkpoint_naming=True)."
        )
    number = max([project.iteration, *(number + 1 for number in _numbers(folder))])
    return os.path.join(folder, f"checkpoint_{number}")


def remove_old_checkpoints(folder: str, total_limit: int) -> None:
    """Remove the automatically named checkpoints in ``folder`` except the newest ``total_limit``."""
    committed = [os.path.join(folder, f"checkpoint_{number}") for number in _numbers(folder)]
    for path in [path for path in committed if is_committed(path)][:-total_limit]:
        try:
            remove_committed(path)
        except CheckpointError as error:  # the new one is committed: the run goes on
            logger.warning("an old checkpoint could not be removed: %s", error)


def _numbers(folder: str) -> list[int]:
    names = store_of(folder).names()
    return sorted({int(match[1]) for name in names if (match := _NAME.fullmatch(name))})
