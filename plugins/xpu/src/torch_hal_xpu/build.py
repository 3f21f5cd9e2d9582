"""What the installed torch is built for, without importing it."""

from __future__ import annotations

import importlib.util
import os
import re

__all__ = ["has_xpu"]

_XPU = re.compile(r"^xpu\b[^=\n]*=\s*(.*)$", re.MULTILINE)


def has_xpu() -> bool:
    """Return whether torch is built for XPU, according to its version file; ``True`` if that does not say.

    Importing torch takes seconds.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return True
    version = os.path.join(os.path.dirname(spec.origin), "version.py")
    if not os.path.exists(version):
        return True
    with open(version, encoding="utf-8") as file:
        found = _XPU.search(file.read())
    return found is None or found[1].strip() != "None"
