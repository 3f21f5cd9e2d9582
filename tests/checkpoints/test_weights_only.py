"""What weights_only=True could not read back is refused when it is saved, with its place in the checkpoint."""

from __future__ import annotations

import collections
import enum
import os
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from core.checkpoints import TorchCheckpointIO
from core.errors import CheckpointError

IO = TorchCheckpointIO()


class Color(enum.IntEnum):
    RED = 1


class Setting:
    def __init__(self, value: int) -> None:
        self.value = value


Pair = collections.namedtuple("Pair", "left right")


class Angry:
    def __reduce__(self) -> Any:
        raise KeyError("I am not to be saved")


def tagged() -> torch.Tensor:
    tensor = torch.ones(1)
    tensor.note = Setting(1)  # type: ignore[attr-defined]
    return tensor


def with_metadata() -> Any:
    state: Any = collections.OrderedDict(a=torch.ones(1))
    state._metadata = Setting(1)
    return state


REFUSED: list[tuple[Any, str, str]] = [
    ({"hyper_parameters": {"fn": lambda x: x}}, "checkpoint['hyper_parameters']['fn']", "function"),
    ({"fn": os.getcwd}, "checkpoint['fn']", "builtin_function_or_method"),
    ({"m": nn.Linear(1, 1)}, "checkpoint['m']", "torch.nn.modules.linear.Linear"),
    ({"a": [1, (2, {"b": Setting(1)})]}, "checkpoint['a'][1][1]['b']", "Setting"),
    ({"d": collections.defaultdict(list)}, "checkpoint['d']", "collections.defaultdict"),
    ({"p": Pair(1, 2)}, "checkpoint['p']", "Pair"),
    ({"e": Color.RED}, "checkpoint['e']", "Color"),
    ({"n": numpy.float64(1)}, "checkpoint['n']", "numpy.float64"),
    ({"n": numpy.ones(1)}, "checkpoint['n']", "numpy.ndarray"),
    ({"t": (frozenset({1}),)}, "checkpoint['t'][0]", "frozenset"),
    ({"r": range(3)}, "checkpoint['r']", "range"),
    ({"p": Path("x")}, "checkpoint['p']", "Path"),
    ({"b": b""}, "checkpoint['b']", "bytes"),
    ({"i": 1 << 3000}, "checkpoint['i']", "int"),
    ({"t": tagged()}, "checkpoint['t'].note", "Setting"),
    ({"s": with_metadata()}, "checkpoint['s']._metadata", "Setting"),
    ({Color.RED: 1}, "key <Color.RED: 1> of checkpoint", "Color"),
    ({"g": torch.Generator()}, "checkpoint['g']", "Generator"),
    ({"x": Angry()}, "checkpoint['x']", "I am not to be saved"),
]


@pytest.mark.parametrize(("checkpoint", "place", "kind"), REFUSED, ids=[row[1] for row in REFUSED])
def test_what_could_not_be_read_back_is_refused(checkpoint: Any, place: str, kind: str, tmp_path: Path) -> None:
    """The message names the place, the type and what is valid; nothing is written."""
    with pytest.raises(CheckpointError) as raised:
        IO.save_checkpoint(checkpoint, tmp_path / "c")
    message = str(raised.value)
    assert message.startswith(f"{place} is of type ")
    assert kind in message
    assert "add_safe_globals" in message
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("checkpoint", "place", "kind"), REFUSED, ids=[row[1] for row in REFUSED])
def test_torch_itself_could_not_read_it_back(checkpoint: Any, place: str, kind: str, tmp_path: Path) -> None:
    """Nothing is refused that torch.save and torch.load(weights_only=True) would carry."""

    def carry() -> None:
        torch.save(checkpoint, tmp_path / "c")
        torch.load(tmp_path / "c", weights_only=True)

    with pytest.raises(Exception, match=r"."):
        carry()


def test_classes_that_torch_was_told_are_safe_are_taken(tmp_path: Path) -> None:
    """They come back as they were, as long as torch is told so when they are loaded."""
    with torch.serialization.safe_globals([Setting]):
        IO.save_checkpoint({"s": Setting(3)}, tmp_path / "c")
        assert IO.load_checkpoint(tmp_path / "c")["s"].value == 3
    with pytest.raises(CheckpointError, match="add_safe_globals"):
        IO.load_checkpoint(tmp_path / "c")


def sparse() -> torch.Tensor:
    return torch.ones(3, 3).to_sparse()


def noted() -> torch.Tensor:
    tensor = torch.ones(2)
    tensor.note = {"tag": 1}  # type: ignore[attr-defined]
    return tensor


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "value",
    [
        nn.Parameter(torch.ones(2)),
        torch.ones(2, requires_grad=True) * 2,
        torch.ones(2, 3).t(),
        torch.tensor([1j]).conj(),
        torch.empty(2, device="meta"),
        noted(),
        sparse(),
        nn.BatchNorm1d(2).state_dict(),
        bytearray(b"x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_less_usual_values_that_torch_carries_are_taken(value: Any, tmp_path: Path) -> None:
    """Parameters, views, meta and sparse tensors, and state dicts with metadata."""
    IO.save_checkpoint({"v": value}, tmp_path / "c")
    found = IO.load_checkpoint(tmp_path / "c")["v"]
    assert type(found) is type(value)
    if isinstance(value, torch.Tensor) and value.device.type != "meta":
        assert torch.equal(
            found.to_dense() if value.is_sparse else found, value.to_dense() if value.is_sparse else value
        )
    assert getattr(found, "note", None) == getattr(value, "note", None)
    assert getattr(found, "_metadata", None) == getattr(value, "_metadata", None)


def test_a_checkpoint_that_contains_itself_is_no_endless_loop(tmp_path: Path) -> None:
    """Structures that share parts, or contain themselves, are looked at once."""
    shared: list[Any] = [1]
    loop: dict[str, Any] = {"a": shared, "b": shared}
    loop["self"] = loop
    IO.save_checkpoint(loop, tmp_path / "c")
    found = IO.load_checkpoint(tmp_path / "c")
    assert found["self"] is found
    assert found["a"] is found["b"]
