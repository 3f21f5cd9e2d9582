"""The one grammar of ``devices=``, the same on every accelerator.

=============================================  ==============================================
``"auto"``, ``-1``, ``"-1"``                   all devices
``k`` >= 1, ``"k"``                            the first k
``[1, 3]``, ``(1, 3)``, ``"1, 3"``, ``"1,"``   exactly those, in that order
anything else, or a missing device             :class:`core.errors.DeviceError`
=============================================  ==============================================

Surrounding whitespace is ignored. NumPy integers count as integers; ``True`` does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from numbers import Integral
from typing import Any

from ..errors import DeviceError

GRAMMAR = "'auto' or -1 for all, a count k >= 1, or distinct indices as [1, 3], '1, 3' or '1,'"

_MAX_PROCESSES = 4096
"""The most processes on one machine where the hardware sets no limit; a larger number is taken for a typing error."""

_COUNT = re.compile(r"\s*(-1|\d{1,9})\s*", re.ASCII)
_INDICES = re.compile(r"\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*,?\s*", re.ASCII)

_Refuse = Callable[[str], DeviceError]


def parse_devices(
    devices: Any,
    *,
    all_devices: int,
    limit: int | None,
    accelerator: str,
    pick: Callable[[int], list[int]] | None = None,
) -> list[int]:
    """Turn the value of ``devices=`` into device indices.

    Args:
        devices: The value of ``devices=``.
        all_devices: The number of devices that ``"auto"`` means.
        limit: The number of available devices; ``None`` for no limit (processes on a CPU).
        accelerator: The accelerator's name, for error messages.
        pick: Chooses the devices for a count; by default the first ones.

    Returns:
        Distinct indices in the order of use.

    Raises:
        DeviceError: The value does not follow the grammar, or names devices that do not exist.
    """

    def refuse(why: str) -> DeviceError:
        available = f"up to {_MAX_PROCESSES} processes" if limit is None else _available(limit)
        kind, _, index = str(devices).partition(":")
        named = f" Set accelerator={kind!r} and devices=[{index}]." if kind.isalpha() and index.isdecimal() else ""
        return DeviceError(
            f"devices={_shortened(devices)} for accelerator {accelerator!r}: {why}.{named} Valid: {GRAMMAR}; "
            f"available: {available}."
        )

    parsed: Any = _parse_text(devices) if isinstance(devices, str) else devices
    end = _MAX_PROCESSES if limit is None else limit
    if _is_integer(parsed):
        count = _count(int(parsed), all_devices, end, refuse)
        return list(range(count)) if pick is None or parsed == -1 else pick(count)
    if isinstance(parsed, list | tuple):
        return _exactly(parsed, end, refuse)
    raise refuse("not a device count or a list of indices")


def _parse_text(text: str) -> int | list[int] | None:
    if text.strip() == "auto":
        return -1
    if _COUNT.fullmatch(text):
        return int(text)
    if _INDICES.fullmatch(text):
        return [int(part) for part in text.split(",") if part.strip()]
    return None


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _count(count: int, all_devices: int, end: int, refuse: _Refuse) -> int:
    if count == -1:
        if all_devices < 1:
            raise refuse("no device found")
        return all_devices
    if count < 1:
        raise refuse("a count must be at least 1")
    if count > end:
        raise refuse(f"{count} requested")
    return count


def _exactly(indices: list[Any] | tuple[Any, ...], end: int, refuse: _Refuse) -> list[int]:
    if not indices:
        raise refuse("no index given")
    if not all(_is_integer(index) and index >= 0 for index in indices):
        raise refuse("every index must be an integer >= 0")
    if len(set(indices)) != len(indices):
        raise refuse("duplicate index")
    missing = [str(index) for index in indices if index >= end]
    if missing:
        raise refuse(f"no device {_shortened(', '.join(missing), str)}")
    return [int(index) for index in indices]


def _available(limit: int) -> str:
    return "none" if limit < 1 else "device 0" if limit == 1 else f"devices 0 to {limit - 1}"


def _shortened(value: Any, text: Callable[[Any], str] = repr) -> str:
    given = text(value)
    return given if len(given) <= 100 else f"{given[:97]}..."
