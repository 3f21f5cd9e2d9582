"""What the installed torch is built for, without importing it."""

from __future__ import annotations

import importlib.util
import os
import re

__all__ = ["installed"]

_BUILD = re.compile(r"^(cuda|hip)\b[^=\n]*=\s*(.*)$", re.MULTILINE)


def installed() -> str | None:
    """Return ``cuda``, ``hip`` or ``cpu``; ``None`` if it is unknown.

    Reads torch's own version file, since importing torch takes seconds.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version = os.path.join(os.path.dirname(spec.origin), "version.py")
    if not os.path.exists(version):
        return None
    with open(version, encoding="utf-8") as file:
        built_for = {name for name, value in _BUILD.findall(file.read()) if value.strip() != "None"}
    return "hip" if "hip" in built_for else "cuda" if "cuda" in built_for else "cpu"
