"""Metadata files, of any distribution, that cannot be read: one of them can break ``import torch`` itself.

torch looks for packages that add device types to it (the entry-point group ``torch.backends``), for which
``importlib.metadata`` reads the entry points of everything that is installed. One file that it cannot read is then an
exception that names no file. This module finds the file; it imports no torch.
"""

from __future__ import annotations

import os
import sys

from ..errors import ConfigurationError
from .scan import Damage, scan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["AUTOLOAD", "check_before_torch", "unreadable"]

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""The environment variable that, as ``0``, keeps torch from looking for packages that add device types to it."""


def unreadable(path: Sequence[str] | None = None, *, metadata: bool = False) -> list[Damage]:
    """The metadata files that cannot be read.

    Args:
        path: The folders to search; by default ``sys.path``.
        metadata: Also read every ``METADATA`` file. One that cannot be read breaks tools such as pip, but not torch.

    Returns:
        The files, in the order of the search; of a distribution that is found twice, only the first is looked at.
    """
    damaged: list[Damage] = []
    scan(path, damaged=damaged)
    if metadata:
        known = {damage.file for damage in damaged}
        damaged += [damage for damage in _undecodable(sys.path if path is None else path) if damage.file not in known]
    return damaged


def check_before_torch(environ: Mapping[str, str]) -> None:
    """Call this before ``import torch``, which would fail of such a file without saying which.

    Args:
        environ: The environment variables; nothing is checked where :data:`AUTOLOAD` is ``0``.

    Raises:
        ConfigurationError: There is such a file; the message names it, and what to do.
    """
    if environ.get(AUTOLOAD) == "0":
        return
    damaged = [damage for damage in unreadable() if damage.breaks_torch]
    if damaged:
        raise ConfigurationError(" ".join(map(str, damaged)))


def _undecodable(path: Sequence[str]) -> list[Damage]:
    found = []
    for root in path:
        try:
            children = sorted(os.listdir(root or "."))
        except (OSError, ValueError):  # what Python cannot list, it cannot import from either
            continue
        for child in children:
            if child.endswith((".dist-info", ".egg-info")):
                found += _undecodable_in(os.path.join(root, child))
    return found


def _undecodable_in(folder: str) -> list[Damage]:
    for name in ("METADATA", "PKG-INFO"):
        file = os.path.join(folder, name)
        try:
            with open(file, "rb") as opened:
                opened.read().decode()
        except UnicodeDecodeError as error:
            problem = f"it is not UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}"
            return [Damage(file, problem, breaks_torch=False)]
        except OSError:
            continue
    return []
