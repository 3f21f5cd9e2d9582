"""``validate``, ``test`` and ``predict`` without a model: that of the last fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from core.callbacks import ModelCheckpoint
from core.errors import ConfigurationError

from .regression import Regression, loader, quiet


class Worse(Regression):
    """The second epoch makes it worse."""

    def on_validation_epoch_start(self) -> None:
        if self.current_epoch == 1:
            with torch.no_grad():
                list(self.network.parameters())[-1].add_(100)


def fitted(tmp_path: Path, **options: Any) -> tuple[Any, ModelCheckpoint]:
    saving = ModelCheckpoint(tmp_path, monitor="error", save_last=True)
    trainer = quiet(max_epochs=2, enable_checkpointing=True, callbacks=saving, **options)
    torch.manual_seed(1)
    trainer.fit(Worse(), loader(), loader(50))  # no other reference to the module is left
    return trainer, saving


@pytest.mark.parametrize("options", [{}, {"strategy": "ddp_fork", "devices": 2}], ids=["one", "two processes"])
def test_the_best_checkpoint_of_the_last_fit(
    options: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is loaded, and a line says so; with a checkpoint, that one is."""
    trainer, saving = fitted(tmp_path, **options)
    best = quiet().test(Worse(), loader(50), ckpt_path=saving.best_model_path)
    last = quiet().test(Worse(), loader(50), ckpt_path=saving.last_model_path)
    assert best[0]["test_error"] < 100 < last[0]["test_error"]
    capfd.readouterr()
    assert trainer.test(dataloaders=loader(50)) == [pytest.approx(best[0])]
    said = capfd.readouterr().err
    assert f"no model was passed, so the best checkpoint of the last fit is loaded: {saving.best_model_path}" in said
    assert trainer.test(dataloaders=loader(50), ckpt_path="last") == [pytest.approx(last[0])]
    assert "no model" not in capfd.readouterr().err
    assert trainer.validate(dataloaders=loader(50), ckpt_path="best")[0]["error"] == pytest.approx(
        best[0]["test_error"]
    )
    assert len(trainer.predict(dataloaders=loader(50), ckpt_path="best")) == 1
    if options:  # the processes with the optimizer have ended
        with pytest.raises(ConfigurationError, match=r"optimizers: the fit ran in processes that have ended.*on_fit_e"):
            trainer.optimizers  # noqa: B018


def test_nothing_to_evaluate() -> None:
    """Without a fit there is no module, and without checkpoints no best one: each error says what to pass."""
    trainer = quiet(max_epochs=1)
    with pytest.raises(ConfigurationError, match=r"predict: no fit .* Pass one: trainer.predict\(model, \.\.\.\)"):
        trainer.predict(dataloaders=loader())
    trainer.fit(Regression(), loader())
    with pytest.raises(ConfigurationError, match=r"no ModelCheckpoint of this trainer has written one"):
        trainer.test(dataloaders=loader())
