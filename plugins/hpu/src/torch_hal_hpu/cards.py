"""The card of a process: one for its lifetime, under torch's name ``hpu:0``."""

from __future__ import annotations

import os

from torch_hal.errors import BackendError
from torch_hal_hpu import detect

__all__ = ["BOUND", "announce", "bind", "release"]

BOUND = "HLS_MODULE_ID"
"""The environment variable from which the library reads the process's module."""

_bound: int | None = None
"""The module that this process uses; it cannot change it."""

_is_set = False
"""Whether this module has set :data:`BOUND`."""


def bind(index: int) -> None:
    """Bind this process to a card, which the library opens at first use.

    Args:
        index: The index among the modules that this process can use.

    Raises:
        BackendError: The process already uses another card, or its environment binds it to another.
    """
    global _bound
    module = detect.modules()[index]
    given = os.environ.get(BOUND, "").strip()
    if _bound not in (None, module):
        raise BackendError(
            f"devices: card {index} is module {module}, but this process already uses module {_bound} and cannot "
            "change its card. Use that card, or start a new process."
        )
    if given and given != str(module):
        raise BackendError(
            f"devices: card {index} is module {module}, but {BOUND}={given} binds this process to another. (With "
            "several processes, habana_frameworks itself binds each to the module of its local rank.) Pass a number of "
            f"devices and choose the cards with {detect.VISIBLE}, or unset {BOUND}."
        )
    _bound = module
    announce()


def announce() -> None:
    """Set :data:`BOUND` to this process's module, unless it is set."""
    global _is_set
    if _bound is not None and not os.environ.get(BOUND, "").strip():
        os.environ[BOUND] = str(_bound)
        _is_set = True


def release() -> None:
    """Unset :data:`BOUND` if :func:`announce` has set it, so that child processes use their own cards."""
    global _is_set
    if _is_set:
        os.environ.pop(BOUND, None)
        _is_set = False
