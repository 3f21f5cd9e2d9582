"""The memory that a save takes in addition to the state: at most 1.1 times the largest file that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from python_processes import run_python, run_script

SCRIPT = Path(__file__).parent / "scripts" / "memory_of_saves.py"

MORE = [(name, size) for name in ("torch", "sharded", "async", "safetensors", "async-safetensors") for size in (1, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "processes"),
    [
        ("async-sharded", 3),
        ("safetensors", 1),
        *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in [*MORE, ("async-sharded", 1)]),
    ],
)
def test_extra_memory(name: str, processes: int, tmp_path: Path) -> None:
    """Of the first save and of the next one, by the peak of each process's resident memory."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("by declaration: the peak of a process's memory cannot be reset here")
    megabytes = 60
    done = run_python(SCRIPT, name, processes, megabytes, tmp_path / "c", cwd=tmp_path, warnings="ignore")
    first, second = json.loads(done.stdout.splitlines()[-1])
    assert first <= 1.1, done.stdout
    assert second <= (0.1 if name.startswith("async") else 1.1), done.stdout  # the copy's memory is used again


@pytest.mark.slow
def test_extra_memory_of_a_divided_optimizer_state(tmp_path: Path) -> None:
    """Of ``ddp_sharded``: rank 0 takes the other parts, a sender a tensor at a time. The state is Adam's own."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("by declaration: the peak of a process's memory cannot be reset here")
    said = run_script(SCRIPT.with_name("memory_of_ddp_sharded.py"), tmp_path / "out")["processes"]
    assert len(said) == 3
    for rank, each in enumerate(said):
        assert each["is_equal"]
        assert max(each["peaks"]) <= (0.8 if rank == 0 else 0.5), said
