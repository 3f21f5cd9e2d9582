"""The output of processes: passed on as it is, by line with the rank in front, or to one file for each rank."""

from __future__ import annotations

import os
import select
import selectors
import sys
import threading
from contextlib import ExitStack, suppress
from typing import BinaryIO

from attrs import define, field
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest

from ..errors import LaunchError
from ..strategies.launchers.cause import print_error

# Output without the end of a line is passed on when it has so many bytes.
_LONGEST_LINE = 1 << 16


class Output:
    """Reads what the processes of this machine print, in one thread, so that lines stay whole.

    Args:
        folder: A temporary folder, for torchrun's own files.
        prefix: Print each line on the terminal with ``[rank]`` in front.
        log_dir: Write each process's output to ``rank_<rank>.log`` in this folder; after a restart, to
            ``rank_<rank>.restart_<n>.log``. ``None`` for no files.

    Raises:
        LaunchError: The folder cannot be created.
    """

    def __init__(self, folder: str, *, prefix: bool, log_dir: str | None) -> None:
        self._folder = folder
        self._prefix = prefix
        self._log_dir = log_dir
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._streams: list[_Stream] = []
        self._open = ExitStack()
        self._thread: threading.Thread | None = None
        if log_dir is not None:
            try:
                os.makedirs(log_dir, exist_ok=True)
            except OSError as error:
                raise LaunchError(f"--log-dir {log_dir!r} cannot be created: {error.strerror}.") from error

    def logs_specs(self) -> DefaultLogsSpecs:
        """How torchrun's agent connects standard output and error of the processes."""
        return _Pipes(self) if self._prefix or self._log_dir is not None else DefaultLogsSpecs(log_dir=self._folder)

    def connect(self, rank: str, restart: str) -> tuple[str, str]:
        """The paths that a process's standard output and error are opened at."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._pump, name="core-run-output", daemon=True)
            self._thread.start()
        file: BinaryIO | None = None
        if self._log_dir is not None:
            again = "" if restart == "0" else f".restart_{restart}"
            path = os.path.join(self._log_dir, f"rank_{rank}{again}.log")
            file = self._open.enter_context(open(path, "wb", buffering=0))  # noqa: SIM115  closed with the stack
        header = f"[{rank}] ".encode()
        if not self._prefix:  # one pipe for both keeps their order
            path = self._add(_Stream(header, file, None))
            return path, path
        return self._add(_Stream(header, file, sys.stdout.fileno())), self._add(
            _Stream(header, file, sys.stderr.fileno())
        )

    def _add(self, stream: _Stream) -> str:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        stream.reading = reading
        self._open.callback(os.close, reading)
        self._open.callback(os.close, writing)
        with self._lock:
            self._streams.append(stream)
        return f"/dev/fd/{writing}"

    def close(self) -> None:
        """Pass on what is left. The processes have ended. Idempotent."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._open.close()

    def _pump(self) -> None:
        with selectors.DefaultSelector() as selector:
            known = 0
            while True:
                # Before the look at the streams: what was written before close() is there by then.
                is_last = self._closing.is_set()
                with self._lock:
                    for stream in self._streams[known:]:
                        selector.register(stream.reading, selectors.EVENT_READ, stream)
                    known = len(self._streams)
                for key, _ in selector.select(0 if is_last else 0.1):
                    key.data.read()
                if is_last:
                    break
        for stream in self._streams:
            while stream.read():
                pass
            stream.finish()


@define
class _Stream:
    """One pipe. What it goes to may fail, as a full disk: it is read on all the same, or the process would wait."""

    header: bytes
    file: BinaryIO | None
    terminal: int | None
    reading: int = -1
    rest: bytearray = field(factory=bytearray)

    def read(self) -> bool:
        """Pass on the whole lines that have come; whether anything has."""
        try:
            data = os.read(self.reading, 1 << 16)
        except BlockingIOError:
            return False
        if self.file is not None:
            try:
                _write(self.file.fileno(), data)
            except OSError as error:
                self._tell(str(self.file.name), error)
                self.file = None
        if self.terminal is not None:
            self.rest += data
            end = self.rest.rfind(b"\n") + 1
            if not end and len(self.rest) > _LONGEST_LINE:
                end = len(self.rest)
            self._write(bytes(self.rest[:end]))
            del self.rest[:end]
        return bool(data)

    def finish(self) -> None:
        """Pass on a last line without an end."""
        self._write(bytes(self.rest))
        self.rest.clear()

    def _write(self, data: bytes) -> None:
        if self.terminal is None or not data:
            return
        lines = data.removesuffix(b"\n").split(b"\n")
        # A bar returns to the start of its line; the terminal shows the last of its states.
        text = b"".join(self.header + line.rstrip(b"\r").rsplit(b"\r", 1)[-1] + b"\n" for line in lines)
        try:
            _write(self.terminal, text)
        except OSError as error:
            self._tell("the terminal" if os.isatty(self.terminal) else "standard output or error", error)
            self.terminal = None

    def _tell(self, place: str, error: OSError) -> None:
        with suppress(OSError):  # standard error may be closed too
            print_error(f"{self.header.decode()}what this rank prints is not written to {place} any more: {error}")


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # another program has set it so
            select.select([], [descriptor], [])


class _Pipes(DefaultLogsSpecs):
    def __init__(self, output: Output) -> None:
        super().__init__(log_dir=output._folder)
        self._output = output

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """See :meth:`torch.distributed.elastic.multiprocessing.LogsSpecs.reify`."""
        found = super().reify(envs)
        for local_rank, environ in envs.items():
            paths = self._output.connect(environ["RANK"], environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
            found.stdouts[local_rank], found.stderrs[local_rank] = paths
        return found
