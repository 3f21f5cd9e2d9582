"""``torch-hal convert``: what any library has written, as one file of ours or as weights in safetensors' format."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save

from core import Runtime
from core.checkpoints import SafetensorsCheckpointIO, ShardedCheckpointIO, TorchCheckpointIO, is_committed
from core.convert import convert, main
from core.errors import CheckpointError

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.int64)}
OPTIMIZER: dict[str, Any] = {
    "state": {0: {"exp_avg": torch.full((2, 3), 0.5)}},
    "param_groups": [{"lr": 0.1, "params": [0]}],
}

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")


def ours(io: Callable[[], Any]) -> Callable[[Path], None]:
    return lambda path: io().save_checkpoint({"state_dict": STATE, "optimizer_states": [OPTIMIZER], "core": {}}, path)


def lightning(path: Path) -> None:
    content = {"state_dict": STATE, "optimizer_states": [OPTIMIZER], "epoch": 3, "pytorch-lightning_version": "2.5"}
    torch.save(content, path)


def accelerate(path: Path) -> None:
    path.mkdir()
    save_file(STATE, path / "model.safetensors", {"format": "pt"})
    torch.save(OPTIMIZER, path / "optimizer.bin")
    torch.save({"step": 4}, path / "scheduler.bin")
    (path / "random_states_0.pkl").write_bytes(b"\x80\x04.")


def transformers(path: Path) -> None:
    path.mkdir()
    names = {name: f"model-0000{number}-of-00002.safetensors" for number, name in enumerate(STATE, 1)}
    for name, file in names.items():
        save_file({name: STATE[name]}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}), "utf-8")
    (path / "config.json").write_text("{}")


def shards(path: Path) -> None:
    save({"model": STATE}, checkpoint_id=path, no_dist=True)


FORMS: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "torch": (ours(TorchCheckpointIO), {"state_dict", "optimizer_states", "core"}),
    "sharded": (ours(ShardedCheckpointIO), {"state_dict", "optimizer_states", "core"}),
    "safetensors": (ours(SafetensorsCheckpointIO), {"state_dict", "optimizer_states", "core"}),
    "Lightning": (lightning, {"state_dict", "optimizer_states", "epoch", "pytorch-lightning_version"}),
    "Accelerate": (accelerate, {"model", "optimizer", "scheduler"}),
    "Transformers": (transformers, {"model"}),
    "DCP": (shards, {"model"}),
}


@pytest.mark.parametrize("form", FORMS)
def test_one_file_has_all_parts(form: str, tmp_path: Path) -> None:
    """It is a checkpoint of ours, which torch reads too."""
    write, parts = FORMS[form]
    write(tmp_path / "from")
    assert convert(tmp_path / "from", tmp_path / "x.ckpt") == str(tmp_path / "x.ckpt")
    assert is_committed(tmp_path / "x.ckpt")
    found = torch.load(tmp_path / "x.ckpt", weights_only=True)
    assert found.keys() == parts
    weights = found["state_dict" if "state_dict" in parts else "model"]
    assert weights.keys() == STATE.keys()
    assert all(torch.equal(weights[name], value) for name, value in STATE.items())
    if "optimizer" in parts or "optimizer_states" in parts:
        optimizer = found["optimizer"] if "optimizer" in parts else found["optimizer_states"][0]
        assert torch.equal(optimizer["state"][0]["exp_avg"], OPTIMIZER["state"][0]["exp_avg"])


@pytest.mark.parametrize("form", FORMS)
def test_weights_in_the_format_of_safetensors(form: str, tmp_path: Path) -> None:
    """Under the names of the module."""
    FORMS[form][0](tmp_path / "from")
    convert(tmp_path / "from", tmp_path / "w.safetensors")
    weights = load_file(tmp_path / "w.safetensors")
    assert weights.keys() == STATE.keys()
    assert all(torch.equal(weights[name], value) for name, value in STATE.items())


def test_the_runtime_loads_what_was_accelerates(tmp_path: Path) -> None:
    """By the names of the parts, with the optimizer's state."""
    module = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    (tmp_path / "from").mkdir()
    save_file(module.state_dict(), tmp_path / "from" / "model.safetensors")
    torch.save(optimizer.state_dict(), tmp_path / "from" / "optimizer.bin")
    convert(tmp_path / "from", tmp_path / "x.ckpt")
    runtime = Runtime(accelerator="cpu", devices=1)
    other = nn.Linear(3, 2)
    prepared, its_optimizer = runtime.prepare(other, torch.optim.Adam(other.parameters()))
    assert runtime.load(tmp_path / "x.ckpt", {"model": prepared, "optimizer": its_optimizer}) == {}
    assert torch.equal(other.weight, module.weight)
    expected = optimizer.state_dict()["state"][0]["exp_avg"]
    assert torch.equal(its_optimizer.state_dict()["state"][0]["exp_avg"], expected)


def with_optimizer(path: Path) -> None:
    content = {"model": STATE, "optimizer": {"state": {"0.x": torch.zeros(1)}, "lr": [0.1]}, "epoch": 3}
    save(content, checkpoint_id=path, no_dist=True)


def engines(path: Path) -> None:
    """As Accelerate's ``save_state`` with FSDP: the folders of its shards."""
    path.mkdir()
    shards(path / "pytorch_model_fsdp_0")
    shards(path / "optimizer_0")
    torch.save({"step": 4}, path / "scheduler.bin")


def test_what_cannot_be_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the parts and the way that is left; no file is written."""
    with_optimizer(tmp_path / "dcp")
    with pytest.raises(CheckpointError, match=r"'epoch', 'optimizer' cannot be converted\..* the suffix \.safetensors"):
        convert(tmp_path / "dcp", tmp_path / "x.ckpt")
    convert(tmp_path / "dcp", tmp_path / "w.safetensors")
    engines(tmp_path / "engine")
    for target in ("x.ckpt", "w2.safetensors"):
        assert main([str(tmp_path / "engine"), str(tmp_path / target)]) == 2
        said = capsys.readouterr().err
        assert "'optimizer_0', 'pytorch_model_fsdp_0' cannot be converted" in said
        assert f"For the weights alone, give the path {tmp_path / 'engine' / 'pytorch_model_fsdp_0'}." in said
    convert(tmp_path / "engine" / "pytorch_model_fsdp_0", tmp_path / "w2.safetensors")
    TorchCheckpointIO().save_checkpoint({"a": STATE, "b": STATE, "n": 3, "core": {}}, tmp_path / "two")
    with pytest.raises(CheckpointError, match=r"weights of one module, and this checkpoint has 'a', 'b'\."):
        convert(tmp_path / "two", tmp_path / "w3.safetensors")
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "dcp",
        "engine",
        "two",
        "w.safetensors",
        "w2.safetensors",
    ]


def test_the_terminal_may_lack_characters_of_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are written as in source code."""
    TorchCheckpointIO().save_checkpoint({"state_dict": STATE, "core": {}}, tmp_path / "café.ckpt")
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, "ascii", write_through=True))
    assert main([str(tmp_path / "café.ckpt")]) == 0
    assert printed.getvalue().decode() == f"{tmp_path}/caf\\xe9.ckpt.pt\n"
