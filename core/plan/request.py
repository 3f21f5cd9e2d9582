"""The Request: the user's arguments, read once at the edge; and the config file that gives those that are left out."""

from __future__ import annotations

import importlib
import os
import re
import tomllib
from collections.abc import Collection, Mapping
from numbers import Integral
from typing import Any

import attrs

from ..environments.local import own_environ
from ..errors import ConfigurationError, WrongTypeError, nearest, quoted
from ..hints.argument_checks import check_flags, instead_of_class, is_list
from ..kinds import KINDS
from ..strategies.launchers.script import start_directory
from ..utilities.user_modules import read_imports

CONFIG = "CORE_CONFIG"
"""The environment variable that names the config file. No other file is looked for, so no run changes unnoticed."""

_NUMBERS = {"devices": (str, int, list), "num_nodes": (str, int), "precision": (str, int)}
"""The types of values in it that may be numbers; all others are text."""

VARIABLES = {kind.name: kind.variable for kind in KINDS.values() if kind.variable} | {
    "devices": "CORE_DEVICES",
    "num_nodes": "CORE_NUM_NODES",
}
"""The environment variable that is used if an argument is ``"auto"``; the names are also the keys of a config file."""

_COUNT = re.compile(r"\s*\d{1,9}\s*", re.ASCII)


@attrs.frozen
class Argument:
    """The value of one argument, and where it came from."""

    name: str
    """One of :data:`ARGUMENTS`."""
    value: Any
    """A name, an object, a number, or ``"auto"``."""
    source: str
    """``argument``; ``strategy`` if it was passed to the strategy; the name of an environment variable; the config file
    and its key, ``run.toml: devices``; ``default``."""

    @property
    def is_auto(self) -> bool:
        """Whether resolution chooses the value."""
        return isinstance(self.value, str) and self.value == "auto"

    @property
    def label(self) -> str:
        """The name of the argument, of the environment variable, or of the config file and its key."""
        return self.name if self.source in ("argument", "strategy", "default") else self.source

    @property
    def reason(self) -> str:
        """Why a Plan has this value: ``requested by strategy='ddp'``."""
        elsewhere = "the file " if self.source.endswith(f": {self.name}") else "the environment variable "
        origin = {"argument": "", "strategy": "the strategy's "}.get(self.source, elsewhere)
        return f"requested by {origin}{self}"

    def __str__(self) -> str:
        return f"{self.label}={describe(self.value)!r}"


