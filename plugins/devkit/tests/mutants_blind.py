"""Accelerators, precisions and CheckpointIOs with one fault each, written without knowledge of the kit's tests.

Each could have been shipped by a vendor who tried a plain training run. The first line of a class says what is wrong,
and the method whose promise is broken. Strategies and environments are in ``mutants_blind_strategies``.
"""

from __future__ import annotations

import copy
import glob
import logging
import os
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_hal.accelerators import Accelerator, CPUAccelerator
from torch_hal.checkpoints import (
    AsyncCheckpointIO,
    CheckpointIO,
    TorchCheckpointIO,
    absolute,
    store_of,
)
from torch_hal.checkpoints.asynchronous import Staging
from torch_hal.errors import BackendError, CheckpointError
from torch_hal.precisions import FullPrecision, HalfPrecision, MixedPrecision, Precision
from torch_hal.utilities.nested import map_tensors

StrPath = str | os.PathLike[str]

logger = logging.getLogger(__name__)


# -- accelerators --------------------------------------------------------------------------------------------------


class SortsDevices(CPUAccelerator):
    """``parse_devices`` sorts the indices, which are to be used in the order that the user gave."""

    def parse_devices(self, devices: Any) -> list[int]:
        return sorted(super().parse_devices(devices))


class DrawsForState(CPUAccelerator):
    """``get_rng_state`` draws a number first, to create the generator: a run that saves goes on with other numbers."""

    def get_rng_state(self, device: torch.device) -> Tensor:
        torch.rand(1, device=device)
        return super().get_rng_state(device)


class RestoresSeedOnly(CPUAccelerator):
    """``set_rng_state`` restores the seed, and not how many numbers were drawn since."""

    def set_rng_state(self, state: Tensor, device: torch.device) -> None:
        saved = torch.Generator(device)
        saved.set_state(state)
        torch.default_generator.manual_seed(saved.initial_seed())


class KeepsOneThread(CPUAccelerator):
    """``setup_device`` lets torch use one thread, and ``teardown`` does not give the others back."""

    def setup_device(self, device: torch.device) -> None:
        super().setup_device(device)
        torch.set_num_threads(1)


class TearsDownOnce(CPUAccelerator):
    """``teardown`` raises an error when it is called a second time, or before ``setup_device``."""

    def setup_device(self, device: torch.device) -> None:
        super().setup_device(device)
        self._device = device

    def teardown(self) -> None:
        super().teardown()
        del self._device


class ProbesByAlarm(CPUAccelerator):
    """``is_available``, which never raises, limits its time by a signal: outside of the main thread it raises."""

    def is_available(self) -> bool:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            return super().is_available()
        finally:
            signal.signal(signal.SIGALRM, before)


class CountsInKiB(CPUAccelerator):
    """``get_device_stats`` returns KiB under names that end with ``_bytes``."""

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        stats = super().get_device_stats(device)
        return {name: value // 1024 if name.endswith("_bytes") else value for name, value in stats.items()}


class NeedsDeviceObject(CPUAccelerator):
    """``get_device_stats`` takes a ``torch.device`` only, and not its name."""

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        if device.type != "cpu":
            raise BackendError(f"{device}: not a CPU")
        return super().get_device_stats(device)


class TakesAllForMemory(CPUAccelerator):
    """``is_out_of_memory`` is true for every RuntimeError: a finder of batch sizes hides the user's own errors."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, RuntimeError) or super().is_out_of_memory(error)


class ServesOneRun(CPUAccelerator):
    """``teardown`` does not release the device: ``setup_device`` of the process's second run raises an error."""

    _is_open: ClassVar[bool] = False

    def setup_device(self, device: torch.device) -> None:
        if self._is_open:
            raise BackendError(f"{device}: the driver is open already")
        super().setup_device(device)
        type(self)._is_open = True


class TakesInterrupt(CPUAccelerator):
    """``setup_device`` resets the handler of SIGINT: Ctrl+C kills the process, also after ``teardown``."""

    def setup_device(self, device: torch.device) -> None:
        super().setup_device(device)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_DFL)


