"""Ray itself, with several nodes on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_engines import mark_real


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies here, and skip it with the reason."""
    mark_real(items, Path(__file__).parent, "ray")
