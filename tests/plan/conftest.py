"""The front ends that tests of resolution ask, and how they make sure that no process starts."""

from __future__ import annotations

import multiprocessing.process
import os
import subprocess
from typing import Any

import pytest

from core import Request, Runtime, Trainer, resolve


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts a process fails the test."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a process is started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
    monkeypatch.setattr(os, "fork", refuse)


def _explain(**arguments: Any) -> Any:
    return resolve(Request.read(**arguments))


@pytest.fixture(params=[Runtime, Trainer, _explain], ids=["Runtime", "Trainer", "explain"])
def front_end(request: pytest.FixtureRequest) -> Any:
    """Either front end, or what ``explain`` does."""
    return request.param
