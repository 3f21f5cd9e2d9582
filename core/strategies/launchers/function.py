"""Calling a function in spawned or forked processes."""

from __future__ import annotations

import gc
import inspect
import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, NamedTuple, TypeVar

import torch

from ...errors import LaunchError
from ...random import set_host_rng_state
from ..time_limits import FAILED_TOO_SECONDS, PROCESS_POLL_SECONDS
from .base import Launcher, advice_on, describe_exit, end_processes
from .cause import cause_of, first_line, format_error, ranked, tell_only
from .exit_codes import EndedBySignal, exit_code_of, failed_at, is_lost_peer, show_launch_errors
from .interrupts import forwarding, interrupts_blocked, unblock_interrupts, watch_parent
from .pickling import unpicklable_path

T = TypeVar("T")

_Task = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class FunctionLauncher(Launcher):
    """Calls a function in every process of the run; this process only supervises them.

    Each worker adds its variables to ``os.environ`` and calls ``function(environ, *args, **kwargs)``, where ``environ``
    has all of its environment variables. The return value of rank 0 is returned here. Workers may have child
    processes, such as those of a data loader, and end when this process ends.

    * ``"spawn"``: workers start with a fresh interpreter. Function and arguments are pickled, so each worker has
      its own copy of every tensor.
    * ``"fork"``: workers start as copies of this process. Function and arguments are not pickled.

    Tensors that are sent to spawned workers, and tensors that are returned, arrive on the CPU.

    Args:
        num_processes: As in :class:`Launcher`.
        environ_for: As in :class:`Launcher`.
        strategy: As in :class:`Launcher`.
        start_method: ``"spawn"`` or ``"fork"``.
        fork_unsafe_reason: Why this process must not be forked, such as hardware that it already uses; ``None`` if it
            may.
        grace: Seconds between terminating a worker and killing it.
        exit_timeout: Seconds for workers to exit after the function has returned in all of them.

    Raises:
        LaunchError: ``start_method`` is unknown, is not available on this system, or is ``"fork"`` in a process that
            must not be forked.
    """

    def __init__(
        self,
        num_processes: int,
        environ_for: Callable[[int], Mapping[str, str]],
        *,
        strategy: str,
        start_method: Literal["spawn", "fork"],
        fork_unsafe_reason: str | None = None,
        grace: float = 5.0,
        exit_timeout: float = 60.0,
    ) -> None:
        super().__init__(num_processes, environ_for, strategy=strategy)
        available = [method for method in multiprocessing.get_all_start_methods() if method in ("spawn", "fork")]
        if start_method not in available:
            raise LaunchError(
                f"strategy={strategy!r}: start_method={start_method!r} is not available here. Valid: {available}."
            )
        if start_method == "fork" and fork_unsafe_reason:
            raise LaunchError(
                f"strategy={strategy!r} cannot fork this process: {fork_unsafe_reason}. Restart the session and start "
                "the run before that happens, or set start_method='spawn' on the strategy (by name: "
                "strategy='ddp_spawn')."
            )
        self._start_method = start_method
        self._grace = grace
        self._exit_timeout = exit_timeout
        self._workers: list[_Worker] = []

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``function(environ, *args, **kwargs)`` in each worker.

        Returns:
            The return value of rank 0.

        Raises:
            LaunchError: Function or arguments cannot be pickled, or a worker raised or was killed. The message has the
                traceback of the worker that failed first, and its error is the cause. All workers have ended by then.
        """
        show_launch_errors()
        task: _Task = (function, args, kwargs)
        payload = _pickled_task(task, self.strategy) if self._start_method == "spawn" else None
        try:
            if payload is not None:
                resource_tracker.ensure_running()  # else the first process starts it, which unblocks SIGINT
            with interrupts_blocked():
                if payload is None:
                    # A new thread has no pool of OpenMP threads: a pool does not survive the fork, and a worker that
                    # inherits one would wait for it forever.
                    _in_fresh_thread(lambda: self._fork(task))
                else:
                    for local_rank in range(self.num_processes):
                        self._start(local_rank, None, None)
            if payload is not None:
                self._send(payload)
            with forwarding(lambda: [worker.process.pid for worker in self._workers if worker.exit_code is None]):
                return self._supervise()
        finally:
            self.stop()

    def stop(self) -> None:
        """End the workers, within a bounded time."""
        end_processes([worker.process for worker in self._workers], BaseProcess.is_alive, self._grace)
        for worker in self._workers:
            worker.close()
        self._workers.clear()

    def _fork(self, task: _Task) -> None:
        collects = gc.isenabled()
        # A worker must not collect before _after_fork has set the parent's objects aside.
        gc.disable()
        gate = os.pipe()
        try:
            for local_rank in range(self.num_processes):
                channels = [worker.channel for worker in self._workers]
                with warnings.catch_warnings():
                    # Python 3.12 warns of every fork in a process with threads; launch() and _after_fork() handle it.
                    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
                    self._start(local_rank, task, partial(_after_fork, channels, collects, gate))
        finally:
            for end in gate:
                os.close(end)
            if collects:
                gc.enable()

    def _start(self, local_rank: int, task: _Task | None, prepare: Callable[[], None] | None) -> None:
        context = multiprocessing.get_context(self._start_method)
        rank, environ = self._environ(local_rank)
        ours, theirs = context.Pipe()
        process = context.Process(  # type: ignore[attr-defined]
            target=_work, args=(environ, local_rank == 0, theirs, task, os.getpid(), prepare), name=f"rank {rank}"
        )
        process.start()
        theirs.close()  # or the worker's end would not close the channel
        self._workers.append(_Worker(rank, process, ours))

    def _send(self, payload: memoryview) -> None:
        for worker in self._workers:
            with suppress(BrokenPipeError, ConnectionResetError):  # it has ended, which _supervise reports
                worker.channel.send_bytes(payload)

    def _supervise(self) -> Any:
        workers = self._workers
        deadline, is_failing = None, False
        while any(worker.exit_code is None for worker in workers):
            wait([handle for worker in workers for handle in worker.handles()], timeout=PROCESS_POLL_SECONDS)
            for worker in workers:
                worker.update()
            failed = [worker for worker in workers if worker.has_failed()]
            if not is_failing and not all(worker.ends_by_signal for worker in failed):
                is_failing, deadline = True, time.monotonic() + FAILED_TOO_SECONDS
            elif deadline is None and (failed or all(worker.report for worker in workers)):
                deadline = time.monotonic() + self._exit_timeout
            if deadline is not None and time.monotonic() > deadline:
                break
        return self._result()

    def _result(self) -> Any:
        workers = self._workers
        late = [worker.rank for worker in workers if worker.exit_code is None and not worker.has_failed()]
        failed = [worker for worker in workers if worker.has_failed()]
        is_signal = bool(failed) and all(worker.ends_by_signal for worker in failed)
        if late and (is_signal or not failed):
            what = "the others had ended because of a signal" if is_signal else "the function had returned in all"
            raise LaunchError(
                f"rank(s) {late} did not exit within {self._exit_timeout:g} s (exit_timeout) after {what}, and were "
                f"ended."
            )
        if is_signal and len(failed) == len(workers):
            raise EndedBySignal(failed[0].failing_code)
        if failed:
            others = [worker for worker in failed if not worker.ends_by_signal]  # what failed is not hidden behind it
            raise _error(others or failed, self._start_method)
        report = workers[0].report
        return None if report is None or report.result is None else _unpickled(report.result)


class _Report(NamedTuple):
    """The report that a worker sends when its call has ended."""

    result: bytes | None = None
    failed_at: float = 0.0
    cause: str = ""
    traceback: str = ""
    error: bytes | None = None
    exit_code: int = 1
    agreed_exit: bool = False
    """Whether all workers end because of a signal."""
    is_consequence: bool = False
    """Whether the worker only lost another one that failed before."""


class _Worker:
    """A worker as the supervising process sees it."""

    def __init__(self, rank: int, process: BaseProcess, channel: Connection) -> None:
        self.rank = rank
        self.process = process
        self.channel = channel
        self.report: _Report | None = None
        self.exit_code: int | None = None

    def handles(self) -> Iterable[Connection | int]:
        if not self.channel.closed:
            yield self.channel
        if self.exit_code is None:
            yield self.process.sentinel

    def update(self) -> None:
        # Before the channel is read: the report of a process that has ended is in there.
        exit_code = self.process.exitcode
        try:
            while not self.channel.closed and self.channel.poll():
                self.report = self.channel.recv()
        except (EOFError, ConnectionResetError):
            self.channel.close()
        self.exit_code = exit_code

    def has_failed(self) -> bool:
        if self.report is None:
            return self.exit_code is not None
        return bool(self.report.cause) or bool(self.exit_code)

    @property
    def ends_by_signal(self) -> bool:
        """Whether it ended because all workers agreed to end after a signal; the others may still write their files."""
        return self.report is not None and self.report.agreed_exit

    def blame(self) -> tuple[bool, bool, float]:
        """A sort key, smallest for the worker that failed first. One that died silently precedes those that raised."""
        if self.report is None:
            return False, False, 0.0
        return self.report.is_consequence, bool(self.report.cause), self.report.failed_at

    @property
    def failing_code(self) -> int:
        """The exit code that it failed with; the negative number of the signal that killed it."""
        return self.report.exit_code if self.report is not None and self.report.cause else self.exit_code or 1

    def describe(self) -> str:
        if self.report is not None and self.report.cause:
            return f"rank {self.rank} failed: {self.report.cause}"
        code, when = self.exit_code or 0, "before" if self.report is None else "after"
        what = f"rank {self.rank} (process {self.process.pid}) {describe_exit(code)} {when} its function had returned."
        return f"{what}{advice_on(code)}"

    def close(self) -> None:
        self.channel.close()
        self.process.join()
        self.process.close()


def _error(failed: Sequence[_Worker], start_method: str) -> LaunchError:
    first, *others = sorted(failed, key=_Worker.blame)
    trace = "" if first.report is None else first.report.traceback
    lines = [ranked(trace, first.rank)] if trace else []
    for worker in others:
        own = worker.report
        if own is None or not (own.is_consequence or (first.report is not None and own.cause == first.report.cause)):
            lines.append(f"After it: {first_line(worker.describe())}")
    cause = first.describe()
    if first.report is None and start_method == "spawn" and (first.exit_code or 0) > 0:
        cause += (
            " If it failed while it imported the script, its error is above: start the run under "
            "`if __name__ == '__main__':`, because each spawned worker imports the script."
        )
    error = LaunchError("\n".join(["a process of the run failed", *lines, cause] if lines else [cause]))
    error.rank, error.exit_code = first.rank, first.failing_code
    if first.report is None:
        return error
    # Pickling and unpickling an exception may fail in any way; the message has its text anyway.
    with suppress(Exception):
        error.__cause__ = pickle.loads(first.report.error or b"")
    return error


def _work(
    environ: Mapping[str, str],
    returns: bool,
    channel: Connection,
    task: _Task | None,
    parent: int,
    prepare: Callable[[], None] | None,
) -> None:
    """The main function of a worker."""
    if prepare is not None:
        prepare()
    if os.getppid() != parent:  # the launcher has ended already
        return
    unblock_interrupts()
    watch_parent(parent)
    os.environ.update(environ)
    reporting = _Reporting(channel)
    tell_only(reporting.tell)
    try:
        function, args, kwargs = _unpickled(channel.recv_bytes()) if task is None else task
        result = function(dict(os.environ), *args, **kwargs)
        report = _Report(result=_pickled_result(result) if returns and result is not None else None)
    except BaseException as error:  # noqa: BLE001 - the outermost frame of a process, which reports whatever ended it
        # As the interpreter does with an uncaught exception, for handlers that run at exit.
        sys.last_value = error
        report = _report_failure(error)
    reporting.send(report)
    if report.cause:
        raise SystemExit(report.exit_code)


class _Reporting:
    """Sends the first report of a worker: that of its call, or of a thread that ends the process at once."""

    def __init__(self, channel: Connection) -> None:
        self._channel, self._lock = channel, threading.Lock()

    def send(self, report: _Report) -> None:
        with self._lock:
            if not self._channel.closed:
                self._channel.send(report)
                self._channel.close()

    def tell(self, cause: str) -> None:
        """Report the cause, as :func:`tell_only` requires."""
        self.send(_Report(failed_at=time.monotonic(), cause=cause.partition(" failed: ")[2] or cause))


def _after_fork(channels: Iterable[Connection], collects: bool, gate: tuple[int, int]) -> None:
    """Keep the garbage collector away from the parent's objects, close its channels, and wait for the other forks.

    Collecting an object with its own thread, such as a store, would wait for a thread that the fork does not have. And
    while this process connects to a store of the parent, the store's thread resolves its address with a lock of the C
    library: a process that is forked in this moment would wait for the lock for ever.

    Args:
        channels: Of the workers that were forked before.
        collects: Whether the parent collects garbage.
        gate: The ends of a pipe. Nothing is written: the parent closes it when all workers are forked, or ends.
    """
    gc.freeze()
    if collects:
        gc.enable()
    for channel in channels:
        channel.close()
    read, write = gate
    os.close(write)
    os.read(read, 1)
    os.close(read)


def _report_failure(error: BaseException) -> _Report:
    pickled = None
    with suppress(Exception):  # see _error
        pickled = pickle.dumps(error)
    return _Report(
        failed_at=failed_at(error),
        cause=cause_of(error),
        traceback=format_error(error),
        error=pickled,
        exit_code=_exit_code(error),
        is_consequence=is_lost_peer(error),
        agreed_exit=isinstance(error, EndedBySignal),
    )


def _exit_code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return 128 + int(signal.SIGINT)
    return (exit_code_of(error.code) or 1) if isinstance(error, SystemExit) else 1


def _in_fresh_thread(function: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            errors.append(error)

    thread = threading.Thread(target=run, name="core-fork")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


# torch.save keeps tensors that share memory shared, copies tensors of other devices, and does not move tensors to
# shared memory as torch.multiprocessing does, which would make all ranks share one parameter. Only our own processes
# write the bytes that are unpickled here.


def _pickled(obj: object) -> memoryview:
    buffer = io.BytesIO()
    torch.save(obj, buffer, pickle_protocol=pickle.HIGHEST_PROTOCOL)
    return buffer.getbuffer()


def _unpickled(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)


def _pickled_task(task: _Task, strategy: str) -> memoryview:
    function, args, kwargs = task
    try:
        payload = _pickled(task)
    except Exception as error:
        found = unpicklable_path(function, "function")
        for name, argument in _named_arguments(function, args, kwargs):
            found = found or unpicklable_path(argument, name)
        path, cause = found or ("an argument", f"{type(error).__name__}: {error}")
        raise LaunchError(
            f"{path} cannot be pickled: {cause}. strategy={strategy!r} sends it to the processes that it spawns. Make "
            "it picklable, or set start_method='script' or 'fork' on the strategy (by name: strategy='ddp', "
            "'ddp_fork', 'ddp_notebook')."
        ) from error
    if not hasattr(sys.modules["__main__"], "__file__") and b"__main__" in payload.tobytes():
        raise LaunchError(
            f"strategy={strategy!r} spawns processes, and they cannot import what is defined in this interactive "
            "session. Set start_method='fork' on the strategy (by name: strategy='ddp_notebook'), or move the "
            "definitions to a module."
        )
    return payload


def _named_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterable[tuple[str, object]]:
    try:
        bound = inspect.signature(function).bind(None, *args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {"args": args, "kwargs": kwargs}
    return bound.items()


def _pickled_result(result: object) -> bytes:
    try:
        return bytes(_pickled(result))
    except Exception as error:
        path, cause = unpicklable_path(result, "result") or ("result", f"{type(error).__name__}: {error}")
        raise LaunchError(
            f"{path}, which rank 0 returned, cannot be pickled: {cause}. Return tensors and plain data."
        ) from error


def run_in_worker(
    environ: Mapping[str, str],
    strategy: Any,
    rng_state: dict[str, Any],
    function: Callable[..., T],
    args: Any,
    kwargs: Any,
) -> T:
    """Runs in a started process: restore the random state of the starting process, read this process's rank."""
    set_host_rng_state(rng_state)
    strategy.cluster_environment = type(strategy.cluster_environment)(environ)
    return function(*args, **kwargs)
