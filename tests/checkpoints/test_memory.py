"""The memory of a save in addition to the state, at most 1.1 times the largest file that it writes; and of a load."""

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


_LOAD = """
import sys, torch
from pathlib import Path
from core.checkpoints import SafetensorsCheckpointIO, ShardedCheckpointIO, TorchCheckpointIO
kinds = {"torch": TorchCheckpointIO, "sharded": ShardedCheckpointIO, "safetensors": SafetensorsCheckpointIO}
io, path = kinds[sys.argv[1]](), sys.argv[2]
if sys.argv[3] == "save":
    io.save_checkpoint({"state_dict": {f"layer{index}": torch.ones(500_000) for index in range(100)}}, path)
else:
    io.save_checkpoint({"x": torch.ones(1)}, f"{path}-small")
    io.load_checkpoint(f"{path}-small")
    peak = lambda: int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    loaded = io.load_checkpoint(path)
    print((peak() - before) / 200e6)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("torch", 1.1), ("sharded", 1.1), ("safetensors", 1.5)])
def test_memory_of_a_load(name: str, most: float, tmp_path: Path) -> None:
    """Of 200 MB in one process: the tensors, and of a file that is mapped into memory a part at a time."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("by declaration: the peak of a process's memory cannot be reset here")
    run_python("-c", _LOAD, name, tmp_path / "c", "save", cwd=tmp_path)
    assert float(run_python("-c", _LOAD, name, tmp_path / "c", "load", cwd=tmp_path).stdout) <= most


@pytest.mark.slow
def test_memory_of_a_load_into_what_is_there(tmp_path: Path) -> None:
    """Nothing is held twice, and nothing stays a part of the file, also where a user's code keeps what it got."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("by declaration: a process's memory and maps cannot be read here")
    script = SCRIPT.with_name("memory_of_loads.py")
    env = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # so that the system gets back what is freed
    lines = run_python(script, tmp_path, cwd=tmp_path, warnings="ignore", env=env).stdout.splitlines()
    said = {each["name"]: each for each in map(json.loads, (line for line in lines if line.startswith("{")))}
    kinds = ("load_state", "load", "damaged", "fit Layers", "fit Hooked", "fit LayersOfKeeps", "weights")
    assert said.keys() == {f"{io} {kind}" for io in ("torch", "sharded", "safetensors") for kind in kinds}
    for name, each in said.items():
        assert each["is_equal"], name
        assert each["maps"] == 0, name
        if not name.endswith(("Hooked", "Keeps")):
            assert each["extra"] < 0.11, each  # 1.1 times the largest tensor is 0.04