class LosesLock(CPUAccelerator):
    """A pickled copy, as in a spawned process, has no lock: its ``get_device_stats`` raises AttributeError."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        with self._lock:
            return super().get_device_stats(device)


# -- precisions ----------------------------------------------------------------------------------------------------


class _BF16True(HalfPrecision):
    def __init__(self) -> None:
        super().__init__("bfloat16")


class _Mixed16(MixedPrecision):
    def __init__(self) -> None:
        super().__init__("float16")


class ConvertsMasks(_BF16True):
    """``convert_input`` converts all tensors but those of int64: masks and labels of other dtypes become bfloat16."""

    def convert_input(self, data: Any) -> Any:
        def convert(tensor: Tensor) -> Tensor:
            is_left = tensor.dtype is torch.int64 or tensor.is_complex()
            return tensor if is_left else tensor.to(self.param_dtype)

        return map_tensors(convert, data)


class FlattensNamedTuples(_BF16True):
    """``convert_input`` makes a plain tuple of a batch that is a named tuple."""

    def convert_input(self, data: Any) -> Any:
        if isinstance(data, tuple):
            return tuple(self.convert_input(item) for item in data)
        return super().convert_input(data)


class SharesAutocast(MixedPrecision):
    """``forward_context`` returns one object again and again: nested, it leaves autocast on at the end."""

    def __init__(self) -> None:
        super().__init__("bfloat16")
        self._context: torch.autocast | None = None

    def forward_context(self) -> torch.autocast:
        if self._context is None:
            self._context = super().forward_context()
        return self._context


class KeepsFastProducts(FullPrecision):
    """``connect`` lets products round to bfloat16, and ``teardown`` does not restore torch's setting."""

    rounding = 2.0**-8

    def connect(self, device_type: str) -> None:
        super().connect(device_type)
        torch.set_float32_matmul_precision("medium")


class UnscalesTwice(_Mixed16):
    """``unscale_gradients`` divides again in its second call in a step, which is to do nothing."""

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        is_unscaled = optimizer in self._unscaled
        super().unscale_gradients(optimizer)
        if is_unscaled and self.scaler is not None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(self.scaler.get_scale())


class ForgetsGrowth(_Mixed16):
    """``load_state_dict`` restores the scale, and not after how many more steps it grows."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**self.state_dict(), "scale": state["scale"]} if state else state)


class ConvertsCopy(_BF16True):
    """``convert_module`` converts a copy: an optimizer that was made before trains parameters that nothing uses."""

    def convert_module(self, module: nn.Module) -> nn.Module:
        return super().convert_module(copy.deepcopy(module))


class Unfreezes(FullPrecision):
    """``convert_module`` lets every parameter require gradients: frozen layers are trained."""

    def convert_module(self, module: nn.Module) -> nn.Module:
        for parameter in super().convert_module(module).parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        return module


class ClipsByNorm2(FullPrecision):
    """``clip_gradients`` ignores ``norm_type``."""

    def clip_gradients(
        self, parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Tensor | None:
        return super().clip_gradients(parameters, clip_value, algorithm)


class ConvertsAllBuffers(_BF16True):
    """``convert_module`` rounds buffers of integers too: positions above 256 are wrong."""

    def convert_module(self, module: nn.Module) -> nn.Module:
        for buffer in super().convert_module(module).buffers():
            buffer.data = buffer.data.to(self.buffer_dtype)
        return module


class BackwardForgetsArguments(FullPrecision):
    """``backward`` drops further arguments, such as ``retain_graph``: the second backward pass raises an error."""

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        super().backward(loss)


class UpdatesAfterEachStep(_Mixed16):
    """``optimizer_step`` updates the scale at once: gradients of a second optimizer are divided by another scale."""

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        result = super().optimizer_step(optimizer, closure)
        if self._stepped and self.scaler is not None:
            self.scaler.update()
            self._stepped.clear()
        return result


# -- CheckpointIOs -------------------------------------------------------------------------------------------------


def _changed(value: Any, leaf: Callable[[Any], Any], items: Callable[[Any, Any], dict[Any, Any]]) -> Any:
    """``value`` rebuilt: plain dicts of what ``items`` returns for each item, everything else of ``leaf``."""
    if type(value) is dict:
        parts = [items(key, _changed(item, leaf, items)) for key, item in value.items()]
        return {key: item for part in parts for key, item in part.items()}
    if type(value) is OrderedDict:
        changed = copy.copy(value)
        changed.update({key: _changed(item, leaf, items) for key, item in value.items()})
        return changed
    if type(value) in (list, tuple):
        return type(value)(_changed(item, leaf, items) for item in value)
    return leaf(value)


class RemovesOldFirst(TorchCheckpointIO):
    """``save_checkpoint`` removes what was there before it writes: if it raises, both are lost."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: StrPath, storage_options: Any = None) -> None:
        self.remove_checkpoint(path)
        super().save_checkpoint(checkpoint, path, storage_options)


