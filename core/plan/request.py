"""The Request: the user's words, read once at the edge."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

import attrs

from core.errors import ConfigurationError, DeviceError, WrongTypeError
from core.kinds import KINDS

__all__ = ["VARIABLES", "WORDS", "Request"]

WORDS = ("accelerator", "strategy", "devices", "num_nodes", "precision", "checkpoint_io", "cluster_environment")
"""The arguments that every front end takes, under these names."""

VARIABLES = {
    "accelerator": "CORE_ACCELERATOR",
    "strategy": "CORE_STRATEGY",
    "devices": "CORE_DEVICES",
    "num_nodes": "CORE_NUM_NODES",
    "precision": "CORE_PRECISION",
}
"""The environment variable that speaks where an argument is left at ``"auto"``."""


@attrs.frozen(kw_only=True)
class Request:
    """What the user asked for, and where each word came from.

    A word is a name, an object of its kind, or ``"auto"``; ``devices`` as in :mod:`core.accelerators.devices`;
    ``num_nodes`` a whole number from 1 on or ``"auto"``.
    """

    accelerator: Any = "auto"
    strategy: Any = "auto"
    devices: Any = "auto"
    num_nodes: int | str = "auto"
    precision: Any = "auto"
    checkpoint_io: Any = "auto"
    cluster_environment: Any = "auto"
    environ: Mapping[str, str] = attrs.field(factory=dict, repr=False, eq=False)
    """The environment variables as they stood when the words were read."""
    sources: Mapping[str, str] = attrs.field(factory=dict, eq=False)
    """For each word: ``argument``, the name of an environment variable, or ``default``."""

    @classmethod
    def read(cls, *, environ: Mapping[str, str] | None = None, **words: Any) -> Request:
        """Take the user's words; where one is ``"auto"``, the environment's.

        Args:
            environ: The environment variables; a copy of the process's own where none are given.
            **words: Some of :data:`WORDS`.

        Raises:
            WrongTypeError: A word is an object of another kind.
            ConfigurationError: ``num_nodes`` is no whole number from 1 on.
        """
        environ = dict(os.environ if environ is None else environ)
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for word in WORDS:
            value, source = words.get(word, "auto"), "argument"
            if isinstance(value, str) and value == "auto":
                variable = VARIABLES.get(word, "")
                value = environ.get(variable, "auto")
                source = variable if value != "auto" else "default"
            values[word] = _checked(word, value)
            sources[word] = source
        return cls(environ=environ, sources=sources, **values)

    def is_open(self, word: str) -> bool:
        """Whether ``word`` was left to choose."""
        value = getattr(self, word)
        return isinstance(value, str) and value == "auto"

    def describe(self) -> dict[str, Any]:
        """The words as plain data; an object as ``<module:Class>``."""
        return {word: describe(getattr(self, word)) for word in WORDS}


def describe(value: Any) -> Any:
    """``value`` as plain data that tells one word from another."""
    if isinstance(value, str | int):
        return value
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    return f"<{type(value).__module__}:{type(value).__qualname__}>"


def _checked(word: str, value: Any) -> Any:
    if word == "num_nodes":
        return _checked_num_nodes(value)
    if word == "devices":
        if value is None:
            raise DeviceError(
                "devices=None: not a device count or a list of indices. Valid: 'auto' or -1 for all, a count k >= 1, "
                "or distinct indices."
            )
        return value
    if word == "precision" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return value
    module, _, attribute = KINDS[word].base.partition(":")
    base = getattr(importlib.import_module(module), attribute)
    if isinstance(value, base):
        return value
    given = f"the class {value.__qualname__}" if isinstance(value, type) else f"{value!r} of type {type(value).__name__}"
    raise WrongTypeError(f"{word}: given {given}. Valid: a name, 'auto', or an instance of {base.__name__}.")


def _checked_num_nodes(value: Any) -> int | str:
    if value == "auto":
        return "auto"
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"num_nodes={value!r}: not a number of machines. Valid: 'auto' or a whole number from 1.")
    return value
