"""Joining a process group, and leaving it so that all processes exit cleanly."""

from __future__ import annotations

import atexit
import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from weakref import ref

import torch
import torch.distributed as dist

# Its functions have the default group as a default argument, which is evaluated on import. DistributedDataParallel()
# would import it while there is a group, and so keep that group alive until the process ends (see destroy).
import torch.distributed.nn.functional
from torch.distributed.distributed_c10d import Store

from ..errors import BackendError, ConfigurationError, LaunchError, quoted
from ..utilities.objects import broadcast_pickled, pickled
from .calls import Calls
from .first_failure import Failures
from .launchers.exit_codes import ended_by_failure, note_failure
from .meeting_point import (
    IsWaitedFor,
    LooksForWaiting,
    meet,
    meet_to_join,
    next_run,
    ranks_missing,
    tell_of_end,
    wait_for_saves,
)
from .store.network_interfaces import advice
from .store.notes import Board, Peers, lost_store
from .store.tcp_store import DEFAULT_TIMEOUT, connect_store, host_store
from .time_limits import ABANDON_SECONDS, LEAVE_SECONDS, wait_until

logger = logging.getLogger(__name__)


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
    """Make this process a member of the default process group.

    One store serves any number of runs one after another, as long as every rank joins each of them. A run that joins
    while another one is live shares its group, which is destroyed when the last of them leaves.

    Args:
        store: The store in which all processes find each other.
        backend: The ``torch.distributed`` backend, such as ``"gloo"``.
        rank: This process's global rank.
        world_size: The number of processes.
        timeout: How long to wait for the other processes, here and in collectives.
        device: This process's device, for backends that connect to it at once; ``None`` to let the backend choose.
        check: Called while waiting for other processes; raises an exception if one of them has failed.

    Raises:
        ConfigurationError: There is a default process group of a live run that differs in backend, ranks, timeout or
            device.
        LaunchError: Some ranks did not join within ``timeout``, or the store was lost.
        BackendError: ``torch.distributed`` cannot form a group with that backend.
    """
    facts: dict[str, Any] = {
        "process_group_backend": backend,
        "rank": rank,
        "world_size": world_size,
        "timeout": timeout,
        "device": device,
    }
    if dist.is_initialized() and _Group.current is not None:
        return _share(_Group.current, facts)
    _refuse_unknown(backend)
    try:
        run = next_run(store, rank)
    except dist.DistError as error:
        raise lost_store(error) from error
    tell_of_end(rank, lambda: store)
    try:
        # Before init_process_group, whose own wait neither notices a process that has failed nor says who is missing.
        meet_to_join(run, rank, world_size, timeout, check)
    except LaunchError as error:
        Failures(run, rank, world_size, check).explain_early(error)
        raise
    hook = Failures.below(sys.excepthook)
    try:
        dist.init_process_group(
            backend, store=run, rank=rank, world_size=world_size, timeout=timeout, **_to_connect(device)
        )
    except (RuntimeError, ValueError) as error:
        raise BackendError(
            f"process_group_backend={backend!r}: torch.distributed cannot form a group of {world_size} processes "
            f"with it: {error}{advice(error)}"
        ) from error
    if getattr(hook, "__code__", None) is getattr(sys.excepthook, "__code__", hook):
        sys.excepthook = hook  # an earlier group's: another one would put a second "[rank0]: " before each line
    failures = Failures(run, rank, world_size, check, hook)
    if world_size > 1:
        failures.install()
    return JoinedGroup(_Group(run, facts, check, failures))


def has_foreign_group() -> bool:
    """Whether this process has a default process group that torch-hal did not make. See :func:`adopt`."""
    return dist.is_initialized() and (_Group.current is None or _Group.current.is_foreign)


def adopt(
    host: str, *, backend: str, rank: int, world_size: int, timeout: timedelta = DEFAULT_TIMEOUT, device: torch.device
) -> JoinedGroup:
    """Use the default process group that something else has made, such as the program that started this process.

    Collectives go through it. Whoever made it sets its time limit and destroys it. Every rank must call this.

    Args:
        host: The address of rank 0's machine. Rank 0 serves a store there, on a free port.
        backend: The planned ``torch.distributed`` backend.
        rank: This process's planned rank.
        world_size: The planned number of processes.
        timeout: The planned time limit.
        device: The device whose tensors are communicated.

    Raises:
        ConfigurationError: The group differs in backend, rank or world size, or ``timeout`` was set, which it ignores.
        LaunchError: The store cannot be served or reached.
    """
    found: dict[str, Any] = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    found["process_group_backend"] = _backend_for(dist.get_backend_config(), device)
    planned = {"rank": rank, "world_size": world_size, "process_group_backend": _backend_for(backend, device)}
    for name, value in planned.items():
        if found[name] != value:
            raise ConfigurationError(
                f"this process already has a default process group with {name}={found[name]!r}, but the run is planned "
                f"with {name}={value!r}. Use a run that fits the group (see 'torch-hal explain'), or call "
                "torch.distributed.destroy_process_group() first."
            )
    if timeout != DEFAULT_TIMEOUT:
        raise ConfigurationError(
            f"timeout={timeout}: this process already has a default process group with its own time limit. "
            "Pass timeout to torch.distributed.init_process_group instead."
        )
    facts: dict[str, Any] = {**planned, "device": device}
    if _Group.current is not None:
        return _share(_Group.current, facts)
    served = host_store(host, timeout=timeout) if rank == 0 else None
    port = broadcast_pickled(None if served is None else pickled(served.port), 0)
    store = served if served is not None else connect_store(host, port, timeout=timeout)
    logger.info("using the process group of %s processes that this process is already in", world_size)
    return JoinedGroup(_Group(store, {**facts, "timeout": timeout}, None, is_foreign=True))


