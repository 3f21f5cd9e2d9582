"""The line of the user's code that made a call."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType

from ..errors import ConfigurationError
from ..utilities.objects import by_rank

__all__ = ["call_site", "differing_facts", "is_user_frame", "method_called", "user_frame"]

_NOT_THE_USERS = ("torch_hal", "contextlib")


def user_frame() -> FrameType:
    """The innermost running frame of the user's code; the outermost of all if there is none."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_user_frame(frame):
        frame = frame.f_back
    return frame


def call_site() -> str:
    """File and line of the user's code that is running: the innermost that is not torch-hal's."""
    frame = user_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def differing_facts(given: Sequence[Sequence[str]]) -> list[str] | None:
    """The facts of all processes, by rank, if they are not equal.

    Args:
        given: By rank: the call that the process makes, where, and what it gives.

    Raises:
        ConfigurationError: The processes make different calls.
    """
    if len({call for call, _, _ in given}) > 1:
        calls = by_rank([f"{call} ({site})" for call, site, _ in given])
        raise ConfigurationError(
            f"processes are in different collectives: {calls}. Call the same one in every process, in one order."
        )
    facts = [fact for _, _, fact in given]
    return facts if len(set(facts)) > 1 else None


def is_user_frame(frame: FrameType) -> bool:
    """Whether ``frame`` runs neither torch-hal's code nor that of a context manager's decorator."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_THE_USERS


def method_called(innermost: FrameType | None = None) -> tuple[str, str]:
    """The method of a front end that is running, such as ``Trainer.fit``, and the user's line that calls it.

    The line is empty in a process of ``ddp_spawn``, where the user's code has not called it; both if there is none.

    Args:
        innermost: Where to begin; the caller unless given.
    """
    method, frame = "", sys._getframe(1) if innermost is None else innermost
    while frame.f_back is not None and not _is_users_own(frame):
        module = str(frame.f_globals.get("__name__", ""))
        if module == "torch_hal.strategies.launchers.function":
            return method, ""
        name = frame.f_code.co_name
        if module.startswith("torch_hal.runtime."):
            if name in ("__call__", "forward"):
                method = "forward"
            elif not name.startswith("_"):
                method = f"Runtime.{name}"
        elif module.startswith("torch_hal.trainer.") and not name.endswith("run_stage"):
            method = frame.f_code.co_qualname
        elif module == "torch_hal.strategies.parallel":
            method = f"strategy.{name}"
        frame = frame.f_back
    if not method or not _is_users_own(frame):
        return "", ""
    return method, f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_users_own(frame: FrameType) -> bool:
    """Whether :func:`is_user_frame`, and it belongs to no plugin, nor to what starts processes."""
    module = str(frame.f_globals.get("__name__", ""))
    return is_user_frame(frame) and not module.startswith(("torch_hal_", "torch.", "multiprocessing."))
