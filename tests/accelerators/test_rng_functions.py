"""A device whose random number generator torch cannot read: known at the Plan, and training goes on."""

from __future__ import annotations

from pathlib import Path

from .conftest import RunSimulated

_SCRIPTS = Path(__file__).parent / "scripts"


def test_device_without_generator_functions_trains_and_saves(run_simulated: RunSimulated) -> None:
    """The Plan says that resuming is not exact and why, each run warns once, and checkpoints are saved and loaded."""
    output = run_simulated(_SCRIPTS / "without_rng_functions.py", devices=1)
    warnings = [line for line in output.splitlines() if "a resumed run will not be exact" in line]
    assert len(warnings) == 4  # one for each of three runs and for the Plan at the end
    assert all(line.startswith("WARNING torch_hal.plan") for line in warnings)
    assert all("torch.simx.get_rng_state does not exist" in line for line in warnings)
    assert "explained: True" in output
    assert "on the host: True" in output
