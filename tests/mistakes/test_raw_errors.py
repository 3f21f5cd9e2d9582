"""What torch and Python say of a mistake in a step or in the data is followed by what to do."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from core import Runtime

from .cases import Net, loader, runtime, trainer

STEPS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "batch not unpacked": (lambda batch: nn.Linear(3, 1)(batch), "inputs, targets = batch"),
    "moved to a GPU": (lambda batch: batch[0].cuda(), "Remove .cuda()"),
    "tensor on another device": (lambda batch: nn.Linear(3, 1)(batch[0].to("meta")), "device=self.device"),
    "method of a tensor on an array": (lambda batch: batch[0].numpy().float(), "use torch.from_numpy"),
    "float class indices": (lambda batch: functional.cross_entropy(batch[0], batch[1][:, 0]), ".long()"),
    "integer values": (
        lambda batch: functional.binary_cross_entropy_with_logits(batch[1], batch[1].long()),
        "values are .float()",
    ),
    "class index too large": (
        lambda batch: functional.cross_entropy(batch[0], torch.full((4,), 3)),
        "the number of classes",
    ),
    "float64 input": (lambda batch: nn.Linear(3, 1)(batch[0].double()), ".float()"),
    "float64 input of a convolution": (lambda batch: nn.Conv1d(1, 1, 1)(batch[1][:, None].double()), ".float()"),
    "float index": (lambda batch: nn.Embedding(2, 1)(batch[0]), "convert them with .long()"),
    "index too large": (lambda batch: nn.Embedding(2, 1)(torch.tensor([2])), "num_embeddings"),
    "input of another size": (lambda batch: nn.Linear(4, 1)(batch[0]), "in_features"),
}
"""By mistake: what a step does with a batch of a (4, 3) and a (4, 1) tensor, and what to do instead."""


def notes(make: Callable[[], Any]) -> str:
    """The notes of the error that ``make`` raises."""
    with pytest.raises(Exception) as caught:
        make()
    return "\n".join(getattr(caught.value, "__notes__", ()))


@pytest.mark.parametrize("mistake", STEPS)
def test_mistake_in_a_step(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's error stays, and says in addition what the step got and what to do."""
    use, remedy = STEPS[mistake]
    module = Net()
    monkeypatch.setattr(module, "training_step", lambda batch, batch_idx: use(batch))
    noted = notes(lambda: trainer().fit(module, loader()))
    assert noted.startswith("training_step got batch_idx=0, batch[0]: (4, 3) float32, batch[1]: (4, 1) float32.\n")
    assert remedy in noted


def test_arrays_as_batches() -> None:
    """A list of NumPy arrays is a loader whose batches torch does not convert."""
    noted = notes(lambda: trainer().fit(Net(), [(np.ones((2, 3), "float32"), np.ones((2, 1), "float32"))]))
    assert noted.startswith("training_step got batch_idx=0, batch[0]: ndarray, batch[1]: ndarray.\n")
    assert "use torch.from_numpy" in noted


def test_a_large_batch_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch with many parts, the first six are described."""
    module = Net()
    monkeypatch.setattr(module, "training_step", lambda batch, batch_idx: batch["unknown"])
    noted = notes(lambda: trainer().fit(module, [{f"part{number}": torch.ones(2) for number in range(9)}]))
    assert noted.count("(2,) float32") == 6
    assert noted.endswith("batch['part5']: (2,) float32, ….")


def read(data: Any, **options: Any) -> None:
    run: Runtime = runtime()
    try:
        list(run.prepare(DataLoader(data, batch_size=2, **options)))
    finally:
        run.teardown()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_mistake_in_the_data(num_workers: int) -> None:
    """Items that cannot be put in a batch, in this process and in workers."""
    sizes = [torch.ones(size + 1) for size in range(4)]
    assert "pad_sequence" in notes(lambda: read(sizes, num_workers=num_workers))
    assert "pad_sequence" in notes(lambda: read([[1], [1, 2]], num_workers=num_workers))
    assert "pass a collate_fn" in notes(lambda: read([None, None], num_workers=num_workers))


def test_other_errors_get_no_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the user's own says what the step got, and nothing else; one of torch-hal nothing at all."""
    module = Net()
    monkeypatch.setattr(module, "training_step", lambda batch, batch_idx: pickle.loads(b""))
    assert notes(lambda: trainer().fit(module, loader())).count("\n") == 0
    monkeypatch.setattr(module, "training_step", lambda batch, batch_idx: 3.0)
    assert not notes(lambda: trainer().fit(module, loader()))