@attrs.frozen(kw_only=True)
class Request:
    """What the user asked for, and where each value came from.

    A value is a name, an object of its kind, or ``"auto"``; ``devices`` as in :mod:`core.accelerators.devices`;
    ``num_nodes`` an integer ≥ 1 or ``"auto"``.
    """

    accelerator: Any = "auto"
    strategy: Any = "auto"
    devices: Any = "auto"
    num_nodes: int | str = "auto"
    precision: Any = "auto"
    checkpoint_io: Any = "auto"
    cluster_environment: Any = "auto"
    imports: tuple[str, ...] = ()
    """Modules that each process of the run imports first; see :mod:`core.utilities.user_modules`."""
    auto_select_gpus: bool = False
    """Whether ``devices=k`` means devices that no other process uses, rather than the first."""
    environ: Mapping[str, str] = attrs.field(factory=dict, repr=False, eq=False)
    """The environment variables at the time of the request."""
    is_of_process: bool = attrs.field(default=False, eq=False)
    """Whether they are this process's, so that their ranks are for no program that it starts."""
    sources: Mapping[str, str] = attrs.field(factory=dict, eq=False)
    """By argument: see :attr:`Argument.source`."""

    @classmethod
    def read(
        cls,
        *,
        environ: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> Request:
        """Read the user's arguments; for those that are ``"auto"`` the environment variables, then the config file.

        Args:
            environ: The environment variables; by default this process's, without inherited ranks.
            **arguments: Some of :data:`ARGUMENTS`; and ``import_modules``, the modules that each process imports first,
                by default those of ``CORE_IMPORT``.

        Raises:
            WrongTypeError: An argument is neither a name nor an instance of its kind's base class.
            ConfigurationError: An argument is unknown, ``num_nodes`` is not an integer ≥ 1, or the config file is not
                valid.
        """
        import_modules = arguments.pop("import_modules", None)
        auto_select_gpus = arguments.pop("auto_select_gpus", False)
        check_flags(auto_select_gpus=auto_select_gpus)
        unknown = sorted(arguments.keys() - set(ARGUMENTS))
        if unknown:
            raise ConfigurationError(
                f"unknown argument {quoted(unknown)}.{nearest(unknown[0], ARGUMENTS)} Valid: {quoted(ARGUMENTS)}."
            )
        is_of_process, environ = environ is None, own_environ() if environ is None else dict(environ)
        config = read_config(environ, VARIABLES)
        read = [_read(name, arguments.get(name, "auto"), environ, config) for name in ARGUMENTS]
        return cls(
            imports=read_imports(import_modules, environ),
            auto_select_gpus=auto_select_gpus,
            environ=environ,
            is_of_process=is_of_process,
            sources={argument.name: argument.source for argument in read},
            **{argument.name: checked(argument) for argument in read},
        )

    def argument(self, name: str) -> Argument:
        """One of :data:`ARGUMENTS`, with its source."""
        return Argument(name, getattr(self, name), self.sources.get(name, "argument"))

    def flag(self, name: str, value: bool | None) -> bool:
        """An argument that is true or false: ``value``; if that is ``None``, the environment variable ``CORE_<NAME>``.

        Raises:
            WrongTypeError: ``value`` is neither true, false nor ``None``.
            ConfigurationError: The environment variable is neither ``0`` nor ``1``.
        """
        if value is not None:
            check_flags(**{name: value})
            return value
        variable = f"CORE_{name.upper()}"
        given = self.environ.get(variable, "")
        if given not in ("", "0", "1"):
            raise ConfigurationError(f"environment variable {variable}={given!r}: must be 0 or 1.")
        return given == "1"

    def describe(self) -> dict[str, Any]:
        """The arguments as plain data; an object as ``<module:Class>``."""
        return {name: describe(getattr(self, name)) for name in ARGUMENTS}


_OTHERS = ("imports", "auto_select_gpus", "environ", "is_of_process", "sources")
ARGUMENTS = tuple(field.name for field in attrs.fields(Request) if field.name not in _OTHERS)
"""The arguments that Runtime, Trainer and ``python -m core.explain`` have in common: the kinds, ``devices`` and
``num_nodes``."""


def describe(value: Any) -> Any:
    """``value`` as plain data: equal for equal values; an object becomes ``<module:Class>``."""
    if isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    return f"<{type(value).__module__}:{type(value).__qualname__}>"


def _read(name: str, value: Any, environ: Mapping[str, str], config: Mapping[str, Any]) -> Argument:
    if is_list(value) and not isinstance(value, list | tuple):
        value = list(value)
    argument = Argument(name, value, "argument")
    if not argument.is_auto:
        return argument
    variable = VARIABLES.get(name, "")
    from_environ = Argument(name, environ.get(variable, "auto"), variable)
    if not from_environ.is_auto:
        return from_environ
    from_file = Argument(name, config.get(name, "auto"), f"{environ.get(CONFIG)}: {name}")
    return Argument(name, "auto", "default") if from_file.is_auto else from_file


def checked(argument: Argument) -> Any:
    """The argument's value if it has a valid type; ``precision=16`` becomes ``"16"``.

    Raises:
        WrongTypeError: The value is neither a name nor an instance of its kind's base class.
        ConfigurationError: It is ``num_nodes`` and not an integer ≥ 1.
    """
    value = argument.value
    if argument.name == "num_nodes":
        return _checked_count(argument)
    if argument.name == "devices" or isinstance(value, str):  # core.accelerators.devices checks devices
        return value
    if argument.name == "precision" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    module, _, attribute = KINDS[argument.name].base.partition(":")
    base = getattr(importlib.import_module(module), attribute)
    if isinstance(value, base):
        return value
    is_class = isinstance(value, type)
    given = f"the class {value.__qualname__}" if is_class else f"{value!r} of type {type(value).__name__}"
    raise WrongTypeError(
        f"{argument.label} has the wrong type: {given}. Pass a name, 'auto', or an instance of {base.__name__}."
        f"{instead_of_class(value)}{_name_of(argument.name, value)}"
    )


_NAMES = {
    "torch.bfloat16": "'bf16-mixed' or precision='bf16-true'",
    "torch.float16": "'16-mixed' or precision='16-true'",
    "torch.float32": "'32-true'",
    "torch.float64": "'64-true'",
}


def _name_of(name: str, value: Any) -> str:
    """The name to pass instead of a dtype or a device of torch; begins with a space, empty for all else."""
    if name == "precision" and str(value) in _NAMES:
        return f" Set precision={_NAMES[str(value)]}."
    if name == "accelerator" and type(value).__name__ == "device":
        which = "" if value.index is None else f" and devices=[{value.index}]"
        return f" Set accelerator={value.type!r}{which}."
    return ""


def _checked_count(argument: Argument) -> int | str:
    value = argument.value
    if argument.is_auto:
        return "auto"
    if isinstance(value, str) and _COUNT.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        given = repr(argument.value)[:100]
        raise ConfigurationError(
            f"{argument.label} (number of machines) must be 'auto' or an integer ≥ 1; got {given}."
        )
    return int(value)


# -- the config file ---------------------------------------------------------------------------------------------------


def with_config(environ: Mapping[str, str], config: str | None) -> Mapping[str, str]:
    """``environ``, in which the config file is the one that was given, if one was."""
    return environ if config is None else {**environ, CONFIG: config}


def config_path(environ: Mapping[str, str]) -> str:
    """The absolute path of the file. A relative one begins where the process began, as its launcher does."""
    return os.path.abspath(os.path.join(start_directory(), environ[CONFIG]))


def read_config(environ: Mapping[str, str], keys: Collection[str]) -> dict[str, Any]:
    """The values in the file, by argument; none if the variable is not set.

    Args:
        environ: The environment variables.
        keys: The arguments that the file may have.

    Raises:
        ConfigurationError: There is no such file, it is not TOML, or it has another key.
        WrongTypeError: A value has the wrong type.
    """
    if CONFIG not in environ:
        return {}
    name, path = environ[CONFIG], config_path(environ)
    label = f"config file {name!r} (environment variable {CONFIG})"
    if not os.path.isfile(path):  # also a pipe, from which only one process would read
        raise ConfigurationError(f"{label}: there is no file {path!r}. Name one that is there, or none.")
    try:
        with open(path, encoding="utf-8-sig") as file:
            values = tomllib.loads(file.read())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{label}: it cannot be read as TOML: {error}. Correct it.") from error
    for key, value in values.items():
        if key not in keys:
            raise ConfigurationError(f"{label}: unknown key {key!r}.{nearest(key, keys)} Valid: {quoted(keys)}.")
        if type(value) not in _NUMBERS.get(key, (str,)):
            wanted = "text or a number" if key in _NUMBERS else "text in quotes"
            raise WrongTypeError(f"{label}: {key}={value!r} has the wrong type. Write {wanted}, or leave it out.")
    return values
