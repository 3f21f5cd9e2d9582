"""Checks of what a front end is given: objects to prepare, and data for collectives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, IterableDataset

from core.errors import ConfigurationError, WrongTypeError
from core.nested import leaves

__all__ = ["check_holds", "check_kind", "check_leaves", "check_objects", "check_process", "uninitialized"]

PREPARED = (nn.Module, Optimizer, LRScheduler, DataLoader)


def check_objects(call: str, objects: Sequence[Any]) -> None:
    """Refuse what would be returned as it is although it cannot be meant so, and an object that is there twice.

    These are classes, lists and dicts of what is prepared, data sets, iterators, texts and numbers.

    Raises:
        WrongTypeError: There is one.
    """
    for position, given in enumerate(objects):
        if isinstance(given, str | bytes | Real):
            raise WrongTypeError(
                f"{call}: got {_shown(given)} of type {type(given).__name__}. Pass modules, optimizers, schedulers and "
                "data loaders."
            )
        if isinstance(given, Iterator) and not isinstance(given, PREPARED):
            raise WrongTypeError(
                f"{call}: got an iterator of type {type(given).__name__}, which can be read once only. Pass the "
                "DataLoader, not iter(loader), and the module, not module.parameters()."
            )
        if isinstance(given, PREPARED) and any(given is other for other in objects[:position]):
            raise ConfigurationError(f"{call}: got the same {type(given).__name__} twice. Pass it once.")
        if isinstance(given, type) and issubclass(given, PREPARED):
            raise WrongTypeError(
                f"{call}: got the class {given.__name__}, not an object of it. Create one: {given.__name__}(...)."
            )
        held = list(given.values()) if isinstance(given, dict) else given if isinstance(given, list | tuple) else ()
        inner = next((each for each in held if isinstance(each, PREPARED)), None)
        if inner is not None and not isinstance(given, PREPARED):
            raise WrongTypeError(
                f"{call}: got a {type(given).__name__} with an object of type {type(inner).__name__}, which would not "
                f"be prepared. Pass its objects one by one: {call}(*objects)."
            )
        if isinstance(given, DataParallel | DistributedDataParallel):
            raise WrongTypeError(
                f"{call}: got a {type(given).__name__}, which the strategy adds itself. Pass model.module."
            )
        if isinstance(given, Dataset) and not isinstance(given, IterableDataset):
            raise WrongTypeError(
                f"{call}: got a data set of type {type(given).__name__}, which would not be divided among the "
                "processes. Pass a loader: DataLoader(dataset, batch_size=...)."
            )
        if isinstance(given, nn.Module) and not hasattr(given, "_parameters"):
            raise uninitialized(call, given)


def check_kind(call: str, given: Any, kind: type, remedy: str) -> None:
    """Check that ``given`` is an object of ``kind``.

    Args:
        call: The method and its argument, for the message.
        given: What the user passed.
        kind: Its class.
        remedy: What to do.

    Raises:
        WrongTypeError: It is not.
    """
    if not isinstance(given, kind):
        raise WrongTypeError(
            f"{call} is {_shown(given)} of type {type(given).__name__}: must be a {kind.__name__}. {remedy}"
        )


def uninitialized(subject: str, module: nn.Module) -> ConfigurationError:
    """The error for a module that torch has not initialized."""
    name = type(module).__name__
    return ConfigurationError(
        f"{subject}: {name}.__init__ does not call super().__init__(), so it has no parameters. Call it first."
    )


def check_holds(module: Any, optimizers: Iterable[Optimizer], subject: str) -> None:
    """Refuse an optimizer whose step would change nothing of what is trained.

    Args:
        module: The module that is trained, or its parameters.
        optimizers: The optimizers.
        subject: Where they come from, for the message.

    Raises:
        ConfigurationError: One holds no parameter of ``module``.
    """
    owned = {id(each) for each in (module.parameters() if isinstance(module, nn.Module) else module)}
    for optimizer in optimizers:
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if owned and held and not any(id(parameter) in owned for parameter in held):
            raise ConfigurationError(
                f"{subject}: {type(optimizer).__name__} holds {len(held)} parameter(s), none of which is of the module "
                "that is trained, so its step would not train it. Create it with that module's parameters: "
                f"{type(optimizer).__name__}(model.parameters(), ...)."
            )


def check_leaves(call: str, name: str, data: Any, *, numbers: bool = False) -> None:
    """Check that ``data`` consists of what a collective can exchange: any other object would be returned as it is.

    Args:
        call: The method, for the message.
        name: Its argument.
        data: A nested structure.
        numbers: Whether numbers can be exchanged as well.

    Raises:
        WrongTypeError: It has something other than dense tensors, ``None`` and empty containers in it.
    """
    for place, leaf in leaves(data, name):
        if _is_exchangeable(leaf) or (numbers and isinstance(leaf, Real)):
            continue
        if isinstance(leaf, Tensor):
            raise WrongTypeError(f"{call}: {place} is a tensor of layout {leaf.layout}. Pass {place}.to_dense().")
        remedy = "Pass tensors, or use gather_object, which takes lists of anything."
        if isinstance(leaf, Real):
            remedy = "Pass torch.tensor(...) of it."
        raise WrongTypeError(f"{call}: {place} is {_shown(leaf)} of type {type(leaf).__name__}, not a tensor. {remedy}")


def _is_exchangeable(leaf: Any) -> bool:
    if isinstance(leaf, Tensor):
        return leaf.layout is torch.strided
    return leaf is None or (isinstance(leaf, Sequence | Mapping) and not isinstance(leaf, str | bytes) and not leaf)


def _shown(leaf: Any) -> str:
    text = repr(leaf)
    return text if len(text) <= 50 else f"{text[:50]}…"


def check_process(name: str, number: Any, count: int) -> int:
    """Check the number of a process.

    Raises:
        ConfigurationError: It is not an integer from 0 to ``count - 1``.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number not in range(count):
        raise ConfigurationError(f"{name}={number!r}: must be the number of a process, 0 to {count - 1}.")
    return number
