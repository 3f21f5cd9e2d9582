"""Counts devices and detects the launcher, without torch and without starting torch_xla's runtime."""

from __future__ import annotations

import math
import os

TYPE_CHECKING = False  # every import slows detection down
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
    """Return the number of XLA devices of this machine; 0 if torch_xla is not installed.

    ``PJRT_DEVICE`` selects the kind, as for torch_xla; without it only TPUs are counted, so that the CPU is an XLA
    device only on request.

    Raises:
        ValueError: A variable with a number of devices is not a number.
        OSError: The system's files cannot be read.
    """
    kind = runtime_type(os.environ)
    found = _tpus(os.environ) if kind == "TPU" else _number(os.environ, f"{kind}_NUM_DEVICES", 1)
    return found if found and _has_torch_xla() else 0


def runtime_type(environ: Mapping[str, str]) -> str:
    """Return the kind of device: ``PJRT_DEVICE``, by default ``"TPU"``."""
    return environ.get("PJRT_DEVICE", "").strip().upper() or "TPU"


def is_launched(environ: Mapping[str, str]) -> bool:
    """Return whether torch_xla started this process, according to ``environ``."""
    return LAUNCHED in environ


def _has_torch_xla() -> bool:
    from importlib.util import find_spec

    return find_spec("torch_xla") is not None


def _tpus(environ: Mapping[str, str]) -> int:
    cores = _cores_by_pci() or [1] * _device_files()
    if not cores and environ.get("PJRT_DEVICE"):
        cores = [1] * _chips_by_bounds(environ)
    visible = environ.get("TPU_VISIBLE_CHIPS", environ.get("TPU_VISIBLE_DEVICES", "")).strip()
    if visible and not is_launched(environ):  # in launched processes torch_xla sets it itself
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
            found.append(_CORES.get(model, 0))  # 0: another device of Google's, such as a network card
    return [cores for cores in found if cores]


def _read(path: str) -> str:
    """The content of the file; empty if there is none."""
    if not os.path.isfile(path):
        return ""
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def _device_files() -> int:
    """The number of chips by device files, in a container that hides the bus."""
    names = os.listdir(_DEVICE_FILES)
    return sum(name.removeprefix("accel").isdecimal() for name in names if name.startswith("accel"))


def _chips_by_bounds(environ: Mapping[str, str]) -> int:
    """The number of chips of this machine, as a container's environment states it."""
    given = environ.get("TPU_CHIPS_PER_HOST_BOUNDS", "").strip()
    if not given:
        return 0
    parts = given.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"TPU_CHIPS_PER_HOST_BOUNDS={given!r}: must be integers separated by commas, as in '2,2,1'.")
    return math.prod(map(int, parts))


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    given = environ.get(name, "").strip()
    if not given:
        return default
    if not (given.isascii() and given.isdecimal()):
        raise ValueError(f"{name}={given!r}: must be an integer >= 0.")
    return int(given)
