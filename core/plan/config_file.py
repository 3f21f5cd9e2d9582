"""The file that ``CORE_CONFIG`` names: values for arguments that neither the script nor a variable gives."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping
from typing import Any

from ..errors import ConfigurationError, WrongTypeError, nearest, quoted
from ..strategies.launchers.script import start_directory

VARIABLE = "CORE_CONFIG"
"""The environment variable that names the file. No other file is looked for, so no run changes unnoticed."""

_NUMBERS = {"devices": (str, int, list), "num_nodes": (str, int), "precision": (str, int)}
"""The types of values that may be numbers; all others are text."""


def with_config(environ: Mapping[str, str], config: str | None) -> Mapping[str, str]:
    """``environ``, in which the config file is the one that was given, if one was."""
    return environ if config is None else {**environ, VARIABLE: config}


def config_path(environ: Mapping[str, str]) -> str:
    """The absolute path of the file. A relative one begins where the process began, as its launcher does."""
    return os.path.abspath(os.path.join(start_directory(), environ[VARIABLE]))


def read_config(environ: Mapping[str, str], keys: Collection[str]) -> dict[str, Any]:
    """The values in the file, by argument; none if the variable is not set.

    Args:
        environ: The environment variables.
        keys: The arguments that the file may have.

    Raises:
        ConfigurationError: There is no such file, it is not TOML, or it has another key.
        WrongTypeError: A value has the wrong type.
    """
    if VARIABLE not in environ:
        return {}
    name, path = environ[VARIABLE], config_path(environ)
    label = f"config file {name!r} (environment variable {VARIABLE})"
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
