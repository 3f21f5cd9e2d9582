"""The CheckpointIO that writes in the background, in the format of another one: from copies of the tensors."""

from __future__ import annotations

import atexit
import copy
import ctypes
import logging
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import CheckpointError, ConfigurationError, CoreError, WrongTypeError
from .agreement import run_on_each_rank
from .base import CheckpointIO
from .locations import absolute, directory_of
from .sharded import ShardedCheckpointIO
from .torch_io import TorchCheckpointIO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement

_log = logging.getLogger(__name__)

_FIXED = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.Size)


class Staging:
    """Copies checkpoints into the memory of the host; memory that is free again serves the next copy.

    Tensors that share memory share it in the copy as well, so that tied weights are written once.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[torch.UntypedStorage]] = {}
        self._used: list[torch.UntypedStorage] = []

    def copy(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """A copy that later changes of ``checkpoint`` do not reach.

        Raises:
            CheckpointError: An object in it cannot be copied.
        """
        copied: dict[str, Any] = _Copier(self).copy("checkpoint", checkpoint)
        self._free = {}  # of an earlier checkpoint with other sizes
        return copied

    def release(self) -> None:
        """The memory of the copy is free for the next one: nothing reads the copy any more."""
        self._free = {}
        for storage in self._used:
            self._free.setdefault(storage.nbytes(), []).append(storage)
        self._used = []

    def clear(self) -> None:
        """Give the memory back."""
        self._free, self._used = {}, []

    def _storage(self, size: int) -> torch.UntypedStorage:
        free = self._free.get(size)
        storage = free.pop() if free else torch.empty(size, dtype=torch.uint8).untyped_storage()
        self._used.append(storage)
        return storage


class _Copier:
    """One copy. A tensor that occurs twice is copied once."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._copies: dict[Any, Any] = {}
        self._kept: list[Any] = []  # alive, so that no other object gets the same id

    def copy(self, place: str, value: Any) -> Any:
        kind = type(value)
        if kind in _FIXED:
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        self._kept.append(value)
        copied: Any
        if isinstance(value, Tensor):
            copied = self._tensor(place, value)
        elif kind is dict or kind is OrderedDict:
            copied = self._copies[id(value)] = kind()
            for key, item in value.items():
                copied[self.copy(f"a key of {place}", key)] = self.copy(f"{place}[{key!r}]", item)
            if kind is OrderedDict:  # a module's state has its metadata as an attribute
                vars(copied).update({name: self.copy(f"{place}.{name}", item) for name, item in vars(value).items()})
        elif kind is list:
            copied = self._copies[id(value)] = []
            copied.extend(self.copy(f"{place}[{index}]", item) for index, item in enumerate(value))
        elif kind is tuple or kind is set:
            copied = kind(self.copy(f"{place}[{index}]", item) for index, item in enumerate(value))
        else:
            copied = _deep(place, value)
        self._copies[id(value)] = copied
        return copied

    def _tensor(self, place: str, tensor: Tensor) -> Tensor:
        copied: Any
        if type(tensor) is not Tensor and type(tensor) is not nn.Parameter and hasattr(tensor, "__tensor_flatten__"):
            # A tensor of several, such as a shard of one: torch's protocol says which.
            kind: Any = type(tensor)
            names, context = kind.__tensor_flatten__(tensor)
            found = {name: getattr(tensor, name) for name in names}  # since torch 2.13 the mesh of processes, too
            parts = {
                name: self._tensor(place, part.detach()) if isinstance(part, Tensor) else part
                for name, part in found.items()
            }
            copied = kind.__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
            return copied  # type: ignore[no-any-return]
        with torch.no_grad():
            copied = self._plain(place, tensor.detach())
        if type(tensor) is nn.Parameter:
            copied = nn.Parameter(copied, tensor.requires_grad)
        elif tensor.requires_grad:
            copied.requires_grad_()
        for name, item in vars(tensor).items():
            setattr(copied, name, self.copy(f"{place}.{name}", item))
        return copied  # type: ignore[no-any-return]

    def _plain(self, place: str, tensor: Tensor) -> Tensor:
        if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            copied: Tensor = _deep(place, tensor)
            return copied.cpu()
        if tensor.is_conj() or tensor.is_neg():
            return tensor.resolve_conj().resolve_neg().to("cpu", copy=True)
        if tensor.device.type != "cpu" or tensor.numel() == 0:
            return self._once(tensor)
        source = tensor.untyped_storage()
        key = "storage", source.data_ptr(), source.nbytes()
        if key not in self._copies:
            # All of the memory, of which the tensor may be a view: torch.save writes it all, too.
            target = self._copies[key] = self._staging._storage(source.nbytes())
            # Not Tensor.copy_: its threads wait for one another, and take five times as long on a busy machine.
            ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes())
        view = torch.empty(0, dtype=tensor.dtype)
        return view.set_(self._copies[key], tensor.storage_offset(), tensor.size(), tensor.stride())

    def _once(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor on a device; the same for the same memory."""
        size = tensor.untyped_storage().data_ptr() if tensor.numel() else 0
        key = tensor.device, size, tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype
        if size == 0:
            return tensor.to("cpu", copy=True) if tensor.device.type != "meta" else tensor
        if key not in self._copies:
            self._copies[key] = tensor.to("cpu", copy=True)
        return self._copies[key].view_as(self._copies[key])  # type: ignore[no-any-return]


def _deep(place: str, value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:  # any class may be in a checkpoint
        raise CheckpointError(
            f"{place} is of type {type(value).__name__}, which cannot be copied for a write in the background: "
            f"{type(error).__name__}: {error}. Save tensors and plain values, or set checkpoint_io='torch'."
        ) from error


class AsyncCheckpointIO(CheckpointIO):
    """Writes in the background, in the format of another CheckpointIO.

    :meth:`save_checkpoint` copies the state into the memory of the host, and returns. A thread writes and commits the
    copy. One write runs at a time: the next save waits for it. The copy's memory is kept for the next one, until
    :meth:`teardown`.

    If a write fails, the error is logged at once, and raised by the next call of this object or at the next training
    step, at the latest by :meth:`teardown` at the end of the run; a script that ends without it has exit code 1. The
    checkpoint that was there before stays.

    Args:
        inner: The CheckpointIO that writes; by default in the format that the strategy prefers: ``sharded`` with
            ``fsdp``, otherwise ``torch``.

    Raises:
        WrongTypeError: ``inner`` is not a CheckpointIO.
        ConfigurationError: ``inner`` writes in the background itself; or every process takes part in its saves and it
            is not a :class:`core.checkpoints.ShardedCheckpointIO`, whose messages can be kept apart from training's.
    """

    makes_directories = True

    def __init__(self, inner: CheckpointIO | None = None) -> None:
        if inner is not None:
            _check(inner)
        self._given = inner
        self._staging = Staging()
        self._lock = threading.Lock()
        self._write: _Write | None = None
        self._has_group = False
        self._use(TorchCheckpointIO() if inner is None else inner)

    def _use(self, inner: CheckpointIO) -> None:
        self.inner = inner
        """The CheckpointIO that writes."""
        self.is_collective, self.keeps_views = inner.is_collective, inner.keeps_views

    def connect(self, preferred: str) -> None:
        """Take the format that the strategy prefers, unless another one was given."""
        if self._given is None and preferred == "sharded" and not isinstance(self.inner, ShardedCheckpointIO):
            self._use(ShardedCheckpointIO())

    def __getstate__(self) -> dict[str, Any]:
        # A process that is started has its own thread and memory.
        return {"inner": self._given, "name": vars(self).get("name", "async")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["inner"])  # type: ignore[misc]
        self.name = state["name"]

    # -- saving --------------------------------------------------------------------------------------------------

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Copy ``checkpoint``, and return; it is written in the background.

        Raises:
            CheckpointError: The checkpoint cannot be copied or holds a value that could not be read back, or an earlier
                write has failed.
            ConfigurationError: ``storage_options`` is not one of the inner CheckpointIO.
            WrongTypeError: ``checkpoint`` is not a dict, or ``path`` is not a path.
        """
        options = () if storage_options is None else (storage_options,)

        staged: list[dict[str, Any]] = []

        def prepare() -> None:
            self.wait()
            self.inner.check_checkpoint(checkpoint, path, storage_options)
            staged.append(self._staging.copy(checkpoint))

        try:
            if self.is_collective:  # if one process cannot, no one begins to write
                run_on_each_rank(prepare)
                self._make_group()
            else:
                prepare()
        except BaseException:
            self._staging.release()
            raise
        path = absolute(path)  # the script may go to another directory before it is written

        def write() -> None:
            with directory_of(path):
                self.inner.save_checkpoint(staged[0], path, *options)

        self._write = _Write(write, path)
        self._write.start()

    def _make_group(self) -> None:
        """A separate process group: the thread's messages must not mix with those of training."""
        if self._has_group or not dist.is_initialized() or not isinstance(self.inner, ShardedCheckpointIO):
            return
        self.inner.group = dist.new_group(backend="gloo")
        self._has_group = True

    def when_committed(self, function: Callable[[], object]) -> None:
        """Call ``function`` when the write that is running is committed, in the background; at once if there is none.

        If the write fails, it is not called.

        Raises:
            CheckpointError: An earlier write has failed.
        """
        self.check()
        if self._write is None or not self._write.add(function):
            self.wait()
            function()

    # -- errors --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the error of a write that has failed, without waiting for one that is running.

        Raises:
            CheckpointError: A write has failed, and no call has raised it yet.
        """
        write = self._write
        if write is not None and write.is_done:
            self.wait()

    def wait(self) -> None:
        """Wait until the write that is running is committed.

        Raises:
            CheckpointError: It could not be written, and no call has raised that yet.
        """
        with self._lock:
            write, self._write = self._write, None
        if write is None:
            return
        try:
            write.join()
        except BaseException:  # as Ctrl+C: it is still running
            self._write = write
            raise
        self._staging.release()
        _unraised.discard(write)
        if write.error is not None:
            raise write.error

    def teardown(self) -> None:
        """Wait, and free the memory of the copy."""
        try:
            self.wait()
        finally:
            self._staging.clear()
            self._has_group = False
            if isinstance(self.inner, ShardedCheckpointIO):
                self.inner.group = None
            self.inner.teardown()

    # -- the rest ------------------------------------------------------------------------------------------------

    def load_checkpoint(self, path: str | os.PathLike[str], map_location: Any = None) -> dict[str, Any]:
        """Call the inner CheckpointIO, after the write that is running."""
        self.wait()
        return self.inner.load_checkpoint(path, map_location)

    def load_shards(
        self, path: str | os.PathLike[str], mesh: DeviceMesh, placements: Sequence[Placement]
    ) -> dict[str, Any]:
        """Like :meth:`core.checkpoints.ShardedCheckpointIO.load_shards`, after the write that is running.

        Raises:
            ConfigurationError: The inner CheckpointIO is another one.
        """
        if not isinstance(self.inner, ShardedCheckpointIO):
            raise ConfigurationError(
                f"load_shards: {type(self.inner).__name__} has no shards. Use AsyncCheckpointIO(ShardedCheckpointIO())."
            )
        run_on_each_rank(self.wait)
        return self.inner.load_shards(path, mesh, placements)

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove the checkpoint at ``path``, in the background after the write that is running is committed."""
        removed = absolute(path)
        self.when_committed(lambda: self.inner.remove_checkpoint(removed))


def _check(inner: Any) -> None:
    if not isinstance(inner, CheckpointIO):
        raise WrongTypeError(f"inner={inner!r} must be a CheckpointIO, not {type(inner).__name__}.")
    if isinstance(inner, AsyncCheckpointIO):
        raise ConfigurationError("inner: an AsyncCheckpointIO writes in the background already. Give the one in it.")
    if inner.is_collective and not isinstance(inner, ShardedCheckpointIO):
        raise ConfigurationError(
            f"inner={type(inner).__name__}: every process takes part in its saves, at the same time as in training. "
            "Valid: ShardedCheckpointIO, TorchCheckpointIO, or another one with which process 0 writes."
        )


class _Write(threading.Thread):
    """A write in a thread, and what is to be done after it."""

    def __init__(self, function: Callable[[], object], path: Any) -> None:
        # Not a daemon: the interpreter waits for it before it ends.
        super().__init__(name="checkpoint writer", daemon=False)
        self._functions = [function]
        self._path = path
        self._lock = threading.Lock()
        self.is_done = False
        self.process = os.getpid()
        self.error: CoreError | None = None

    def add(self, function: Callable[[], object]) -> bool:
        """Call ``function`` after the others; false if it is too late."""
        with self._lock:
            if not self.is_done:
                self._functions.append(function)
            return not self.is_done

    def run(self) -> None:
        try:
            while (function := self._next()) is not None:
                function()
        except CoreError as error:
            self._fail(error)
        except BaseException as error:  # noqa: BLE001  a CheckpointIO of the user's may raise anything
            failure = CheckpointError(f"checkpoint {self._path} cannot be written: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail(failure)

    def _next(self) -> Callable[[], object] | None:
        with self._lock:
            # Under the lock: `add` appends to a write that is not over, or learns that it is.
            if not self._functions:
                self.is_done = True
                return None
            return self._functions.pop(0)

    def _fail(self, error: CoreError) -> None:
        _log.error("a checkpoint was not written in the background: %s", error)
        self.error = error
        _unraised.add(self)
        with self._lock:
            self._functions.clear()
            self.is_done = True


_unraised: set[_Write] = set()
"""Writes that have failed, while no call has raised that yet."""


def _at_exit() -> None:
    """End with exit code 1 if the script has ended without noticing that a write has failed."""
    failed = [write for write in _unraised if write.process == os.getpid()]
    if not failed or getattr(sys, "last_value", None) is not None:
        return
    sys.stderr.write(f"exit code 1, since a checkpoint was not written: {failed[0].error}\n")
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(1)  # an interpreter that is exiting can change its exit code in no other way


# Called after what is registered later, as the end of a process group.
atexit.register(_at_exit)
