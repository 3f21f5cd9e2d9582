"""Each class breaks one rule."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch_hal_simx.accelerator import SimxAccelerator

_calls = 0
_importer = os.getpid()
_linear = nn.functional.linear


def _module() -> Any:
    return torch.get_device_module("simx")


# -- T1 ---------------------------------------------------------------------------------------------------------------


class Raising(SimxAccelerator):
    def is_available(self) -> bool:
        raise OSError("no driver")


class RaisingWithoutDevices(SimxAccelerator):
    def is_available(self) -> bool:
        if not super().is_available():
            raise OSError("no device file")
        return True


class Undecided(SimxAccelerator):
    def is_available(self) -> bool:
        global _calls
        _calls += 1
        return _calls % 2 == 1


class Truthy(SimxAccelerator):
    def is_available(self) -> Any:
        return self.auto_device_count()


class Crashing(SimxAccelerator):
    def is_available(self) -> bool:
        os.abort()


class Greedy(SimxAccelerator):
    def is_available(self) -> bool:
        self.import_backend()
        return bool(torch.ones(1, device="simx").sum().item() == 1)


class CountsInWords(SimxAccelerator):
    def auto_device_count(self) -> Any:
        return "two"


class CountsOneMore(SimxAccelerator):
    def auto_device_count(self) -> int:
        return super().auto_device_count() + 1


class OnlyInItsFirstProcess(SimxAccelerator):
    def is_available(self) -> bool:
        return os.getpid() == _importer and super().is_available()


class UnsupportedWithoutReason(SimxAccelerator):
    unsupported = MappingProxyType({"float64": " "})


class FallsBack(SimxAccelerator):
    def parse_devices(self, devices: Any) -> Any:
        return devices if isinstance(devices, list) else [0]


class RaisesAnotherError(SimxAccelerator):
    def parse_devices(self, devices: Any) -> Any:
        return [int(index) for index in devices]


class WantsAnArgument(SimxAccelerator):
    def __init__(self, driver: str) -> None:
        self.driver = driver


# -- T2: choosing ------------------------------------------------------------------------------------------------------


class AlwaysTheFirst(SimxAccelerator):
    def get_parallel_devices(self, devices: list[int]) -> list[torch.device]:
        return [torch.device("simx", 0) for _ in devices]


class OneTooFew(SimxAccelerator):
    def get_parallel_devices(self, devices: list[int]) -> list[torch.device]:
        return [torch.device("simx", index) for index in devices[:1]]


class NoLimit(SimxAccelerator):
    def device_limit(self) -> int | None:
        return 64


class TheHost(SimxAccelerator):
    def get_parallel_devices(self, devices: list[int]) -> list[torch.device]:
        return [torch.device("cpu", index) for index in devices]


class PicksNothing(SimxAccelerator):
    def pick_devices(self, count: int) -> list[int]:
        return []


# -- T2: using ---------------------------------------------------------------------------------------------------------


class SetsUpAnother(SimxAccelerator):
    def setup_device(self, device: torch.device) -> None:
        super().setup_device(torch.device("simx", 1))

    def teardown(self) -> None:
        super().setup_device(torch.device("simx", 0))


class CannotBeWaitedFor(SimxAccelerator):
    def synchronize(self, device: torch.device) -> None:
        raise RuntimeError("no such call")


class TearsDownOnce(SimxAccelerator):
    def teardown(self) -> None:
        del self.handle

    def setup_device(self, device: torch.device) -> None:
        super().setup_device(device)
        self.handle = device


class ForksUnharmed(SimxAccelerator):
    def fork_unsafe_reason(self) -> str | None:
        return None


class ForgetsRandomState(SimxAccelerator):
    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        """Puts back nothing."""


class StateOfTheHost(SimxAccelerator):
    def get_rng_state(self, device: torch.device) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        torch.set_rng_state(state)


class StateOnTheDevice(SimxAccelerator):
    def get_rng_state(self, device: torch.device) -> torch.Tensor:
        return super().get_rng_state(device).to(device)


class AutocastsTheHost(SimxAccelerator):
    def autocast_device_type(self, device: torch.device) -> str:
        return "cpu"


class StatisticsInWords(SimxAccelerator):
    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        return {**super().get_device_stats(device), "memory_reserved_bytes": "12 MiB"}


class StatisticsWithoutUnit(SimxAccelerator):
    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        return {**super().get_device_stats(device), "temperature": 60}


class StatisticsOfOneSpelling(SimxAccelerator):
    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        return super().get_device_stats(device) if isinstance(device, torch.device) else {}


class CountsNoMemory(SimxAccelerator):
    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        return {"memory_allocated_bytes": 0}


class CountsThePeak(SimxAccelerator):
    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        return {"memory_allocated_bytes": _module().max_memory_allocated(device)}


class HasNoMemoryStatistics(SimxAccelerator):
    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        return {}


class Leaks(SimxAccelerator):
    kept: list[torch.Tensor] = []  # noqa: RUF012 - that it is shared is the fault

    def teardown(self) -> None:
        self.kept.append(torch.ones(8, device="simx"))


# -- T2: training ------------------------------------------------------------------------------------------------------


class Imprecise(SimxAccelerator):
    """Linear layers on it are off by a little."""

    def setup_device(self, device: torch.device) -> None:
        super().setup_device(device)

        def linear(inputs: torch.Tensor, *rest: Any) -> torch.Tensor:
            output = _linear(inputs, *rest)
            return output * 1.0005 if output.device.type == "simx" else output

        nn.functional.linear = linear  # type: ignore[assignment]

    def teardown(self) -> None:
        nn.functional.linear = _linear


class ImpreciseInDouble(SimxAccelerator):
    """What is computed in float64 on it is rounded to float32."""

    def setup_device(self, device: torch.device) -> None:
        super().setup_device(device)

        def linear(inputs: torch.Tensor, *rest: Any) -> torch.Tensor:
            output = _linear(inputs, *rest)
            return output.float().double() if output.dtype == torch.float64 else output

        nn.functional.linear = linear  # type: ignore[assignment]

    def teardown(self) -> None:
        nn.functional.linear = _linear


class LeavesADtype(SimxAccelerator):
    def setup_device(self, device: torch.device) -> None:
        super().setup_device(device)
        torch.set_default_dtype(torch.float64)


class RoundsCheckpoints(SimxAccelerator):
    default_strategy = "rounding"


# -- T2: what using a device changes -----------------------------------------------------------------------------------


class ReseedsTheHost(SimxAccelerator):
    """``setup_device`` seeds the host's generator."""

    def setup_device(self, device: torch.device) -> None:
        super().setup_device(device)
        torch.manual_seed(42)


