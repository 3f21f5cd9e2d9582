"""The CLI: a training script's command line, which makes its objects and runs ``fit`` or another stage."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..callbacks import Callback
from ..checkpoints import committed_file, local_copy, store_of
from ..errors import ConfigurationError, WrongTypeError, nearest, quoted
from ..hints.argument_checks import suggest_arguments_of
from ..random import seed_everything
from ..trainer import DataModule, Module, Trainer
from .parser import ArgumentParser, Namespace

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

Config = Mapping[str, Any]
"""``class_path`` and ``init_args``."""


def configure(module: Module, optimizer: Config, scheduler: Config | None) -> None:
    """Give ``module`` a ``configure_optimizers`` that makes these; its class becomes one that is derived from it.

    Args:
        module: A module whose class does not define ``configure_optimizers``.
        optimizer: The class of the optimizer, and its arguments without the parameters.
        scheduler: The class of the learning rate scheduler, and its arguments without the optimizer.
    """
    module.__class__ = _derived(type(module))
    module.__dict__.update(_optimizer_config=optimizer, _scheduler_config=scheduler)


def _derived(kind: type[Module]) -> type[Module]:
    members = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__reduce__": _reduce,
        "configure_optimizers": _configure_optimizers,
    }
    return type(kind.__name__, (kind,), members)


def _configure_optimizers(module: Any) -> Any:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = _made(module._optimizer_config, parameters)
    if module._scheduler_config is None:
        return optimizer
    return [optimizer], [_made(module._scheduler_config, optimizer)]


def _made(config: Config, first: Any) -> Any:
    module, _, name = config["class_path"].rpartition(".")
    return getattr(importlib.import_module(module), name)(first, **config.get("init_args", {}))


def _reduce(module: Any) -> tuple[Any, ...]:
    """Pickle: the derived class cannot be imported, so it is derived again."""
    return _restored, (type(module).__mro__[1],), module.__getstate__()


def _restored(kind: type[Module]) -> Module:
    derived = _derived(kind)
    return derived.__new__(derived)


STAGES = {
    "fit": "Train.",
    "validate": "Evaluate one epoch of the validation data.",
    "test": "Evaluate one epoch of the test data.",
    "predict": "Predict.",
}
"""The sub-commands: methods of the Trainer."""

USAGE = "%(prog)s [--config FILE] [--OPTION VALUE ...]"

DATA_ARGUMENTS = frozenset({"model", "module", "train_dataloaders", "val_dataloaders", "dataloaders", "datamodule"})
"""The arguments of these methods that are no options of the command line."""

OPTIMIZERS = (
    (torch.optim.Optimizer, "optimizer", "params"),
    (torch.optim.lr_scheduler.LRScheduler, "lr_scheduler", "optimizer"),
)
"""Base class, option, and the argument that the module supplies."""


class SaveConfigCallback(Callback):
    """Saves the config of ``fit`` in the directory of the checkpoints, in process 0.

    ``python train.py fit --config FILE`` repeats the run. Without checkpoints, the file is in the logger's directory,
    or in ``default_root_dir``. A run that continues from a checkpoint keeps the earlier configs: it saves
    ``config-1.yaml``, ``config-2.yaml``, ….

    Args:
        config: The config, as YAML.
        filename: The name of the file.
        overwrite: Whether an existing file with another config may be replaced.
        continues: Whether the run continues from a checkpoint.
    """

    def __init__(
        self, config: str, *, filename: str = "config.yaml", overwrite: bool = False, continues: bool = False
    ) -> None:
        if not filename or os.path.basename(filename) != filename:
            raise ConfigurationError(f"filename={filename!r}: must be the name of a file, without directories.")
        self.config = config
        self.filename = filename
        self.overwrite = overwrite
        self.continues = continues

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Save the config, unless the run is only to find errors (``fast_dev_run``)."""
        if stage == "fit" and trainer.is_global_zero and not trainer.settings.fast_dev_run:
            self.save_config(trainer, pl_module)

    def save_config(self, trainer: Trainer, module: Any) -> None:
        """Write the file; a subclass may also pass the config to a logger. Process 0 calls it.

        Raises:
            ConfigurationError: The file exists with another config.
        """
        with committed_file(self._path(trainer)) as file:
            file.write_text(self.config, encoding="utf-8")

    def _path(self, trainer: Trainer) -> str:
        checkpoints = trainer.checkpoint_callback
        saved_in = None if checkpoints is None else checkpoints.directory(trainer)
        folder = saved_in or trainer.log_dir or trainer.default_root_dir
        path, (stem, suffix) = os.path.join(folder, self.filename), os.path.splitext(self.filename)
        numbered = (os.path.join(folder, f"{stem}-{number}{suffix}") for number in range(1, 1_000_000))
        while self.continues and self._is_other(path):
            path = next(numbered)
        if self._is_other(path) and not self.overwrite:
            raise ConfigurationError(
                f"{path} exists, with the config of another run. Choose another --trainer.default_root_dir, remove the "
                "file, or set CLI(save_config_kwargs={'overwrite': True})."
            )
        return path

    def _is_other(self, path: str) -> bool:
        if not store_of(path).exists():
            return False
        with local_copy(path) as file:
            return file.read_text("utf-8") != self.config


