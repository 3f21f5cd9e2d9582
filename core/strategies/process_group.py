"""Joining a process group, and leaving it so that the processes end well."""

from __future__ import annotations

import atexit
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

# Its functions take the default group as a default argument, evaluated when it is imported; torch imports it inside
# DistributedDataParallel(), when there is one, which then lives as long as the process (see _destroy).
import torch.distributed.nn.functional
from torch.distributed.distributed_c10d import PrefixStore, Store

from core.errors import BackendError, ConfigurationError, LaunchError, quoted
from core.strategies.launchers.base import ended_by_exception, note_failure

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore  # torch.distributed.TCPStore has no type of its own
else:
    from torch.distributed import TCPStore

__all__ = ["JoinedGroup", "connect_store", "host_store", "join"]

DEFAULT_TIMEOUT = timedelta(minutes=30)
LEAVE_SECONDS = 30.0
ABANDON_SECONDS = 5.0

logger = logging.getLogger(__name__)

_hosted: dict[int, TCPStore] = {}
"""The stores on given ports. A port is the process's, not a run's: a later run finds the same store there."""


def host_store(host: str, port: int = 0, *, timeout: timedelta = DEFAULT_TIMEOUT) -> TCPStore:
    """Open the store in which processes find each other, and serve it from this process.

    Args:
        host: The address by which this process reaches itself; others may use another of this machine's.
        port: A port, which stays open as long as this process; or 0 for a free one (``store.port``), which is open
            as long as the returned object lives.
        timeout: How long operations on it wait at most.

    Raises:
        LaunchError: The port cannot be opened.
    """
    if port in _hosted:
        return _hosted[port]
    try:
        store = TCPStore(host, port, None, True, timeout, wait_for_workers=False)
    except dist.DistError as error:
        raise LaunchError(f"cannot open a store at {host}:{port} for the processes to meet: {error}") from error
    if port:
        _hosted[port] = store
    return store


def connect_store(host: str, port: int, *, timeout: timedelta = DEFAULT_TIMEOUT) -> TCPStore:
    """Connect to the store that another process serves, waiting until it does.

    Args:
        host: The address of its machine.
        port: Its port.
        timeout: How long to try, and how long operations on it wait at most.

    Raises:
        LaunchError: There is none within the time limit.
    """
    try:
        return TCPStore(host, port, None, False, timeout, wait_for_workers=False)
    except dist.DistError as error:
        raise LaunchError(f"no store answers at {host}:{port} for the processes to meet: {error}") from error


def join(
    store: Store,
    *,
    backend: str,
    rank: int,
    world_size: int,
    timeout: timedelta = DEFAULT_TIMEOUT,
    device: torch.device | None = None,
    check: Callable[[], None] | None = None,
) -> JoinedGroup:
    """Make this process a member of the default process group, together with all others.

    One store serves any number of runs one after another, as long as every rank joins every one of them.

    Args:
        store: Where all processes find each other.
        backend: What ``torch.distributed`` is to use, such as ``"gloo"``.
        rank: This process's number, from 0.
        world_size: How many processes there are.
        timeout: How long to wait for the others, here and in collectives.
        device: This process's device, for backends that connect to it at once; ``None`` to leave that to them.
        check: Called while waiting for others; raises when there is nobody to wait for any more.

    Raises:
        ConfigurationError: There is a default process group already.
        LaunchError: Some ranks did not come within ``timeout``, or the store was lost.
        BackendError: ``torch.distributed`` cannot form a group with that backend.
    """
    if dist.is_initialized():
        raise ConfigurationError(
            "this process is already a member of a default process group. Valid: one run after the teardown of the one "
            "before, or after torch.distributed.destroy_process_group()."
        )
    _refuse_unknown(backend)
    try:
        run = PrefixStore(f"core/run/{store.add(f'core/runs/{rank}', 1)}", store)
        met = _meet(run, "joining", world_size, rank, timeout.total_seconds(), check)
        missing = [] if met else _missing(run, "joining", world_size)
    except dist.DistError as error:
        raise _lost_store(error) from error
    if not met:
        raise LaunchError(f"rank(s) {missing} of {world_size} did not come within {timeout} to form a process group.")
    hook = sys.excepthook
    try:
        dist.init_process_group(
            backend, store=run, rank=rank, world_size=world_size, timeout=timeout, **_to_connect(device)
        )
    except (RuntimeError, ValueError) as error:
        raise BackendError(
            f"process_group_backend={backend!r}: torch.distributed cannot form a group of {world_size} processes "
            f"with it: {error}"
        ) from error
    if getattr(hook, "__code__", None) is getattr(sys.excepthook, "__code__", hook):
        sys.excepthook = hook  # an earlier group's: one more would put "[rank0]: " before each line once more
    return JoinedGroup(run, rank, world_size, check)


