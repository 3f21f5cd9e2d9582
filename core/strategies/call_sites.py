"""The line of the user's code that made a call."""

from __future__ import annotations

import sys
from types import FrameType

__all__ = ["is_user_frame", "method_called", "user_frame"]

_NOT_THE_USERS = ("torch_hal", "contextlib")


def user_frame() -> FrameType:
    """The innermost running frame of the user's code; the outermost of all if there is none."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_user_frame(frame):
        frame = frame.f_back
    return frame


def is_user_frame(frame: FrameType) -> bool:
    """Whether ``frame`` runs neither torch-hal's code nor that of a context manager's decorator."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_THE_USERS


def method_called(innermost: FrameType | None = None) -> tuple[str, str]:
    """The method of a front end that is running, such as ``Trainer.fit``, and the user's line that calls it.

    Both are empty where it is called by what runs the processes, as in those of ``ddp_spawn``.

    Args:
        innermost: Where to begin; the caller unless given.
    """
    method, frame = "", sys._getframe(1) if innermost is None else innermost
    while frame.f_back is not None and not _is_users_own(frame):
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("torch_hal.runtime."):
            name = frame.f_code.co_name
            method = "forward" if name in ("__call__", "forward") else f"Runtime.{name}"
        elif module.startswith("torch_hal.trainer."):
            method = frame.f_code.co_qualname
        elif module == "torch_hal.strategies.parallel":
            method = f"strategy.{frame.f_code.co_name}"
        frame = frame.f_back
    if not method or not _is_users_own(frame):
        return "", ""
    return method, f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_users_own(frame: FrameType) -> bool:
    """Whether :func:`is_user_frame`, and it belongs to no plugin, nor to what starts processes."""
    module = str(frame.f_globals.get("__name__", ""))
    return is_user_frame(frame) and not module.startswith(("torch_hal_", "torch.", "multiprocessing."))
