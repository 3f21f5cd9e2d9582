"""How many GPUs are there, on simulated machines."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from torch_hal_cuda import build, detect, nvml, rocm

Driver = Callable[[str], str]
BuiltFor = Callable[[str], None]

_SOURCES = Path(detect.__file__).parents[1]


def _write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


class TestAbsence:
    def test_nothing_is_there(self, no_driver: None, tmp_path: Path) -> None:
        """A machine without a driver has no GPUs, and that is not an error."""
        assert detect.count(root=str(tmp_path)) == 0

    def test_it_takes_no_heavy_import(self, tmp_path: Path) -> None:
        """Detection imports these modules, none of which is large, so that it costs a fraction of a millisecond."""
        code = (
            "import sys; before = set(sys.modules)\n"
            "from torch_hal_cuda import detect\n"
            "assert detect.count(root=sys.argv[1]) == 0\n"
            "print(*sorted(set(sys.modules) - before))"
        )
        command = [sys.executable, "-c", code, str(tmp_path)]
        environ = {**os.environ, "PYTHONPATH": str(_SOURCES)}
        said = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60).stdout
        assert said.split() == [
            "__future__",
            "torch_hal",
            "torch_hal.kinds",
            "torch_hal.utilities",
            "torch_hal.utilities.lazy",
            "torch_hal_cuda",
            "torch_hal_cuda.detect",
        ]


class TestNVIDIA:
    def test_gpus_are_counted(self, driver: Driver) -> None:
        """GPUs are those of the driver that this process may use."""
        root = driver("GPU-a|GPU-old|-|GPU-b")
        assert detect.uuids({}, root) == ["GPU-a", "GPU-old", "GPU-b"]
        assert detect.count({"CUDA_VISIBLE_DEVICES": "2,0"}, root) == 2

    def test_the_environment_of_the_process_counts(self, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without arguments, the process's own CUDA_VISIBLE_DEVICES chooses."""
        root = driver("GPU-a|GPU-b")
        assert detect.count(root=root) == 2
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert detect.count(root=root) == 0

    def test_compute_instances(self, driver: Driver) -> None:
        """Compute instances are read with the numbers by which older drivers name them."""
        root = driver("GPU-a|GPU-b:MIG-x/1/0,MIG-y/5/2|GPU-c:")
        assert detect.uuids({"CUDA_VISIBLE_DEVICES": "MIG-y"}, root) == ["MIG-y"]
        assert detect.uuids({"CUDA_VISIBLE_DEVICES": "MIG-GPU-b/5/2"}, root) == ["MIG-y"]
        assert detect.uuids({}, root) == ["MIG-x"]

    @pytest.mark.parametrize(("status", "said"), [(18, "18 .Driver/library version mismatch"), (999, "999 .Unknown")])
    def test_a_broken_driver_is_an_error(
        self, driver: Driver, monkeypatch: pytest.MonkeyPatch, status: int, said: str
    ) -> None:
        """A driver that is there and fails is an error with the driver's message, not an absence."""
        root = driver("GPU-a")
        monkeypatch.setenv("FAKE_NVML_INIT", str(status))
        with pytest.raises(nvml.NVMLError, match=f"nvmlInit_v2 failed with status {said}"):
            detect.count({}, root)

    def test_no_driver_behind_the_library(self, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        """A library without a driver, as in an image that runs where no GPU is, means none."""
        root = driver("GPU-a")
        monkeypatch.setenv("FAKE_NVML_INIT", "9")
        assert detect.count({}, root) == 0

    def test_the_library_is_let_go(self, driver: Driver, nvml_library: Path) -> None:
        """Whatever was found, no use of the library is left behind."""
        detect.count({}, driver("GPU-a|GPU-b:"))
        assert ctypes.CDLL(str(nvml_library)).fake_users() == 0

    def test_no_sign_of_a_driver(self, driver: Driver, tmp_path: Path) -> None:
        """The library is not even asked where the kernel shows no sign of the driver."""
        driver("GPU-a")
        assert detect.count({}, str(tmp_path / "elsewhere")) == 0


class TestWithoutTheLibrary:
    """What the kernel shows, as in a container that was given no management library."""

    _FILES: ClassVar = {
        "proc/driver/nvidia/gpus/0000:41:00.0/information": (
            "Model: \t\t A GPU\nIRQ:   \t\t 31\nGPU UUID: \t GPU-bbbb-22\nBus Type: \t PCIe\nDevice Minor: \t 1\n"
        ),
        "proc/driver/nvidia/gpus/0000:01:00.0/information": (
            "Model: \t\t A GPU\nGPU UUID: \t GPU-aaaa-11\nDevice Minor: \t 0\n"
        ),
        "dev/nvidia0": "",
        "dev/nvidia1": "",
    }

    def test_gpus_with_device_files(self, built_for: BuiltFor, tmp_path: Path) -> None:
        """GPUs count in the order of their PCI addresses, and are chosen among as always."""
        built_for("cuda")
        root = _write(tmp_path, self._FILES)
        assert detect.uuids({}, root) == ["GPU-aaaa-11", "GPU-bbbb-22"]
        assert detect.uuids({"CUDA_VISIBLE_DEVICES": "GPU-bb"}, root) == ["GPU-bbbb-22"]

    def test_the_hosts_other_gpus_do_not_count(self, built_for: BuiltFor, tmp_path: Path) -> None:
        """A container sees all of the host's GPUs under /proc, and uses those that it has device files of."""
        built_for("cuda")
        files = {name: text for name, text in self._FILES.items() if name != "dev/nvidia0"}
        assert detect.uuids({}, _write(tmp_path, files)) == ["GPU-bbbb-22"]

    def test_none_of_the_hosts_gpus(self, built_for: BuiltFor, tmp_path: Path) -> None:
        """A container without any device file has no GPU, although its host has."""
        built_for("cuda")
        files = {name: text for name, text in self._FILES.items() if "dev" not in name.split("/")}
        assert detect.count({}, _write(tmp_path, files)) == 0

    def test_compute_instances_cannot_be_told(self, built_for: BuiltFor, tmp_path: Path) -> None:
        """A compute instance that was asked for is refused by name rather than taken for absent."""
        built_for("cuda")
        with pytest.raises(RuntimeError, match=r"CUDA_VISIBLE_DEVICES='MIG-x'.*is needed for MIG"):
            detect.count({"CUDA_VISIBLE_DEVICES": "MIG-x"}, _write(tmp_path, self._FILES))

    def test_an_integrated_gpu(self, built_for: BuiltFor, tmp_path: Path) -> None:
        """An integrated GPU, whose driver shows neither, is one."""
        built_for("cuda")
        root = _write(tmp_path, {"dev/nvhost-gpu": ""})
        assert detect.count({}, root) == 1
        assert detect.count({"CUDA_VISIBLE_DEVICES": "-1"}, root) == 0


class TestBuildOfTorch:
    def test_a_torch_without_cuda_is_an_error(self, driver: Driver, built_for: BuiltFor) -> None:
        """GPUs that the installed torch cannot use are said to be there, and why they cannot be used."""
        root = driver("GPU-a|GPU-b")
        built_for("cpu")
        with pytest.raises(RuntimeError, match=r"found 2 NVIDIA GPU\(s\).*built without CUDA"):
            detect.count({}, root)
        assert detect.count({"CUDA_VISIBLE_DEVICES": ""}, root) == 0

    def test_a_torch_for_rocm(self, driver: Driver, built_for: BuiltFor) -> None:
        """A torch for ROCm has no use for NVIDIA's GPUs."""
        root = driver("GPU-a")
        built_for("hip")
        assert detect.count({}, root) == 0

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", "cuda"),
            ("cuda = None\nhip = '6.3.42131'\n", "hip"),
            ("debug = False\ncuda: Optional[str] = None\ngit_version = 'c'\nhip: Optional[str] = None\n", "cpu"),
        ],
    )
    def test_it_is_read_from_torchs_own_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
    ) -> None:
        """What torch was built for is read without importing it."""
        _write(tmp_path, {"torch/__init__.py": "raise AssertionError('imported')", "torch/version.py": text})
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        assert build.installed() == expected

    def test_the_torch_that_is_installed(self) -> None:
        """The answer is that of the torch installed here."""
        import torch

        version = torch.version
        assert build.installed() == ("hip" if version.hip else "cuda" if version.cuda else "cpu")


