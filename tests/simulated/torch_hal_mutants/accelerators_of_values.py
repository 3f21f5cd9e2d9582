"""Each class breaks one rule about the values on its devices."""

from __future__ import annotations

import gc
import random
import threading
from typing import Any

import torch
from torch import nn
from torch_hal_simx.accelerator import SimxAccelerator

_dropout, _to, _manual_seed = nn.functional.dropout, torch.Tensor.to, torch.manual_seed


def _module() -> Any:
    return torch.get_device_module("simx")


class _Copies(SimxAccelerator):
    """Copies tensors to the device otherwise."""

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def setup_device(self, device: torch.device) -> None:
        super().setup_device(device)

        def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            moved = _to(tensor, *args, **kwargs)
            is_copied = tensor.device.type == "cpu" and moved.device.type == "simx"
            return _to(self.copied(tensor), *args, **kwargs) if is_copied else moved

        torch.Tensor.to = to  # type: ignore[method-assign, assignment]

    def teardown(self) -> None:
        torch.Tensor.to = _to  # type: ignore[method-assign]


class CopiesWhatIsStored(_Copies):
    """Transposed tensors arrive in the order of memory."""

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.t().reshape(tensor.shape) if tensor.dim() == 2 and tensor.stride(0) == 1 else tensor


class CountsIn32Bits(_Copies):
    """Integers arrive with their lower 32 bits."""

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.int().long() if tensor.dtype == torch.int64 else tensor


class KnowsOnlyNumbers(_Copies):
    """NaN arrives as 0."""

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().nan_to_num(0.0, torch.inf, -torch.inf) if tensor.is_floating_point() else tensor


class IgnoresSeeds(SimxAccelerator):
    """``torch.manual_seed`` does not reach the device."""

    def setup_device(self, device: torch.device) -> None:
        super().setup_device(device)

        def seed(number: Any) -> torch.Generator:
            before = _module().get_rng_state(device)
            generator = _manual_seed(number)
            _module().set_rng_state(before, device)
            return generator

        torch.manual_seed = seed  # type: ignore[assignment]

    def teardown(self) -> None:
        torch.manual_seed = _manual_seed


class NeverDrops(SimxAccelerator):
    """Dropout does nothing on it."""

    def setup_device(self, device: torch.device) -> None:
        super().setup_device(device)

        def dropout(inputs: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
            return inputs if inputs.device.type == "simx" else _dropout(inputs, *rest, **options)

        nn.functional.dropout = dropout  # type: ignore[assignment]

    def teardown(self) -> None:
        nn.functional.dropout = _dropout


class HasNoPeak(SimxAccelerator):
    """The peak of memory is 0."""

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        return {**super().get_device_stats(device), "memory_allocated_peak_bytes": 0}


# -- the process -------------------------------------------------------------------------------------------------------


class RewindsGenerators(SimxAccelerator):
    """``teardown`` sets the generators back to where they were at ``setup_device``."""

    states: Any = None

    def setup_device(self, device: torch.device) -> None:
        super().setup_device(device)
        self.states = self.states or (random.getstate(), torch.get_rng_state())

    def teardown(self) -> None:
        if self.states:
            random.setstate(self.states[0])
            torch.set_rng_state(self.states[1])
        super().teardown()


class HoldsALock(SimxAccelerator):
    """It cannot be pickled, which a strategy that spawns processes needs."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class LeavesGarbage(SimxAccelerator):
    """The garbage collector stays off after ``setup_device``."""

    def setup_device(self, device: torch.device) -> None:
        gc.disable()
        super().setup_device(device)


class CollectsGarbageAgain(SimxAccelerator):
    """``teardown`` turns the garbage collector on, which the user has turned off."""

    def setup_device(self, device: torch.device) -> None:
        gc.disable()
        super().setup_device(device)
        gc.enable()
