"""Several loaders in training and evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from core import Callback, DataModule, Module, Trainer
from core.data import CombinedLoader
from core.errors import ConfigurationError

from .regression import Regression, assert_same, dataset, loader, quiet
from .test_resume import Drawing, seed_all, seeded_generator


def short() -> DataLoader[Any]:
    """Three batches."""
    return DataLoader(dataset(24), batch_size=8, shuffle=True)


class Both(Drawing):
    """Trains on batches of two loaders."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        parts = list(batch.values()) if isinstance(batch, dict) else batch
        self.seen: list[int] = [*getattr(self, "seen", []), sum(part is not None for part in parts)]
        losses = [nn.functional.mse_loss(self(part[0]), part[1]) for part in parts if part is not None]
        return torch.stack(losses).sum()


@pytest.mark.parametrize(
    ("mode", "seen"),
    [
        (None, [2] * 7),
        ("max_size_cycle", [2] * 7),
        ("max_size", [2] * 3 + [1] * 4),
        ("min_size", [2] * 3),
    ],
)
def test_training_on_a_dict(mode: Any, seen: list[int]) -> None:
    """Each batch is a dict; the shorter loader is repeated unless the mode says otherwise."""
    loaders: Any = {"one": loader(), "other": short()}
    module, trainer = Both(), quiet(max_epochs=1)
    trainer.fit(module, loaders if mode is None else CombinedLoader(loaders, mode))
    assert module.seen == seen
    assert trainer.global_step == len(seen)


@pytest.mark.parametrize("mode", ["max_size_cycle", "max_size", "sequential", None])
def test_each_order_is_that_of_plain_torch(mode: Any, tmp_path: Path) -> None:
    """Of a loader with its own generator, in each epoch, also if a limit has no effect, and after a resume."""

    def make() -> DataLoader[Any]:
        return DataLoader(dataset(24), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(3))

    def fit(**resume: Any) -> list[Any]:
        seen: list[Any] = []

        class Sees(Drawing):
            def training_step(self, batch: Any, batch_idx: int) -> Any:
                seen.append((batch["one"] if isinstance(batch, dict) else batch)[0])
                return self.network(seen[-1]).mean()

            def on_train_epoch_end(self) -> None:
                self.trainer.save_checkpoint(tmp_path / f"{self.current_epoch}")

        loaders = make() if mode is None else CombinedLoader({"one": make(), "other": loader(28)}, mode)
        quiet(max_epochs=3, limit_train_batches=1.0).fit(Sees(), loaders, **resume)
        if mode == "sequential":
            seen = [one for number, one in enumerate(seen) if number % 5 < 3]
        return seen

    plain = make()
    expected = [batch[0] for _ in range(3) for batch in plain]
    whole, resumed = fit(), fit(ckpt_path=tmp_path / "0")
    assert all(map(torch.equal, whole, expected))
    assert all(map(torch.equal, resumed, expected[3:]))
    assert (len(whole), len(resumed)) == (9, 6)


