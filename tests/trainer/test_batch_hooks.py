"""The hooks on a batch's way to the device: in a Module, in a DataModule, in every stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from core import DataModule, Trainer
from core.callbacks import ModelCheckpoint
from core.errors import ConfigurationError
from core.strategies import SingleDeviceStrategy

from .regression import Regression, assert_same, dataset, loader, quiet

NAMES = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def augmented(batch: Any) -> Any:
    """A batch with noise."""
    return [batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1]]


class Augmenting(Regression):
    """Adds noise on the device, when it trains."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return augmented(batch) if self.trainer.training else batch


def test_augmentation_equals_plain_torch() -> None:
    """Random numbers are drawn batch by batch, as in a loop in plain torch."""
    torch.manual_seed(3)
    module = Augmenting()
    quiet(max_epochs=2).fit(module, loader(), loader(20))

    torch.manual_seed(3)
    plain = Regression()
    optimizer = plain.configure_optimizers()
    for _ in range(2):
        for batch in loader():
            optimizer.zero_grad()
            plain.loss(augmented(batch)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        list(loader(20))
    assert_same(module, plain)


def test_augmentation_is_resumed(tmp_path: Path) -> None:
    """A run that continues within an epoch draws the same noise as one that was not interrupted."""
    results = []
    for path in (None, tmp_path / "step=10.ckpt"):
        torch.manual_seed(3)
        module = Augmenting()
        saving = ModelCheckpoint(dirpath=tmp_path, filename="{step}", every_n_train_steps=10, save_top_k=-1)
        trainer = quiet(max_epochs=2, enable_checkpointing=True, callbacks=saving)
        trainer.fit(module, loader(shuffle=True), ckpt_path=path)
        results.append(module)
    assert_same(*results)


@attrs.define
class Rows:
    """A batch of a class of the user's, which nothing but its own method can move."""

    inputs: Tensor
    targets: Tensor
    moved: int = 0

    def to(self, device: torch.device) -> Rows:
        return Rows(self.inputs.to(device), self.targets.to(device), self.moved + 1)


def rows(items: list[Any]) -> Rows:
    """Collates."""
    return Rows(torch.stack([item[0] for item in items]), torch.stack([item[1] for item in items]))


class OwnBatches(Regression):
    """Moves its own batches, and takes them apart afterwards."""

    seen: ClassVar[list[tuple[str | None, int]]] = []

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        assert isinstance(batch, Rows)
        assert isinstance(device, torch.device)
        self.seen.append((self.trainer.run.stage, dataloader_idx))
        return batch.to(device)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        assert batch.moved == 1
        return batch.inputs, batch.targets


def test_batches_of_your_own_class() -> None:
    """Each is moved once, in every stage, with the loader's number; the results are those of lists of tensors."""
    own = DataLoader(dataset(), batch_size=8, collate_fn=rows)
    results = []
    for kind, given in ((OwnBatches, own), (Regression, loader())):
        torch.manual_seed(3)
        module, trainer = kind(), quiet(max_epochs=1)
        trainer.fit(module, given, given)
        found = [trainer.validate(module, given), trainer.test(module, given), trainer.predict(module, given)]
        results.append((module, found))
    (one, found), (other, expected) = results
    assert_same(one, other)
    assert found[:2] == expected[:2]
    assert all(torch.equal(*pair) for pair in zip(found[2], expected[2], strict=True))
    stages = ("train", "validate", "validate", "test", "predict")
    assert OwnBatches.seen == [(stage, 0) for stage in stages for _ in range(7)]


def noting(base: type[Any], label: str, calls: list[str], names: tuple[str, ...] = NAMES) -> Any:
    """An object of a class that notes each call of the hooks ``names`` and does what they do by default."""

    def hook(name: str) -> Any:
        def noted(self: Any, batch: Any, *args: Any) -> Any:
            calls.append(f"{label} {name} {args[-1]}")
            return getattr(base, name)(self, batch, *args)

        return noted

    return type(label, (base,), {name: hook(name) for name in names})()


def test_their_order_and_the_number_of_the_loader() -> None:
    """Before, move, after; several loaders of an evaluation have numbers."""
    calls: list[str] = []

    class Several(Regression):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            calls.append(f"step {dataloader_idx}")

    module = noting(Several, "module", calls)
    quiet(limit_val_batches=1).validate(module, [loader(), loader()])
    assert calls == [
        call for number in (0, 1) for call in (*(f"module {name} {number}" for name in NAMES), f"step {number}")
    ]


def test_the_datamodules_replaces_the_modules() -> None:
    """Hook by hook, as in Lightning."""
    calls: list[str] = []

    class Data(DataModule):
        def train_dataloader(self) -> Any:
            return loader(50)

    data = noting(Data, "data", calls, NAMES[2:])
    quiet(max_epochs=1).fit(noting(Regression, "module", calls), datamodule=data)
    assert calls == [f"module {NAMES[0]} 0", f"module {NAMES[1]} 0", f"data {NAMES[2]} 0"]


class Moves(SingleDeviceStrategy):
    """Brings batches to devices itself."""

    name = "moves"
    moves_batches = True


def test_a_move_that_a_strategy_makes_itself(caplog: pytest.LogCaptureFixture) -> None:
    """The module's is not called, which a warning says; the run goes on."""
    calls: list[str] = []
    module = noting(Regression, "Mine", calls, NAMES[1:2])
    quiet(max_steps=1, strategy=Moves(), devices=1).fit(module, loader())
    assert calls == []
    assert "Mine: transfer_batch_to_device is not called: strategy='moves' moves batches" in caplog.text


@pytest.mark.parametrize("name", [NAMES[0], NAMES[2]])
def test_a_strategy_that_moves_batches_itself(name: str) -> None:
    """What it would not call is refused before anything runs."""
    module = noting(Regression, "Mine", [], (name,))
    trainer = Trainer(accelerator="cpu", devices=1, strategy=Moves(), logger=False)
    with pytest.raises(ConfigurationError, match=f"Mine: overrides '{name}', but strategy='moves' moves batches"):
        trainer.fit(module, loader())
