"""Checksums of files, computed by a thread while the file is written or read, so that no one waits for them.

They are CRC-32, as in the archives of :func:`torch.save`, in gzip and in PNG: they find damage. They cannot show that
someone changed a file, which no checksum can that lies next to it.
"""

from __future__ import annotations

import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from typing import IO, Any, BinaryIO, TypeVar

T = TypeVar("T")

_CHUNK = 1 << 20
_SMALL = 1 << 18
"""Bytes for which handing them to a thread takes longer than their checksum."""


def checksum_of(file: IO[bytes], size: int, stop: threading.Event | None = None) -> str:
    """The checksum of the first ``size`` bytes of an open file, which is unbuffered; less if ``stop`` is set."""
    found, buffer = 0, memoryview(bytearray(_CHUNK))
    raw: Any = file
    while size > 0 and not (stop is not None and stop.is_set()) and (count := raw.readinto(buffer[:size])):
        found = zlib.crc32(buffer[:count], found)
        size -= count
    return _text(found)


def _text(checksum: int) -> str:
    return f"{checksum:08x}"


class SummedFile:
    """A file that is written from start to end, and its checksum.

    Args:
        file: The file.
        thread: Computes the checksum of a part while the system writes the part.
    """

    def __init__(self, file: BinaryIO, thread: ThreadPoolExecutor) -> None:
        self._file = file
        self._thread = thread
        self._checksum = 0
        self.size = 0
        """Bytes that were written."""
        self.error: OSError | None = None
        """The error that stopped the writing; torch replaces it by another one."""

    @property
    def checksum(self) -> str:
        """Of what was written."""
        return _text(self._checksum)

    def write(self, data: memoryview) -> int:
        """Write all of ``data``."""
        summed = None if len(data) < _SMALL else _submit(self._thread, lambda: zlib.crc32(data, self._checksum))
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        finally:
            if summed is not None:
                _wait(summed)  # torch frees the memory
        self._checksum = zlib.crc32(data, self._checksum) if summed is None else summed.result()
        self.size += written
        return written

    def flush(self) -> None:
        """Write what is buffered."""
        self._file.flush()


files_are_mapped: ContextVar[bool] = ContextVar("core_files_are_mapped", default=False)
"""Whether tensors are read as in :func:`tensors_in_files`."""


@contextmanager
def tensors_in_files() -> Iterator[None]:
    """What is read in this block is verified first, and its tensors are parts of the file, which is mapped into memory.

    The system reads them when they are copied, and takes that memory back when it needs it. Whoever keeps such a tensor
    must copy it: it keeps the disk space of a removed checkpoint, and cannot be read when another host removes the file
    from a network file system.
    """
    token = files_are_mapped.set(sys.platform != "win32")  # which removes no file that is mapped
    try:
        yield
    finally:
        files_are_mapped.reset(token)


def read_while_verifying(verify: Callable[[threading.Event], object], read: Callable[[], T]) -> T:
    """Return what ``read`` returns, unless ``verify`` raises; a thread runs it at the same time.

    Of two exceptions, that of ``verify`` is raised: damaged files let ``read`` raise anything.

    Args:
        verify: Is given what is set when its result is not needed any more.
        read: Reads the same files, which may be damaged, and runs no code that they hold.
    """
    stop = threading.Event()
    if files_are_mapped.get():
        verify(stop)
        return read()
    with ThreadPoolExecutor(1, "core-verify") as thread:
        verified = _submit(thread, lambda: verify(stop))
        if verified is None:
            verify(stop)
            return read()
        try:
            result = read()
            verified.result()
        except Exception:
            if (damage := verified.exception()) is not None:
                raise damage from None
            raise
        finally:
            stop.set()  # of an interrupt, the thread is not waited for
    return result


def _submit(thread: ThreadPoolExecutor, function: Callable[[], T]) -> Future[T] | None:
    try:
        return thread.submit(function)
    except RuntimeError:  # the interpreter ends, or the system has no more threads
        return None


def _wait(future: Future[Any]) -> None:
    """Wait also if a signal's handler raises; then raise that."""
    raised: BaseException | None = None
    while not future.done():
        try:
            wait([future])
        except BaseException as error:  # noqa: BLE001  raised below
            raised = error
    if raised is not None:
        raise raised
