"""A new Trainer in the same process, resumed after epoch 2 of 4, ends bit for bit as the uninterrupted run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator
from torch.optim import lr_scheduler
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

from core import Callback, Trainer
from core.callbacks import ModelCheckpoint
from core.errors import CheckpointError

from .regression import ITEMS, Regression, assert_same, dataset, loader, quiet


class Drawing(Regression):
    """Draws from every generator there is, so that one that is not restored shows in the parameters."""

    make_scheduler: Callable[[Any], Any] = staticmethod(lambda optimizer: lr_scheduler.StepLR(optimizer, 1, 0.7))
    interval = "epoch"

    def on_fit_start(self) -> None:
        random.random(), np.random.rand(), torch.rand(())

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, targets = batch
        noise = random.random() + float(np.random.rand()) + torch.rand(())
        return self.loss((inputs + noise / 10, targets))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        described = {"scheduler": type(self).make_scheduler(optimizer), "interval": self.interval}
        return {"optimizer": optimizer, "lr_scheduler": described}


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Stateful(Callback):
    """Sums up losses over the whole run."""

    def __init__(self) -> None:
        self.total = 0.0

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.total += float(outputs)

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


def run(
    directory: Path,
    epochs: int,
    seed: int,
    module_class: type[Regression],
    make_loaders: Callable[[], tuple[Any, Any]],
    ckpt_path: str | None = None,
    **settings: Any,
) -> tuple[Regression, list[Stateful], Trainer]:
    seed_all(seed)
    module = module_class()
    callbacks = [Stateful(), Stateful()]
    trainer = quiet(
        max_epochs=epochs, default_root_dir=directory, enable_checkpointing=True, callbacks=callbacks, **settings
    )
    trainer.fit(module, *make_loaders(), ckpt_path=ckpt_path)
    return module, callbacks, trainer


def assert_resumes(
    tmp_path: Path,
    make_loaders: Callable[[], tuple[Any, Any]],
    module_class: type[Regression] = Drawing,
    after: int = 2,
    **settings: Any,
) -> None:
    """Four epochs at once are two and two, or as many before and the rest."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected, totals, trainer = run(whole, 4, 0, module_class, make_loaders, **settings)
    drawn = random.random(), np.random.rand(), torch.rand(())
    run(broken, after, 0, module_class, make_loaders, **settings)
    module, resumed_totals, resumed = run(broken, 4, 99, module_class, make_loaders, "last", **settings)
    assert_same(module, expected)
    assert drawn == (random.random(), np.random.rand(), torch.rand(()))
    assert [callback.total for callback in resumed_totals] == [callback.total for callback in totals]
    assert (resumed.current_epoch, resumed.global_step) == (trainer.current_epoch, trainer.global_step)
    metrics, expected_metrics = resumed.callback_metrics, trainer.callback_metrics
    assert metrics.keys() == expected_metrics.keys() != set()
    assert all(torch.equal(metrics[name], value) for name, value in expected_metrics.items())
    assert isinstance(resumed.checkpoint_callback, ModelCheckpoint)
    assert isinstance(trainer.checkpoint_callback, ModelCheckpoint)
    assert (
        Path(resumed.checkpoint_callback.best_model_path).name == Path(trainer.checkpoint_callback.best_model_path).name
    )


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-true", "16-mixed", "bf16-mixed"])
def test_every_precision(precision: str, tmp_path: Path) -> None:
    """Optimizer, scheduler, loss scale and the generators of python, numpy and torch are restored."""
    assert_resumes(tmp_path, lambda: (loader(shuffle=True), loader(shuffle=True)), precision=precision)


