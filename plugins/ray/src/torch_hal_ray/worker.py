"""One process of a run, as an actor of Ray. Importing this module does not import torch: see ``prepare``."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Mapping
from typing import Any

import attrs

__all__ = ["Outcome", "Place", "Worker"]


@attrs.frozen(kw_only=True)
class Place:
    """Where Ray has put a process."""

    node: str
    """Ray's name of the node."""
    address: str
    """The node's IP address."""
    visible: dict[str, list[str]]
    """The variables by which Ray lets the process see only its own devices, with these devices."""


@attrs.frozen(kw_only=True)
class Outcome:
    """How the call in a process has ended."""

    result: bytes | None = None
    """What it returned in rank 0; ``None`` for ``None``."""
    failed_at: float | None = None
    """When it failed, on the node's clock; ``None`` if it has not."""
    is_consequence: bool = False
    """Whether it only lost another process."""
    summary: str = ""
    traceback: str = ""


class Worker:
    """An actor: one process, in which one function is called."""

    def __init__(self) -> None:
        self._store: Any = None

    def place(self) -> Place:
        """Where this process is, and which devices Ray has given to it."""
        import ray

        context = ray.get_runtime_context()
        assigned = [ids for ids in context.get_accelerator_ids().values() if ids]
        visible = {
            name: value.split(",")
            for name, value in os.environ.items()
            if "VISIBLE" in name and value and value.split(",") in assigned
        }
        return Place(node=context.get_node_id(), address=ray.util.get_node_ip_address(), visible=visible)

    def prepare(self, variables: Mapping[str, str], address: str | None) -> int:
        """Set the environment variables; in rank 0, serve the store in which the processes find each other.

        Args:
            variables: Which devices torch sees is decided when it is imported, so this comes before that.
            address: The address of this node, in rank 0; ``None`` in the others.

        Returns:
            The port of the store.
        """
        os.environ.update(variables)
        if address is None:
            return 0
        from torch import distributed

        store: Any = distributed.TCPStore  # type: ignore[attr-defined]
        self._store = store(address, 0, None, True, wait_for_workers=False)
        return int(self._store.port)

    def run(self, variables: Mapping[str, str], payload: bytes) -> Outcome:
        """Call the function with this process's environment variables and the arguments that were sent."""
        os.environ.update(variables)
        from torch_hal_ray.payload import pack, unpack

        try:
            function, args, kwargs = unpack(payload)
            result = function(dict(os.environ), *args, **kwargs)
            if os.environ["RANK"] != "0" or result is None:
                return Outcome()
            return Outcome(result=pack(result))
        except BaseException as error:  # noqa: BLE001 - the outermost frame of a process, which reports what ended it
            return Outcome(
                failed_at=time.time(),
                is_consequence=_is_lost_peer(error),
                summary=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": "),
                traceback="".join(traceback.format_exception(error)),
            )


def _is_lost_peer(error: BaseException) -> bool:
    """Whether ``error`` only says that another process is gone."""
    from torch.distributed import DistError

    return isinstance(error, DistError) or (type(error) is RuntimeError and "onnection" in str(error))