class ComputesInTF32(SimxAccelerator):
    """``setup_device`` lowers torch's matmul precision for the whole process."""

    def setup_device(self, device: torch.device) -> None:
        super().setup_device(device)
        torch.set_float32_matmul_precision("high")


class StaysOnWatch(SimxAccelerator):
    """``setup_device`` starts a thread that ``teardown`` does not end."""

    def setup_device(self, device: torch.device) -> None:
        super().setup_device(device)
        threading.Thread(target=time.sleep, args=(3600,), name="watch", daemon=True).start()


class SetsADriverVariable(SimxAccelerator):
    """``setup_device`` sets an environment variable and leaves it."""

    def setup_device(self, device: torch.device) -> None:
        super().setup_device(device)
        os.environ["SIMX_VISIBLE"] = str(device.index)


class TakesTheInterrupt(SimxAccelerator):
    """``setup_device`` installs a handler for Ctrl-C."""

    def setup_device(self, device: torch.device) -> None:
        super().setup_device(device)
        signal.signal(signal.SIGINT, lambda *_: None)


class IsAlwaysOutOfMemory(SimxAccelerator):
    """Any error counts as too little memory, so that a batch size finder hides faults."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        return True


class PopsTheIndices(SimxAccelerator):
    """``get_parallel_devices`` empties the list that it is given."""

    def get_parallel_devices(self, devices: list[int]) -> list[torch.device]:
        return [torch.device("simx", devices.pop(0)) for _ in range(len(devices))]


class NamesItsDevices(SimxAccelerator):
    """``get_parallel_devices`` returns names where devices are expected."""

    def get_parallel_devices(self, devices: list[int]) -> Any:
        return [f"simx:{index}" for index in devices]


# -- T3: each device ---------------------------------------------------------------------------------------------------


class SortsDevices(SimxAccelerator):
    """``devices=[1, 0]`` becomes ``[0, 1]``."""

    def get_parallel_devices(self, devices: list[int]) -> list[torch.device]:
        return super().get_parallel_devices(sorted(devices))


class SortsWhatItParses(SimxAccelerator):
    """``parse_devices`` puts the indices in order."""

    def parse_devices(self, devices: Any) -> Any:
        return sorted(super().parse_devices(devices))


class RestoresTheFirst(SimxAccelerator):
    """Random numbers are restored on device 0, whichever is named."""

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        super().set_rng_state(state, torch.device("simx", 0))


class RestoresTheCurrent(SimxAccelerator):
    """Random numbers are restored on the current device, whichever is named."""

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        super().set_rng_state(state, torch.device("simx", _module().current_device()))


class RestoresAll(SimxAccelerator):
    """Restoring the random state of one device sets it on all."""

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        for index in range(self.auto_device_count()):
            super().set_rng_state(state, torch.device("simx", index))


class CountsTheFirst(SimxAccelerator):
    """Statistics are always of device 0."""

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        return super().get_device_stats("simx:0")


class CountsTheCurrent(SimxAccelerator):
    """Statistics are always of the current device."""

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        return super().get_device_stats(f"simx:{_module().current_device()}")


class CountsAllTogether(SimxAccelerator):
    """Statistics of a device are the sum over all devices."""

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        each = [super(CountsAllTogether, self).get_device_stats(f"simx:{i}") for i in range(self.auto_device_count())]
        return {name: sum(stats[name] for stats in each) for name in each[0]}


class MovesToAsk(SimxAccelerator):
    """Asking for a device's statistics makes it the current one."""

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        self.setup_device(torch.device(device))
        return super().get_device_stats(device)


