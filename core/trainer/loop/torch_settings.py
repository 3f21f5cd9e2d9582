"""The settings of torch itself that a run changes, and restores at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..settings import Settings

__all__ = ["torch_settings"]


@contextmanager
def torch_settings(settings: Settings) -> Iterator[None]:
    """A context in which ``deterministic``, ``benchmark`` and ``detect_anomaly`` take effect; every process enters it.

    Afterwards torch has the settings that it had before. ``None`` leaves a setting as it is.
    """
    deterministic = settings.deterministic
    benchmark = False if settings.benchmark is None and deterministic else settings.benchmark
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    flags = [(backend, backend.benchmark) for backend in _backends_that_benchmark()]
    was_detecting, checked_nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    try:
        if deterministic is not None:
            torch.use_deterministic_algorithms(bool(deterministic), warn_only=deterministic == "warn")
        if benchmark is not None:
            for backend, _ in flags:
                backend.benchmark = benchmark
        if settings.detect_anomaly:
            torch.set_anomaly_enabled(True)
        yield
    finally:
        if deterministic is not None:
            torch.use_deterministic_algorithms(was_deterministic, warn_only=warned_only)
        if benchmark is not None:
            for backend, before in flags:
                backend.benchmark = before
        if settings.detect_anomaly:
            torch.set_anomaly_enabled(was_detecting, checked_nan)


def _backends_that_benchmark() -> list[Any]:
    """The parts of :mod:`torch.backends` that can try several algorithms and keep the fastest."""
    return [backend for backend in vars(torch.backends).values() if hasattr(backend, "benchmark")]
