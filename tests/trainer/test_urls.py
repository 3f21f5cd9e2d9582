"""Trainers whose checkpoints are under a URL."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from object_store import ObjectStore

from core import Trainer
from core.callbacks import ModelCheckpoint
from core.checkpoints import latest
from core.errors import ConfigurationError
from core.loggers import CSVLogger

from .regression import Regression, loader, quiet
from .test_model_checkpoint import Scored

URL = "objects://bucket/run"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    (tmp_path / "objects").mkdir()
    monkeypatch.setenv("OBJECT_STORE", str(tmp_path / "objects"))
    monkeypatch.chdir(tmp_path)
    return ObjectStore()


def checkpoints(store: ObjectStore) -> list[str]:
    return sorted(name.removeprefix("bucket/run/") for name in store.find(URL) if name.endswith(".ckpt"))


@pytest.mark.parametrize("name", ["torch", "async"])
def test_the_best_the_last_and_resuming(name: str, store: ObjectStore, tmp_path: Path) -> None:
    """Two of five are kept, and the last; a run resumed from a URL ends with the bits of the uninterrupted one."""

    def trainer(epochs: int, root: str) -> Any:
        saving = ModelCheckpoint(monitor="score", save_top_k=2, filename="{epoch}", save_last=True)
        settings = {"max_epochs": epochs, "callbacks": saving, "enable_checkpointing": True, "checkpoint_io": name}
        return quiet(**settings, default_root_dir=root)

    torch.manual_seed(1)
    whole = Scored()
    trainer(5, str(tmp_path / "local")).fit(whole, loader())
    torch.manual_seed(1)
    first = trainer(3, URL)
    first.fit(Scored(), loader())
    assert first.checkpoint_callback.best_model_path == f"{URL}/checkpoints/version_0/epoch=1.ckpt"
    module = Scored()
    second = trainer(5, URL)
    second.fit(module, loader(), ckpt_path="last")
    assert all(map(torch.equal, module.state_dict().values(), whole.state_dict().values()))
    kept = [f"checkpoints/version_0/{file}.ckpt" for file in ("epoch=3", "epoch=4", "last")]
    assert checkpoints(store) == kept
    assert str(latest(f"{URL}/checkpoints/version_0")).endswith(("epoch=4.ckpt", "last.ckpt"))
    loaded = Scored.load_from_checkpoint(second.checkpoint_callback.best_model_path)
    file = next(key for key in store.find(URL) if key.endswith("epoch=3.ckpt"))
    content = torch.load(io.BytesIO(store.cat_file(file)), weights_only=True)["state_dict"]
    assert all(map(torch.equal, loaded.state_dict().values(), content.values()))
    third = trainer(1, URL)
    third.fit(Scored(), loader())
    assert [key for key in checkpoints(store) if "version_1" in key]


def test_what_cannot_be_at_a_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"loggers write to this machine.*CSVLogger\('logs'\)"):
        Trainer(accelerator="cpu", default_root_dir=URL)
    with pytest.raises(ConfigurationError, match=r"CSVLogger writes to this machine"):
        CSVLogger("s3://bucket")
    trainer = quiet(
        max_epochs=1, callbacks=ModelCheckpoint(URL, save_last="link"), enable_checkpointing=True, logger=False
    )
    with pytest.raises(ConfigurationError, match="a URL has no links"):
        trainer.fit(Regression(), loader())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["objects"]


def test_checkpoints_go_to_the_url_also_with_a_logger(store: ObjectStore) -> None:
    trainer = quiet(max_epochs=1, enable_checkpointing=True, default_root_dir=URL, logger=CSVLogger("logs"))
    trainer.fit(Regression(), loader())
    assert checkpoints(store) == ["checkpoints/version_0/epoch=0-step=7.ckpt"]
