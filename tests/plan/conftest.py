"""What every test of resolution starts from: no word in the environment, nothing registered, no process started."""

from __future__ import annotations

import multiprocessing.process
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from core import Request, Runtime, Trainer, registration, resolve

_REGISTRIES = [value for value in vars(registration).values() if isinstance(value, registration.CodeRegistry)]
_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of ours or of a launcher is set."""
    for name in list(os.environ):
        if name.startswith(("CORE_", "TORCHELASTIC_")) or name in (*_LAUNCHERS, "MASTER_PORT"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def clean_registries() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = [registry.specs() for registry in _REGISTRIES]
    yield
    for registry, specs in zip(_REGISTRIES, before, strict=True):
        registry._specs = specs


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts a process fails the test."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a process is started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
    monkeypatch.setattr(os, "fork", refuse)


def _explain(**words: Any) -> Any:
    return resolve(Request.read(**words))


@pytest.fixture(params=[Runtime, Trainer, _explain], ids=["Runtime", "Trainer", "explain"])
def front_end(request: pytest.FixtureRequest) -> Any:
    """Either front end, or what ``explain`` does."""
    return request.param
