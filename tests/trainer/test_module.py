"""The Module apart from its stages."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from typing import Any

import pytest
import torch

from core import Callback, Module, Trainer
from core.errors import ConfigurationError

from .regression import Regression, assert_same, loader, quiet


class Copying(Callback):
    """Copies the module, in each way there is, while it is trained."""

    def __init__(self) -> None:
        self.copies: list[Any] = []

    def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
        buffer = io.BytesIO()
        torch.save(module, buffer)
        buffer.seek(0)
        self.copies = [
            copy.deepcopy(module),
            pickle.loads(pickle.dumps(module)),
            torch.load(buffer, weights_only=False),
        ]


def test_copies_made_while_training_have_no_trainer() -> None:
    """A copy is a module like any other: its parameters, no trainer behind it, and it can be trained."""
    copying, module = Copying(), Regression()
    quiet(max_epochs=1, callbacks=copying).fit(module, loader())
    for duplicate in copying.copies:
        assert_same(duplicate, module)
        assert duplicate.network is not module.network
        with pytest.raises(ConfigurationError, match="no Trainer is running"):
            duplicate.trainer  # noqa: B018
        quiet(max_epochs=1).fit(duplicate, loader())


def test_a_module_is_a_plain_module() -> None:
    """What the Trainer adds to it is not a parameter, buffer, submodule or entry of its state."""
    module = Regression()
    state = list(module.state_dict())
    assert state == [f"network.{name}" for name in ("0.weight", "0.bias", "3.weight", "3.bias")]
    quiet(max_epochs=1).fit(module, loader())
    assert list(module.state_dict()) == state
    assert [name for name, _ in module.named_children()] == ["network"]


def test_a_trainer_of_the_users() -> None:
    """Set outside of a run, for example in a test of the module, it gives its facts; a run replaces it meanwhile."""
    module, trainer = Regression(), quiet(max_epochs=2)
    module.trainer = trainer
    assert module.trainer is trainer
    assert (module.current_epoch, module.global_step) == (0, 0)
    other = quiet(max_epochs=1)
    other.fit(module, loader())
    assert module.trainer is trainer
    assert other.global_step == len(loader())


def test_outside_of_a_run() -> None:
    """Epoch and step are 0, the device is that of the parameters, and there is no trainer to ask."""
    module = Regression()
    assert (module.current_epoch, module.global_step) == (0, 0)
    assert module.device == torch.device("cpu")
    assert module.to("meta").device.type == "meta"
    assert Module().device.type == "cpu"
    for ask in (lambda: module.trainer, lambda: module.all_gather(1), lambda: module.print("x")):
        with pytest.raises(ConfigurationError, match=r"Regression.trainer: no Trainer is running this module"):
            ask()


def test_after_a_run() -> None:
    """Trainer, epoch and step are those of the last run, as long as the Trainer exists; the module does not keep it."""
    module, trainer = Regression(), quiet(max_epochs=2, logger=Recorded())
    trainer.fit(module, loader())
    assert module.trainer is trainer
    assert module.logger is trainer.logger
    assert (module.current_epoch, module.global_step) == (2, 14)
    with pytest.raises(ConfigurationError, match="no epoch or evaluation is running"):
        module.log("late", 1)
    assert copy.deepcopy(module).current_epoch == 0
    del trainer
    gc.collect()
    assert (module.current_epoch, module.logger, module.loggers) == (0, None, [])


def test_what_a_trainer_keeps_after_a_fit() -> None:
    """Optimizers and schedulers with their state, until the next fit; evaluation leaves them as they are."""

    class Scheduled(Regression):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "name": "rate"}]

    trainer = quiet(max_epochs=2)
    assert (trainer.optimizers, trainer.lr_scheduler_configs) == ([], [])
    with pytest.raises(ConfigurationError, match="estimated_stepping_batches: no fit was started"):
        trainer.estimated_stepping_batches  # noqa: B018
    first, second = Scheduled(), Scheduled()
    trainer.fit(first, loader(), loader())
    trainer.validate(first, loader(), verbose=False)
    (optimizer,), (config,) = trainer.optimizers, trainer.lr_scheduler_configs
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0005)
    assert [id(one) for one in optimizer.param_groups[0]["params"]] == [id(one) for one in first.parameters()]
    assert "momentum_buffer" in optimizer.state[next(first.parameters())]
    assert (config.name, config.scheduler.last_epoch) == ("rate", 2)
    assert trainer.estimated_stepping_batches == 14
    trainer.fit(second, loader(25))
    assert trainer.optimizers[0].param_groups[0]["params"][0] is next(second.parameters())
    assert trainer.estimated_stepping_batches == 4
    kept = weakref.ref(optimizer)
    del optimizer, config
    gc.collect()
    assert kept() is None, "the optimizer of the fit before"


class Recorded:
    def log_metrics(self, metrics: Any, step: int) -> None:
        del metrics, step


def test_within_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The module knows where its trainer is, and reaches the other processes through it."""
    seen: list[tuple[int, int]] = []

    class Looking(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append((self.current_epoch, self.global_step))
            assert self.trainer.is_global_zero
            assert torch.equal(self.all_gather(torch.tensor(5)), torch.tensor(5))
            self.print("step", batch_idx)
            return super().training_step(batch, batch_idx)

    quiet(max_epochs=2).fit(Looking(), loader(25))
    assert seen == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert capsys.readouterr().out == "step 0\nstep 1\n" * 2


def test_what_a_part_of_the_module_compiled_by_the_user_gives() -> None:
    """A part that is compiled before the fit trains as it does uncompiled."""
    modules = []
    for wrap in (lambda part: part, lambda part: torch.compile(part, backend="eager")):
        torch.manual_seed(0)
        module = Regression()
        module.network[2] = torch.nn.Identity()
        module.network = wrap(module.network)  # type: ignore[assignment]
        quiet(max_epochs=2, precision="bf16-mixed").fit(module, loader())
        modules.append([parameter.detach() for parameter in module.parameters()])
    assert all(torch.equal(plain, compiled) for plain, compiled in zip(*modules, strict=True))


def test_a_trainer_can_be_sent_to_a_process() -> None:
    """Between stages a trainer pickles with its settings, callbacks and counts, and can be used where it arrives."""
    trainer = quiet(max_epochs=2, callbacks=Copying())
    trainer.fit(Regression(), loader())
    trainer.callbacks[0].copies.clear()  # type: ignore[attr-defined]
    arrived = pickle.loads(pickle.dumps(trainer))
    assert (arrived.max_epochs, arrived.current_epoch, arrived.global_step) == (2, 2, 14)
    arrived.fit(Regression(), loader())
    assert arrived.global_step == 14
