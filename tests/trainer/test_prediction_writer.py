"""BasePredictionWriter on one process; on several: ``tests/distributed/test_prediction_writer.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

from core import Module
from core.callbacks import BasePredictionWriter
from core.data import CombinedLoader
from core.errors import ConfigurationError

from .regression import quiet


class Same(Module):
    """Its prediction is the batch."""

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        return batch


class Notes(BasePredictionWriter):
    """Notes what it should write."""

    def __init__(self, write_interval: str) -> None:
        super().__init__(write_interval)
        self.batches: list[Any] = []
        self.epochs: list[Any] = []

    def write_on_batch_end(
        self, trainer: Any, module: Any, prediction: Any, batch_indices: Any, *of_batch: Any
    ) -> None:
        batch, batch_idx, dataloader_idx = of_batch
        assert prediction is batch
        self.batches.append((listed(batch), batch_indices, batch_idx, dataloader_idx))

    def write_on_epoch_end(self, trainer: Any, module: Any, predictions: Any, batch_indices: Any) -> None:
        self.epochs.append(([listed(batch) for batch in predictions], batch_indices))


def listed(batch: Any) -> Any:
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


class Numbers(IterableDataset[int]):
    """A stream."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


ITEMS: Dataset[Any] = range(7)  # type: ignore[assignment]  # each item is its own index
IN_ORDER = [[0, 1, 2], [3, 4, 5], [6]]
LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "in order": lambda: DataLoader(ITEMS, batch_size=3),
    "shuffled": lambda: DataLoader(ITEMS, batch_size=3, shuffle=True),
    "own batches": lambda: DataLoader(ITEMS, batch_sampler=BatchSampler(RandomSampler(range(7)), 3, drop_last=False)),
    "workers": lambda: DataLoader(ITEMS, batch_size=3, shuffle=True, num_workers=1),
    "without batches": lambda: DataLoader(ITEMS, batch_size=None, shuffle=True),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_the_indices_are_those_of_the_items(kind: str) -> None:
    """In each call, and for the whole epoch; the order of the items is the one without a writer."""
    notes = Notes("batch_and_epoch")
    torch.manual_seed(5)
    without: Any = quiet().predict(Same(), LOADERS[kind]())
    torch.manual_seed(5)
    predicted = quiet(callbacks=notes).predict(Same(), LOADERS[kind]())
    expected = [listed(batch) for batch in predicted]
    assert expected == [listed(batch) for batch in without]
    as_lists = expected if kind != "without batches" else [[item] for item in expected]
    assert [entry[:2] for entry in notes.batches] == list(zip(expected, as_lists, strict=True))
    assert [entry[2:] for entry in notes.batches] == [(number, 0) for number in range(len(expected))]
    assert notes.epochs == [(expected, [as_lists])]


@pytest.mark.parametrize("interval", ["batch", "epoch"])
def test_one_interval(interval: str) -> None:
    """Calls one of the two methods; nothing is returned where nothing is asked for."""
    notes = Notes(interval)
    trainer = quiet(callbacks=notes, limit_predict_batches=2)
    assert trainer.predict(Same(), LOADERS["in order"](), return_predictions=False) is None
    assert len(notes.batches) == (2 if interval == "batch" else 0)
    assert notes.epochs == ([] if interval == "batch" else [(IN_ORDER[:2], [IN_ORDER[:2]])])


@pytest.mark.parametrize("interval", ["batch", "epoch"])
@pytest.mark.parametrize("loader", [DataLoader(Numbers(), batch_size=3), [torch.tensor(part) for part in IN_ORDER]])
def test_data_without_indices(interval: str, loader: Any, caplog: pytest.LogCaptureFixture) -> None:
    """``None`` for each batch, and one warning."""
    notes = Notes(interval)
    quiet(callbacks=notes).predict(Same(), loader, return_predictions=False)
    if interval == "batch":
        assert [entry[:2] for entry in notes.batches] == [(batch, None) for batch in IN_ORDER]
    else:
        assert notes.epochs == [(IN_ORDER, [[None] * 3])]
    assert [record.message.partition(",")[0] for record in caplog.records] == ["Notes: batch_indices is None"]


def test_combined_batches_have_no_indices() -> None:
    """A batch that is put together from several loaders."""

    class Pairs(Notes):
        def write_on_batch_end(self, *args: Any) -> None:
            self.batches.append(args[3])

    notes = Pairs("batch")
    both = CombinedLoader({"a": LOADERS["in order"](), "b": LOADERS["in order"]()}, "min_size")
    quiet(callbacks=notes).predict(Same(), both, return_predictions=False)
    assert notes.batches == [None] * 3


def test_what_would_write_nothing() -> None:
    """An unknown interval, or one whose method is not defined."""
    with pytest.raises(ConfigurationError, match=r"write_interval='never': unknown\. Valid: 'batch', 'epoch'"):
        Notes("never")

    class OfBatches(BasePredictionWriter):
        def write_on_batch_end(self, *args: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=r"OfBatches.*write_on_epoch_end is not defined"):
        quiet(callbacks=OfBatches("batch_and_epoch")).predict(Same(), LOADERS["in order"]())
    quiet(callbacks=OfBatches("epoch"))  # other stages write nothing anyway