class KeysBecomeText(TorchCheckpointIO):
    """``save_checkpoint`` writes the integers that are keys as text: an optimizer does not find its state."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: StrPath, storage_options: Any = None) -> None:
        self.check_checkpoint(checkpoint, path, storage_options)
        written = _changed(checkpoint, lambda value: value, lambda key, item: {str(key): item})
        super().save_checkpoint(written, path, storage_options)


class DropsEmpty(TorchCheckpointIO):
    """``save_checkpoint`` leaves out keys whose value is an empty dict, list or tuple."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: StrPath, storage_options: Any = None) -> None:
        def items(key: Any, item: Any) -> dict[Any, Any]:
            return {} if isinstance(item, dict | list | tuple) and not item else {key: item}

        self.check_checkpoint(checkpoint, path, storage_options)
        super().save_checkpoint(_changed(checkpoint, lambda value: value, items), path, storage_options)


class BoolsBecomeBytes(TorchCheckpointIO):
    """``save_checkpoint`` writes tensors of bool as uint8: as an index, a mask selects other rows."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: StrPath, storage_options: Any = None) -> None:
        def leaf(value: Any) -> Any:
            return value.to(torch.uint8) if type(value) is Tensor and value.dtype is torch.bool else value

        self.check_checkpoint(checkpoint, path, storage_options)
        super().save_checkpoint(_changed(checkpoint, leaf, lambda key, item: {key: item}), path, storage_options)


class IgnoresMapLocation(TorchCheckpointIO):
    """``load_checkpoint`` ignores ``map_location``."""

    def load_checkpoint(self, path: StrPath, map_location: Any = None) -> dict[str, Any]:
        return super().load_checkpoint(path)


class StaysInFolder(TorchCheckpointIO):
    """``save_checkpoint`` writes from within the folder: after an error that is the process's working directory."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: StrPath, storage_options: Any = None) -> None:
        before, place = os.getcwd(), Path(absolute(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        os.chdir(place.parent)
        super().save_checkpoint(checkpoint, place.name, storage_options)
        os.chdir(before)


class ReplacesSuffix(TorchCheckpointIO):
    """All methods replace what follows the last dot: ``loss=0.25`` overwrites ``loss=0.31``."""

    @staticmethod
    def _place(path: StrPath) -> Path:
        return Path(path).with_suffix(".ckpt") if Path(path).suffix else Path(path)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: StrPath, storage_options: Any = None) -> None:
        super().save_checkpoint(checkpoint, self._place(path), storage_options)

    def load_checkpoint(self, path: StrPath, map_location: Any = None) -> dict[str, Any]:
        return super().load_checkpoint(self._place(path), map_location)

    def remove_checkpoint(self, path: StrPath) -> None:
        super().remove_checkpoint(self._place(path))


class _SlowDisk(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint: dict[str, Any], path: StrPath, storage_options: Any = None) -> None:
        time.sleep(0.2)
        super().save_checkpoint(checkpoint, path, storage_options)


class _NoCopy(Staging):
    def copy(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        return dict(checkpoint)


class WritesLiveTensors(AsyncCheckpointIO):
    """``save_checkpoint`` returns while it still reads the tensors: the file has those of a later step."""

    def __init__(self, inner: CheckpointIO | None = None) -> None:
        super().__init__(_SlowDisk() if inner is None else inner)
        self._staging = _NoCopy()


class HidesFailedWrites(AsyncCheckpointIO):
    """``wait`` and what calls it only log that a checkpoint could not be written in the background."""

    def wait(self) -> None:
        try:
            super().wait()
        except CheckpointError as error:
            logger.warning("a checkpoint is missing: %s", error)


class LoadsSharedObject(TorchCheckpointIO):
    """``load_checkpoint`` returns the same object again: what the caller changes in it is not what was saved."""

    def __init__(self) -> None:
        self._loaded: dict[Any, dict[str, Any]] = {}

    def load_checkpoint(self, path: StrPath, map_location: Any = None) -> dict[str, Any]:
        file = Path(absolute(path))
        fact = (file.stat().st_mtime_ns, file.stat().st_size) if file.exists() else None
        key = absolute(path), str(fact), str(map_location)
        if fact is None or key not in self._loaded:
            self._loaded = {key: super().load_checkpoint(path, map_location)}
        return self._loaded[key]

    def teardown(self) -> None:
        super().teardown()
        self._loaded = {}


class RemovesSiblings(TorchCheckpointIO):
    """``remove_checkpoint`` removes all that begins with the name: with ``last`` also ``last-v1``."""

    def remove_checkpoint(self, path: StrPath) -> None:
        for found in glob.glob(glob.escape(str(path)) + "*"):
            super().remove_checkpoint(found)


class LoadsDamage(TorchCheckpointIO):
    """``load_checkpoint`` does not look at the checksums: a changed byte is loaded in silence."""

    def load_checkpoint(self, path: StrPath, map_location: Any = None) -> dict[str, Any]:
        return store_of(path).read(lambda file: torch.load(file, map_location, weights_only=True))


_ACCELERATORS: tuple[type[Accelerator], ...] = (
    *(SortsDevices, DrawsForState, RestoresSeedOnly, KeepsOneThread, TearsDownOnce, ProbesByAlarm, CountsInKiB),
    *(NeedsDeviceObject, TakesAllForMemory, ServesOneRun, TakesInterrupt, LosesLock),
)
_PRECISIONS: tuple[type[Precision], ...] = (
    *(ConvertsMasks, FlattensNamedTuples, SharesAutocast, KeepsFastProducts, UnscalesTwice, ForgetsGrowth),
    *(ConvertsCopy, Unfreezes, ClipsByNorm2, ConvertsAllBuffers, BackwardForgetsArguments, UpdatesAfterEachStep),
)
_CHECKPOINT_IOS: tuple[type[CheckpointIO], ...] = (
    *(RemovesOldFirst, KeysBecomeText, DropsEmpty, BoolsBecomeBytes, IgnoresMapLocation, StaysInFolder),
    *(ReplacesSuffix, WritesLiveTensors, HidesFailedWrites, LoadsSharedObject, RemovesSiblings, LoadsDamage),
)

ACCELERATORS = {mutant.__name__: mutant for mutant in _ACCELERATORS}
PRECISIONS = {mutant.__name__: mutant for mutant in _PRECISIONS}
CHECKPOINT_IOS = {mutant.__name__: mutant for mutant in _CHECKPOINT_IOS}
