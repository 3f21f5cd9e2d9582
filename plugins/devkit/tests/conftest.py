"""What is installed for the tests of the kit."""

from __future__ import annotations

from pathlib import Path

import pytest

from .kit import SIMULATED, declare
from .mutants import lay_down


@pytest.fixture
def started_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of how processes start and end: none is forked by a server of the session."""
    monkeypatch.delenv("FORK_SERVERS", raising=False)


@pytest.fixture
def site(tmp_path: Path) -> list[Path]:
    """The simulated device with its plugin, and the mutants of it: folders for the interpreter's path."""
    folder = tmp_path / "site"
    declare(folder, "torch-hal-simx", {"core.accelerators": {"simx": "torch_hal_simx.plugin"}})
    lay_down(folder, [])
    return [folder, SIMULATED]
