"""Reading files and directories that other libraries have written: as data, by their content."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save

from core.checkpoints import TorchCheckpointIO
from core.checkpoints.foreign import load_any, weights_for
from core.errors import CheckpointError

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.int64)}


def read(path: Path, weights_only: bool = False) -> dict[str, Any]:
    return load_any(lambda: TorchCheckpointIO().load_checkpoint(path), path, weights_only)


def in_parts(path: Path, suffix: str) -> Path:
    """Two files and their index, as Transformers writes them."""
    path.mkdir()
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    names = {name: f"{stem}-0000{number}-of-00002.{suffix}" for number, name in enumerate(STATE, 1)}
    for name, file in names.items():
        (save_file if suffix == "safetensors" else torch.save)({name: STATE[name]}, path / file)
    (path / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}), "utf-8")
    return path


def one_file(path: Path, name: str, write: Callable[..., Any] = torch.save) -> Path:
    path.mkdir()
    write(STATE, path / name)
    return path


FORMS: dict[str, Callable[[Path], Path]] = {
    "safetensors": lambda path: one_file(path, "any name", save_file) / "any name",
    "torch": lambda path: one_file(path, "w.bin") / "w.bin",
    "model.safetensors": lambda path: one_file(path, "model.safetensors", save_file),
    "pytorch_model.bin": lambda path: one_file(path, "pytorch_model.bin"),
    "safetensors in parts": lambda path: in_parts(path, "safetensors"),
    "bin in parts": lambda path: in_parts(path, "bin"),
}


@pytest.mark.parametrize("form", FORMS)
def test_weights(form: str, tmp_path: Path) -> None:
    """Weights alone are the part ``model``, also through links, with which model hubs keep their files."""
    path = FORMS[form](tmp_path / "w")
    found = read(path)
    assert list(found) == ["model"]
    assert found["model"].keys() == STATE.keys()
    assert all(torch.equal(found["model"][name], value) for name, value in STATE.items())
    assert read(path, weights_only=True)["state_dict"] is not None
    hub = tmp_path / "hub"
    if path.is_file():
        hub.symlink_to(path)
    else:
        hub.mkdir()
        for file in path.iterdir():
            (hub / file.name).symlink_to(file)
    assert read(hub)["model"].keys() == STATE.keys()


@pytest.mark.filterwarnings("ignore")
def test_a_directory_of_torchs_distributed_checkpoint(tmp_path: Path) -> None:
    """Nested or flat; what would have to be unpickled is left out, and names keep their dots."""
    optimizer = {"param_groups": [{"lr": 0.1}], "state": {"0.x": torch.zeros(1)}}
    for name, content in (
        ("flat", STATE),
        ("nested", {"model": STATE, "optimizer": optimizer, "epoch": 3}),
        ("named model", {f"model.{key}": value for key, value in STATE.items()}),
    ):
        save(dict(content), checkpoint_id=tmp_path / name, no_dist=True)
        (found,) = read(tmp_path / name).values()
        assert sorted(found) == sorted(STATE if name == "nested" else content)
        assert torch.equal(found["model.b" if name == "named model" else "b"], STATE["b"])


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch ran",)


@pytest.mark.parametrize("name", ["w.pt", "model.bin", "optimizer.bin", "custom_checkpoint_0.pkl"])
def test_code_is_not_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file, the class and the remedy; the weights next to such a file can be read."""
    monkeypatch.chdir(tmp_path)
    one_file(tmp_path / "d", "model.safetensors", save_file)
    file = tmp_path / "d" / name
    torch.save({"a": Evil()}, file)
    path = file if name == "w.pt" else tmp_path / "d"
    if name != "model.bin":
        with pytest.raises(CheckpointError, match=rf"{name} is not read: it contains .*system.*add_safe_globals"):
            read(path)
    if name != "w.pt":
        assert list(read(path, weights_only=True)) == ["model", "state_dict"]
    old = tmp_path / "old.pt"
    torch.save({"a": Evil()}, old, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match=r"old.pt cannot be read with torch.load\(weights_only=True\)"):
        read(old)
    assert not (tmp_path / "ran").exists()


def index(listed: Any) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        in_parts(path, "bin")
        (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": listed}), "utf-8")
        return path

    return make


def text(content: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        path.write_text(content, "utf-8")
        return path

    return make


def saved(content: Any) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        torch.save(content, path)
        return path

    return make


def empty(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (text("hello"), "is a file without a manifest"),
        (text("{}{}{}{}{}"), "is damaged"),
        (saved([1]), "holds a list, not a dict"),
        (index({"a": "../../etc/passwd"}), "it lists files outside of its folder"),
        (index({"a": "gone.bin"}), "gone.bin cannot be read"),
        (index([1]), "index.json is damaged"),
        (empty, "it has no manifest.json"),
        (lambda path: path, "it does not exist"),
    ],
)
def test_what_is_not_read(make: Callable[[Path], Path], message: str, tmp_path: Path) -> None:
    """Other files and damaged ones are an error that names them; a checkpoint of ours is read as before."""
    with pytest.raises(CheckpointError, match=message):
        read(make(tmp_path / "x"))
    TorchCheckpointIO().save_checkpoint({"core": {}, "a": 1}, tmp_path / "ours")
    assert read(tmp_path / "ours", weights_only=True) == {"core": {}, "a": 1}


def module(*names: str) -> nn.Module:
    tree = nn.Module()
    for name in names:
        *folders, last = name.split(".")
        place = tree
        for folder in folders:
            if not hasattr(place, folder):
                place.add_module(folder, nn.Module())
            place = getattr(place, folder)
        place.register_parameter(last, nn.Parameter(torch.zeros(1)))
    return tree


@pytest.mark.parametrize(
    ("here", "there", "found"),
    [
        (["a.w"], ["module.a.w"], ["a.w"]),
        (["a.w"], ["module._orig_mod.a.w"], ["a.w"]),
        (["net.a.w"], ["net._orig_mod.a.w"], ["net.a.w"]),
        (["net._orig_mod.a.w"], ["net.a.w"], ["net._orig_mod.a.w"]),
        (["module.w"], ["module.w"], ["module.w"]),
        (["module.w"], ["module.module.w"], ["module.w"]),
        (["w", "module.w"], ["module.w", "module.module.w"], ["module.w", "module.module.w"]),  # it is not clear
        (["w"], ["w", "module.w"], ["w", "module.w"]),
        (["w"], ["other"], ["other"]),
    ],
)
def test_wrappers_in_names(here: list[str], there: list[str], found: list[str]) -> None:
    """Those of torch.compile and of DistributedDataParallel, on either side; where two names could fit, none is."""
    weights = {name: torch.full((1,), float(number)) for number, name in enumerate(there)}
    assert list(weights_for(module(*here), weights)) == found


def test_tied_weights_are_added() -> None:
    """Of which safetensors' format has one."""
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    weights = dict(tied.state_dict())
    del weights["1.weight"]
    tied.load_state_dict(weights_for(tied, weights))
    del weights["1.bias"]
    assert "1.bias" not in weights_for(tied, weights)
