"""The Request: the user's words, read once at the edge."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import attrs

from core.errors import ConfigurationError, WrongTypeError, nearest, quoted
from core.kinds import KINDS

__all__ = ["PARTS", "VARIABLES", "WORDS", "Request", "Word", "checked", "describe"]

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

PARTS = {
    "accelerator": "accelerator",
    "cluster_environment": "cluster_environment",
    "checkpoint_io": "checkpoint_io",
    "precision": "precision_plugin",
}
"""By kind: the strategy's constructor argument that gives a part of that kind."""

_COUNT = re.compile(r"\s*\d{1,9}\s*", re.ASCII)


@attrs.frozen
class Word:
    """One of the user's words, and where it came from."""

    name: str
    """One of :data:`WORDS`."""
    value: Any
    source: str
    """``argument``, ``strategy`` for one that was given to the strategy, the name of an environment variable, or
    ``default``."""

    @property
    def is_auto(self) -> bool:
        """Whether it is left to choose."""
        return isinstance(self.value, str) and self.value == "auto"

    @property
    def label(self) -> str:
        """What the user knows it by: ``precision``, ``precision_plugin``, ``CORE_PRECISION``."""
        if self.source == "strategy":
            return PARTS[self.name]
        return self.name if self.source in ("argument", "default") else self.source

    @property
    def said(self) -> str:
        """Who says what, for a reason: ``the argument says 'ddp'``."""
        who = {"argument": "the argument", "strategy": "the strategy's argument"}.get(self.source, self.source)
        return f"{who} says {describe(self.value)!r}"

    def __str__(self) -> str:
        return f"{self.label}={describe(self.value)!r}"


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
            ConfigurationError: ``num_nodes`` is no whole number from 1 on, or a word is none of :data:`WORDS`.
        """
        unknown = sorted(words.keys() - set(WORDS))
        if unknown:
            raise ConfigurationError(f"{quoted(unknown)}: unknown. Valid: {quoted(WORDS)}.{nearest(unknown[0], WORDS)}")
        environ = dict(os.environ if environ is None else environ)
        read = [_read(name, words.get(name, "auto"), environ) for name in WORDS]
        return cls(
            environ=environ,
            sources={word.name: word.source for word in read},
            **{word.name: checked(word) for word in read},
        )

    def word(self, name: str) -> Word:
        """One of :data:`WORDS`, with its source."""
        return Word(name, getattr(self, name), self.sources.get(name, "argument"))

    def describe(self) -> dict[str, Any]:
        """The words as plain data; an object as ``<module:Class>``."""
        return {name: describe(getattr(self, name)) for name in WORDS}


def describe(value: Any) -> Any:
    """``value`` as plain data that tells one word from another."""
    if isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    return f"<{type(value).__module__}:{type(value).__qualname__}>"


def _read(name: str, value: Any, environ: Mapping[str, str]) -> Word:
    argument = Word(name, value, "argument")
    if not argument.is_auto:
        return argument
    variable = VARIABLES.get(name, "")
    said = Word(name, environ.get(variable, "auto"), variable)
    return Word(name, "auto", "default") if said.is_auto else said


def checked(word: Word) -> Any:
    """The word's value, if it is of the kind that the word takes; ``precision=16`` as ``"16"``.

    Raises:
        WrongTypeError: It is an object of another kind.
        ConfigurationError: It is a number of machines, but no whole number from 1 on.
    """
    value = word.value
    if word.name == "num_nodes":
        return _checked_count(word)
    if word.name == "devices" or isinstance(value, str):  # the grammar of devices is the accelerators' business
        return value
    if word.name == "precision" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    module, _, attribute = KINDS[word.name].base.partition(":")
    base = getattr(importlib.import_module(module), attribute)
    if isinstance(value, base):
        return value
    is_class = isinstance(value, type)
    given = f"the class {value.__qualname__}" if is_class else f"{value!r} of type {type(value).__name__}"
    raise WrongTypeError(f"{word.label}: given {given}. Valid: a name, 'auto', or an instance of {base.__name__}.")


def _checked_count(word: Word) -> int | str:
    value = word.value
    if word.is_auto:
        return "auto"
    if isinstance(value, str) and _COUNT.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        given = repr(word.value)[:100]
        raise ConfigurationError(
            f"{word.label}={given}: not a number of machines. Valid: 'auto' or a whole number from 1."
        )
    return int(value)
