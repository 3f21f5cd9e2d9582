"""Collectives on one process: what several processes would give, of one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from core.errors import ConfigurationError, WrongTypeError

from .problem import runtime


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize("shape", [(3,), (2, 3), (0, 4), (1, 1, 1)])
def test_gather_keeps_the_shape(shape: tuple[int, ...]) -> None:
    """Joined along the first dimension, one part is itself."""
    tensor = torch.randn(shape)
    gathered = runtime().gather(tensor)
    assert gathered.shape == shape
    assert torch.equal(gathered, tensor)


def test_gather_makes_a_vector_of_a_scalar() -> None:
    """One element a process."""
    assert torch.equal(runtime().gather(torch.tensor(5)), torch.tensor([5]))


REDUCTIONS = ["mean", "sum", "min", "max", "product"]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reduce_keeps_the_value(reduction: str) -> None:
    """Combined with nobody else's; the result is a tensor of its own."""
    tensor = torch.tensor([1.0, -2.0])
    reduced = runtime().reduce(tensor, reduction)
    assert torch.equal(reduced, tensor)
    reduced.zero_()
    assert torch.equal(tensor, torch.tensor([1.0, -2.0]))


def test_a_mean_of_whole_numbers_is_fractional() -> None:
    """On one process as on several; other reductions keep the dtype."""
    whole = torch.tensor([1, 2])
    assert runtime().reduce(whole, "mean").dtype is torch.float32
    assert runtime().reduce(torch.tensor(True), "mean").dtype is torch.float32
    assert runtime().reduce(whole, "sum").dtype is torch.int64
    assert runtime().reduce(whole.double(), "mean").dtype is torch.float64


@pytest.mark.parametrize("word", ["bogus", "avg", "", None, "MEAN"])
def test_other_reductions_are_refused(word: Any) -> None:
    """With the valid words, whatever is to be reduced, were it nothing."""
    nothing: list[Any] = []
    for data in (torch.ones(1), nothing, None):
        with pytest.raises(
            ConfigurationError, match=f"reduction={word!r}: unknown. Valid: 'mean', 'sum', 'min', 'max'"
        ):
            runtime().reduce(data, word)


def test_nested_structures_keep_their_form() -> None:
    """Of lists, tuples, named tuples and mappings; what is no tensor is left alone."""
    data = {"a": [torch.ones(2), "text"], "b": Pair(torch.tensor(3.0), None), "c": (1, 2.5)}
    one = runtime()
    gathered = one.gather(data)
    assert torch.equal(gathered["b"].left, torch.tensor([3.0]))
    reduced = one.reduce(data, "sum")
    assert torch.equal(reduced["b"].left, torch.tensor(3.0))
    for result in (gathered, reduced):
        assert type(result["b"]) is Pair
        assert (result["a"][1], result["b"].right, result["c"]) == ("text", None, (1, 2.5))
        assert torch.equal(result["a"][0], torch.ones(2))


@pytest.mark.parametrize("data", [2, 0.5, True, "text", np.float32(0.5), np.ones(2)])
def test_what_is_no_tensor_is_refused_by_itself(data: Any) -> None:
    """Handed back, this process's ``loss.item()`` would pass for what all have together."""
    for name in ("gather", "reduce"):
        with pytest.raises(WrongTypeError, match=f"{name}: given .* of type {type(data).__name__}. Valid: a tensor"):
            getattr(runtime(), name)(data)
    emptiness: list[Any] = [None, []]
    for nothing in emptiness:
        assert runtime().gather(nothing) is runtime().reduce(nothing) is nothing


def test_nothing_gathered_or_reduced_holds_on_to_gradients() -> None:
    """As from several processes: a list of gathered losses keeps no history alive."""
    loss = (torch.ones(2, requires_grad=True) * 2).sum()
    assert not runtime().gather(loss).requires_grad
    assert not runtime().reduce(loss).requires_grad


def test_broadcast() -> None:
    """Any object, from the one process that there is."""
    data = {"t": torch.ones(1), "text": "kept"}
    received = runtime().broadcast(data)
    assert torch.equal(received["t"], data["t"])  # type: ignore[arg-type]
    assert received["text"] == "kept"
    for wrong in (1, -1, "0", None):
        with pytest.raises(ConfigurationError, match=f"from_process={wrong!r}: no such process. Valid: 0 to 0"):
            runtime().broadcast(data, from_process=wrong)  # type: ignore[arg-type]


def test_waiting_for_nobody() -> None:
    """Barriers return at once, and process 0 goes through its block once."""
    one = runtime()
    one.barrier()
    one.barrier("named")
    one.wait_for_everyone()
    through: list[Tensor | int] = []
    with one.main_process_first():
        through.append(one.process_index)
    assert through == [0]


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    """The built-in one, with its arguments."""
    runtime().print("a", 1, sep="-", end="!")
    assert capsys.readouterr().out == "a-1!"
