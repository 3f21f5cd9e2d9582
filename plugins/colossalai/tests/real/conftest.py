"""Colossal-AI itself, on this machine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WHY_NOT = None if find_spec("colossalai") is not None else "Colossal-AI is not installed; run nox -s colossalai"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here, and skip it with the reason."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.colossalai_real)
            if WHY_NOT is not None:
                item.add_marker(pytest.mark.skip(reason=WHY_NOT))
