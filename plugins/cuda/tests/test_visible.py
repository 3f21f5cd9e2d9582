"""Which GPUs the environment lets a process see."""

from __future__ import annotations

import pytest
from torch_hal_cuda.visible import Gpu, MigInstance, visible

_PLAIN = [Gpu("GPU-aa11"), Gpu("GPU-aa22"), Gpu("GPU-bb33")]
_MIG = [Gpu("GPU-aa11"), Gpu("GPU-bb22", [MigInstance("MIG-x", 1, 0), MigInstance("MIG-y", 2, 0)]), Gpu("GPU-cc33", [])]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "aa11 aa22 bb33"),
        ("", ""),
        (" ", ""),
        ("NoDevFiles", ""),
        ("-1", ""),
        ("0", "aa11"),
        ("2,0", "bb33 aa11"),
        (" 1 , 2 ", "aa22 bb33"),
        ("0,-1,1", "aa11"),
        ("0,3,1", "aa11"),
        ("3,0", ""),
        ("1,", "aa22"),
        ("1gpu,2", "aa22 bb33"),
        ("0,0", ""),
        ("0,GPU-bb33", "aa11"),
        ("GPU-aa22", "aa22"),
        ("GPU-bb", "bb33"),
        ("GPU-bb33,GPU-aa1", "bb33 aa11"),
        ("GPU-aa", ""),
        ("GPU-bb33,GPU-none,GPU-aa11", "bb33"),
        ("GPU-bb33,1", "bb33"),
        ("GPU-bb33,GPU-bb", ""),
        ("MIG-x", ""),
    ],
)
def test_the_variable_is_read_as_the_driver_reads_it(value: str | None, expected: str) -> None:
    """Indices and UUIDs count up to the first that names no GPU; one named twice hides all."""
    assert visible(_PLAIN, value) == [f"GPU-{uuid}" for uuid in expected.split()]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ["MIG-x"]),
        ("0", ["GPU-aa11"]),
        ("1", ["MIG-x"]),
        ("0,1", ["MIG-x"]),
        ("GPU-bb22", ["MIG-x"]),
        ("2", []),
        ("0,2", ["GPU-aa11"]),
        ("MIG-y", ["MIG-y"]),
        ("MIG-y,MIG-x", ["MIG-y"]),
        (" MIG-y ", ["MIG-y"]),
        ("MIG-GPU-bb22/2/0", ["MIG-y"]),
        ("MIG-GPU-bb22/3/0", []),
        ("MIG-GPU-aa11/1/0", []),
        ("MIG-z", []),
        ("", []),
    ],
)
def test_one_compute_instance_is_all_a_process_sees(value: str | None, expected: list[str]) -> None:
    """Of GPUs in MIG mode a process has the first compute instance it may see, and then no GPU next to it."""
    assert visible(_MIG, value) == expected


def test_older_names_of_compute_instances() -> None:
    """Where the driver itself tells the older form of name, that is the one that counts."""
    gpus = [Gpu("GPU-a", [MigInstance("MIG-GPU-a/1/0", 1, 0), MigInstance("MIG-GPU-a/2/0", 2, 0)])]
    assert visible(gpus, "MIG-GPU-a/2/0") == ["MIG-GPU-a/2/0"]
