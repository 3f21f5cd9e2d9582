"""What a resumed run takes from the checkpoint where the module edits it, lacks a part of it, or has frozen parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core import Callback
from core.callbacks import EMAWeightAveraging, StochasticWeightAveraging, WeightAveraging
from core.errors import CheckpointError

from .regression import Regression, assert_same, loader, quiet


class Saves(Callback):
    """Saves after the fourth step of the second epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == 1 and batch_idx == 3:
            trainer.save_checkpoint(self.path)


# -- weights that the module edits ------------------------------------------------------------------------------------


class Renamed(Regression):
    """Once its layers had another name, and one its weights with the other sign."""

    def __init__(self, is_new: bool) -> None:
        super().__init__()
        self.is_new = is_new
        self.calls = 0

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for part in ("state_dict", "current_model_state", "swa_average"):
            if part in checkpoint and not self.is_new:
                checkpoint[part] = {f"old.{name}": -value for name, value in checkpoint[part].items()}
        checkpoint["notes"] = ["once"]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        assert checkpoint["notes"].pop() == "once"
        state: dict[str, Tensor] = checkpoint["state_dict"]
        checkpoint["state_dict"] = {name.removeprefix("old."): -value for name, value in state.items()}
        self.calls += 1


AVERAGES: dict[str, Any] = {
    "EMA": lambda: EMAWeightAveraging(decay=0.6),
    "mean": WeightAveraging,
    "SWA": lambda: StochasticWeightAveraging(0.01, swa_epoch_start=1, annealing_epochs=1),
    "none": Callback,
}


@pytest.mark.parametrize("kind", AVERAGES)
def test_the_hook_of_the_module_edits_all_weights(kind: str, tmp_path: Path) -> None:
    """The average and the weights that are trained; it is called for each, with the rest as it was read."""
    torch.manual_seed(0)
    whole = Renamed(is_new=False)
    quiet(max_epochs=3, callbacks=[AVERAGES[kind](), Saves(tmp_path / "saved")]).fit(whole, loader())
    resumed = Renamed(is_new=True)
    quiet(max_epochs=3, callbacks=AVERAGES[kind]()).fit(resumed, loader(), ckpt_path=tmp_path / "saved")
    assert_same(resumed, whole)
    assert resumed.calls == (1 if kind == "none" else 2)


# -- a part of the weights --------------------------------------------------------------------------------------------


class Adapter(Regression):
    """A frozen network, which checkpoints leave out, and what is trained."""

    def __init__(self, strict: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.base = nn.Linear(6, 6).requires_grad_(False)
        self.strict_loading = strict

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.network(self.base(inputs))
        return outputs

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state: dict[str, Tensor] = checkpoint["state_dict"]
        checkpoint["state_dict"] = {name: value for name, value in state.items() if not name.startswith("base")}


class OwnState(Adapter):
    """Leaves it out of ``state_dict`` itself."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None: ...

    def state_dict(self, *args: Any, **options: Any) -> Any:
        state = super().state_dict(*args, **options)
        return {name: value for name, value in state.items() if not name.startswith("base")}


@pytest.mark.parametrize("make", [Adapter, OwnState])
@pytest.mark.parametrize("kind", ["EMA", "SWA", "none"])
def test_what_a_checkpoint_lacks_stays_as_it_is_without_strict_loading(kind: str, make: Any, tmp_path: Path) -> None:
    """In fit and in evaluation; the base stays frozen."""
    if make is OwnState and kind != "none":
        pytest.skip("an average takes all of the module's state")
    whole = make()
    quiet(max_epochs=3, callbacks=[AVERAGES[kind](), Saves(tmp_path / "saved")]).fit(whole, loader())
    resumed = make()
    quiet(max_epochs=3, callbacks=AVERAGES[kind]()).fit(resumed, loader(), ckpt_path=tmp_path / "saved")
    for name, value in nn.Module.state_dict(whole).items():
        assert torch.equal(value, nn.Module.state_dict(resumed)[name]), name
    assert not resumed.base.weight.requires_grad
    quiet().test(make(), loader(), ckpt_path=tmp_path / "saved", verbose=False)
    with pytest.raises(CheckpointError, match=r"Missing key.*base\.weight"):
        quiet().test(make(strict=True), loader(), ckpt_path=tmp_path / "saved", verbose=False)


# -- what is frozen ---------------------------------------------------------------------------------------------------


class Thaws(Regression):
    """Its first layer is trained from the second epoch on, and its last one no longer."""

    def __init__(self) -> None:
        super().__init__()
        self.network[0].requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.network[0].requires_grad_(True)
            self.network[3].requires_grad_(False)


def test_what_a_hook_has_frozen_and_unfrozen_stays_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Bit for bit the uninterrupted run, and a warning says what the module has set differently."""
    torch.manual_seed(0)
    whole = Thaws()
    quiet(max_epochs=3, callbacks=Saves(tmp_path / "saved")).fit(whole, loader())
    assert "requires_grad" not in caplog.text
    resumed = Thaws()
    quiet(max_epochs=3).fit(resumed, loader(), ckpt_path=tmp_path / "saved")
    assert_same(resumed, whole)
    assert "requires_grad of 4 parameter(s) is False or True as when the checkpoint was written" in caplog.text


class SavesWhileToggled(Regression):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        first, second = self.optimizers()
        self.toggle_optimizer(first)
        if batch_idx == 2 and self.path is not None:
            self.trainer.save_checkpoint(self.path)
        first.zero_grad()
        self.manual_backward(self.loss(batch))
        first.step()
        self.untoggle_optimizer(first)
        second.zero_grad()
        self.manual_backward(self.loss(batch))
        second.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.network[number].parameters(), lr=0.05) for number in (0, 3)]

    path: Path | None = None


def test_what_an_optimizer_is_toggled_off_is_not_frozen(tmp_path: Path) -> None:
    """A checkpoint that is written meanwhile has what the parameters are otherwise."""
    torch.manual_seed(0)
    whole = SavesWhileToggled()
    whole.path = tmp_path / "saved"
    quiet(max_epochs=1).fit(whole, loader())
    resumed = SavesWhileToggled()
    quiet(max_epochs=1).fit(resumed, loader(), ckpt_path=tmp_path / "saved")
    assert_same(resumed, whole)
