"""A plain ``nn.Module`` with the methods of a Module."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core import Callback, Trainer
from core.callbacks import ModelCheckpoint
from core.errors import ConfigurationError

from .regression import Regression, assert_same, loader, network, quiet


class Plain(nn.Module):
    """The regression, without anything of this package."""

    network: nn.Sequential
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self.register_buffer("steps", torch.zeros(()))
        self.calls: list[str] = []
        self.logger = self.device = "my own"

    def forward(self, inputs: Tensor) -> Any:
        return self.network(inputs)

    def loss(self, batch: Any) -> Tensor:
        return nn.functional.mse_loss(self(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        assert self.training
        assert self.logger == self.device == "my own"
        self.steps += 1
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        assert not self.training
        self.calls.append(f"validation_step {batch_idx}")
        return self.loss(batch)

    test_step = validation_step

    def predict_step(self, batch: Any) -> Any:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)

    def on_train_epoch_end(self) -> None:
        self.calls.append("on_train_epoch_end")


class Derived(Regression):
    """The same as a Module."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.steps += 1
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return Plain.configure_optimizers(self)  # type: ignore[arg-type]


def test_every_stage_equals_that_of_a_module() -> None:
    """Bit for bit, in place, also in a second fit; its hooks are called, and its own attributes stay its own."""
    results = []
    for kind in (Plain, Derived):
        torch.manual_seed(3)
        module: Any = kind()
        first = module.network[0].weight
        trainer = quiet(max_epochs=2)
        for _ in range(2):
            trainer.fit(module, loader(shuffle=True), loader(50))
            trainer.validate(module, loader(50))
            trainer.test(module, loader(50))
        assert module.network[0].weight is first
        assert (module.training, module.network.training) == (True, True)
        results.append((module, torch.cat(trainer.predict(module, loader()))))
    (plain, outputs), (derived, expected) = results
    assert_same(plain, derived)
    assert torch.equal(outputs, expected)
    assert plain.calls == 2 * (2 * ["validation_step 0", "on_train_epoch_end"] + 2 * ["validation_step 0"])


def test_checkpoints_have_its_own_keys(tmp_path: Path) -> None:
    """A checkpoint is one of the equal Module, and a new object resumes from it bit for bit."""
    modules = []
    for kind, resume in ((Plain, None), (Derived, None), (Plain, tmp_path / "Plain" / "step=10.ckpt")):
        torch.manual_seed(3)
        module, folder = kind(), tmp_path / kind.__name__
        saving = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=10, save_top_k=-1)
        trainer = quiet(max_epochs=2, enable_checkpointing=True, callbacks=saving)
        trainer.fit(module, loader(shuffle=True), ckpt_path=resume)
        trainer.save_checkpoint(folder / "end.ckpt")
        modules.append(module)
    assert_same(modules[2], modules[0])
    loaded = Derived.load_from_checkpoint(tmp_path / "Plain" / "end.ckpt")
    assert_same(loaded, modules[0])
    tested = Plain()
    quiet().test(tested, loader(), ckpt_path=tmp_path / "Derived" / "end.ckpt")
    assert_same(tested, modules[1])


def test_it_stays_a_plain_module() -> None:
    """After a fit it can be copied and pickled, and calls its forward hooks in a prediction."""

    class Sees(Callback):
        def on_fit_end(self, trainer: Trainer, module: Any) -> None:
            assert module.network is plain.network
            assert module.calls is plain.calls
            copy.deepcopy(module)

    plain = Plain()
    quiet(max_epochs=1, callbacks=Sees()).fit(plain, loader())
    for other in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
        assert type(other) is Plain
        assert_same(other, plain)
        quiet(max_epochs=1).fit(other, loader())
        assert not torch.equal(*(one.state_dict()["network.0.weight"] for one in (other, plain)))
    seen: list[int] = []
    plain.register_forward_hook(lambda *args: seen.append(1))
    quiet().predict(plain, loader())
    assert len(seen) == 7


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"configure_optimizers": None}, "Mine does not define 'configure_optimizers'"),
        ({"on_train_epoch_ends": lambda self: None}, "Mine defines 'on_train_epoch_ends', which is not a hook"),
        (
            {"on_pretrain_routine_start": lambda self: None},
            "Mine defines 'on_pretrain_routine_start', which the Trainer",
        ),
        ({"automatic_optimization": False}, "Mine has automatic_optimization=False, which needs"),
    ],
)
def test_what_it_lacks(content: dict[str, Any], message: str) -> None:
    """It is refused as a Module would be, by its own name."""
    base = nn.Module if content.get("configure_optimizers", 1) is None else Plain
    content = {name: value for name, value in content.items() if value is not None}
    content |= {"training_step": Plain.training_step}
    with pytest.raises(ConfigurationError, match=message):
        quiet(max_epochs=1).fit(type("Mine", (base,), content)(), loader())
