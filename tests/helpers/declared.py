"""Tests that are skipped by declaration: what a build of torch cannot show, with the reason, counted at the end."""

from __future__ import annotations

import importlib.util
import shutil
from collections import Counter
from collections.abc import Iterable
from typing import Any

PREFIX = "by declaration: "


def torch_refuses_simulated_devices() -> str | None:
    """Why torch cannot run a backward pass on simulated HPU or MPS devices; ``None`` where it can.

    A build of torch with its own accelerator refuses others that are not added from outside (``PrivateUse1``).
    """
    import torch

    for name, version in (("CUDA", torch.version.cuda), ("ROCm", torch.version.hip)):
        if version is not None:
            return f"{PREFIX}torch's {name} build refuses simulated HPU and MPS devices"
    return None


def torch_takes_no_backend_in_python() -> str | None:
    """Why there are no devices simulated in Python; ``None`` where torch takes a backend that is written in it."""
    import torch.utils.backend_registration as registration

    if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
        return f"{PREFIX}this torch takes no backend that is written in Python"
    return None


def why_no_simulated_cards(library: str, module: str) -> str | None:
    """Why tests with ``library`` on simulated cards cannot run here; ``None`` if they can."""
    if importlib.util.find_spec(module) is None:
        return f"{PREFIX}{library} is not installed, as by nox -s bridges"
    if importlib.util.find_spec("torch_acme") is None:
        return f"{PREFIX}torch-acme is not installed, as by nox -s bridges"
    return None if any(map(shutil.which, ("c++", "g++"))) else f"{PREFIX}torch-acme needs a C++ compiler"


def skip_all(items: Iterable[Any], reason: str | None) -> None:
    """Skip the collected tests, if there is a reason."""
    import pytest

    if reason is not None:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many tests were skipped by declaration, and why; for a conftest.py to import."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        _, _, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, "")
        if PREFIX in reason:
            reasons[reason.partition(PREFIX)[2]] += 1
    for reason, number in reasons.items():
        terminalreporter.write_line(f"{number} skipped by declaration: {reason}")
