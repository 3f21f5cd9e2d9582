"""torchft itself, with replicas on this machine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WHY_NOT = None if find_spec("torchft") is not None else "torchft is not installed; run nox -s torchft"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here, and skip it with the reason."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.torchft_real)
            if WHY_NOT is not None:
                item.add_marker(pytest.mark.skip(reason=WHY_NOT))