@suggest_arguments_of
class CLI:
    """Makes the objects of a training script from the command line, and runs the sub-command.

    ::

        CLI(MyModule, MyData)      # python train.py fit --trainer.max_epochs=3 --model.lr=0.1 --data.batch_size=32

    Define ``before_fit`` or ``after_fit`` in a subclass to act before or after the stage (and so on for
    ``validate``, ``test`` and ``predict``), and :meth:`add_arguments_to_parser` to add or link arguments.

    Args:
        model_class: The class of the module, or ``None``: the user names it by ``--model``.
        datamodule_class: The class of the DataModule, or ``None``: the user may name one by ``--data``.
        save_config_callback: The class that saves the config of ``fit``; ``None`` saves none.
        save_config_kwargs: Its arguments, such as ``{"overwrite": True}``.
        trainer_class: The Trainer, or a class derived from it.
        trainer_defaults: Defaults of the Trainer's arguments. Callbacks that are objects are added to the
            user's.
        seed_everything_default: The default of ``--seed_everything``: a seed, ``True`` for seed 0, ``False`` for none.
        parser_kwargs: Arguments of the parser; by sub-command to differ: ``{"fit": {"default_config_files": [...]}}``.
        parser_class: The parser, or a class derived from it.
        subclass_mode_model: Whether the user may name a class derived from ``model_class``.
        subclass_mode_data: Whether the user may name a class derived from ``datamodule_class``.
        args: The arguments: a list, or a mapping as in a config file; the command line by default.
        run: Whether there are sub-commands, and the given one runs. If not, only the objects are made.
        auto_configure_optimizers: Whether ``--optimizer`` and ``--lr_scheduler`` exist if ``model_class`` does not
            define ``configure_optimizers``.

    Raises:
        CoreError: An argument of the Trainer is wrong, or the config exists already.
        SystemExit: The command line is wrong; standard error says why.
    """

    def __init__(
        self,
        model_class: type[Module] | None = None,
        datamodule_class: type[DataModule] | None = None,
        *,
        save_config_callback: type[SaveConfigCallback] | None = SaveConfigCallback,
        save_config_kwargs: Mapping[str, Any] | None = None,
        trainer_class: type[Trainer] = Trainer,
        trainer_defaults: Mapping[str, Any] | None = None,
        seed_everything_default: bool | int = True,
        parser_kwargs: Mapping[str, Any] | None = None,
        parser_class: type[ArgumentParser] = ArgumentParser,
        subclass_mode_model: bool = False,
        subclass_mode_data: bool = False,
        args: Sequence[str] | Mapping[str, Any] | None = None,
        run: bool = True,
        auto_configure_optimizers: bool = True,
    ) -> None:
        _check_class("model_class", model_class, Module)
        _check_class("datamodule_class", datamodule_class, DataModule)
        _check_class("trainer_class", trainer_class, Trainer)
        _check_defaults(trainer_defaults or {}, trainer_class)
        self._check_methods()
        if save_config_kwargs and save_config_callback is None:
            raise ConfigurationError("save_config_kwargs: has no effect with save_config_callback=None. Remove one.")
        self.model_class = model_class or Module
        self.datamodule_class = datamodule_class or DataModule
        self.trainer_class = trainer_class
        self.subclass_mode_model = model_class is None or subclass_mode_model
        self.subclass_mode_data = datamodule_class is None or subclass_mode_data
        self.save_config_callback = save_config_callback
        self.save_config_kwargs = dict(save_config_kwargs or {})
        self.trainer_defaults = dict(trainer_defaults or {})
        self.seed_everything_default = seed_everything_default
        self.auto_configure_optimizers = auto_configure_optimizers
        self.subcommand: str | None = None
        """The sub-command; ``None`` with ``run=False``."""
        self.model: Any
        self.datamodule: Any = None
        self.trainer: Trainer

        self.parsers: dict[str, ArgumentParser] = {}
        """The parser of each sub-command."""
        self.parser = self._make_parser(parser_class, dict(parser_kwargs or {}), run)
        self.config = self._parse(args)
        """The given arguments, and the defaults of the others."""
        if run:
            self.subcommand = self.config["subcommand"]
        self._seed()
        self.before_instantiate_classes()
        self.instantiate_classes()
        if self.subcommand is not None:
            self._run(self.subcommand)

    # -- what a subclass may define ------------------------------------------------------------------------------

    def add_arguments_to_parser(self, parser: ArgumentParser) -> None:
        """Add arguments, link them by ``parser.link_arguments``, or set defaults; called for each sub-command."""

    def before_instantiate_classes(self) -> None:
        """Called when ``self.config`` is there and nothing else."""

    def instantiate_classes(self) -> None:
        """Make ``self.model``, ``self.datamodule`` and ``self.trainer``."""
        self.config_init = self.parser.instantiate(self.config)
        """The values of ``config``, with objects in place of classes and their arguments."""
        self.model = self.get("model")
        self.datamodule = self.get("data")
        self._add_configure_optimizers()
        self.trainer = self.instantiate_trainer()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The Trainer from the config; ``kwargs`` replace what the config has."""
        arguments = {**self.get("trainer").as_dict(), **kwargs}
        callbacks = [*_as_list(arguments.get("callbacks")), *self._callback_objects()]
        if self.subcommand == "fit" and self.save_config_callback is not None:
            callbacks.append(
                self.save_config_callback(
                    self.config_text(),
                    **{"continues": self.config["fit"].get("ckpt_path") is not None, **self.save_config_kwargs},
                )
            )
        return self.trainer_class(**{**arguments, "callbacks": callbacks})

    # -- for subclasses and users --------------------------------------------------------------------------------

    def get(self, name: str, default: Any = None) -> Any:
        """What the sub-command's config has under ``name``, as objects; ``default`` if there is nothing."""
        config = self.config_init if self.subcommand is None else self.config_init[self.subcommand]
        return config.get(name, default)

    def config_text(self) -> str:
        """The config as YAML, with all defaults; ``--config`` of the same sub-command reads it."""
        parser, config = self._of_subcommand()
        text: str = parser.dump(config, skip_unset=False)
        return text

    # -- parsing -------------------------------------------------------------------------------------------------

    def _make_parser(self, parser_class: type[ArgumentParser], kwargs: Mapping[str, Any], run: bool) -> ArgumentParser:
        by_stage = {name: value for name, value in kwargs.items() if name in STAGES and isinstance(value, Mapping)}
        if by_stage and not run:
            raise ConfigurationError(f"parser_kwargs: with run=False there are no sub-commands {quoted(by_stage)}.")
        common = {name: value for name, value in kwargs.items() if name not in by_stage}
        parser = parser_class(**common) if run else parser_class(**{"usage": USAGE, **common})
        if not run:
            self._add_arguments(parser, None)
            return parser
        subcommands = parser.add_subcommands(dest="subcommand", required=True)
        for stage, purpose in STAGES.items():
            options = {"default_env": common.get("default_env", False), "usage": USAGE, **by_stage.get(stage, {})}
            self.parsers[stage] = of_stage = parser_class(description=purpose, **options)
            self._add_arguments(of_stage, stage)
            subcommands.add_subcommand(stage, of_stage, help=purpose)
        return parser

    def _arguments_of(self, stage: str) -> list[str]:
        return [*inspect.signature(getattr(self.trainer_class, stage)).parameters][1:]

    def _add_arguments(self, parser: ArgumentParser, stage: str | None) -> None:
        parser.add_argument("-c", "--config", action="config", help="A config file in YAML or JSON; later ones win.")
        parser.add_argument(
            "--seed_everything",
            type=bool | int,
            default=self.seed_everything_default,
            help="The seed of all random number generators; true for seed 0, false for none.",
        )
        parser.add_trainer(self.trainer_class)
        parser.add_class(self.model_class, "model", subclasses=self.subclass_mode_model, required=True)
        required = self.datamodule_class is not DataModule
        parser.add_class(self.datamodule_class, "data", subclasses=self.subclass_mode_data, required=required)
        if self.auto_configure_optimizers and not _configures_optimizers(self.model_class):
            for base, name, given in OPTIMIZERS:
                parser.add_subclass_arguments(base, name, skip={given}, instantiate=False, fail_untyped=False)
        if stage is not None:
            skip: set[str | int] = {name for name in self._arguments_of(stage) if name in DATA_ARGUMENTS}
            parser.add_method_arguments(self.trainer_class, stage, skip=skip, fail_untyped=False)
        self.add_arguments_to_parser(parser)  # last, so that it can link all others
        plain = {name: value for name, value in self.trainer_defaults.items() if name != "callbacks"}
        described = [item for item in _as_list(self.trainer_defaults.get("callbacks")) if _is_described(item)]
        if described:
            plain["callbacks"] = described
        parser.set_defaults({f"trainer.{name}": value for name, value in plain.items()})

    def _parse(self, args: Sequence[str] | Mapping[str, Any] | None) -> Namespace:
        if isinstance(args, Mapping):
            config: Namespace = self.parser.parse_object(dict(args))
        else:
            config = self.parser.parse_args(None if args is None else [*args])
        return config

    def _of_subcommand(self) -> tuple[ArgumentParser, Namespace]:
        """The parser and the config of the sub-command, or the only ones."""
        if self.subcommand is None:
            return self.parser, self.config
        return self.parsers[self.subcommand], self.config[self.subcommand]

    # -- objects -------------------------------------------------------------------------------------------------

    def _seed(self) -> None:
        _, config = self._of_subcommand()
        seed = config["seed_everything"]
        if seed is not False:
            config["seed_everything"] = seed_everything(0 if seed is True else seed)

    def _callback_objects(self) -> list[Callback]:
        return [item for item in _as_list(self.trainer_defaults.get("callbacks")) if not _is_described(item)]

    def _add_configure_optimizers(self) -> None:
        optimizer, scheduler = (self.get(name) for _, name, _ in OPTIMIZERS)
        if optimizer is None and scheduler is None:
            return
        if _configures_optimizers(type(self.model)):
            raise ConfigurationError(
                f"--{'lr_scheduler' if optimizer is None else 'optimizer'}: {type(self.model).__name__} defines "
                "configure_optimizers, so the argument would have no effect. Remove one of the two."
            )
        if optimizer is None:
            raise ConfigurationError("--lr_scheduler: there is no optimizer. Give --optimizer as well.")
        configure(self.model, optimizer.as_dict(), None if scheduler is None else scheduler.as_dict())

    # -- running -------------------------------------------------------------------------------------------------

    def _run(self, stage: str) -> None:
        for method in (f"before_{stage}", stage, f"after_{stage}"):
            if method == stage:
                given = {name: self.get(name) for name in self._arguments_of(stage) if name not in DATA_ARGUMENTS}
                getattr(self.trainer, stage)(self.model, datamodule=self.datamodule, **given)
            elif hasattr(self, method):
                getattr(self, method)()

    def _check_methods(self) -> None:
        """Reject a method of a subclass that would never be called."""
        valid = [f"{moment}_{stage}" for stage in STAGES for moment in ("before", "after")]
        valid.append("before_instantiate_classes")
        for name in dir(type(self)):
            if name.startswith(("before_", "after_")) and name not in valid:
                raise ConfigurationError(
                    f"{type(self).__name__} defines {name!r}, which is never called.{nearest(name, valid)} "
                    f"Valid: {quoted(valid)}."
                )


def _configures_optimizers(kind: type[Module]) -> bool:
    return kind.configure_optimizers is not Module.configure_optimizers


def _is_described(callback: Any) -> bool:
    """Whether it is the description of a callback, such as ``{"class_path": ...}``, and not an object."""
    return not isinstance(callback, Callback)


def _as_list(given: Any) -> list[Any]:
    return [] if given is None else [*given] if isinstance(given, list | tuple) else [given]


def _check_class(argument: str, given: Any, base: type[Any]) -> None:
    if given is not None and not (isinstance(given, type) and issubclass(given, base)):
        called = f" Pass the class, without calling it: {type(given).__name__}." if isinstance(given, base) else ""
        raise WrongTypeError(f"{argument}={given!r:.100}: must be a class derived from core.{base.__name__}.{called}")


def _check_defaults(defaults: Mapping[str, Any], trainer_class: type[Trainer]) -> None:
    parameters = inspect.signature(trainer_class).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for name in defaults:
        if name not in parameters and not takes_any:
            raise ConfigurationError(
                f"trainer_defaults[{name!r}]: {trainer_class.__name__} has no such argument.{nearest(name, parameters)}"
                f" All of them: help({trainer_class.__name__})."
            )
