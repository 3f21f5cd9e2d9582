"""States that Accelerate itself has saved, from which core's Runtime goes on."""

from __future__ import annotations

from pathlib import Path

from .conftest import run_script


def test_the_losses_are_those_of_accelerate(tmp_path: Path) -> None:
    """Bit for bit, with dropout, in both formats of weights, and with tied weights, of which one is in the file."""
    whole = run_script(tmp_path / "out", "continued.py", "theirs")["whole"]
    found = run_script(tmp_path / "out", "continued.py", "here")
    assert len(whole) == 24
    assert found == {"safe": whole[12:], "bin": whole[12:]}
