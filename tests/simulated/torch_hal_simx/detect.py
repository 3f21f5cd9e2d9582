from __future__ import annotations

import os


def count() -> int:
    return int(os.environ.get("SIMX_DEVICES", "2"))