def test_training_on_a_list_is_the_loop_by_hand() -> None:
    """Bit for bit."""
    torch.manual_seed(1)
    expected = Regression()
    expected.network[2] = nn.Identity()
    optimizer = expected.configure_optimizers()
    for one, other in zip(loader(), [*loader(20), *loader(20), *loader(20)], strict=False):
        optimizer.zero_grad()
        (expected.loss(one) + expected.loss(other)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    class Sums(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch[0]) + self.loss(batch[1])

    torch.manual_seed(1)
    module = Sums()
    module.network[2] = nn.Identity()
    quiet(max_epochs=1).fit(module, [loader(), loader(20)])
    assert_same(module, expected)


def test_training_one_after_another() -> None:
    """Each batch is of one loader; limits are those of each loader, as in Lightning."""
    trainer = quiet(max_epochs=1)
    trainer.fit(Regression(), CombinedLoader([loader(), short()], "sequential"))
    assert trainer.global_step == 10
    trainer = quiet(max_epochs=1, limit_train_batches=2)
    trainer.fit(Regression(), CombinedLoader([loader(), short()], "sequential"))
    assert trainer.global_step == 4


@pytest.mark.parametrize("at", [2, 5, 8, 12])
@pytest.mark.parametrize("mode", ["min_size", "max_size_cycle", "max_size"])
def test_a_run_within_an_epoch_resumes_exactly(mode: Any, at: int, tmp_path: Path) -> None:
    """Bit for bit, wherever each loader is."""

    class Save(Callback):
        def __init__(self, active: bool) -> None:
            self.batches, self.active = 0, active

        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.batches += 1
            if self.batches == at and self.active:
                trainer.save_checkpoint(tmp_path / "c")

    def run(seed: int, path: Path | None) -> Any:
        seed_all(seed)
        module = Both()
        loaders = CombinedLoader({"one": loader(shuffle=True), "other": short()}, mode)
        trainer = quiet(max_epochs=5 if mode == "min_size" else 2, callbacks=Save(path is None))
        trainer.fit(module, loaders, loader(), ckpt_path=path)
        return module

    assert_same(run(1, None), run(2, tmp_path / "c"))


class Augmented(Dataset[Any]):
    """Items that are drawn."""

    def __init__(self, items: int) -> None:
        self.items = items

    def __len__(self) -> int:
        return self.items

    def __getitem__(self, index: int) -> Any:
        inputs = index + torch.rand(6)
        return inputs, inputs.sum().reshape(1)


@pytest.mark.parametrize("mode", [None, "min_size", "max_size_cycle", "max_size", "sequential"])
def test_a_run_that_resumes_after_an_epochs_last_batch_draws_as_before(mode: Any, tmp_path: Path) -> None:
    """What is drawn at the end of a pass comes first: for further batches or by a sampler, then by the validation."""

    class DrawsLast(RandomSampler):
        def __iter__(self) -> Iterator[int]:
            yield from super().__iter__()
            torch.rand(())

    class Save(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.run.given_ckpt_path is None and trainer.current_epoch == 0:
                trainer.save_checkpoint(tmp_path / "c")  # the last one stays

        def on_validation_end(self, trainer: Trainer, module: Any) -> None:
            measured.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    def run(seed: int, path: Path | None) -> Any:
        seed_all(seed)
        data, other = Augmented(20), DataLoader(Augmented(10), batch_size=4, shuffle=True)
        first = DataLoader(data, batch_size=4, sampler=DrawsLast(data))
        loaders = first if mode is None else CombinedLoader({"one": first, "other": other}, mode)
        module = Both() if mode not in (None, "sequential") else Drawing()
        quiet(max_epochs=2, callbacks=Save(), num_sanity_val_steps=0).fit(module, loaders, other, ckpt_path=path)
        return module

    measured: list[dict[str, float]] = []
    expected = run(1, None)
    assert_same(run(2, tmp_path / "c"), expected)
    assert measured[0]
    assert measured[:2] == measured[2:]


@pytest.mark.parametrize("mode", ["own generator", None, "min_size", "max_size_cycle", "max_size", "sequential"])
def test_a_checkpoint_before_a_batch_has_all_that_was_not_trained_on(mode: Any, tmp_path: Path) -> None:
    """Bit for bit, also before the first batch of an epoch; of one loader or of several."""

    class Save(Callback):
        batches = 0

        def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int) -> None:
            self.batches += 1
            if trainer.run.given_ckpt_path is None:
                trainer.save_checkpoint(tmp_path / str(self.batches))

    def run(seed: int, path: Path | None) -> tuple[Any, int]:
        seed_all(seed)
        several = mode not in (None, "own generator")
        first, saver = loader(shuffle=True, generator=seeded_generator() if mode == "own generator" else None), Save()
        module = Both() if several and mode != "sequential" else Drawing()
        loaders = CombinedLoader({"one": first, "other": short()}, mode) if several else first
        quiet(max_epochs=2, callbacks=saver).fit(module, loaders, ckpt_path=path)
        return module, saver.batches

    expected, batches = run(1, None)
    for at in (1, 2, batches // 2 + 1, batches):
        found, trained = run(2, tmp_path / str(at))
        assert trained == batches - at + 1, at
        assert_same(found, expected)


class Several(Regression):
    """Takes the number of the loader, and notes what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int, int]] = []

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.calls.append(("step", batch_idx, dataloader_idx))
        self.log("error", self.loss(batch))

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return len(batch[0]), dataloader_idx

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.calls.append(("hook", batch_idx, dataloader_idx))

    def on_validation_epoch_end(self) -> None:
        self.log("overall", 1.0)

    test_step = validation_step


@pytest.mark.parametrize("kind", ["list", "dict", "combined", "datamodule"])
@pytest.mark.parametrize("stage", ["validate", "test"])
def test_evaluating_several_loaders(stage: str, kind: str) -> None:
    """One after another; the step and hooks get the loader's number, the metrics have it in their names."""
    one, other = loader(25), DataLoader(dataset(10), batch_size=10)

    class Data(DataModule):
        def val_dataloader(self) -> Any:
            return [one, other]

        test_dataloader = val_dataloader

    given: Any = {
        "list": [one, other],
        "dict": {"one": one, "other": other},
        "combined": CombinedLoader([one, other], "sequential"),
        "datamodule": Data(),
    }[kind]
    module, trainer = Several(), quiet()
    found = getattr(trainer, stage)(module, given)
    if stage == "validate":
        places = [(0, 0), (1, 0), (0, 1)]
        assert module.calls == [(name, *place) for place in places for name in ("step", "hook")]
    more = {"overall": 1.0} if stage == "validate" else {}
    errors = [quiet().validate(module, part)[0]["error"] for part in (one, other)]
    assert found == [
        {f"error/dataloader_idx_{number}": pytest.approx(error), **more} for number, error in enumerate(errors)
    ]
    assert set(trainer.callback_metrics) == {"error/dataloader_idx_0", "error/dataloader_idx_1", *more}


def test_limits_are_those_of_each_loader() -> None:
    """And so are the numbers of batches that a hook sees."""
    seen: list[Any] = []

    class Looks(Callback):
        def on_validation_start(self, trainer: Trainer, module: Any) -> None:
            seen.append((trainer.num_val_batches, trainer.num_sanity_val_batches, len(trainer.val_dataloaders)))

    module = Several()
    trainer = quiet(max_epochs=1, limit_val_batches=2, num_sanity_val_steps=1, callbacks=Looks())
    trainer.fit(module, loader(), [loader(), DataLoader(dataset(5), batch_size=5)])
    assert seen == [([2, 1], [1, 1], 2), ([2, 1], [1, 1], 2)]
    counts: Any = trainer.num_training_batches, trainer.num_val_batches, trainer.num_sanity_val_batches
    assert counts == (len(loader()), [2, 1], [1, 1])  # they stay after the fit
    steps = [call[1:] for call in module.calls if call[0] == "step"]
    assert steps == [(0, 0), (0, 1), (0, 0), (1, 0), (0, 1)]


def test_evaluating_batches_of_several_loaders_together() -> None:
    """With another mode than sequential, a batch has one of each and there is one dict of metrics."""

    class Together(Regression):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("items", float(sum(len(part[0]) for part in batch)), reduce_fx="sum")

    found = quiet().validate(Together(), CombinedLoader([loader(), short()], "min_size"))
    assert found == [{"items": 48.0}]


@pytest.mark.parametrize("mode", ["max_size_cycle", "max_size"])
def test_a_resumed_run_validates_every_batch(mode: Any, tmp_path: Path) -> None:
    """A loader that has ended in the sanity check begins again, after resuming too."""

    class Together(Regression):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("items", float(sum(len(part[0]) for part in batch if part is not None)), reduce_fx="sum")

    class Save(Callback):
        def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1 and not (tmp_path / "c").exists():
                trainer.save_checkpoint(tmp_path / "c")

    for path in (None, tmp_path / "c"):
        order = DataLoader(dataset(8), batch_size=8, shuffle=True)
        trainer = quiet(max_epochs=1, callbacks=Save(), num_sanity_val_steps=2)
        trainer.fit(Together(), loader(), CombinedLoader([loader(), order], mode), ckpt_path=path)
        assert trainer.callback_metrics["items"] == len(dataset()) + 8 * (1 if mode == "max_size" else len(loader()))


def test_predictions_of_several_loaders() -> None:
    """A list for each; nothing is kept if they are not asked for."""
    module, loaders = Several(), [loader(25), DataLoader(dataset(10), batch_size=10)]
    assert quiet().predict(module, loaders) == [[(25, 0), (25, 0)], [(10, 1)]]
    assert quiet().predict(module, loaders[0]) == [(25, 0), (25, 0)]
    assert quiet().predict(module, loaders, return_predictions=False) is None


def test_the_default_prediction_of_several_loaders() -> None:
    """``predict_step`` calls the module with the batches of each."""

    class Doubles(Regression):
        predict_step = Module.predict_step

        def forward(self, batch: Any) -> Any:
            return 2 * batch[0]

    rows = [torch.arange(6.0), torch.ones(6)]
    predicted = quiet().predict(Doubles(), [DataLoader(TensorDataset(row.view(1, 6))) for row in rows])
    found = [[batch.flatten().tolist() for batch in of_loader] for of_loader in predicted]
    assert found == [[(2 * row).tolist()] for row in rows]


@pytest.mark.parametrize("form", ["all", "third"])
def test_a_step_that_takes_the_loaders_number_by_position(form: str) -> None:
    """A step that takes ``*args``, or calls the parameter something else."""

    class All(Regression):
        def validation_step(self, *args: Any) -> None:
            seen.append((len(args), args[-1]))

    class Third(Regression):
        def validation_step(self, batch: Any, batch_idx: int, number: int) -> None:  # type: ignore[override]
            seen.append((3, number))

    seen: list[tuple[int, int]] = []
    quiet().validate(All() if form == "all" else Third(), [loader(25), loader(50)])
    assert seen == [(3, 0), (3, 0), (3, 1)]


def test_a_step_that_does_not_take_the_loaders_number() -> None:
    """An error that says how to define it."""
    with pytest.raises(ConfigurationError, match=r"validation_step\(self, batch, batch_idx, dataloader_idx=0\)"):
        quiet().validate(Regression(), [loader(), loader()])


def test_one_empty_loader_of_several() -> None:
    """The error says which."""
    empty = DataLoader(TensorDataset(torch.ones(2, 6)), batch_size=8, drop_last=True)
    with pytest.raises(ConfigurationError, match="the validation loader 1 is empty"):
        quiet().validate(Several(), [loader(), empty])


def test_names_of_steps_and_epochs() -> None:
    """The loader's number comes last, unless the name is to have none."""

    class Names(Several):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            self.log("both", float(dataloader_idx), on_step=True, on_epoch=True)
            self.log(f"own{dataloader_idx}", 1.0, add_dataloader_idx=False)

    trainer = quiet()
    first, second = trainer.validate(Names(), [loader(), loader()])
    for number, found in enumerate((first, second)):
        assert found == {f"both_epoch/dataloader_idx_{number}": number, f"own{number}": 1, "overall": 1}
    names = {f"both{suffix}/dataloader_idx_{number}" for suffix in ("", "_step", "_epoch") for number in (0, 1)}
    assert names <= set(trainer.callback_metrics)
