"""Modules that the user wants imported in each process of a run, such as a package that adds a device type to torch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence

from ..errors import BackendError, ConfigurationError, WrongTypeError

__all__ = ["VARIABLE", "import_all", "read_imports"]

VARIABLE = "CORE_IMPORT"
"""The environment variable with the names of modules to import."""


def read_imports(value: str | Sequence[str] | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The modules to import: the argument, or those of ``CORE_IMPORT``, separated by commas.

    Raises:
        WrongTypeError: ``value`` is neither a name nor a list of names.
        ConfigurationError: A name is not the name of a module.
    """
    label = "import_modules" if value is not None else VARIABLE
    given = environ.get(VARIABLE, "") if value is None else value
    names = given.split(",") if isinstance(given, str) else list(given)
    if not all(isinstance(name, str) for name in names):
        raise WrongTypeError(f"{label}={value!r}: must be the name of a module, or a list of names.")
    names = [name.strip() for name in names if name.strip()]
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigurationError(f"{label}: {name!r} is not the name of a module. Give names such as 'acme.torch'.")
    return tuple(names)


def import_all(names: Sequence[str]) -> None:
    """Import these modules in this process.

    Raises:
        BackendError: One cannot be imported; ``__cause__`` has the reason.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            raise BackendError(
                f"import_modules (or {VARIABLE}): {name!r} cannot be imported: {type(error).__name__}: {error}"
            ) from error
