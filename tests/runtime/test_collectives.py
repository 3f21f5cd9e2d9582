"""Collectives on one process: what several processes would give, of one."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from core.errors import ConfigurationError, WrongTypeError
from core.runtime.collectives import split

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


@dataclasses.dataclass
class Output:
    logits: Any
    loss: Any = None


REDUCTIONS = ["mean", "sum", "min", "max", "product"]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reduce_keeps_the_value(reduction: str) -> None:
    """One process combines its value with no other; the result is a new tensor."""
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
    assert runtime().reduce(torch.tensor(True), "sum").dtype is torch.int64
    assert runtime().reduce(whole.double(), "mean").dtype is torch.float64


@pytest.mark.parametrize("reduction", ["bogus", "avg", "", None, "MEAN"])
def test_other_reductions_are_refused(reduction: Any) -> None:
    """The error lists the valid ones, also for empty data."""
    nothing: list[Any] = []
    for data in (torch.ones(1), nothing, None):
        with pytest.raises(
            ConfigurationError, match=f"reduction={reduction!r}: unknown. Valid: 'mean', 'sum', 'min', 'max'"
        ):
            runtime().reduce(data, reduction)


def test_nested_structures_keep_their_form() -> None:
    """Of lists, tuples, named tuples, dataclasses and mappings."""
    data = {"a": [torch.ones(2), []], "b": Pair(torch.tensor(3.0), None), "c": (Output(torch.ones(1)),)}
    one = runtime()
    gathered = one.gather(data)
    assert torch.equal(gathered["b"].left, torch.tensor([3.0]))
    reduced = one.reduce(data)
    assert torch.equal(reduced["b"].left, torch.tensor(3.0))
    for result in (gathered, reduced):
        assert type(result["b"]) is Pair
        assert type(result["c"][0]) is Output
        assert (result["a"][1], result["b"].right, result["c"][0].loss) == ([], None, None)
        assert torch.equal(result["a"][0], torch.ones(2))


@pytest.mark.parametrize("data", [2, 0.5, True, np.float32(0.5)])
def test_numbers_are_reduced(data: Any) -> None:
    """To numbers, at any depth; a mean is fractional, and the scale is a factor."""
    one = runtime()
    assert one.reduce(data) == data
    assert one.reduce({"n": [data, torch.ones(1)]}, "max")["n"][0] == data
    assert one.reduce([data], "mean", scale=3.0) == [3 * data]
    assert isinstance(one.reduce(4, "mean"), float)
    assert type(one.reduce(4, "product")) is int


@pytest.mark.parametrize("data", ["text", b"text", np.ones(2), {1, 2}, 1j, torch.ones(2).to_sparse()])
@pytest.mark.parametrize("name", ["gather", "reduce", "pad_across_processes"])
def test_what_cannot_be_exchanged_is_refused(name: str, data: Any) -> None:
    """At any depth, with its place: returned as it is, it would pass for the result."""
    given: list[tuple[Any, str]] = [
        (data, "tensor"),
        ({"a": [torch.ones(1), data]}, r"tensor\['a'\]\[1\]"),
        (Pair(None, Output(data)), r"tensor\.right\.logits"),
    ]
    for structure, place in given:
        with pytest.raises(WrongTypeError, match=f"^{name}: {place} is "):
            getattr(runtime(), name)(structure)


def test_numbers_are_not_gathered() -> None:
    """The error says how they are."""
    with pytest.raises(
        WrongTypeError, match=r"gather: tensor\['b'\] is 3 of type int, not a tensor. Pass torch.tensor"
    ):
        runtime().gather({"a": torch.ones(1), "b": 3})


def test_nothing_is_gathered_of_nothing() -> None:
    """Empty structures and ``None`` come back."""
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
    assert runtime().broadcast(data, from_process=0)["text"] == "kept"
    for wrong in (1, -1, "0", True):
        with pytest.raises(
            ConfigurationError, match=f"from_process={wrong!r}: must be the number of a process, 0 to 0"
        ):
            runtime().broadcast(data, wrong)  # type: ignore[arg-type]
    objects = [1, "x"]
    assert runtime().broadcast_object_list(objects) is objects
    with pytest.raises(WrongTypeError, match="object_list must be a list, not a tuple"):
        runtime().broadcast_object_list(())  # type: ignore[type-var]


def test_gather_object() -> None:
    """Lists of anything are joined; a list of one process is itself."""
    assert runtime().gather_object(["a", 1]) == ["a", 1]
    assert runtime().gather_object(("a",)) == ["a"]
    for wrong in ("text", 1, {"a": 1}):
        with pytest.raises(WrongTypeError, match=f"object must be a list or tuple.*of type {type(wrong).__name__}"):
            runtime().gather_object(wrong)


@pytest.mark.parametrize(
    ("batch", "place"),
    [
        ({"labels": torch.ones(2), "text": ["a", "b"]}, r"of type dict with one of type str at input_data['text'][0]"),
        ((torch.ones(2), ["a", "b"]), "of type tuple with one of type str at input_data[1][0]"),
        ({"loss": 0.5}, "of type dict with one of type float at input_data['loss']"),
        (0.5, "an object of type float."),
    ],
)
def test_what_of_a_batch_is_neither_a_tensor_nor_a_list(batch: Any, place: str) -> None:
    """The error says where it is: the tensors next to it could be gathered."""
    with pytest.raises(WrongTypeError, match=re.escape(place)):
        runtime().gather_for_metrics(batch)


def test_padding_on_one_process() -> None:
    """There is nothing to pad to."""
    tensor = torch.ones(2, 3)
    assert runtime().pad_across_processes(tensor, dim=1) is tensor
    assert runtime().pad_across_processes(torch.tensor(1), dim=4).item() == 1


@pytest.mark.parametrize("inputs", [[1, 2], (1, 2), {"a": [1, 2]}, torch.ones(2), np.ones(2), range(2)])
def test_splitting_on_one_process(inputs: Any) -> None:
    """One part is everything."""
    for padding in (False, True):
        with runtime().split_between_processes(inputs, apply_padding=padding) as part:
            assert len(part) == len(inputs)


class Selectable:
    """As a data set of Hugging Face: its indexing reads, and ``select`` gives a part."""

    def __init__(self, items: list[int]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def select(self, indices: list[int]) -> Selectable:
        return Selectable([self.items[index] for index in indices])


@pytest.mark.parametrize("size", range(8))
@pytest.mark.parametrize("shards", [1, 2, 3, 5])
def test_parts_join_to_the_whole(size: int, shards: int) -> None:
    """Without padding the parts are the inputs; with it they are equally long, and begin with the inputs."""
    inputs = list(range(size))
    parts = [
        split({"set": Selectable(inputs), "array": np.arange(size)}, shards, shard, False) for shard in range(shards)
    ]
    assert [item for part in parts for item in part["set"].items] == inputs
    assert [int(item) for part in parts for item in part["array"]] == inputs
    assert max(len(part["array"]) for part in parts) - min(len(part["array"]) for part in parts) <= 1
    padded = [split(Selectable(inputs), shards, shard, True).items for shard in range(shards)]
    assert len({len(part) for part in padded}) == 1
    joined = [item for part in padded for item in part]
    assert joined[:size] == inputs
    assert set(joined[size:]) <= {size - 1}


@pytest.mark.parametrize("inputs", ["text", 3, None, torch.tensor(1), {"a": [1], "b": 3}, iter([1])])
def test_what_cannot_be_split_is_refused(inputs: Any) -> None:
    """Given whole to every process, it would be processed several times."""
    with (
        pytest.raises(WrongTypeError, match=r"split_between_processes: inputs.* cannot be divided"),
        runtime().split_between_processes(inputs),
    ):
        pass


def test_values_of_different_lengths_are_not_split() -> None:
    """One item of each value belongs to a sample."""
    with (
        pytest.raises(ConfigurationError, match=r"inputs have different lengths: \{'a': 1, 'b': 2\}"),
        runtime().split_between_processes({"a": [1], "b": [1, 2]}),
    ):
        pass


def test_waiting_on_one_process() -> None:
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
