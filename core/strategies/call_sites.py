"""Where in the user's code a call was made."""

from __future__ import annotations

import sys
from types import FrameType

__all__ = ["is_user_frame", "user_frame"]

_NOT_THE_USERS = ("core", "contextlib")


def user_frame() -> FrameType:
    """The innermost running frame of the user's code; the outermost of all if there is none."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_user_frame(frame):
        frame = frame.f_back
    return frame


def is_user_frame(frame: FrameType) -> bool:
    """Whether ``frame`` runs neither torch-hal's code nor that of a context manager's decorator."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_THE_USERS
