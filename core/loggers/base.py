"""The Logger: writes metrics, hyperparameters, images and tables of one run, in process 0 only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from numbers import Integral
from typing import Any, ClassVar, Self, final

from ..discovery.ranks import launched_ranks
from ..errors import ConfigurationError, WrongTypeError
from ..hints.argument_checks import suggest_arguments_of
from .values import as_mapping, plain

_INSTEAD = {
    "log_metrics": "write_metrics",
    "log_hyperparams": "write_hyperparams",
    "log": "write_metrics",
    "store_init_configuration": "write_hyperparams",
}
"""What front ends and users call, and what it calls in process 0."""


class Logger(ABC):
    """Writes what one run logs. Every process may call every method; only process 0 writes.

    A front end sets :attr:`process_index`; before, it is the rank that a launcher has set. The run is opened when it is
    first used.

    A subclass defines :meth:`open` and :meth:`write_metrics`, and overrides the other ``write_*`` methods that its
    library offers; they are called in process 0 only, with tensors of one element converted to numbers.
    """

    name: ClassVar[str] = ""
    """The name that users request it by."""
    requires_logging_directory: ClassVar[bool] = False
    """Whether it writes files, so that :meth:`for_project` needs a folder."""
    package: ClassVar[str] = ""
    """The package that it needs, as ``import`` names it; empty if none."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        suggest_arguments_of(cls)
        for name, instead in _INSTEAD.items():
            if name in vars(cls) and getattr(cls, instead) is getattr(Logger, instead):
                raise ConfigurationError(
                    f"{cls.__name__}: a subclass of core.loggers.Logger defines {instead!r} instead of {name!r}. A "
                    "logger written for Lightning or Accelerate needs no base class: remove it, and pass the object "
                    "to Trainer(logger=...) or Runtime(log_with=...)."
                )

    def __init__(self) -> None:
        self._process_index: int | None = None
        self.prefix = ""
        """What the names of metrics start with, followed by a hyphen; nothing if empty."""
        self._experiment: Any = None
        self._is_finished = False

    @property
    def process_index(self) -> int:
        """The number of this process. Loggers of other processes than 0 write nothing."""
        return launched_ranks()[0] if self._process_index is None else self._process_index

    @process_index.setter
    def process_index(self, number: int) -> None:
        self._process_index = number

    @classmethod
    def for_project(cls, project: str, save_dir: str | None, **options: Any) -> Self:
        """The logger for a run of ``project``; ``Runtime.init_trackers`` makes trackers with it.

        Args:
            project: The name of the project or experiment.
            save_dir: The folder for files; ``None`` only if :attr:`requires_logging_directory` is false.
            **options: Arguments of the library, such as those in ``init_kwargs``.
        """
        raise ConfigurationError(
            f"{cls.name!r}: {cls.__name__} cannot be made from its name. Pass an object of it, or define its class "
            "method for_project."
        )

    # -- what a subclass defines ---------------------------------------------------------------------------------

    @abstractmethod
    def open(self) -> Any:
        """Start or continue the run; returns the library's own object, which :attr:`experiment` is then."""

    @abstractmethod
    def write_metrics(self, values: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Write one set of values."""

    def write_hyperparams(self, values: Mapping[str, Any]) -> None:
        """Write the run's configuration."""
        raise self._cannot("log_hyperparams")

    def write_images(self, images: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Write images by name."""
        raise self._cannot("log_images")

    def write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int | None) -> None:
        """Write a table."""
        raise self._cannot("log_table")

    def flush(self) -> None:  # noqa: B027 - most write at once
        """Write what is buffered."""

    def close(self, status: str) -> None:  # noqa: B027 - most have nothing to close
        """End the run. ``status`` is ``"success"``, ``"failed"`` or ``"interrupted"``."""

    def write_graph(self, model: Any, inputs: Any) -> None:
        """Write the graph of ``model`` for the example ``inputs``."""
        raise self._cannot("log_graph")

    def reserve(self, makes_files: bool = True) -> Any:
        """Decide, in process 0, what distinguishes this run from others; the other processes :meth:`adopt` it.

        Args:
            makes_files: Whether the run is going to log, so that a folder may be made for it.
        """
        if makes_files:
            self.start()
        return self.version

    def adopt(self, version: Any) -> None:  # noqa: B027 - only some distinguish their runs
        """Take the version that process 0 has decided."""

    def state_dict(self) -> dict[str, Any]:
        """How far the run has been written, for a checkpoint; called in process 0 only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most have no state
        """Continue the run of :meth:`state_dict` from there; every process calls it, only process 0 writes."""

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:  # noqa: B027 - only some keep checkpoints
        """Called after each checkpoint with the callback that wrote it."""

    # -- what front ends and users call --------------------------------------------------------------------------

    @property
    def experiment(self) -> Any:
        """The library's own object, such as ``wandb.Run``; this opens the run.

        In other processes than 0 an object whose methods do nothing.
        """
        if self.process_index != 0:
            return NoExperiment()
        if self._experiment is None:
            if self._is_finished:
                raise ConfigurationError(
                    f"{type(self).__name__}: the run has ended, so it takes no more values. Log before finish() or "
                    "end_training(), or make another logger."
                )
            self._experiment = self.open()
        return self._experiment

    @property
    def tracker(self) -> Any:
        """Accelerate's name of :attr:`experiment`."""
        return self.experiment

    @property
    def version(self) -> str | int | None:
        """The version: it distinguishes this run from others of the same project. ``None`` if there is none."""
        return None

    @property
    def save_dir(self) -> str | None:
        """The folder below which files are written; ``None`` if the library decides."""
        return None

    @property
    def log_dir(self) -> str | None:
        """The folder of this run's files; :attr:`save_dir` unless runs have their own."""
        return self.save_dir

    def start(self) -> None:
        """Open the run; otherwise its first use does."""
        if self.process_index == 0:
            self.experiment  # noqa: B018  opens it

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None, **options: Any) -> None:
        """Write ``metrics``.

        Args:
            metrics: Values by name. Tensors of one element are converted to numbers.
            step: The step that they belong to. Steps may repeat and go back.
            **options: Arguments of the library's call.

        Raises:
            WrongTypeError: ``metrics`` is not a mapping, ``step`` is not an integer, or a value has a type that cannot
                be logged here.
        """
        number: Any = step
        if not (number is None or isinstance(number, Integral)):
            raise WrongTypeError(f"log_metrics: step={step!r}: must be an integer or None.")
        if self.process_index == 0:
            values = plain(as_mapping("metrics", metrics))
            if self.prefix:
                values = {f"{self.prefix}-{name}": value for name, value in values.items()}
            self.write_metrics(values, step, **options)

    def log_hyperparams(self, params: Any) -> None:
        """Write the configuration of the run: a mapping, or an object with attributes such as an argparse namespace.

        Raises:
            WrongTypeError: ``params`` is neither.
        """
        if self.process_index == 0:
            self.write_hyperparams(plain(as_mapping("params", params)))

    def log_images(self, images: Mapping[str, Any], step: int | None = None, **options: Any) -> None:
        """Write images by name: each an array or tensor, or a list of them.

        Raises:
            ConfigurationError: This logger writes no images.
        """
        if self.process_index == 0:
            self.write_images(as_mapping("images", images), step, **options)

    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Write a table, given by ``columns`` and the rows in ``data``, or as a pandas data frame.

        Raises:
            ConfigurationError: This logger writes no tables, or both or none of the two were given.
        """
        if (dataframe is None) == (data is None) or (data is not None and columns is None):
            raise ConfigurationError("log_table: pass either columns and data, or dataframe.")
        if self.process_index == 0:
            if dataframe is not None:
                columns, data = [str(name) for name in dataframe.columns], dataframe.values.tolist()
            self.write_table(table_name, list(columns or ()), [list(row) for row in data or ()], step)

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Write the graph of ``model``.

        Args:
            model: The module.
            input_array: What to call it with; by default its ``example_input_array``.

        Raises:
            ConfigurationError: This logger writes no graphs, or there are no inputs.
        """
        if self.process_index == 0:
            inputs = getattr(model, "example_input_array", None) if input_array is None else input_array
            if inputs is None:
                raise ConfigurationError(
                    "log_graph: there are no inputs to call the module with. Set self.example_input_array in the "
                    "module, or pass input_array."
                )
            self.write_graph(model, inputs)

    def save(self) -> None:
        """Write what is buffered."""
        if self._experiment is not None:
            self.flush()

    def finalize(self, status: str = "success") -> None:
        """Write what is buffered at the end of a fit or test, after which more may be logged."""
        self.save()

    def finish(self, status: str = "success") -> None:
        """End the run; may be called twice. ``status`` is ``"success"``, ``"failed"`` or ``"interrupted"``."""
        try:
            if self._experiment is not None:
                self.finalize(status)
            if self._experiment is not None:  # some close what they have open in finalize
                self.close(status)
        finally:
            self._experiment, self._is_finished = None, True

    @final
    def log(self, values: Mapping[str, Any], step: int | None = None, **options: Any) -> None:
        """Accelerate's name of :meth:`log_metrics`."""
        self.log_metrics(values, step, **options)

    @final
    def store_init_configuration(self, values: Any) -> None:
        """Accelerate's name of :meth:`log_hyperparams`."""
        self.log_hyperparams(values)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_experiment": None}  # another process opens the run itself, if it writes

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def _cannot(self, method: str) -> ConfigurationError:
        return ConfigurationError(f"{method}: {type(self).__name__} has no such feature. Use experiment instead.")


class NoExperiment:
    """:attr:`Logger.experiment` in processes that write nothing: its methods do nothing, and so do theirs."""

    def __getattr__(self, name: str) -> NoExperiment:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> NoExperiment:
        """Do nothing."""
        return self

    def __getitem__(self, key: Any) -> NoExperiment:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __enter__(self) -> NoExperiment:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class NoLogger(Logger):
    """Takes everything and writes nothing; the methods of its ``experiment`` do nothing either."""

    def open(self) -> NoExperiment:
        """See :meth:`Logger.open`."""
        return NoExperiment()

    def write_metrics(self, values: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Do nothing."""

    def write_hyperparams(self, values: Mapping[str, Any]) -> None:
        """Do nothing."""

    def write_images(self, images: Mapping[str, Any], step: int | None, **options: Any) -> None:
        """Do nothing."""

    def write_table(self, name: str, columns: list[str], rows: list[list[Any]], step: int | None) -> None:
        """Do nothing."""

    def write_graph(self, model: Any, inputs: Any) -> None:
        """Do nothing."""
