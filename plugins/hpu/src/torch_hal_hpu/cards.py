"""The card that a process works on: one, for as long as it lives, under torch's name ``hpu:0``."""

from __future__ import annotations

import os

from core.errors import BackendError
from torch_hal_hpu import detect

__all__ = ["BOUND", "announce", "bind", "release"]

BOUND = "HLS_MODULE_ID"
"""The environment variable by which the library knows which module the process is to work on."""

_bound: int | None = None
"""The module that this process took into use: it cannot take another any more, whatever run asks for it."""


_told = False
"""Whether :data:`BOUND` was set here."""


def bind(index: int) -> None:
    """Make the card of that index the one that this process works on: the library takes it at the first use.

    Args:
        index: Among the modules that this process may use.

    Raises:
        BackendError: The process is bound to another card: for good, or by its environment.
    """
    global _bound
    module = detect.modules()[index]
    said = os.environ.get(BOUND, "").strip()
    if _bound not in (None, module):
        raise BackendError(
            f"devices: card {index} is module {module}, but this process works on module {_bound}, and a process "
            "cannot change its card. Valid: that card, or another process."
        )
    if said and said != str(module):
        raise BackendError(
            f"devices: card {index} is module {module}, but {BOUND}={said} binds this process to another. (Where "
            "several processes are started, habana_frameworks itself binds each to the module of its local rank.) "
            f"Valid: a number of devices, with {detect.VISIBLE} for which ones; or {BOUND} unset."
        )
    _bound = module
    announce()


def announce() -> None:
    """Say in the environment which module this process works on, where nobody else has."""
    global _told
    if _bound is not None and not os.environ.get(BOUND, "").strip():
        os.environ[BOUND] = str(_bound)
        _told = True


def release() -> None:
    """Take back what was said: processes that are started from this one take cards of their own."""
    global _told
    if _told:
        os.environ.pop(BOUND, None)
        _told = False
