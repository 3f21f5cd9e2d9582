"""Lists the Ascend NPUs that this process can use: from the driver's device files, without torch.

It imports modules only if there is an NPU.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["VISIBLE", "count", "devices"]

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
"""The environment variable with the NPUs that a process can use."""

ROOT = "/"
"""The root of the file system."""

_PREFIX = "davinci"


def count() -> int:
    """Return the number of NPUs that this process can use.

    Raises:
        RuntimeError: There are NPUs, but ``torch_npu`` is not installed.
        ValueError: ``ASCEND_RT_VISIBLE_DEVICES`` is not a list of numbers.
        OSError: The folder of device files cannot be read.
    """
    available = len(devices())
    if available:
        from importlib.util import find_spec

        if find_spec("torch_npu") is None:
            raise RuntimeError(
                f"found {available} Ascend NPU(s), but torch_npu is not installed. Install the version of torch-npu "
                "that belongs to the installed torch, and Ascend's toolkit (CANN)."
            )
    return available


def devices(environ: Mapping[str, str] | None = None) -> list[int]:
    """Return the numbers of the NPUs that this process can use, in the order of their indices in torch.

    Ascend's runtime applies the variable in order, and ignores what follows a number that does not exist.

    Args:
        environ: The environment variables; by default the process's own.
    """
    try:
        names = os.listdir(os.path.join(ROOT, "dev"))
    except FileNotFoundError:
        return []
    numbers = [name[len(_PREFIX) :] for name in names if name.startswith(_PREFIX)]
    available = sorted(int(number) for number in numbers if number.isascii() and number.isdecimal())
    given = (os.environ if environ is None else environ).get(VISIBLE)
    if not available or given is None:
        return available
    chosen: list[int] = []
    for number in filter(None, map(str.strip, given.split(","))):
        if not (number.isascii() and number.isdecimal()):
            raise ValueError(f"{VISIBLE}={given!r}: not a list of NPUs. Valid: numbers separated by commas, as '0,1'.")
        if int(number) >= len(available):
            break
        chosen.append(available[int(number)])
    return list(dict.fromkeys(chosen))
