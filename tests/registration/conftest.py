"""Registries as they were before the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core import registration

_REGISTRIES = [value for value in vars(registration).values() if isinstance(value, registration.CodeRegistry)]


@pytest.fixture(autouse=True)
def clean_registries() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = [registry.specs() for registry in _REGISTRIES]
    yield
    for registry, specs in zip(_REGISTRIES, before, strict=True):
        registry._specs = specs
