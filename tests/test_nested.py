"""Walking nested structures of tensors."""

from __future__ import annotations

import dataclasses
import types
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from core.data.batches import batch_size_of
from core.utilities.nested import leaves, map_tensors

Pair = namedtuple("Pair", "left right")


class Tagged(list[Any]):
    tag = "none"


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    label: str = "kept"


@dataclasses.dataclass
class Derived:
    x: Any
    count: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        self.count += 1


def one() -> Tensor:
    return torch.ones(2)


def tagged() -> Tagged:
    made = Tagged([one()])
    made.tag = "kept"
    return made


STRUCTURES: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (one, lambda d: d),
    (lambda: nn.Parameter(one()), lambda d: d),
    (lambda: [one(), 1], lambda d: d[0]),
    (lambda: (one(), "a", None), lambda d: d[0]),
    (lambda: {"a": one(), "b": 2}, lambda d: d["a"]),
    (lambda: OrderedDict(b=1, a=one()), lambda d: d["a"]),
    (lambda: defaultdict(list, a=one()), lambda d: d["a"]),
    (lambda: UserDict(a=one()), lambda d: d["a"]),
    (lambda: types.MappingProxyType({"a": one()}), lambda d: d["a"]),
    (lambda: Pair(one(), 1), lambda d: d.left),
    (lambda: torch.max(torch.ones(2, 2), dim=0), lambda d: d.values),
    (tagged, lambda d: d[0]),
    (lambda: Frozen(one()), lambda d: d.x),
    (lambda: Derived(one()), lambda d: d.x),
    (lambda: pack_sequence([one(), torch.ones(1)]), lambda d: d.data),
    (lambda: [{"a": (Pair(1, [one()]), 2)}], lambda d: d[0]["a"][0].right[0]),
]


@pytest.mark.parametrize(("make", "pick"), STRUCTURES)
def test_tensors_are_mapped_and_types_kept(make: Callable[[], Any], pick: Callable[[Any], Any]) -> None:
    """The result has the type of what was given, which itself stays as it was."""
    data = make()
    result = map_tensors(lambda tensor: tensor * 2 if tensor.is_floating_point() else tensor, data)
    assert type(result) is (Tensor if isinstance(data, Tensor) else type(data))
    assert pick(result).eq(2).all()
    assert pick(data).eq(1).all()


@pytest.mark.parametrize(("make", "pick"), STRUCTURES)
def test_the_very_same_object_comes_back_where_nothing_changed(
    make: Callable[[], Any], pick: Callable[[Any], Any]
) -> None:
    """No copy is made for nothing."""
    data = make()
    assert map_tensors(lambda tensor: tensor, data) is data


def test_what_is_next_to_the_tensors_is_kept() -> None:
    """Default factories, attributes of list classes, other fields and other items come along."""
    assert map_tensors(torch.neg, defaultdict(list, a=one())).default_factory is list
    assert map_tensors(torch.neg, tagged()).tag == "kept"
    assert map_tensors(torch.neg, Frozen(one())).label == "kept"
    assert map_tensors(torch.neg, Derived(one())).count == 1
    assert list(map_tensors(torch.neg, OrderedDict(b=1, a=one()))) == ["b", "a"]


def test_batch_sizes_of_a_packed_sequence_stay() -> None:
    """A function that moves or converts every tensor must not reach them."""
    packed = pack_sequence([one(), torch.ones(1)], enforce_sorted=False)
    result = map_tensors(lambda tensor: tensor.double(), packed)
    assert result.data.dtype is torch.float64
    assert result.batch_sizes is packed.batch_sizes


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_the_number_of_items_of_a_nested_tensor(layout: torch.layout) -> None:
    """As the batch of a step that logs; the strided kind has no ``shape``."""
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    assert batch_size_of({"x": nested}) == 2


@pytest.mark.parametrize("data", ["text", 3, None, {1, 2}, range(3), object(), Frozen, torch.Size([2, 3]), nn.ReLU()])
def test_other_objects_are_left_alone(data: Any) -> None:
    """They come back themselves, classes and strings included."""
    assert map_tensors(torch.neg, data) is data


def test_leaves_have_their_places() -> None:
    """In the order in which ``map_tensors`` visits them; empty containers and packed sequences are leaves."""
    packed = pack_sequence([torch.ones(2)])
    data = {"a": [1, (torch.ones(1), [])], 0: Pair("x", Frozen(packed)), "m": UserDict(k=2)}
    found = list(leaves(data, "data"))
    assert [place for place, _ in found] == [
        *("data['a'][0]", "data['a'][1][0]", "data['a'][1][1]"),
        *("data[0].left", "data[0].right.x", "data[0].right.label", "data['m']['k']"),
    ]
    visited: list[Any] = []

    def visit(leaf: Any) -> Any:
        visited.append(leaf)
        return leaf

    map_tensors(visit, data, visit)
    kept = [leaf for _, leaf in found if leaf is not packed and leaf != []]
    assert [id(leaf) for leaf in kept] == [id(leaf) for leaf in visited if leaf is not packed.data]


def test_others_are_mapped_too() -> None:
    """With a second function, in a new structure of the same types."""
    data = {"a": [torch.ones(1), 2], "b": (None, 3)}
    mapped = map_tensors(lambda tensor: tensor + 1, data, lambda other: other and 10 * other)
    assert mapped["a"][0].item() == 2
    assert (mapped["a"][1], mapped["b"]) == (20, (None, 30))
    assert data["b"] == (None, 3)