def _backend_for(backend: str, device: torch.device) -> str | None:
    """The part of ``backend`` that is used for ``device``: ``"gloo"`` of ``"cpu:gloo,acme:accl"`` for the CPU."""
    parts = [part.rpartition(":") for part in backend.lower().split(",")]
    return next((name for kind, _, name in parts if kind in ("", device.type)), None)


class JoinedGroup:
    """A run's membership in the default process group, from :func:`join` to :meth:`leave`.

    A script that ends without leaving leaves at exit; at once, if an uncaught exception ends it.

    Args:
        group: The group, which other runs of this process may share.
    """

    def __init__(self, group: _Group) -> None:
        self._group = group
        self._ends: list[Callable[[bool], None]] = []
        self._left = False
        self.board = group.board
        """Where the processes of the group leave notes for each other."""
        self.calls = group.calls
        """The collectives that this process has begun."""
        group.members.append(self)

    def end_at_leave(self, end: Callable[[bool], None]) -> None:
        """Make :meth:`leave` call ``end(failed)`` first, which ends threads that communicate.

        So they end before the interpreter does, also if the script just ends: a thread in a collective would abort it.
        """
        self._ends.append(end)

    def release_at_leave(self, release: Callable[[], None]) -> None:
        """Make the last member's :meth:`leave` call ``release``, which removes references to the process group.

        The group's threads and connections stay as long as something holds it, such as a reducer of gradients. Use
        :func:`core.strategies.while_alive` so that what holds the group can be freed earlier.
        """
        self._group.releases.append(release)

    def leave(self, *, failed: bool = False) -> None:
        """Leave the process group; the last member destroys it. Idempotent.

        Unless ``failed``, no connection is closed before all ranks have finished their last collective. Ranks that
        have not done so within half a minute are not waited for; nor are ranks that all wait in a collective, which
        this one does not join any more.

        Args:
            failed: Leave at once, so that ranks that wait for this one in a collective notice.

        Raises:
            LaunchError: From ``check``, while waiting: another process has failed.
        """
        if self._left:
            return
        self._left = True
        self._group.members.remove(self)
        try:
            self._end(failed)
        finally:
            if not self._group.members:
                self._group.leave(failed, exiting=False)

    def _end(self, failed: bool) -> None:
        for end in self._ends:
            end(failed)
        self._ends.clear()


class _Group:
    """The default process group, which all runs of this process that are live at a time share."""

    current: _Group | None = None

    def __init__(
        self, store: Store, facts: dict[str, Any], check: Any, failures: Any = None, is_foreign: bool = False
    ) -> None:
        self._store, self.facts, self._check = store, facts, check
        self._failures, self.is_foreign = failures, is_foreign
        self._rank: int = facts["rank"]
        self._world_size: int = facts["world_size"]
        self._process = os.getpid()
        self.calls = Calls() if failures is None else failures.stacks.calls
        peers = Peers(store, self._rank) if self._world_size > 1 else None
        self.board = Board(store, facts["timeout"], check, peers, self.calls, self._world_size)
        self.members: list[JoinedGroup] = []
        self.releases: list[Callable[[], None]] = []
        _Group.current = self
        # Called before what was registered earlier, as the launcher's: that waits for processes that wait here.
        atexit.register(self._leave_at_exit)

    def leave(self, failed: bool, exiting: bool) -> None:
        """Destroy the group; see :meth:`JoinedGroup.leave`."""
        _Group.current = None
        atexit.unregister(self._leave_at_exit)
        if failed and (error := sys.exception()):
            note_failure(error)
            if self._failures is not None:
                self._failures.announce(error)
        all_left = False
        try:
            if self._failures is not None:
                self._failures.stacks.stop()
            all_left = not failed and self._gather_to_leave()
        finally:
            for release in self.releases:
                release()
            self.releases.clear()
            if self.is_foreign:
                pass  # whoever made it destroys it
            elif all_left:
                destroy()
            else:
                abandon(exiting)
        if all_left and self._rank == 0:
            self._see_the_others_off()

    def _gather_to_leave(self) -> bool:
        waited, limit = LEAVE_SECONDS, timedelta(seconds=LEAVE_SECONDS)
        try:
            try:
                all_left = meet(
                    self._store, "leaving", self._world_size, self._rank, limit, self._while_leaving(), self._saves
                )
            except IsWaitedFor as found:
                all_left, waited = False, found.seconds
            if not all_left:
                missing = ranks_missing(self._store, "leaving", self._world_size)
                logger.warning("rank %s leaves the process group without rank(s) %s", self._rank, missing)
                if failures := self._failures:
                    failures.tell_of_early_end(waited)
            elif self._rank != 0:
                self._store.add("left", 1)  # rank 0 waits for it before it closes the store
        except dist.DistError as error:
            logger.warning("rank %s leaves the process group alone: %s", self._rank, lost_store(error))
            return False
        return all_left

    def _saves(self) -> bool:
        """Wait for ranks that still write a checkpoint and so have not left; returns whether there were any."""
        missing = ranks_missing(self._store, "leaving", self._world_size)
        return wait_for_saves(self.board, self._rank, missing, self._check)

    def _while_leaving(self) -> Callable[[], None] | None:
        """Called while this process waits for the others to leave."""
        check: Callable[[], None] | None = self._check
        failures = self._failures
        if failures is None:
            return check
        running = partial(ranks_missing, self._store, "leaving", self._world_size)
        look = LooksForWaiting(failures.stacks, self._store, self._rank, running)

        def both() -> None:
            if check is not None:
                check()
            look()

        return both

    def _see_the_others_off(self) -> None:
        """Rank 0 often serves the store: it stays until the others have stopped using the store."""
        with suppress(dist.DistError):  # another process served it, and has ended
            # All have met, and have one more request to make.
            wait_until(lambda: self._store.add("left", 0) >= self._world_size - 1, ABANDON_SECONDS)

    def _leave_at_exit(self) -> None:
        if os.getpid() != self._process:  # a fork of it
            return
        failed = ended_by_failure()
        if self._failures is not None:
            self._failures.show_exit()
        try:
            for member in self.members:
                member._left = True
                member._end(failed)
        finally:
            self.members.clear()
            self.leave(failed, exiting=True)


