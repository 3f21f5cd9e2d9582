"""Callbacks of another library, whose hooks have the same names, in core's Trainer."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer
from core.errors import ConfigurationError

LIBRARY = """
class Callback:
    @property
    def state_key(self): return type(self).__qualname__
    def setup(self, trainer, module, stage): pass
    def teardown(self, trainer, module, stage): pass
    def on_fit_start(self, trainer, module): pass
    def on_train_start(self, trainer, module): pass
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx): pass
    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0): pass
    def on_train_end(self, trainer, module): pass
    def on_nightfall(self, trainer, module): pass
    def state_dict(self): return {}
    def load_state_dict(self, state): pass

class EarlyStopping(Callback):
    pass
"""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A library with a base class of callbacks, and one callback that core has too."""
    module = ModuleType("otherlib")
    exec(LIBRARY, module.__dict__)
    monkeypatch.setitem(sys.modules, "otherlib", module)
    return module


class Straight(Module):
    """Learns nothing of interest."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(batch[0]).square().mean()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("value", self.net(batch[0]).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader() -> DataLoader[Any]:
    """Three batches."""
    return DataLoader(TensorDataset(torch.ones(6, 2)), batch_size=2)


def trainer(folder: Path, callback: Any, **options: Any) -> Trainer:
    """One epoch on the CPU."""
    options = {"max_epochs": 1, "accelerator": "cpu", "devices": 1, "logger": False, **options}
    return Trainer(
        default_root_dir=str(folder),
        callbacks=callback,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def test_hooks_are_called_and_the_state_is_saved(tmp_path: Path, library: Any) -> None:
    """What its class overrides is called as by its own library, and its state comes back when a fit is resumed."""

    class Seen(library.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def setup(self, trainer: Any, module: Any, stage: str) -> None:
            self.calls.append(("setup", stage, type(module).__name__))

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.calls.append(("batch", batch_idx, trainer.global_step))

        def on_validation_batch_end(
            self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int
        ) -> None:
            self.calls.append(("validated", batch_idx, dataloader_idx))

        def state_dict(self) -> dict[str, Any]:
            return {"steps": sum(call[0] == "batch" for call in self.calls)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.loaded = state

    seen = Seen()
    first = trainer(tmp_path, [seen], num_sanity_val_steps=0)
    first.fit(Straight(), loader(), loader())
    batches = [("batch", 0, 1), ("batch", 1, 2), ("batch", 2, 3)]
    assert seen.calls == [("setup", "fit", "Straight"), *batches, *(("validated", number, 0) for number in range(3))]

    again = Seen()
    first.save_checkpoint(tmp_path / "saved")
    trainer(tmp_path, [again], max_epochs=2).fit(Straight(), loader(), loader(), ckpt_path=tmp_path / "saved")
    assert again.loaded == {"steps": 3}


def test_a_hook_gets_the_number_of_its_loader(tmp_path: Path, library: Any) -> None:
    """Whether it must have the argument or may do without it."""
    seen: list[Any] = []

    class May(library.Callback):  # type: ignore[misc]
        def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):  # type: ignore[no-untyped-def]
            seen.append(dataloader_idx)

    class Must(library.Callback):  # type: ignore[misc]
        def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, number):  # type: ignore[no-untyped-def]
            seen.append(number)

    class Two(Straight):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            pass

    for callback in (May(), Must()):
        trainer(tmp_path, [callback]).validate(Two(), [loader(), loader()])
    assert seen == 2 * [0, 0, 0, 1, 1, 1]


def test_what_cannot_work_is_refused(tmp_path: Path, library: Any) -> None:
    """One that core has too, and a hook that would never be called, are refused by name."""

    class Own(library.EarlyStopping):  # type: ignore[misc]
        pass

    class Night(library.Callback):  # type: ignore[misc]
        def on_nightfall(self, trainer: Any, module: Any) -> None:
            pass

    with pytest.raises(ConfigurationError, match=r"Own is made for the Trainer of otherlib.*callbacks\.EarlyStopping"):
        trainer(tmp_path, Own())
    with pytest.raises(ConfigurationError, match=r"Night has the hook.*'on_nightfall' of otherlib"):
        trainer(tmp_path, Night())
