"""A checkpoint that a hook has written after some batch continues bit for bit as the run that went on."""

from __future__ import annotations

import os
import random
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from core import Callback, Trainer
from core.callbacks import EMAWeightAveraging, OnExceptionCheckpoint
from core.data import CombinedLoader
from core.loggers import CSVLogger

from .regression import Regression, assert_same, dataset, loader, quiet
from .test_resume import Drawing, Noisy, Stateful, seed_all, seeded_generator

CASES = int(os.environ.get("RESUME_CASES", "30"))


class Logged(Drawing):
    """Logs values of steps and of epochs, by step and at the epoch's end."""

    interval = "step"

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("largest", loss, on_epoch=True, reduce_fx="max")
        return loss


class SaveAt(Callback):
    """Saves after a batch, counted over all epochs; and notes in which order it saw batches."""

    def __init__(self, path: Path | None = None, at: int = 0) -> None:
        self.path, self.at, self.batches = path, at, 0
        self.begun: list[int] = []

    def on_train_epoch_start(self, trainer: Trainer, module: Any) -> None:
        self.begun.append(trainer.current_epoch)

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.batches += 1
        if self.batches == self.at and self.path is not None:
            trainer.save_checkpoint(self.path)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([dataset()[index] for index in range(45)])


LOADERS: dict[str, Any] = {
    "shuffled": lambda workers: loader(shuffle=True, num_workers=workers),
    "own generator": lambda workers: loader(shuffle=True, generator=seeded_generator(), num_workers=workers),
    "drawing": lambda workers: DataLoader(Noisy(), 8, shuffle=True, num_workers=workers),
    "stream": lambda workers: DataLoader(Stream(), 8),
}


