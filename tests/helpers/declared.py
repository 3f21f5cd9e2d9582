"""Tests that are skipped by declaration: what a build of torch cannot show, with the reason, counted at the end."""

from __future__ import annotations

from collections import Counter
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


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many tests were skipped by declaration, and why; for a conftest.py to import."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        _, _, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, "")
        if PREFIX in reason:
            reasons[reason.partition(PREFIX)[2]] += 1
    for reason, number in reasons.items():
        terminalreporter.write_line(f"{number} skipped by declaration: {reason}")
