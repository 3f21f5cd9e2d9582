"""Parameters and an optimizer that are on a drive."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

import torch_hal

from .conftest import prepared, run

# Those that use the drive are exhaustive: DeepSpeed compiles its operator first, which takes minutes on idle cores.
pytestmark = [pytest.mark.deepspeed, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``drive.py`` has left what came of a fit on the host, and of one on a drive that was killed and resumed."""
    from torch_hal_deepspeed.library import import_deepspeed, part

    import_deepspeed("cpu")
    if not part("ops.op_builder").AsyncIOBuilder().is_compatible(verbose=False):
        pytest.skip("DeepSpeed's operator async_io needs libaio and a C++ compiler")
    out = tmp_path_factory.mktemp("drive")
    run(out, "drive.py", "whole")
    for phase, code in (("killed", -9), ("resumed", 0), ("loop", 0), ("alone", 0)):
        run(out, "drive.py", phase, code=code, seconds=800)
        shutil.rmtree(out / "zero_stage_3")  # the next begins with an empty drive
    return out


def kept(out: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(out / f"{name}.pt", weights_only=True)
    return content


def is_equal(one: Any, other: Any) -> bool:
    """Bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


@pytest.mark.exhaustive
def test_training_is_that_on_the_host(out: Path) -> None:
    """With optimizer, gradients and parameters on a drive, an epoch gives the same bits as with them in memory."""
    host, drive = kept(out, "whole-0"), kept(out, "killed-0")
    assert (host["swapped"], host["parameters on the drive"]) == (0, 0)
    assert (drive["swapped"], drive["parameters on the drive"]) == (2, 4)
    assert host["losses"][-1] < host["losses"][0]
    for what in ("losses", "weights", "stepped", "steps", "rates"):
        assert is_equal(host[what], drive[what]), what


@pytest.mark.exhaustive
def test_a_killed_fit_is_resumed_in_new_processes(out: Path) -> None:
    """From what was saved at the first epoch's end, it gives the bits of the uninterrupted fit."""
    whole, resumed = kept(out, "whole-1"), kept(out, "resumed-1")
    assert not (out / "killed-1.pt").exists()
    assert resumed["losses"] == whole["losses"][len(whole["losses"]) // 2 :]
    for what in ("weights", "stepped", "steps", "rates"):
        assert is_equal(whole[what], resumed[what]), what


@pytest.mark.exhaustive
def test_another_number_of_processes_takes_it_up(out: Path) -> None:
    """One process loads what two have saved: weights, the optimizer's state, its steps, and each group's options."""
    saved, alone = kept(out, "loop"), kept(out, "alone")
    assert min(saved["swapped"], alone["swapped"]) > 0
    for what in ("weights", "stepped", "rates"):
        assert is_equal(saved[what], alone[what]), what
    assert set(alone["steps"]) == set(saved["steps"]) == {2.0}


@pytest.mark.parametrize("folder_given", [False, True])
def test_a_lock_that_a_killed_process_left_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder_given: bool
) -> None:
    """Torch waits for it without a limit. One that another process of the same run has just created is no reason."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    if folder_given:
        monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    lock = Path(cpp_extension._get_build_directory("async_io", False)) / "lock"
    lock.touch()
    start()
    os.utime(lock, (0, 0))
    with pytest.warns(UserWarning, match=re.escape(f"{lock}: a process compiles DeepSpeed's operator async_io")):
        start()


def start() -> None:
    with torch_hal.Runtime(accelerator="cpu", devices=1, strategy="deepspeed_stage_1") as runtime:
        prepared(runtime)


@pytest.mark.exhaustive
def test_consolidated_weights_are_the_models(out: Path) -> None:
    """One file has all weights, of the part that is not trained too."""
    file = out / "weights.pt"
    run(out, "-m", "torch_hal_deepspeed.consolidate", out / "checkpoints" / "epoch=0.ckpt", file)
    assert is_equal(torch.load(file, weights_only=True), kept(out, "whole-0")["weights"])
