"""Layers that are created in ``configure_model``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from core import Module
from core.callbacks import ModelCheckpoint

from .regression import Regression, assert_same, loader, network, quiet


class Late(Regression):
    """Has no layers until a run needs them."""

    def __init__(self) -> None:
        Module.__init__(self)  # without the layers
        self.network: nn.Sequential | None = None  # type: ignore[assignment]
        self.calls: list[str] = []

    def setup(self, stage: str) -> None:
        assert self.calls == [] or self.network is not None
        self.calls.append(f"setup {stage}")

    def configure_model(self) -> None:
        self.calls.append(f"configure_model {self.trainer is not None}" if self._trainer else "configure_model")
        if self.network is None:
            self.network = network()

    def configure_optimizers(self) -> Any:
        assert self.network is not None
        return super().configure_optimizers()


def test_trains_as_with_layers_of_the_constructor() -> None:
    """Once in each stage, after ``setup``; every stage gives what it gives otherwise, bit for bit."""
    results = []
    for kind in (Late, Regression):
        torch.manual_seed(3)
        module, trainer = kind(), quiet(max_epochs=2)
        trainer.fit(module, loader(shuffle=True), loader(20))
        found = [trainer.validate(module, loader()), trainer.test(module, loader())]
        results.append((module, found, trainer.predict(module, loader())))
    (late, found, outputs), (plain, expected, predictions) = results
    assert_same(late, plain)
    assert found == expected
    assert torch.equal(torch.cat(outputs), torch.cat(predictions))
    assert isinstance(late, Late)
    stages = ("fit", "validate", "test", "predict")
    assert late.calls == [call for stage in stages for call in (f"setup {stage}", "configure_model True")]


def test_is_in_checkpoints(tmp_path: Path) -> None:
    """A new object resumes bit for bit, is evaluated from a checkpoint and created from one."""
    torch.manual_seed(3)
    whole = Late()
    saving = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=10, save_top_k=-1)
    trainer = quiet(max_epochs=2, enable_checkpointing=True, callbacks=saving)
    trainer.fit(whole, loader(shuffle=True))
    trainer.save_checkpoint(tmp_path / "end.ckpt")

    torch.manual_seed(3)
    resumed = Late()
    quiet(max_epochs=2).fit(resumed, loader(shuffle=True), ckpt_path=tmp_path / "step=10.ckpt")
    assert_same(resumed, whole)

    loaded = Late.load_from_checkpoint(tmp_path / "end.ckpt")
    assert loaded.calls == ["configure_model"]
    assert_same(loaded, whole)

    tested = Late()
    assert quiet().test(tested, loader(), ckpt_path=tmp_path / "end.ckpt") == quiet().test(whole, loader())
