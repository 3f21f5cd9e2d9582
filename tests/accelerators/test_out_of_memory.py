"""What each vendor's libraries say when memory is short, and what they say otherwise."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from core.accelerators import Accelerator, CPUAccelerator

PLUGINS = Path(__file__).parents[2] / "plugins"

SHORT = {
    "cpu": [
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 8000000000000 bytes. Error code 12 (Cannot allocate memory)",
        "[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to allocate 8 B.",
    ],
    "cuda": [
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB",
        "HIP out of memory. Tried to allocate 2.00 GiB",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        "CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY",
        "NCCL error: unhandled cuda error\nLast error:\nFailed to CUDA calloc async 4 bytes: out of memory",
    ],
    "hpu": ["[Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::1073741824 (1024)MB"],
    "ipu": ["Out of memory on tile 5: 700000 bytes used", "poplar::graph_memory_allocation_error: exceeds memory"],
    "mps": ["MPS backend out of memory (MPS allocated: 17.80 GB)", "Invalid buffer size: 20.00 GiB"],
    "npu": [
        "NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB total capacity)",
        "NPU function error: aclrtMallocAlign32, error code is 207001\nEL0004: Failed to allocate memory.",
    ],
    "xla": ["RESOURCE_EXHAUSTED: Attempting to allocate 2.00G. That was not possible. There are 1.2G free."],
    "xpu": [
        "XPU out of memory. Tried to allocate 2.00 GiB",
        "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES)",
    ],
}
"""By accelerator, messages of torch, the driver and the libraries."""

OTHERS = [
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(handle)`",
    "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
    "Expected all tensors to be on the same device",
    "unable to open shared memory object </torch_1_2> in read-write mode",
]


def accelerator(name: str, monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    """One of core's, or of a plugin in this repository, which need not be installed."""
    if name == "cpu":
        return CPUAccelerator()
    monkeypatch.syspath_prepend(PLUGINS / name / "src")
    module = importlib.import_module(f"torch_hal_{name}.accelerator")
    (found,) = (
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Accelerator) and kind.__module__ == module.__name__
    )
    made: Accelerator = found()
    return made


@pytest.mark.parametrize("name", SHORT)
def test_texts_of_each_vendor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its accelerator recognizes each message about memory, and takes no other for one."""
    one = accelerator(name, monkeypatch)
    for text in SHORT[name]:
        assert one.is_out_of_memory(RuntimeError(text)), text
    for text in OTHERS:
        assert not one.is_out_of_memory(RuntimeError(text)), text
    assert one.is_out_of_memory(torch.OutOfMemoryError("device 0"))


def test_each_accelerator_has_a_row() -> None:
    """A plugin that adds hardware says what its messages are."""
    of_hardware = {path.parts[-4] for path in PLUGINS.glob("*/src/torch_hal_*/accelerator.py")} - {"accelerate"}
    assert of_hardware == set(SHORT) - {"cpu"}


class Acme(CPUAccelerator):
    """A vendor's, which adds a text."""

    name = "acme"
    out_of_memory_texts = ("ACME_E_NOMEM",)


def test_a_vendor_adds_texts() -> None:
    """They are found in any case of letters, in errors of any class; those of torch stay."""

    class AcmeError(Exception):
        """Of the vendor's driver."""

    assert Acme().is_out_of_memory(AcmeError("status acme_e_nomem in stream 3"))
    assert Acme().is_out_of_memory(RuntimeError("acme:1 out of memory"))
    assert not Acme().is_out_of_memory(AcmeError("status ACME_E_BUSY"))