class MovesToWait(SimxAccelerator):
    """Waiting for a device makes it the current one."""

    def synchronize(self, device: torch.device) -> None:
        self.setup_device(torch.device(device))
        super().synchronize(device)


# -- how the kit takes it ----------------------------------------------------------------------------------------------


class Aborting(SimxAccelerator):
    """Ends its process when it is waited for."""

    def synchronize(self, device: torch.device) -> None:
        os.abort()


class Hanging(SimxAccelerator):
    """Never comes back when it is waited for."""

    def synchronize(self, device: torch.device) -> None:
        time.sleep(3600)


class AbortingAtExit(SimxAccelerator):
    """Ends its process badly when all is done."""

    def empty_cache(self, device: torch.device) -> None:
        atexit.register(os.abort)


class Modest(SimxAccelerator):
    """Declares that it lacks what it can do."""

    unsupported = MappingProxyType({"float64": "rounded by the driver", "rng_state": "the driver keeps it"})


class Limited(SimxAccelerator):
    """Lacks what it declares to lack."""

    unsupported = MappingProxyType({"memory_stats": "the driver does not count", "rng_state": "the driver keeps it"})

    def get_rng_state(self, device: torch.device) -> torch.Tensor:
        return torch.zeros(8, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: torch.device) -> None:
        raise RuntimeError("the driver keeps it")

    def get_device_stats(self, device: str | torch.device) -> dict[str, Any]:
        return {}