def check(number: int, directory: Path) -> None:
    rng = random.Random(number)
    kind, workers = rng.choice(list(LOADERS)), rng.choice([0, 0, 0, 0, 1])
    settings: dict[str, Any] = {
        "accumulate_grad_batches": rng.choice([1, 1, 2, 3]),
        "limit_train_batches": rng.choice([None, None, 4]),
        "precision": rng.choice(["32-true", "16-mixed", "bf16-mixed"]),
    }
    epochs, per_epoch = 3, settings["limit_train_batches"] or (6 if kind == "stream" else 7)
    at = rng.randrange(1, epochs * per_epoch + 1)

    def run(seed: int, ckpt_path: Path | None, saver: SaveAt) -> tuple[Any, ...]:
        seed_all(seed)
        module, total = Logged(), Stateful()
        trainer = quiet(max_epochs=epochs, callbacks=[total, saver], **settings)
        trainer.fit(module, LOADERS[kind](workers), loader(), ckpt_path=ckpt_path)
        drawn = random.random(), float(np.random.rand()), float(torch.rand(()))
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        return module, total.total, trainer.current_epoch, trainer.global_step, metrics, drawn

    saver, again = SaveAt(directory / f"case{number}", at), SaveAt()
    expected = run(number, None, saver)
    found = run(1000 + number, directory / f"case{number}", again)
    case = (number, kind, workers, settings, at)
    assert found[1:] == expected[1:], case
    assert_same(found[0], expected[0])
    assert again.batches == saver.batches - at, case
    assert again.begun == list(range((at - 1) // per_epoch + 1, epochs)), case


@pytest.mark.parametrize("chunk", range(3))
def test_after_any_batch(chunk: int, tmp_path: Path) -> None:
    """Parameters, callbacks, epoch, step, values of the epoch, generators; the epoch is not begun a second time."""
    for number in range(chunk, CASES, 3):
        check(number, tmp_path)


@pytest.mark.parametrize("how", ["max_steps", "should_stop"])
def test_a_run_that_was_stopped(how: str, tmp_path: Path) -> None:
    """The rest of the epoch is trained on: each item of it once."""
    items: list[int] = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            items.extend(batch[1].flatten().tolist())
            trainer.should_stop = how == "should_stop" and trainer.global_step == 9

    class Save(Callback):
        def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
            trainer.save_checkpoint(tmp_path / "c")

    first = quiet(max_steps=9 if how == "max_steps" else 100, callbacks=[Watch(), Save()])
    first.fit(Logged(), loader(shuffle=True))
    assert (first.current_epoch, first.global_step) == (2, 9)
    second = quiet(max_epochs=2, callbacks=[Watch()])
    second.fit(Logged(), loader(shuffle=True), ckpt_path=tmp_path / "c")
    assert (second.current_epoch, second.global_step) == (2, 14)
    assert sorted(items) == sorted(2 * torch.cat([batch[1].flatten() for batch in loader()]).tolist())


class Validates(Drawing):
    """Draws in validation too; its metric depends on every batch."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        inputs = batch[0] if isinstance(batch, list | tuple) else batch["a"][0]
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))
        self.log("val", inputs.sum() * (batch_idx + 1) + noise, add_dataloader_idx=False)
        self.log("by_batch", float(batch_idx), on_step=True, on_epoch=False, add_dataloader_idx=False)


HOOKS = {
    "start": "on_validation_start",
    "epoch start": "on_validation_epoch_start",
    "first batch": "on_validation_batch_end",
    "last batch": "on_validation_batch_end",
    "epoch end": "on_validation_epoch_end",
    "end": "on_validation_end",
}


class Evaluating(Callback):
    """Notes what each validation gave; saves, or fails, in the second one."""

    def __init__(self, path: Path | None = None, where: str = "", fails: bool = False) -> None:
        self.path, self.fails, self.values, self.number = path, fails, list[float](), 0
        at = {"first batch": 0, "last batch": 4}.get(where, 0)
        if path is not None:
            hook = HOOKS[where]
            own = getattr(self, hook)

            def called(trainer: Trainer, module: Any, *rest: Any) -> None:
                self.act(trainer, at, rest)
                own(trainer, module, *rest)

            setattr(self, hook, called)

    def act(self, trainer: Trainer, at: int, rest: tuple[Any, ...]) -> None:
        if trainer.sanity_checking or trainer.global_step != 5 or (rest and rest[2] != at):
            return
        if self.fails:
            raise RuntimeError("fails")
        assert self.path is not None
        trainer.save_checkpoint(self.path)

    def on_validation_start(self, trainer: Trainer, module: Any) -> None: ...

    def on_validation_epoch_start(self, trainer: Trainer, module: Any) -> None: ...

    def on_validation_batch_end(
        self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None: ...

    def on_validation_epoch_end(self, trainer: Trainer, module: Any) -> None:
        if not trainer.sanity_checking:
            self.values.append(float(trainer.callback_metrics["val"]))

    def on_validation_end(self, trainer: Trainer, module: Any) -> None: ...


def stream_of_validation() -> Any:
    return DataLoader(Stream(), 10)


VALIDATION: dict[str, Any] = {
    "map": lambda: loader(10),
    "shuffled": lambda: loader(10, shuffle=True),
    "workers": lambda: loader(10, num_workers=2),
    "stream": stream_of_validation,
    "several": lambda: [loader(10), loader(10, shuffle=True)],
    "combined": lambda: CombinedLoader({"a": loader(10), "b": loader(20)}, "max_size"),
}


@pytest.mark.parametrize(
    "kind", ["map", *(pytest.param(kind, marks=pytest.mark.slow) for kind in VALIDATION if kind != "map")]
)
@pytest.mark.parametrize(
    ("where", "fails"), [*((where, False) for where in HOOKS), ("first batch", True), ("last batch", True)]
)
def test_a_checkpoint_of_a_validation_that_is_not_over(where: str, fails: bool, kind: str, tmp_path: Path) -> None:
    """The validation begins again in the resumed run: its metrics, and all that follows, are as without the break."""

    def run(seed: int, ckpt_path: Path | None, *callbacks: Any, folder: str) -> tuple[Any, ...]:
        seed_all(seed)
        module = Validates()
        log = CSVLogger(tmp_path, name=folder, version=0)
        trainer = quiet(
            max_epochs=2, callbacks=list(callbacks), val_check_interval=5, logger=log, log_every_n_steps=1,
            num_sanity_val_steps=1, enable_checkpointing=None,
        )  # fmt: skip
        with pytest.raises(RuntimeError) if getattr(callbacks[0], "fails", False) else nullcontext():
            trainer.fit(module, loader(shuffle=True), VALIDATION[kind](), ckpt_path=ckpt_path)
        drawn = random.random(), float(np.random.rand()), float(torch.rand(()))
        rows = tmp_path / folder / "version_0" / "metrics.csv"
        return module, drawn, rows.read_text() if rows.exists() else ""

    saver, again, path = Evaluating(tmp_path / "saved", where, fails), Evaluating(), tmp_path / "saved"
    whole = run(1, None, plain := Evaluating(), folder="whole")
    if fails:
        path = tmp_path / "on_exception.ckpt"
        run(1, None, saver, OnExceptionCheckpoint(tmp_path), folder="broken")
    else:
        run(1, None, saver, folder="broken")
        assert saver.values == plain.values
    resumed = run(2, path, again, folder="broken")
    assert again.values == plain.values[-len(again.values) :]
    assert len(again.values) == 1 + (where != "end")
    assert resumed[1:] == whole[1:]
    assert_same(resumed[0], whole[0])


def test_a_checkpoint_of_the_sanity_check(tmp_path: Path) -> None:
    """It is one of the fit's beginning: each validation of the run that goes on from it has all batches."""

    class Saves(Evaluating):
        def on_validation_batch_end(self, trainer: Trainer, *rest: Any) -> None:
            if trainer.sanity_checking:
                trainer.save_checkpoint(tmp_path / "sanity")

    def run(seed: int, callback: Evaluating, ckpt_path: Path | None) -> Any:
        seed_all(seed)
        trainer = quiet(max_epochs=2, callbacks=callback, num_sanity_val_steps=2)
        trainer.fit(module := Validates(), loader(shuffle=True), loader(10, shuffle=True), ckpt_path=ckpt_path)
        return module

    whole = run(1, first := Saves(), None)
    resumed = run(2, again := Evaluating(), tmp_path / "sanity")
    assert again.values == first.values
    assert_same(resumed, whole)


@pytest.mark.parametrize(("fails", "precision"), [(False, "32-true"), (True, "32-true"), (False, "64-true")])
def test_averaged_weights_in_a_checkpoint_of_a_validation(fails: bool, precision: str, tmp_path: Path) -> None:
    """The weights that are trained and their average are not exchanged, although validation runs with the average."""

    def run(ckpt_path: Path | None, *callbacks: Any) -> Any:
        seed_all(1)
        trainer = quiet(
            max_epochs=2,
            callbacks=list(callbacks),
            val_check_interval=5,
            enable_checkpointing=None,
            precision=precision,
        )
        with pytest.raises(RuntimeError) if callbacks[0].fails else nullcontext():
            trainer.fit(module := Validates(), loader(), loader(10), ckpt_path=ckpt_path)
        return module

    whole = run(None, Evaluating(), EMAWeightAveraging(decay=0.5))
    run(
        None, Evaluating(tmp_path / "saved", "last batch", fails), EMAWeightAveraging(decay=0.5),
        *([OnExceptionCheckpoint(tmp_path, "saved")] if fails else []),
    )  # fmt: skip
    path = tmp_path / ("saved.ckpt" if fails else "saved")
    assert_same(run(path, Evaluating(), EMAWeightAveraging(decay=0.5)), whole)


class DrawsToSave(Drawing):
    """Draws random numbers for what it adds to a checkpoint."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["added"] = torch.rand(3)


@pytest.mark.parametrize("at", [3, 7])
def test_a_hook_that_draws_when_it_saves(at: int, tmp_path: Path) -> None:
    """The resumed run draws what the first one drew after the save: within an epoch, and at its end."""
    whole, resumed = DrawsToSave(), DrawsToSave()
    seed_all(3)
    quiet(max_epochs=2, callbacks=SaveAt(tmp_path / "c", at)).fit(whole, loader(shuffle=True))
    seed_all(4)
    quiet(max_epochs=2).fit(resumed, loader(shuffle=True), ckpt_path=tmp_path / "c")
    assert_same(resumed, whole)


class Within(Callback):
    """Saves, or fails, within the step of a batch; without a hook it does neither."""

    def __init__(self, hook: str = "", at: int = 0, path: Path | None = None) -> None:
        self.at, self.now, self.path = at, -1, path
        if hook:
            setattr(self, hook, self.act)

    def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        self.now = batch_idx

    def act(self, trainer: Trainer, module: Any, *rest: Any) -> None:
        if self.now == self.at and trainer.current_epoch == 1:
            if self.path is None:
                raise RuntimeError("fails")
            trainer.save_checkpoint(self.path)

    def on_before_backward(self, trainer: Trainer, module: Any, loss: Any) -> None: ...

    def on_after_backward(self, trainer: Trainer, module: Any) -> None: ...

    def on_before_optimizer_step(self, trainer: Trainer, module: Any, optimizer: Any) -> None: ...


@pytest.mark.parametrize(
    ("hook", "at", "processes"),
    [
        ("on_before_backward", 4, 1),
        ("on_after_backward", 3, 1),
        ("on_after_backward", 4, 2),
        ("on_after_backward", 6, 1),
        ("on_before_optimizer_step", 5, 1),
    ],
)
def test_a_checkpoint_of_a_step_that_is_not_over(hook: str, at: int, processes: int, tmp_path: Path) -> None:
    """The resumed run counts each batch once: an accumulation that has a part of this step's gradients begins again."""

    def run(ckpt_path: Path | None, *callbacks: Any) -> Any:
        strategy = "ddp_fork" if processes > 1 else "auto"
        trainer = quiet(
            max_epochs=2, accumulate_grad_batches=3, callbacks=list(callbacks), enable_checkpointing=None,
            devices=processes, strategy=strategy,
        )  # fmt: skip
        module = Regression()
        module.network[2] = torch.nn.Identity()  # random numbers that a step has drawn are drawn again
        fails = any(isinstance(one, OnExceptionCheckpoint) for one in callbacks)
        with pytest.raises(Exception, match="fails") if fails else nullcontext():
            trainer.fit(module, loader(8 // processes, shuffle=True), ckpt_path=ckpt_path)
        return module

    seed_all(1)
    whole = run(None)
    cases: dict[str, list[Callback]] = {
        "saved.ckpt": [Within(hook, at, tmp_path / "saved.ckpt")],
        "on_exception.ckpt": [Within(hook, at), OnExceptionCheckpoint(tmp_path)],
    }
    for name, callbacks in cases.items():
        seed_all(1)
        run(None, *callbacks)
        assert_same(run(tmp_path / name, Within()), whole)


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_before_optimizer_step"])
def test_a_rest_of_an_accumulation_without_a_loss(hook: str, tmp_path: Path) -> None:
    """The optimizer steps with the gradients that the first run has accumulated; a hook makes it another code path."""

    class Skips(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if batch_idx in (2, 3) else super().training_step(batch, batch_idx)

    setattr(Skips, hook, lambda self, *args: None)
    whole, resumed = Skips(), Skips()
    quiet(max_epochs=1, accumulate_grad_batches=4, callbacks=SaveAt(tmp_path / "c", 2)).fit(whole, loader())
    quiet(max_epochs=1, accumulate_grad_batches=4).fit(resumed, loader(), ckpt_path=tmp_path / "c")
    assert_same(resumed, whole)
