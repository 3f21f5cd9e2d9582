"""Which Gaudi cards can this process use: torch-free, from the driver's files, without touching a card.

Nothing is imported here but where a card is there.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["VISIBLE", "count", "generation", "modules"]

VISIBLE = "HABANA_VISIBLE_MODULES"
"""The environment variable that says which modules, the places of cards on their board, a process may use."""

ROOT = "/"
"""Where the file system begins."""

_VENDOR = "0x1da3"
_KINDS = (("sys/class/accel", "accel", "dev/accel"), ("sys/class/habanalabs", "hl", "dev"))
"""Class of devices, beginning of their names, and where their files are: of the driver in Linux, and of older ones."""


def count() -> int:
    """How many cards this process may use; 0 where there are none.

    Raises:
        RuntimeError: Cards are there, but not Intel's library for them.
        ValueError: ``HABANA_VISIBLE_MODULES`` is no list of numbers.
        OSError: What the driver shows cannot be read.
    """
    there = len(modules())
    if there:
        from importlib.util import find_spec

        if find_spec("habana_frameworks") is None:
            raise RuntimeError(f"{there} Gaudi card(s) are here, but habana_frameworks is not installed")
    return there


def modules(environ: Mapping[str, str] | None = None) -> list[int]:
    """The modules of the cards that this process may use, in the order of their indices.

    A container sees all cards of its machine in ``/sys``, and has device files of those that it was given
    (``HABANA_VISIBLE_DEVICES``).

    Args:
        environ: The environment variables; the process's own where none are given.
    """
    cards = _cards()
    if not cards:
        return []
    # An older driver does not tell the modules: then they are counted, as the library does.
    there = sorted(index if module is None else module for index, module in enumerate(map(_module, cards)))
    said = (os.environ if environ is None else environ).get(VISIBLE, "").strip()
    if not said:
        return there
    words = [word.strip() for word in said.split(",")]
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise ValueError(f"{VISIBLE}={said!r}: not a list of modules. Valid: numbers separated by commas, as '0,1'.")
    return [module for module in dict.fromkeys(map(int, words)) if module in there]


def generation() -> str:
    """What kind the first card is, as ``"GAUDI2"``; empty where the driver does not tell, or there is none."""
    cards = _cards()
    return _text(cards[0], "device_type") if cards else ""


def _cards() -> list[str]:
    """The driver's folders of the cards that have a device file here."""
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
    said = _text(card, "module_id")
    return int(said) if said.isdecimal() else None


def _text(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""
