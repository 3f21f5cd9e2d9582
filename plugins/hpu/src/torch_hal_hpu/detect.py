"""Lists the Gaudi cards that this process can use: from the driver's files, without torch and without opening a card.

It imports modules only if there is a card.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["VISIBLE", "count", "generation", "modules"]

VISIBLE = "HABANA_VISIBLE_MODULES"
"""The environment variable with the modules (places of cards on their board) that a process can use."""

ROOT = "/"
"""The root of the file system."""

_VENDOR = "0x1da3"
_KINDS = (("sys/class/accel", "accel", "dev/accel"), ("sys/class/habanalabs", "hl", "dev"))
"""Device class, prefix of names and folder of device files: of the driver in Linux, and of older drivers."""


def count() -> int:
    """Return the number of cards that this process can use.

    Raises:
        RuntimeError: There are cards, but Intel's library is not installed.
        ValueError: ``HABANA_VISIBLE_MODULES`` is not a list of numbers.
        OSError: The driver's files cannot be read.
    """
    available = len(modules())
    if available:
        from importlib.util import find_spec

        if find_spec("habana_frameworks") is None:
            raise RuntimeError(
                f"found {available} Gaudi card(s), but habana_frameworks is not installed. Install Intel's software "
                "for Gaudi, see https://docs.habana.ai."
            )
    return available


def modules(environ: Mapping[str, str] | None = None) -> list[int]:
    """Return the modules of the cards that this process can use, in the order of their indices.

    A container sees all cards of its machine in ``/sys``, but has device files only for those that it was given
    (``HABANA_VISIBLE_DEVICES``).

    Args:
        environ: The environment variables; by default the process's own.
    """
    cards = _cards()
    if not cards:
        return []
    # Older drivers do not report the modules; they are then numbered as the library does.
    available = sorted(index if module is None else module for index, module in enumerate(map(_module, cards)))
    given = (os.environ if environ is None else environ).get(VISIBLE, "").strip()
    if not given:
        return available
    numbers = [number.strip() for number in given.split(",")]
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise ValueError(f"{VISIBLE}={given!r}: not a list of modules. Valid: numbers separated by commas, as '0,1'.")
    return [module for module in dict.fromkeys(map(int, numbers)) if module in available]


def generation() -> str:
    """Return the generation of the first card, such as ``"GAUDI2"``; empty if unknown or without a card."""
    cards = _cards()
    return _text(cards[0], "device_type") if cards else ""


def _cards() -> list[str]:
    """The driver's folders of the cards with a device file."""
    for of_class, prefix, devices in _KINDS:
        found = []
        try:
            names = os.listdir(os.path.join(ROOT, of_class))
        except FileNotFoundError:
            continue
        numbers = sorted(int(name[len(prefix) :]) for name in names if _is_card(name, prefix))
        for number in numbers:
            folder = os.path.join(ROOT, of_class, f"{prefix}{number}", "device")
            if _text(folder, "vendor") == _VENDOR and os.path.exists(os.path.join(ROOT, devices, f"{prefix}{number}")):
                found.append(folder)
        if found:
            return found
    return []


def _is_card(name: str, prefix: str) -> bool:
    return name.startswith(prefix) and name[len(prefix) :].isdecimal()


def _module(card: str) -> int | None:
    text = _text(card, "module_id")
    return int(text) if text.isdecimal() else None


def _text(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""
