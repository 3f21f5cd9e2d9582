"""How many devices are there, and who started this process: torch-free, and without starting torch_xla's runtime."""

from __future__ import annotations

import math
import os

TYPE_CHECKING = False  # every import here is part of what looking for hardware costs
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LAUNCHED", "count", "is_launched", "runtime_type"]

LAUNCHED = "PJRT_LOCAL_PROCESS_RANK"
"""The variable that torch_xla sets in each process it starts."""

_PCI_DEVICES = "/sys/bus/pci/devices"
_DEVICE_FILES = "/dev"
_GOOGLE = "0x1ae0"
_CORES = {
    # PCI device id: XLA devices of a chip.
    "0x0027": 2,  # v2, v3
    "0x005e": 1,  # v4
    "0x0062": 1,  # v5p
    "0x0063": 1,  # v5e
    "0x006f": 1,  # v6e
    "0x0076": 1,  # 7x
}


def count() -> int:
    """How many XLA devices this machine has; none where torch_xla is not installed.

    Which kind of them is asked for is said by ``PJRT_DEVICE``, as torch_xla reads it; without it, TPUs count alone, so
    that a CPU is an XLA device for those who ask for it and nobody else.

    Raises:
        ValueError: A variable that says how many there are is no number.
        OSError: The files of the system that tell cannot be read.
    """
    kind = runtime_type(os.environ)
    there = _tpus(os.environ) if kind == "TPU" else _number(os.environ, f"{kind}_NUM_DEVICES", 1)
    return there if there and _has_torch_xla() else 0


def runtime_type(environ: Mapping[str, str]) -> str:
    """What torch_xla is to run on: ``PJRT_DEVICE``, else ``"TPU"``."""
    return environ.get("PJRT_DEVICE", "").strip().upper() or "TPU"


def is_launched(environ: Mapping[str, str]) -> bool:
    """Whether torch_xla started this process, by what it sets in ``environ``."""
    return LAUNCHED in environ


def _has_torch_xla() -> bool:
    from importlib.util import find_spec

    return find_spec("torch_xla") is not None


def _tpus(environ: Mapping[str, str]) -> int:
    cores = _cores_by_pci() or [1] * _device_files()
    if not cores and environ.get("PJRT_DEVICE"):
        cores = [1] * _chips_by_bounds(environ)
    visible = environ.get("TPU_VISIBLE_CHIPS", environ.get("TPU_VISIBLE_DEVICES", "")).strip()
    if visible and not is_launched(environ):  # where torch_xla has set it itself, to this process's own chip
        cores = cores[: len(visible.split(","))]
    return sum(cores)


def _cores_by_pci() -> list[int]:
    """XLA devices of each chip on the PCI bus."""
    if not os.path.isdir(_PCI_DEVICES):
        return []
    found = []
    for address in sorted(os.listdir(_PCI_DEVICES)):
        device = os.path.join(_PCI_DEVICES, address)
        if _read(os.path.join(device, "vendor")) == _GOOGLE:
            model = _read(os.path.join(device, "device"))
            found.append(_CORES.get(model, 0))  # 0: another of Google's devices, as for networks
    return [cores for cores in found if cores]


def _read(path: str) -> str:
    """What is in the file; nothing where there is none."""
    if not os.path.isfile(path):
        return ""
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def _device_files() -> int:
    """Chips by their device files, in a container that hides the bus."""
    names = os.listdir(_DEVICE_FILES)
    return sum(name.removeprefix("accel").isdecimal() for name in names if name.startswith("accel"))


def _chips_by_bounds(environ: Mapping[str, str]) -> int:
    """Chips of this machine, as who set up a container on it says."""
    said = environ.get("TPU_CHIPS_PER_HOST_BOUNDS", "").strip()
    if not said:
        return 0
    parts = said.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"TPU_CHIPS_PER_HOST_BOUNDS={said!r}: not a shape. Valid: whole numbers, such as '2,2,1'.")
    return math.prod(map(int, parts))


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    said = environ.get(name, "").strip()
    if not said:
        return default
    if not (said.isascii() and said.isdecimal()):
        raise ValueError(f"{name}={said!r}: not a number of devices. Valid: a whole number from 0.")
    return int(said)
