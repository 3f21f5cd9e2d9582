"""``nvidia-ml-py`` as far as it is used here, over GPUs that a test describes: what it raises and how it counts is the
package's own. Put in its place by ``monkeypatch.setitem(sys.modules, "pynvml", FakeNVML(...))``."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As the package's: the status is ``value``."""

    def __init__(self, value: int) -> None:
        super().__init__(f"status {value}")
        self.value = value


class FakeNVML(ModuleType):
    """The module. ``gpus``: by UUID, what its functions answer; a number of ``errors`` is raised by name instead."""

    NVMLError = NVMLError
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_TEMPERATURE_GPU = 0
    NVML_COMPUTEMODE_DEFAULT = 0
    NVML_COMPUTEMODE_PROHIBITED = 2
    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3

    def __init__(self, gpus: dict[str, dict[str, Any]], errors: dict[str, int] | None = None) -> None:
        super().__init__("pynvml")
        self.__spec__ = SimpleNamespace(name="pynvml", origin=None)  # type: ignore[assignment]
        self.gpus, self.errors, self.users = gpus, errors or {}, 0
        self.asked: list[str] = []

    def nvmlInit(self) -> None:  # noqa: N802
        self._check("nvmlInit")
        self.users += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.users -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> dict[str, Any]:  # noqa: N802
        self._check("nvmlDeviceGetHandleByUUID")
        self.asked.append(uuid)
        if uuid not in self.gpus:
            raise NVMLError(self.NVML_ERROR_NOT_FOUND)
        return self.gpus[uuid]

    def nvmlDeviceGetUtilizationRates(self, handle: dict[str, Any]) -> Any:  # noqa: N802
        self._check("nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=handle["utilization"], memory=0)

    def nvmlDeviceGetMemoryInfo(self, handle: dict[str, Any]) -> Any:  # noqa: N802
        self._check("nvmlDeviceGetMemoryInfo")
        return SimpleNamespace(used=handle["used"])

    def nvmlDeviceGetTemperature(self, handle: dict[str, Any], sensor: int) -> int:  # noqa: N802
        self._check("nvmlDeviceGetTemperature")
        assert sensor == self.NVML_TEMPERATURE_GPU
        return int(handle["temperature"])

    def nvmlDeviceGetPowerUsage(self, handle: dict[str, Any]) -> int:  # noqa: N802
        self._check("nvmlDeviceGetPowerUsage")
        return int(handle["milliwatts"])

    def nvmlDeviceGetComputeMode(self, handle: dict[str, Any]) -> int:  # noqa: N802
        return int(handle.get("mode", self.NVML_COMPUTEMODE_DEFAULT))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: dict[str, Any]) -> list[Any]:  # noqa: N802
        self._check("nvmlDeviceGetComputeRunningProcesses")
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in handle.get("pids", ())]

    def nvmlSystemGetProcessName(self, pid: int) -> str:  # noqa: N802
        if pid == 404:
            raise NVMLError(self.NVML_ERROR_NOT_FOUND)
        return f"job-{pid}"

    def _check(self, function: str) -> None:
        if function in self.errors:
            raise NVMLError(self.errors[function])
