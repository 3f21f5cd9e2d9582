"""SafetensorsCheckpointIO: tensors that other programs read, and a checkpoint that comes back as it was."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from core import Runtime
from core.checkpoints import FileRecord, Manifest, SafetensorsCheckpointIO, read_manifest
from core.errors import CheckpointError, ConfigurationError

safetensors = pytest.importorskip("safetensors.torch")


def test_other_programs_read_the_tensors(tmp_path: Path) -> None:
    """``safetensors.torch.load_file`` finds each tensor under its keys, and a run resumes from the checkpoint."""
    with Runtime(accelerator="cpu", devices=1, checkpoint_io="safetensors") as runtime:
        own = nn.Linear(3, 2)
        model, optimizer = runtime.prepare(own, torch.optim.Adam(own.parameters()))
        runtime.backward(model(torch.ones(1, 3)).sum())
        optimizer.step()
        runtime.save({"model": model, "optimizer": optimizer, "epoch": 2}, tmp_path / "a")
        found = safetensors.load_file(tmp_path / "a" / "tensors.safetensors")
        assert torch.equal(found["model.weight"], own.weight)
        assert {"model.bias", "optimizer.state.0.exp_avg", "optimizer.state.1.step"} <= found.keys()
        weight = own.weight.detach().clone()
        nn.init.zeros_(own.weight)
        assert runtime.load(tmp_path / "a", {"model": model, "optimizer": optimizer}) == {"epoch": 2}
        assert torch.equal(own.weight, weight)
    assert read_manifest(tmp_path / "a").checkpoint_io == "safetensors"


def test_what_the_format_does_not_know_comes_back(tmp_path: Path) -> None:
    """Tied and strided tensors, parameters, dtypes and values that safetensors has not, and keys that collide."""
    base, module = torch.arange(12.0), nn.Sequential(nn.Linear(2, 2))
    tied = nn.Parameter(torch.ones(2, 2))
    state: dict[str, Any] = {
        "tied": [tied, tied],
        "views": [base[::2], base.reshape(3, 4).t(), base.expand(2, 12)],
        "others": (torch.tensor([1 + 2j]), torch.eye(2).to_sparse(), torch.ones(2)),
        "keys": {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, 1: torch.ones(2), "1": torch.zeros(2)},
        "module": module.state_dict(),
        "grad": torch.ones(1, requires_grad=True),
        "empty": torch.empty(0, 2),
    }
    io = SafetensorsCheckpointIO()
    io.save_checkpoint(state, tmp_path / "a")
    found = io.load_checkpoint(tmp_path / "a")
    assert str(found) == str(state)
    assert found["tied"][0].data_ptr() == found["tied"][1].data_ptr()
    assert found["module"]._metadata == module.state_dict()._metadata  # type: ignore[attr-defined]
    assert state["tied"][0] is tied
    on_meta = io.load_checkpoint(tmp_path / "a", map_location=lambda storage, where: storage)
    assert str(on_meta) == str(state)


def test_garbled_tensors_behind_right_sums(tmp_path: Path) -> None:
    """A damaged file whose checksum was adjusted is an error of torch-hal."""
    io = SafetensorsCheckpointIO()
    io.save_checkpoint({"a": torch.ones(3), "n": 1}, tmp_path / "a")
    file = tmp_path / "a" / "tensors.safetensors"
    for content in (b"", b"\xff" * 40, file.read_bytes()[:-4], file.read_bytes().replace(b'"a"', b'"b"')):
        file.write_bytes(content)
        manifest = Manifest.read(tmp_path / "a")
        files = {**manifest.files, file.name: FileRecord.of(file)}
        Manifest.describe(None, files, "safetensors").write(tmp_path / "a")
        with pytest.raises(CheckpointError, match="cannot be loaded"):
            io.load_checkpoint(tmp_path / "a")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the command that installs it."""
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ConfigurationError, match="Run: pip install safetensors"):
        SafetensorsCheckpointIO()