class TestROCm:
    _NODE = "sys/class/kfd/kfd/topology/nodes/{}/properties"
    _FILES: ClassVar = {
        "dev/kfd": "",
        _NODE.format(0): "cpu_cores_count 64\nsimd_count 0\nunique_id 0\n",
        _NODE.format(2): "cpu_cores_count 0\nsimd_count 416\nunique_id 27182\n",
        _NODE.format(10): "cpu_cores_count 0\nsimd_count 416\nunique_id 31415\n",
    }
    _UUIDS: ClassVar = [f"GPU-{27182:016x}", f"GPU-{31415:016x}"]

    @pytest.mark.parametrize(
        ("environ", "expected"),
        [
            ({}, [0, 1]),
            ({"HIP_VISIBLE_DEVICES": "1"}, [1]),
            ({"CUDA_VISIBLE_DEVICES": "1,0"}, [1, 0]),
            ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, [0]),
            ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, [1]),
            ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, []),
            ({"ROCR_VISIBLE_DEVICES": f"GPU-{31415:016x}"}, [1]),
            ({"HIP_VISIBLE_DEVICES": ""}, []),
            ({"HIP_VISIBLE_DEVICES": "0,7,1"}, [0]),
        ],
    )
    def test_gpus_are_counted(
        self, built_for: BuiltFor, tmp_path: Path, environ: dict[str, str], expected: list[int]
    ) -> None:
        """GPUs are those of the kernel's nodes that are no CPU; ROCm's variables choose one after the other."""
        built_for("hip")
        assert detect.uuids(environ, _write(tmp_path, self._FILES)) == [self._UUIDS[index] for index in expected]

    def test_a_torch_for_cuda(self, built_for: BuiltFor, tmp_path: Path) -> None:
        """A torch for CUDA has no use for AMD's GPUs."""
        built_for("cuda")
        assert detect.count({}, _write(tmp_path, self._FILES)) == 0

    def test_a_driver_that_this_user_may_not_use(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A driver whose device cannot be opened is an error that says so."""
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(PermissionError, match="group 'render'"):
            rocm.gpus(_write(tmp_path, self._FILES))
