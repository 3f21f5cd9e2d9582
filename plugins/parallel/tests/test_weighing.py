"""A loss that is no mean of its microbatches' losses is an error or a warning, and never a silently wrong result."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import pytest
import torch
from torch import nn
from torch_hal_parallel.unchanged import unchanged

from .conftest import run_script

SCHEDULES = [
    "1F1B",
    pytest.param("GPipe", marks=pytest.mark.slow),
    pytest.param("ZBVZeroBubble", marks=pytest.mark.exhaustive),
]


@pytest.fixture(scope="module", params=SCHEDULES)
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two processes said of each loss."""
    return run_script(tmp_path_factory.mktemp("weighed"), "weights.py", request.param)


@pytest.mark.parametrize("loss", ["sum", "constant"])
def test_a_sum_is_refused(said: dict[str, Any], loss: str) -> None:
    """In every process, also one divided by a number that is not that of the items; the message says what to use."""
    found = said[loss]
    assert found["same"]
    assert "loss_fn: its loss is a sum over items: " in found["found"]
    assert "divided by microbatches=4. Use reduction='mean', or divide by the number of items" in found["found"]
    assert "training_step: its loss is a sum over items" in said["fit sum"][0]


def test_unequal_weights_are_a_warning(said: dict[str, Any]) -> None:
    """Once, and with values; the loss is that of one process as README says, and without a warning."""
    found = said["ignored"]
    (warned,) = found["warned"]
    assert warned.startswith("loss_fn: its loss is ")
    assert "With ignore_index, a mask or weights of classes" in warned
    assert found["found"][0] != pytest.approx(found["whole"], rel=1e-4)
    (warned,) = said["fit ignored"][1]
    assert warned.startswith("training_step: its loss is ")
    shared = said["shared"]
    assert shared["found"] == pytest.approx([shared["whole"]] * 2, rel=1e-6)
    assert not shared["warned"]


def test_a_mean_says_nothing(said: dict[str, Any]) -> None:
    """Its value is that of one process."""
    found = said["mean"]
    assert found["found"] == pytest.approx([found["whole"]] * 2, rel=1e-6)
    assert not found["warned"]
    assert said["fit mean"] == [None, []]


@pytest.mark.parametrize(
    ("loss", "why"), [("random", "it draws random numbers after the call"), ("raises", "it raises ValueError with two")]
)
def test_what_cannot_be_compared_is_said(said: dict[str, Any], loss: str, why: str) -> None:
    """Training goes on."""
    (warned,) = said[loss]["warned"]
    assert f"loss_fn: {why}" in warned
    assert said[loss]["same"]


def test_the_comparison_leaves_no_trace(said: dict[str, Any]) -> None:
    """A Module counts, collects and adds up each microbatch of two batches once, in the process that runs them."""
    assert said["counts"] == [[0, 0, 0.0], [8, 16, 16.0]]


class Holder(nn.Module):
    """Has state of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.number, self.added, self.rebound = 1, torch.zeros(2), torch.zeros(2)
        inner = [2]
        self.inner, self.listed, self.named, self.counted = inner, [1, inner], {"a": torch.zeros(1)}, Counter("ab")
        self.set, self.last = {1}, deque([1, 2], maxlen=2)
        self.layer = nn.BatchNorm1d(2)

    def change(self) -> None:
        self.number += 1
        self.added += 1
        self.rebound = torch.ones(2)
        self.inner.append(3)
        self.listed.append(4)
        self.named["a"] += 1
        self.named["b"] = torch.ones(1)
        self.counted.update("b")
        self.set.add(2)
        self.last.append(3)
        self.new = True
        self.layer(torch.rand(3, 2))


def test_state_is_as_before() -> None:
    """Objects stay the same, and have their values again, also after an error."""
    holder = Holder()
    added, listed, rebound = holder.added, holder.listed, holder.rebound

    def fail() -> None:
        with torch.no_grad(), unchanged(holder):
            holder.change()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (holder.number, holder.listed, holder.set, list(holder.last)) == (1, [1, [2]], {1}, [1, 2])
    assert holder.added is added
    assert holder.listed is listed
    assert holder.rebound is rebound
    assert not added.any()
    assert holder.counted == Counter("ab")
    assert not holder.named.pop("a").any()
    assert not holder.named
    assert not hasattr(holder, "new")
    assert not holder.layer.running_mean.any()  # type: ignore[union-attr]
    assert holder.layer.num_batches_tracked == 0
