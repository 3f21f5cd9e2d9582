"""Naming the attribute path that cannot be pickled."""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict, defaultdict, deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from core.strategies.launchers import unpicklable_path


class Slotted:
    __slots__ = ("transform",)

    def __init__(self, transform: Any) -> None:
        self.transform = transform


class Network(nn.Module):
    def __init__(self, criterion: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Sequential(nn.ReLU())])
        self.layers[1].hook = criterion
        self.criterion = nn.Identity()
        self.criterion.fn = criterion


class Refusing:
    def __reduce__(self) -> Any:
        raise RuntimeError("not me")


class Method:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def run(self) -> None: ...


def local_function() -> Any:
    def inner() -> None: ...

    return inner


def cyclic() -> Any:
    node = SimpleNamespace(name="node")
    node.self = node
    node.children = [node, {"lock": threading.Lock()}]
    return node


LAMBDA = lambda: None  # noqa: E731
LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("obj", "path", "cause"),
    [
        (LAMBDA, "x", "a lambda"),
        (LOCK, "x", "a lock"),
        (threading.RLock(), "x", "a lock"),
        ([1, (2, LAMBDA)], "x[1][1]", "a lambda"),
        ({"a": {3: LOCK}}, "x['a'][3]", "a lock"),
        (OrderedDict(a=1, b=LOCK), "x['b']", "a lock"),
        (deque([1, LOCK]), "x[1]", "a lock"),
        (SimpleNamespace(a=SimpleNamespace(b=[LOCK])), "x.a.b[0]", "a lock"),
        (SimpleNamespace(options={"key": LOCK}), "x.options['key']", "a lock"),
        (Slotted(LAMBDA), "x.transform", "a lambda"),
        (Network(LAMBDA), "x.layers[1].hook", "a lambda"),
        (nn.ModuleDict({"head": nn.Sequential(OrderedDict(act=Network(LOCK)))}), "x.head.act.layers[1].hook", "a lock"),
        (SimpleNamespace(callback=partial(print, LAMBDA)), "x.callback", "a lambda"),
        (Method().run, "x.lock", "a lock"),
        (defaultdict(lambda: 0), "x", "a lambda"),
        (
            SimpleNamespace(fn=local_function()),
            "x.fn",
            "a function defined inside another, local_function.<locals>.inner",
        ),
        (SimpleNamespace(inner=Refusing()), "x.inner", "RuntimeError: not me"),
        (SimpleNamespace(generator=(i for i in [1])), "x.generator", "TypeError: cannot pickle 'generator' object"),
        (cyclic(), "x.children[1]['lock']", "a lock"),
    ],
)
def test_the_path_leads_to_what_pickle_refuses(obj: object, path: str, cause: str) -> None:
    """As one would write it in Python, through attributes, containers, modules and cycles."""
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError, RuntimeError)):
        pickle.dumps(obj)
    assert unpicklable_path(obj, "x") == (path, cause)


@pytest.mark.parametrize("obj", [None, len, {"a": [1, "b"]}, torch.ones(3), nn.Linear(2, 2), Network, {1, 2}])
def test_what_can_be_pickled_has_no_such_path(obj: object) -> None:
    """It says so instead of blaming something."""
    assert unpicklable_path(obj) is None


def test_a_large_model_is_searched_without_copying_it() -> None:
    """Storages are passed over: a tensor whose memory is not even there can be searched."""
    weight = torch.empty(1 << 40, device="meta")
    assert unpicklable_path({"weight": weight, "fn": LAMBDA}) == ("object['fn']", "a lambda")