class MomentsInAnotherDtype(torch.optim.Optimizer):
    """Keeps its moments in float32, of parameters in bfloat16, or the other way around; and counts in integers."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for parameter in self.param_groups[0]["params"]:
            other = torch.bfloat16 if parameter.dtype is torch.float32 else torch.float32
            state = self.state[parameter]
            state.setdefault("moment", torch.zeros_like(parameter, dtype=other))
            state.setdefault("counts", [torch.zeros_like(parameter, dtype=torch.int64)])[0].add_(1)
            assert (state["moment"].dtype, state["counts"][0].dtype) == (other, torch.int64)
            state["moment"].mul_(0.9).add_(parameter.grad.to(other))
            parameter.sub_((0.01 * state["moment"].double() / state["counts"][0]).to(parameter.dtype))
        return loss


class Narrowed(Drawing):
    """Steps by such an optimizer."""

    def configure_optimizers(self) -> Any:
        return MomentsInAnotherDtype(self.parameters())


@pytest.mark.parametrize("precision", ["32-true", "bf16-true", "bf16-mixed"])
def test_the_dtypes_of_the_optimizers_state(precision: str, tmp_path: Path) -> None:
    """State keeps its dtypes; torch alone would give it those of the parameters, and round it."""
    assert_resumes(tmp_path, lambda: (loader(shuffle=True), loader()), Narrowed, precision=precision)


class Overflowing(Drawing):
    """Its loss overflows float16's range in epoch 1, so that the scale is another one by the checkpoint."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss * 1e6 if self.current_epoch == 1 and batch_idx % 2 else loss


def test_the_loss_scale(tmp_path: Path) -> None:
    """The scale that some overflows have brought down is the resumed run's as well."""
    assert_resumes(tmp_path, lambda: (loader(), loader()), Overflowing, precision="16-mixed")


@pytest.mark.parametrize(
    "settings", [{"accumulate_grad_batches": 3}, {"gradient_clip_val": 0.5}, {"limit_train_batches": 4}]
)
def test_settings(settings: dict[str, Any], tmp_path: Path) -> None:
    """Whatever else a step does."""
    assert_resumes(tmp_path, lambda: (loader(shuffle=True), loader()), **settings)


SCHEDULERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "one cycle by step": (lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=28), "step"),
    "cosine": (lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 4), "epoch"),
    "lambda": (lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch), "epoch"),
    "sequence": (
        lambda optimizer: lr_scheduler.SequentialLR(
            optimizer,
            [lr_scheduler.LinearLR(optimizer, 0.1), lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5)],
            milestones=[10],
        ),
        "step",
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name: str, tmp_path: Path) -> None:
    """The schedulers that torch has, by step and by epoch."""
    make, interval = SCHEDULERS[name]
    scheduled = type("Scheduled", (Drawing,), {"make_scheduler": staticmethod(make), "interval": interval})
    assert_resumes(tmp_path, lambda: (loader(), loader()), scheduled)


class Noisy(Dataset[Any]):
    """Draws for each item, in whichever process reads it."""

    def __init__(self, generator: Generator | None = None) -> None:
        self.rows, self.generator = dataset(), generator

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Any:
        inputs, targets = self.rows[index]
        return inputs + torch.rand((), generator=self.generator) / 10, targets


class Rows(IterableDataset[Any]):
    """The rows, as a stream."""

    def __iter__(self) -> Iterator[Any]:
        return iter(dataset())


def seeded_generator() -> Generator:
    return Generator().manual_seed(5)


def weighted(generator: Generator | None = None) -> WeightedRandomSampler:
    return WeightedRandomSampler(torch.arange(1.0, ITEMS + 1).tolist(), 40, generator=generator)


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffled by the global generator": lambda: loader(shuffle=True),
    "shuffled by its own": lambda: loader(shuffle=True, generator=seeded_generator()),
    "a sampler with its own": lambda: loader(sampler=weighted(seeded_generator())),
    "a sampler without": lambda: loader(sampler=weighted()),
    "a batch sampler over one with its own": lambda: DataLoader(
        dataset(), batch_sampler=BatchSampler(RandomSampler(range(ITEMS), generator=seeded_generator()), 8, False)
    ),
    "a data set that draws": lambda: DataLoader(Noisy(), batch_size=8, shuffle=True),
    "a data set with its own": lambda: DataLoader(Noisy(seeded_generator()), batch_size=8, shuffle=True),
}


