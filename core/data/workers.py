"""The worker processes of a run's loaders: they stay through signals that the run acts on, and end with the run."""

from __future__ import annotations

import atexit
import errno
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing import active_children, connection, forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any
from weakref import WeakSet, ref

from ..hints.remedies import add_remedy
from ..logging import get_logger
from ..utilities.torch_private import (
    clear_kept_iterator,
    end_workers,
    has_workers_to_end,
    kept_iterator,
    run_worker,
    set_worker_function,
)

logger = get_logger(__name__)

_END: Any = object()
"""In place of a batch, where there is none."""
_set_mask: Callable[..., Collection[int]] = getattr(signal, "pthread_sigmask", lambda *_: ())
"""Windows has none, and no signals to a group."""
_fork: Callable[[], int] | None = getattr(os, "fork", None)
_MAY_HANG = _fork is not None and (3, 11) <= sys.version_info < (3, 11, 10)
"""Whether a fork may wait for ever for a lock that another thread held as it entered Python, which torch's threads do
with each collective: https://github.com/python/cpython/issues/112275."""
FORK_SECONDS = 5.0
"""In which a fork runs its first line; twice as long at each further attempt, for a machine that is only slow."""


class Workers:
    """The workers that the loaders of a run have started.

    Weak references are enough: multiprocessing keeps a process until it has ended, and an iterator that nothing refers
    to has shut down its workers.
    """

    def __init__(self) -> None:
        self._passes: list[tuple[ref[Any], ref[Any]]] = []
        """Iterators that have workers, each with its loader."""
        self._processes: WeakSet[BaseProcess] = WeakSet()
        _all.add(self)
        set_worker_function(_run_worker)

    def iterate(self, loader: Any) -> Iterator[Any]:
        """``iter(loader)``; workers that this starts stay until this process ends them, whatever signals they receive.

        It holds for the signals that this process acts on.
        """
        if not getattr(loader, "num_workers", 0) or not hasattr(loader, "worker_init_fn"):
            return iter(loader)
        with self._starting(loader):
            batches: Iterator[Any] = iter(loader)
        if not has_workers_to_end(batches):  # a class of the user's own, which may start them later
            return self._one_by_one(loader, batches)
        known = [each for each in self._passes if (iterator := each[0]()) is not None and iterator is not batches]
        self._passes = [*known, (ref(batches), ref(loader))]
        return batches

    def _one_by_one(self, loader: Any, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            with self._starting(loader):
                batch = next(batches, _END)
            if batch is _END:
                return
            yield batch

    @contextmanager
    def _starting(self, loader: Any) -> Iterator[None]:
        """A context in which ``loader`` may start workers."""
        numbers, own, before = handled_signals(), loader.worker_init_fn, active_children()
        context = getattr(loader, "multiprocessing_context", None)
        start_method = getattr(context, "get_start_method", multiprocessing.get_start_method)()
        # A worker inherits the mask: a signal to it waits until it has its handlers.
        mask = _block(numbers, start_method)
        object.__setattr__(loader, "worker_init_fn", _WorkerStart(own, numbers, mask))
        try:
            if start_method == "forkserver" and numbers:
                started: AbstractContextManager[None] = _own_server()
            else:
                started = _repeated_forks() if start_method == "fork" and _MAY_HANG else nullcontext()
            with started:
                yield
        except Exception as error:
            # All that needs space while workers start are the semaphores of their queues, in shared memory.
            is_full = getattr(error, "errno", None) == errno.ENOSPC
            add_remedy(error, "out of shared memory" if is_full else None)
            raise
        finally:
            _set_mask(signal.SIG_SETMASK, mask)
            object.__setattr__(loader, "worker_init_fn", own)
            for process in active_children():
                if process.daemon and process not in before:
                    self._processes.add(process)
                    if numbers:
                        # The loader's iterator ends a worker that hangs by `process.terminate`, and multiprocessing at
                        # exit by `_popen.terminate`, which both call: SIGTERM, which this worker ignores.
                        popen: Any = vars(process)["_popen"]
                        popen.terminate = popen.kill

    def end(self) -> None:
        """End all of them, at the end of the run; a loader that has kept its workers starts others."""
        passes, self._passes = self._passes, []
        try:
            for iterator, loader in passes:
                batches, owner = iterator(), loader()
                if batches is not None:
                    end_workers(batches)
                if owner is not None and kept_iterator(owner) is batches:
                    clear_kept_iterator(owner)
        finally:
            self.kill()

    def kill(self) -> None:
        """End those that are left at once."""
        left = [process for process in self._processes if process.is_alive()]
        if not left:
            return
        # torch's handler would raise an error that names a killed worker.
        is_handled = threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGCHLD")
        before = signal.signal(signal.SIGCHLD, signal.SIG_DFL) if is_handled else None
        try:
            for process in left:
                process.kill()
            for process in left:
                process.join()
        finally:
            if before is not None:
                signal.signal(signal.SIGCHLD, before)

    def forget(self) -> None:
        """In a fork of the process that has started them: they are not its own."""
        self._passes, self._processes = [], WeakSet()

    def __reduce__(self) -> tuple[type[Workers], tuple[()]]:
        return Workers, ()


class _WorkerStart:
    """A ``worker_init_fn`` that calls the user's own after it has set the handlers.

    A handler in Python, as programs that a worker starts would inherit that a signal is ignored.

    Args:
        own: The user's.
        numbers: The signals.
        mask: Those that wait in the worker afterwards, as in the process that starts it.
    """

    def __init__(self, own: Callable[[int], object] | None, numbers: Collection[int], mask: Collection[int]) -> None:
        self._own, self._numbers, self._mask = own, numbers, mask

    def __call__(self, worker_id: int) -> None:
        """Begin the worker."""
        _end_with_parent()  # torchdata's loaders have a function of their own in place of torch's
        for number in self._numbers:
            signal.signal(number, Handled(signal.SIG_DFL))
            atexit.register(signal.signal, number, signal.SIG_IGN)  # Python gives up its handlers before it has ended
        _set_mask(signal.SIG_SETMASK, self._mask)
        if self._own is not None:
            self._own(worker_id)


def _block(numbers: Collection[int], start_method: str) -> Collection[int]:
    """Let signals wait in this thread and in what it starts; returns the mask before."""
    mask = _set_mask(signal.SIG_BLOCK, numbers)
    if start_method != "fork" and numbers and os.name == "posix":
        resource_tracker.ensure_running()  # which no longer blocks SIGTERM and SIGINT when it has started
        _set_mask(signal.SIG_BLOCK, numbers)
    return mask


@contextmanager
def _repeated_forks() -> Iterator[None]:
    """A context in which ``os.fork``, which multiprocessing calls, forks again if the new process hangs."""
    before, os.fork = os.fork, _fork_again
    try:
        yield
    finally:
        os.fork = before


def _fork_again() -> int:
    """Fork; if the new process has not run its first line after some seconds, end it and fork again."""
    assert _fork is not None
    seconds = FORK_SECONDS
    while True:
        ready, tell = os.pipe()
        process = _fork()
        if process == 0:
            os.write(tell, b"1")
        os.close(tell)  # so that the end of the new process can be read as well
        has_begun = process == 0 or connection.wait([ready], seconds)
        os.close(ready)
        if has_begun:
            return process
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        logger.warning(
            "A forked worker has not begun in %g s, and was started again: in Python %s, a fork may hang while "
            "a thread of torch enters Python. Update to Python 3.11.10 or later",
            seconds,
            sys.version.split()[0],
        )
        seconds *= 2


_servers: dict[int, forkserver.ForkServer] = {}
"""The fork server for workers, by the process that has started it: a fork of that process starts its own."""


@contextmanager
def _own_server() -> Iterator[None]:
    """A context in which processes come from a fork server that has this thread's mask, and so have they.

    Other processes of the program must not have it: they would not end by ``terminate``. They come from
    multiprocessing's own server, and that ends by a signal to the group, with which torch's workers would end too.
    """
    server = _servers.setdefault(os.getpid(), forkserver.ForkServer())
    before, forkserver.connect_to_new_process = forkserver.connect_to_new_process, server.connect_to_new_process
    try:
        yield
    finally:
        forkserver.connect_to_new_process = before


def _end_with_parent() -> None:
    """End this worker when the process that started it ends, also if it has ended already. A second call has no effect.

    torch looks only between two batches, and only for another parent than at its first look. So a worker would stay as
    long as the user's dataset takes, and for ever if its parent had been killed before that look.

    Linux could do it (``PR_SET_PDEATHSIG``), but it ends a process with the *thread* that has started it, and the fork
    server's processes with the server.
    """
    name = "core-worker-parent"
    if multiprocessing.parent_process() is not None and all(each.name != name for each in threading.enumerate()):
        threading.Thread(target=_watch_parent, name=name, daemon=True).start()


def _watch_parent() -> None:
    starter: Any = multiprocessing.parent_process()  # not the worker's parent, where that is the fork server
    ends = [starter.sentinel]  # a pipe, which other forks of that process hold open too
    try:
        if hasattr(os, "pidfd_open"):
            ends.append(os.pidfd_open(starter.pid))
    except ProcessLookupError:
        os._exit(1)
    except OSError:  # an old kernel, or a sandbox, does not have it
        pass
    connection.wait(ends)
    os._exit(1)


def _run_worker(*arguments: Any) -> None:
    """What workers of any DataLoader run once there is a run: it may not see the loader, as in an object of a user."""
    _end_with_parent()
    run_worker(*arguments)


_all: WeakSet[Workers] = WeakSet()


def _each(do: Callable[[Workers], None]) -> None:
    for workers in list(_all):
        do(workers)


# Where a process ends without the end of its run. torch and multiprocessing have registered theirs before, so this runs
# first: multiprocessing would wait for workers that torch no longer shuts down.
atexit.register(_each, Workers.kill)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _each(Workers.forget))


class Handled:
    """The handler of a signal that this process acts on elsewhere.

    Args:
        before: The handler before, which a fork of this process gets back.
    """

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, number: int, frame: object) -> None:
        """Handle it."""


def handled_signals() -> list[int]:
    """The signals that this process acts on elsewhere."""
    return [number for number in signal.valid_signals() if isinstance(signal.getsignal(number), Handled)]


_mask = threading.local()


def _block_before_fork() -> None:
    """Before a fork: a signal to the fork waits until it has its handlers."""
    numbers = handled_signals()
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, {*numbers, signal.SIGTERM}) if numbers else None


def _unblock_after_fork() -> None:
    if _mask.before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _give_back_in_fork() -> None:
    """In a fork: it acts on signals as without this module, and does not write them into this process's pipe."""
    numbers = handled_signals()
    for number in numbers:
        handler: Any = signal.getsignal(number)
        while isinstance(handler, Handled):
            handler = handler.before
        signal.signal(number, handler)
    if numbers:
        signal.set_wakeup_fd(-1)
    _unblock_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_block_before_fork, after_in_parent=_unblock_after_fork, after_in_child=_give_back_in_fork
    )