class JoinedGroup:
    """This process's membership in the default process group, from :func:`join` to :meth:`leave`.

    A script that ends without leaving does so then, at once if an exception that nobody caught ends it.
    """

    def __init__(self, store: Store, rank: int, world_size: int, check: Callable[[], None] | None) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._check = check
        self._process = os.getpid()
        self._ends: list[Callable[[bool], None]] = []
        self._releases: list[Callable[[], None]] = []
        self._left = False
        atexit.register(self._leave_at_exit)

    def end_at_leave(self, end: Callable[[bool], None]) -> None:
        """Let :meth:`leave` begin with ``end(failed)``, which ends what communicates beside the script, as threads do.

        So it ends before an interpreter does whose script just ends: a thread in a collective would abort that.
        """
        self._ends.append(end)

    def release_at_leave(self, release: Callable[[], None]) -> None:
        """Let :meth:`leave` call ``release``, which cuts what holds the process group from it.

        The group's threads and connections stay as long as something holds the group, as what reduces gradients does.
        """
        self._releases.append(release)

    def leave(self, *, failed: bool = False) -> None:
        """Leave the process group and destroy it; idempotent.

        When all is well, nobody's connections are closed before all ranks are through with their last collective. A
        rank that has not come to that point within half a minute, having more to do on its own, is left behind.

        Args:
            failed: Leave at once, so that ranks waiting for this one in a collective see that it has gone.

        Raises:
            LaunchError: From ``check``, while waiting: another process has failed.
        """
        self._leave(failed, exiting=False)

    def _leave(self, failed: bool, exiting: bool) -> None:
        if self._left:
            return
        self._left = True
        atexit.unregister(self._leave_at_exit)
        if failed and (error := sys.exception()):
            note_failure(error)
        together = False
        try:
            for end in self._ends:
                end(failed)
            together = not failed and self._gather_to_leave()
        finally:
            for release in self._releases:
                release()
            self._releases.clear()
            self._ends.clear()
            if together:
                _destroy()
            else:
                _abandon(exiting)
        if together and self._rank == 0:
            self._see_the_others_off()

    def _gather_to_leave(self) -> bool:
        try:
            together = _meet(self._store, "leaving", self._world_size, self._rank, LEAVE_SECONDS, self._check)
            if not together:
                missing = _missing(self._store, "leaving", self._world_size)
                logger.warning("rank %s leaves the process group without rank(s) %s", self._rank, missing)
            elif self._rank != 0:
                self._store.add("left", 1)
        except dist.DistError as error:
            logger.warning("rank %s leaves the process group alone: %s", self._rank, _lost_store(error))
            return False
        return together

    def _see_the_others_off(self) -> None:
        """Rank 0 often serves the store: it stays until nobody is still asking there whether all have come."""
        deadline = time.monotonic() + ABANDON_SECONDS
        with suppress(dist.DistError):  # somebody else serves it, and no longer
            while self._store.add("left", 0) < self._world_size - 1 and time.monotonic() < deadline:
                time.sleep(0.001)

    def _leave_at_exit(self) -> None:
        if os.getpid() == self._process:  # not in a fork of it
            self._leave(failed=ended_by_exception(), exiting=True)


def _refuse_unknown(backend: str) -> None:
    for name in backend.lower().split(","):  # as in "cpu:gloo,acme:accl"
        if name.rpartition(":")[2] not in dist.Backend.backend_list:
            raise BackendError(
                f"process_group_backend={backend!r}: torch.distributed knows no such backend. Valid: "
                f"{quoted(dist.Backend.backend_list)}, or one for each type of device, as in 'cpu:gloo'."
            )


def _to_connect(device: torch.device | None) -> dict[str, Any]:
    """What tells ``init_process_group`` of the device, where only an accelerator's has a meaning."""
    # Left out rather than None: a vendor may have put a function in its place that does not know the argument.
    return {} if device is None or device.type == "cpu" else {"device_id": device}


def _meet(
    store: Store, point: str, world_size: int, rank: int, seconds: float, check: Callable[[], None] | None
) -> bool:
    """Wait until every rank has come to ``point``.

    Returns:
        Whether they have, within ``seconds``.
    """
    store.set(f"{point}/{rank}", "")
    if store.add(point, 1) == world_size:
        store.set(f"{point}/all", "")
    deadline = time.monotonic() + seconds
    pause = 0.0005
    # The store's own wait cannot be interrupted, nor see that a process has died.
    while not store.check([f"{point}/all"]):
        if check is not None:
            check()
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return True


def _missing(store: Store, point: str, world_size: int) -> list[int]:
    return [rank for rank in range(world_size) if not store.check([f"{point}/{rank}"])]


def _lost_store(error: Exception) -> LaunchError:
    return LaunchError(f"the store in which the processes meet was lost, probably with the process serving it: {error}")


def _destroy() -> None:
    """Destroy the process group.

    A gloo thread drops a collective's tensors some time after the collective has returned, for which it needs the
    interpreter: if that is exiting by then, the process ends with SIGABRT. So this has to be done before: it waits for
    the threads to end, provided that nothing else holds the group.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def _abandon(exiting: bool) -> None:
    """Destroy the process group without waiting for long.

    If a collective is under way that others do not join, destroying it takes as long as that collective's time limit,
    in C++, where no exception gets through.
    """
    if exiting:  # where no thread can be started any more
        faulthandler.dump_traceback_later(ABANDON_SECONDS, exit=True, file=2)
        _destroy()
        faulthandler.cancel_dump_traceback_later()
        return
    thread = threading.Thread(target=_destroy, name="core-abandon", daemon=True)
    thread.start()
    thread.join(ABANDON_SECONDS)
    if thread.is_alive():
        logger.warning("a collective that other ranks do not join is still under way; leaving it to its time limit")
