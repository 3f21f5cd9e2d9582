"""Checks of what a front end is given: names of arguments, and data for collectives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from numbers import Real
from typing import Any, ParamSpec

import torch
from torch import Tensor

from core.errors import ConfigurationError, WrongTypeError, nearest, quoted
from core.nested import leaves

__all__ = ["check_leaves", "check_process", "suggest_arguments"]

P = ParamSpec("P")


def suggest_arguments(init: Callable[P, None], remedies: Mapping[str, str] | None = None) -> Callable[P, None]:
    """Make the constructor ``init`` name the most similar argument if it gets an unknown one.

    Args:
        init: The constructor.
        remedies: For arguments that it does not have: what to do instead.

    Raises:
        WrongTypeError: In the constructor, for an unknown argument.
    """
    names = list(inspect.signature(init).parameters)[1:]
    owner = init.__qualname__.partition(".")[0]
    instead = remedies or {}

    @wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        for name in kwargs:
            if name not in names:
                remedy = f" {instead[name]}" if name in instead else nearest(name, names)
                suggestion = remedy or f" Arguments: {quoted(names)}."
                raise WrongTypeError(f"{owner}: unknown argument {name!r}.{suggestion}")
        init(*args, **kwargs)

    return checked


def check_leaves(call: str, name: str, data: Any, *, numbers: bool = False) -> None:
    """Check that ``data`` consists of what a collective can exchange: any other object would be returned as it is.

    Args:
        call: The method, for the message.
        name: Its argument.
        data: A nested structure.
        numbers: Whether numbers can be exchanged as well.

    Raises:
        WrongTypeError: It has something other than dense tensors, ``None`` and empty containers in it.
    """
    for place, leaf in leaves(data, name):
        if _is_exchangeable(leaf) or (numbers and isinstance(leaf, Real)):
            continue
        if isinstance(leaf, Tensor):
            raise WrongTypeError(f"{call}: {place} is a tensor of layout {leaf.layout}. Pass {place}.to_dense().")
        remedy = "Pass tensors, or use gather_object, which takes lists of anything."
        if isinstance(leaf, Real):
            remedy = "Pass torch.tensor(...) of it."
        raise WrongTypeError(f"{call}: {place} is {_shown(leaf)} of type {type(leaf).__name__}, not a tensor. {remedy}")


def _is_exchangeable(leaf: Any) -> bool:
    if isinstance(leaf, Tensor):
        return leaf.layout is torch.strided
    return leaf is None or (isinstance(leaf, Sequence | Mapping) and not isinstance(leaf, str | bytes) and not leaf)


def _shown(leaf: Any) -> str:
    text = repr(leaf)
    return text if len(text) <= 50 else f"{text[:50]}…"


def check_process(name: str, number: Any, count: int) -> int:
    """Check the number of a process.

    Raises:
        ConfigurationError: It is not an integer from 0 to ``count - 1``.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number not in range(count):
        raise ConfigurationError(f"{name}={number!r}: must be the number of a process, 0 to {count - 1}.")
    return number
