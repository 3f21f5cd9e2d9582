"""Running the processes by torchrun's agent: one machine alone, or several that meet at an address."""

from __future__ import annotations

import ipaddress
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest import mock

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.api import PContext
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ..environments.local import GLOO_INTERFACE, loopback_interface
from ..errors import LaunchError
from ..strategies.launchers.base import advice_on, describe_exit
from ..strategies.launchers.exit_codes import exit_status
from ..strategies.launchers.interrupts import LIFELINE, blocks_interrupts
from ..strategies.store.network_interfaces import interface_towards, is_loopback, named_address
from ..strategies.store.tcp_store import connect_store
from ..strategies.time_limits import LEFT_OVER_SECONDS, SAME_SIGNAL_SECONDS, STRANGER_SECONDS
from . import parent_death
from .options import Options, imports_core
from .output import Output
from .rendezvous import BACKEND, LostLink

logger = logging.getLogger(__name__)

DEFAULT_PORT = 29400
"""Of an endpoint without a port, as torchrun's."""


def start(options: Options, processes: int, program: str) -> int:
    """Run the command on this machine's processes until all have ended; returns the exit code.

    Args:
        options: The command line.
        processes: Number of processes on this machine.
        program: How the user called this command, for messages.

    Raises:
        LaunchError: The machines did not meet, or another program listens where they are to.
    """
    _set_variables(options, processes)
    if options.nodes[1] > 1:
        _refuse_stranger(options.rdzv_endpoint)
    command = options.command()
    if sys.platform == "linux":
        # A worker ends with the agent, however that ends. It asks the system for that before it runs the command.
        blocks = [parent_death.BLOCKS_INTERRUPTS] if imports_core(options) else []
        command = [sys.executable, "-I", "-S", parent_death.__file__, str(os.getpid()), *blocks, *command]
    level = logging.root.manager.disable
    if not options.verbose:
        logging.disable(logging.ERROR)  # the agent logs what the message below says, in other words
    with tempfile.TemporaryDirectory(prefix="torch-hal-run-") as folder:
        _forward_signals()
        output = Output(folder, prefix=options.prefix, log_dir=options.log_dir)
        left_over = LeftOver()
        try:
            with SecondSignal(_children, folder, program), LostLink(_port(options)), left_over:
                elastic_launch(_config(options, processes, folder, output), command[0])(*command[1:])
        except ChildFailedError as error:
            output.close()
            return _report(error, left_over.failed, options, program)
        except SignalException as error:
            if error.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            return 128 + int(error.sigval)
        except (RendezvousError, TimeoutError) as error:
            cause = error.__cause__ or error
            raise LaunchError(
                f"the machines did not meet at {options.rdzv_endpoint or 'a local file'}, or one lost the machine that "
                f"serves it ({type(cause).__name__}: {cause}). Check --rdzv-endpoint, --nnodes and --rdzv-id on each "
                "machine, and whether the port can be reached."
            ) from error
        finally:
            output.close()
            logging.disable(level)
    return 0


def _set_variables(options: Options, processes: int) -> None:
    """Set the environment variables of the agent and of all its processes."""
    if processes > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does; more threads would only wait
    # Rank 0 serves the store of its run, not the agent: it listens on the loopback address where there is one machine,
    # and restarts do not share keys.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    if options.nodes[1] == 1 and GLOO_INTERFACE not in os.environ and (loopback := loopback_interface()):
        os.environ[GLOO_INTERFACE] = loopback  # gloo would listen at the address of the machine's name
    elif options.nodes[1] > 1 and GLOO_INTERFACE not in os.environ and is_loopback(named_address() or "127.0.0.1"):
        # Gloo would listen where no other machine reaches it.
        host = options.local_addr or parse_rendezvous_endpoint(options.rdzv_endpoint, DEFAULT_PORT)[0]
        if interface := interface_towards(host):
            logger.info("%s=%s, which leads to %s", GLOO_INTERFACE, interface, host)
            os.environ[GLOO_INTERFACE] = interface
    if sys.platform != "linux":
        os.environ[LIFELINE] = str(os.getpid())


