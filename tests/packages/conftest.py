"""Options of the tests of packages."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--dists DIR``: test these files instead of building them."""
    parser.addoption(
        "--dists", default=None, metavar="DIR", help="wheels and sdists to test; by default they are built"
    )