@pytest.mark.parametrize("name", LOADERS)
def test_loaders(name: str, tmp_path: Path) -> None:
    """The order of the items, and what the data set draws for them, go on where they were, in both loaders."""
    assert_resumes(tmp_path, lambda: (LOADERS[name](), LOADERS[name]()))


@pytest.mark.parametrize("persistent", [False, True])
def test_loaders_with_workers(persistent: bool, tmp_path: Path) -> None:
    """With worker processes that live for an epoch, or for the run."""

    def make() -> tuple[Any, Any]:
        data: Any = dataset() if persistent else Noisy()
        return DataLoader(data, 8, shuffle=True, num_workers=1, persistent_workers=persistent), loader()

    assert_resumes(tmp_path, make)


@pytest.mark.parametrize("kind", ["shuffled", "own generator", "stream"])
def test_workers_that_live_on_after_a_pass_that_was_cut(kind: str, tmp_path: Path) -> None:
    """With ``limit_train_batches`` an epoch ends within a pass; the next one's workers do not draw their seed again."""

    def make() -> tuple[Any, Any]:
        workers: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}
        if kind == "stream":
            return DataLoader(Rows(), 8, **workers), loader()
        generator = seeded_generator() if kind == "own generator" else None
        return DataLoader(dataset(), 8, shuffle=True, generator=generator, **workers), loader()

    assert_resumes(tmp_path, make, after=1, limit_train_batches=2)


def test_a_fit_without_validation(tmp_path: Path) -> None:
    """Metrics of training are restored by being logged again."""

    class Logged(Drawing):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss, on_epoch=True)
            return loss

    assert_resumes(tmp_path, lambda: (loader(shuffle=True), None), Logged)


def test_what_the_module_adds(tmp_path: Path) -> None:
    """on_save_checkpoint puts into the checkpoint what on_load_checkpoint takes from it."""

    class Adding(Regression):
        def __init__(self) -> None:
            super().__init__()
            self.seen = 0

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.seen += len(batch[0])

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["seen"] = self.seen

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.seen = checkpoint["seen"]

    quiet(max_epochs=2, default_root_dir=tmp_path, enable_checkpointing=True).fit(Adding(), loader())
    module = Adding()
    quiet(max_epochs=3, default_root_dir=tmp_path).fit(module, loader(), ckpt_path="last")
    assert module.seen == 3 * ITEMS


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict", "load_from_checkpoint"])
def test_what_the_module_changes_is_loaded(stage: str, tmp_path: Path) -> None:
    """on_load_checkpoint may rename parameters before they are loaded, as for a checkpoint of an older version."""

    class Renamed(Regression):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.net = None, self.network  # type: ignore[assignment]

        def forward(self, inputs: Any) -> Any:
            return self.net(inputs)

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            state = checkpoint["state_dict"]
            checkpoint["state_dict"] = {name.replace("network", "net"): value for name, value in state.items()}

    trained, trainer = Regression(), quiet(max_epochs=1)
    trainer.fit(trained, loader())
    trainer.save_checkpoint(tmp_path / "c")
    module: Any = Renamed()
    if stage == "load_from_checkpoint":
        module = Renamed.load_from_checkpoint(tmp_path / "c")
    else:
        getattr(quiet(max_epochs=1), stage)(module, loader(), ckpt_path=tmp_path / "c")
    assert_same(module.net, trained.network)


def test_resuming_a_run_that_is_over(tmp_path: Path) -> None:
    """Nothing is trained; module, epoch and step are the checkpoint's."""
    expected = Regression()
    quiet(max_epochs=2, default_root_dir=tmp_path, enable_checkpointing=True).fit(expected, loader())
    module, trainer = Regression(), quiet(max_epochs=2, default_root_dir=tmp_path)
    trainer.fit(module, loader(), ckpt_path="last")
    assert_same(module, expected)
    assert (trainer.current_epoch, trainer.global_step) == (2, 14)