def _refuse_stranger(endpoint: str) -> None:
    """Check what listens at the endpoint, if anything does yet: torchrun's agent would wait for its answer forever."""
    host, port = parse_rendezvous_endpoint(endpoint, DEFAULT_PORT)
    try:
        socket.create_connection((host, port), STRANGER_SECONDS).close()
    except OSError:
        return
    try:
        connect_store(host, port, timeout=timedelta(seconds=STRANGER_SECONDS))
    except LaunchError as error:
        raise LaunchError(
            f"--rdzv-endpoint {endpoint}: another program listens there. It has not answered as torchrun's rendezvous "
            f"does, within {STRANGER_SECONDS:g} s. Use another port, or end the process that holds it."
        ) from error


def _forward_signals() -> None:
    """Pass signals on that the agent does not know, and would end by, to the first process: it tells the others."""
    if threading.current_thread() is not threading.main_thread():
        return

    def forward(number: int, frame: Any) -> None:
        for process in _children()[:1]:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    for name in ("SIGUSR1", "SIGUSR2"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, forward)


def _children() -> list[int]:
    """The processes that this one has started, in their order."""
    found: list[int] = []
    with suppress(OSError):  # not Linux
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError), open(f"/proc/self/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return sorted(found)


def _config(options: Options, processes: int, folder: str, output: Output) -> LaunchConfig:
    low, high = options.nodes
    settings = dict(options.rdzv_conf)
    if high > 1 and "is_host" not in settings and _is_unnamed_host(options.rdzv_endpoint):
        settings["is_host"] = "1"
    meeting: dict[str, Any] = {
        "rdzv_endpoint": options.rdzv_endpoint,
        "rdzv_configs": settings,
        "local_addr": options.local_addr,
        "run_id": options.rdzv_id,
    }
    if high == 1:
        meeting = {
            "rdzv_endpoint": str(Path(folder, "rendezvous")),  # a file: no port is opened
            "rdzv_configs": {"store_type": "file"},
            "local_addr": "127.0.0.1",
            "run_id": uuid.uuid4().hex,
        }
    return LaunchConfig(
        min_nodes=low,
        max_nodes=high,
        nproc_per_node=processes,
        rdzv_backend=BACKEND,
        max_restarts=options.max_restarts,
        monitor_interval=0.1,
        logs_specs=output.logs_specs(),
        **meeting,
    )


def _port(options: Options) -> int:
    """Of the rendezvous on several machines; 0 on one."""
    return parse_rendezvous_endpoint(options.rdzv_endpoint, DEFAULT_PORT)[1] if options.nodes[1] > 1 else 0


def _is_unnamed_host(endpoint: str) -> bool:
    """Whether the endpoint is an address of this machine, but not one of those that its own name stands for.

    torchrun's agent compares with these only, and no machine would serve the rendezvous.
    """
    host, port = parse_rendezvous_endpoint(endpoint, default_port=DEFAULT_PORT)
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        named: set[Any] = set()
        with suppress(OSError):
            named = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
        if address[0] in named or ipaddress.ip_address(address[0]).is_loopback:
            return False
        with socket.socket(family, kind) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(address)
    except OSError:  # another machine's; or another agent of this machine serves it
        return False
    return True


def _report(error: ChildFailedError, failed: Container[int], options: Options, program: str) -> int:
    """Say which process failed first, one of the local ranks ``failed`` if any, or why; return its exit code."""
    rank, failure = min(error.failures.items(), key=lambda item: (item[1].local_rank not in failed, *_order(item)))
    code = failure.exitcode
    log = os.path.join(options.log_dir, f"rank_{rank}.log") if options.log_dir and not options.prefix else ""
    notes = [f"after {options.max_restarts} restart(s)"] * bool(options.max_restarts) + [f"see {log}"] * bool(log)
    message: Any = failure.message
    if isinstance(message, dict):  # the process itself has told
        told = "\n  ".join([message["message"], *notes])
    else:
        advice = "" if log and code > 0 else advice_on(code)
        told = f"{'; '.join([f'rank {rank} (process {failure.pid}) {describe_exit(code)}', *notes])}.{advice}"
    sys.stderr.write(f"{program}: {told}\n")
    return exit_status(code)


def _order(item: tuple[int, ProcessFailure]) -> tuple[bool, bool, bool, int, int]:
    """The likely cause first: a process that was killed, then one with its own exit code. SIGTERM comes last.

    The agent sends SIGTERM to the processes that are left, and a process whose peer is gone ends with exit code 1.
    """
    rank, failure = item
    code = failure.exitcode
    ended_by_agent = code in (-signal.SIGTERM, 128 + signal.SIGTERM)
    return ended_by_agent, code > 0, code == 1, failure.timestamp, rank


# -- ending what the agent would leave too long: at a second signal, or when a process has failed -------------------

ENDING = (signal.SIGTERM, signal.SIGINT)


class SecondSignal:
    """A context in which the second SIGTERM, or the second SIGINT, kills the started processes and ends this one.

    It acts in a thread, so that it does not matter where the main thread waits. Outside of the main thread the context
    does nothing, as Python's signals go to that one.

    Args:
        processes: Tells which processes to kill.
        folder: Of temporary files, to remove.
        program: How the user called this command, for the message.
    """

    def __init__(self, processes: Callable[[], Iterable[int]], folder: str, program: str) -> None:
        self._processes, self._folder, self._program = processes, folder, program
        self._first: dict[int, float] = {}
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._read, self._write = os.pipe()
            os.set_blocking(self._write, False)
            # The system writes the signal's number there at once; handlers of the agent raise in the main thread.
            self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._watch, name="core-second-signal", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            signal.set_wakeup_fd(self._before)
            os.write(self._write, b"\0")  # no signal has this number: it ends the thread
            self._thread.join()
            os.close(self._read)
            os.close(self._write)

    def _watch(self) -> None:
        while True:
            for number in os.read(self._read, 64):
                if number == 0:
                    return
                if (
                    number in ENDING
                    and time.monotonic() - self._first.setdefault(number, time.monotonic()) > SAME_SIGNAL_SECONDS
                ):
                    self._end(number)

    def _end(self, number: int) -> None:
        for process in self._processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)
        name = signal.Signals(number).name
        sys.stderr.write(f"{self._program}: a second {name} ends this process and those that it started at once\n")
        sys.stderr.flush()
        os._exit(128 + number)


class LeftOver:
    """A context in which processes that do not end after the failure of another are killed after 8 seconds.

    torchrun's agent would wait 30, and does not tell a process that it has killed from one that was killed before.
    """

    def __init__(self) -> None:
        self._context: PContext | None = None
        self.failed: set[int] = set()
        """The local ranks that had failed when the others were told to end, of the last start."""
        close = PContext.close

        def close_sooner(context: PContext, death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
            if context is not self._context:
                self._context, self.failed = context, _failed(context)
            if death_sig == signal.SIGINT:
                _end_importing(context)
            close(context, death_sig, min(timeout, LEFT_OVER_SECONDS) if self.failed else timeout)

        # The agent has no setting for the time that it gives processes to end.
        self._patch: Any = mock.patch.object(PContext, "close", close_sooner)

    def __enter__(self) -> Self:
        self._patch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patch.stop()


def _end_importing(context: PContext) -> None:
    """End the processes that block SIGINT because they still import the script."""
    for process in context.pids().values():
        if blocks_interrupts(process):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)


def _failed(context: PContext) -> set[int]:
    handlers: dict[int, Any] = getattr(context, "subprocess_handlers", {})
    return {rank for rank, handler in handlers.items() if handler.proc.poll()}