def _share(group: _Group, facts: dict[str, Any]) -> JoinedGroup:
    for name, value in facts.items():
        if value != group.facts[name]:
            raise ConfigurationError(
                f"{name}={_plain(value)!r}: another run is live in this process, and its process group has "
                f"{name}={_plain(group.facts[name])!r}. Set the same {name}, or call teardown() of the other run first."
            )
    return JoinedGroup(group)


def _plain(value: Any) -> Any:
    """``value`` as an argument shows it."""
    return value if isinstance(value, int | str | None) else str(value)


def _refuse_unknown(backend: str) -> None:
    for name in backend.lower().split(","):  # as in "cpu:gloo,acme:accl"
        if name.rpartition(":")[2] not in dist.Backend.backend_list:
            raise BackendError(
                f"process_group_backend={backend!r}: unknown to torch.distributed. Valid: "
                f"{quoted(dist.Backend.backend_list)}, or one for each type of device, as in 'cpu:gloo'."
            )


def _to_connect(device: torch.device | None) -> dict[str, Any]:
    """The argument of ``init_process_group`` that names the device, if it is an accelerator's."""
    # Left out rather than None: a vendor's replacement of the function may not know the argument.
    return {} if device is None or device.type == "cpu" else {"device_id": device}


T = TypeVar("T")


def destroy() -> None:
    """Destroy the process group.

    A gloo thread frees a collective's tensors some time after the collective has returned, and needs the interpreter
    for it: if the interpreter is exiting by then, the process ends with SIGABRT. Destroying the group before waits for
    the threads to end, provided that nothing else holds the group.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def abandon(exiting: bool) -> None:
    """Destroy the process group without waiting for long.

    If a collective is in progress that others do not join, destroying the group takes as long as the collective's
    time limit, in C++, where no exception can interrupt it.
    """
    if exiting:  # no thread can be started any more
        # Its watchdog runs in C, and ends the process even while this thread is blocked there.
        faulthandler.dump_traceback_later(ABANDON_SECONDS, exit=True, file=2)
        destroy()
        faulthandler.cancel_dump_traceback_later()
        return
    thread = threading.Thread(target=destroy, name="core-abandon", daemon=True)
    thread.start()
    thread.join(ABANDON_SECONDS)
    if thread.is_alive():
        logger.warning("a collective that other ranks do not join is still in progress; it ends at its time limit")


def while_alive(holder: T, release: Callable[[T], object]) -> Callable[[], None]:
    """A function that calls ``release(holder)``, if ``holder`` still exists; it does not keep ``holder`` alive."""
    reference = ref(holder)

    def release_it() -> None:
        alive = reference()
        if alive is not None:
            release(alive)

    return release_it


class ThreadLimit:
    """One thread in each process while any run is live that shares its machine, as torchrun sets it.

    So the processes do not each take all of its cores.
    """

    runs = 0
    before = 1

    def enter(self) -> None:
        """A run begins."""
        if self.runs == 0:
            self.before = torch.get_num_threads()
            torch.set_num_threads(1)
        self.runs += 1

    def leave(self) -> None:
        """A run ends."""
        self.runs -= 1
        if self.runs == 0:
            torch.set_num_threads(self.before)


thread_limit = ThreadLimit()