def test_a_second_fit_may_resume(tmp_path: Path) -> None:
    """The same trainer, module and loaders, told to go on: four epochs at once are two and two."""
    seed_all(0)
    expected = Drawing()
    quiet(max_epochs=4).fit(expected, loader(shuffle=True))
    seed_all(0)
    module, trainer = Drawing(), quiet(max_epochs=2, default_root_dir=tmp_path, enable_checkpointing=True)
    train = loader(shuffle=True)
    trainer.fit(module, train)
    trainer.max_epochs = 4
    trainer.fit(module, train, ckpt_path="last")
    assert_same(module, expected)


class Unfreezes(Regression):
    """Gives the optimizer a second parameter group in epoch 1."""

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.network[0].parameters(), lr=0.05)

    def on_train_epoch_start(self) -> None:
        if self.trainer.current_epoch == 1:
            self.unfreeze()

    def unfreeze(self) -> None:
        optimizer: Any = self.optimizers()
        optimizer.add_param_group({"params": list(self.network[3].parameters()), "lr": 0.01})


class UnfreezesBefore(Unfreezes):
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.unfreeze()


def test_parameter_groups_that_the_run_has_added(tmp_path: Path) -> None:
    """An error says where to add them before they are loaded; then the run goes on as if it had not ended."""

    def fit(kind: type[Unfreezes], epochs: int, path: Any = None) -> Unfreezes:
        seed_all(1)
        module, trainer = kind(), quiet(max_epochs=epochs)
        trainer.fit(module, loader(), ckpt_path=path)
        if epochs == 2:
            trainer.save_checkpoint(tmp_path / "c.ckpt")
        return module

    whole, _ = fit(Unfreezes, 4), fit(Unfreezes, 2)
    with pytest.raises(
        CheckpointError, match=r"1 parameter group.*saved with 2.*add_param_group in on_load_checkpoint"
    ):
        fit(Unfreezes, 4, tmp_path / "c.ckpt")
    assert_same(fit(UnfreezesBefore, 4, tmp_path / "c.ckpt"), whole)


class Optimized(Regression):
    kind: Any = torch.optim.SGD
    knows_class = True

    def configure_optimizers(self) -> Any:
        return self.kind(self.parameters(), lr=0.01)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if not self.knows_class:
            del checkpoint["optimizer_classes"]


@pytest.mark.parametrize(("saved", "kind"), [("SGD", "Adam"), ("SGD", "LBFGS"), ("Adam", "Adamax"), ("Adam", "AdamW")])
def test_an_optimizer_of_another_kind(saved: str, kind: str, tmp_path: Path) -> None:
    """An error when it is loaded, not in its first step or never; the same kind is no error."""

    def module(name: str, knows_class: bool = True) -> Any:
        return type("Module", (Optimized,), {"kind": getattr(torch.optim, name), "knows_class": knows_class})()

    for name in (saved, kind):
        trainer = quiet(max_epochs=1)
        trainer.fit(module(name), loader())
        trainer.save_checkpoint(tmp_path / f"{name}.ckpt")
    with pytest.raises(CheckpointError, match=f"{kind} is not the optimizer that was saved, which is {saved}: .*alone"):
        quiet(max_epochs=2).fit(module(kind), loader(), ckpt_path=tmp_path / f"{saved}.ckpt")
    quiet(max_epochs=2).fit(module(kind), loader(), ckpt_path=tmp_path / f"{kind}.ckpt")
    # One that does not know it, as Lightning's. AdamW takes Adam's state.
    if kind != "AdamW":
        with pytest.raises(CheckpointError, match=f"{kind} (needs '.*', which|is not) the optimizer that was saved"):
            quiet(max_epochs=2).fit(module(kind, False), loader(), ckpt_path=tmp_path / f"{saved}.ckpt")
    quiet(max_epochs=2).fit(module(kind, False), loader(), ckpt_path=tmp_path / f"{kind}.ckpt")
