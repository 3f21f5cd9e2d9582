"""Which parts of a model are chosen."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from torch import nn
from torch_hal_fsdp.selection import select


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(4, 4)
        self.feed = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


class Model(nn.Module):
    _no_split_modules: ClassVar[list[str]] = ["Block", "SomethingElse"]

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 4)
        self.layers = nn.ModuleList([Block(), Block()])
        self.heads = nn.ModuleDict({"one": nn.Linear(4, 2), "other": nn.LayerNorm(4)})


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        ("blocks", ["layers.0", "layers.1"]),
        ("model", ["layers.0", "layers.1"]),
        (["Block", nn.Embedding], ["words", "layers.0", "layers.1"]),
        ([nn.Linear], ["layers.0.attention", "layers.0.feed.0", "layers.0.feed.2", "layers.1.attention"]),
        (70, ["words", "layers.0.feed", "layers.1.feed"]),
        (90, ["words", "layers.0", "layers.1"]),
        (1000, []),
        (lambda module: isinstance(module, nn.LayerNorm), ["heads.other"]),
    ],
)
def test_selection(selection: Any, names: list[str]) -> None:
    """Each way of saying it finds the parts, inner ones first, and never a bare list of modules."""
    model = Model()
    by_module = {id(module): name for name, module in model.named_modules()}
    found = [by_module[id(part)] for part in select("wrap_policy", model, selection)]
    assert found[: len(names)] == names
    assert selection == [nn.Linear] or len(found) == len(names)


def test_a_sequence_of_layers_is_made_of_blocks() -> None:
    """Layers of one class in a Sequential are repeated blocks; a single one is not."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.LayerNorm(3))
    assert select("wrap_policy", model, "blocks") == [model[0], model[2]]


def test_blocks_within_a_block_are_part_of_it() -> None:
    """Only the outermost repeated modules are blocks."""
    model = nn.Sequential(Block(), Block())
    assert select("wrap_policy", model, "blocks") == [model[0], model[1]]
