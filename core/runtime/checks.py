"""Checks of how the front ends are used: objects to prepare, data for collectives, contexts without ``with``."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from numbers import Real
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from ..errors import ConfigurationError, WrongTypeError
from ..hints.attributes import KnownAttributes
from ..loggers.base import Logger
from ..strategies.calls import call_site
from ..utilities.nested import leaves
from ..utilities.torch_private import is_initialized
from .accelerate_handlers import DummyOptim, DummyScheduler

logger = logging.getLogger(__name__)

PREPARED = (nn.Module, Optimizer, LRScheduler, DataLoader)


def check_objects(call: str, objects: Sequence[Any]) -> None:
    """Refuse what would be returned as it is although it cannot be meant so, the same object twice, and nothing.

    These are classes, lists and dicts of what is prepared, data sets, iterators, texts and numbers, and what belongs to
    a Trainer or into another argument.

    Raises:
        WrongTypeError: There is one.
    """
    if not objects:
        raise ConfigurationError(f"{call}: got nothing. Pass modules, optimizers, schedulers and data loaders.")
    for position, given in enumerate(objects):
        if misplaced := _misplaced(given):
            raise WrongTypeError(f"{call}: got an object of type {type(given).__name__}. {misplaced}")
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
        if isinstance(given, nn.Module) and not is_initialized(given):
            raise uninitialized(call, given)


def _misplaced(given: Any) -> str:
    """Where ``given`` belongs, which nothing would prepare; empty if it may be meant so."""
    if isinstance(given, type | nn.Module):
        return ""
    if isinstance(given, KnownAttributes):
        return (
            "Nothing prepares it. Use either core.Trainer, which runs the loop, or a Runtime with a loop of your own."
        )
    for stand_in in (DummyOptim, DummyScheduler):
        if type(given).__name__ == stand_in.__name__:
            return stand_in.remedy
    if isinstance(given, torch.amp.GradScaler):
        return "Remove it: with precision='16-mixed' the Runtime scales the loss, and unscales the gradients."
    if isinstance(given, Sampler):
        return "Pass the loader that reads by it: DataLoader(dataset, sampler=sampler)."
    if isinstance(given, Logger):
        return "Pass it to the constructor: Runtime(log_with=...)."
    if hasattr(given, "train_dataloader"):
        return "Pass its loaders one by one, such as data.train_dataloader()."
    if hasattr(given, "on_train_epoch_end"):
        return "A Runtime calls no callbacks. Do in the loop what it does, or use core.Trainer."
    return ""


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


def check_joinables(joinables: Any, even_batches: Any) -> None:
    """Check the arguments of ``join_uneven_inputs``.

    Raises:
        WrongTypeError: They are not a list of models and optimizers, and a bool or ``None``.
    """
    if not isinstance(joinables, list | tuple):
        raise WrongTypeError(
            f"join_uneven_inputs: joinables is {_shown(joinables)} of type {type(joinables).__name__}: must be a list. "
            "Pass the prepared models in one: join_uneven_inputs([model])."
        )
    for one in joinables:
        if not (isinstance(one, nn.Module | Optimizer) or hasattr(one, "join_hook")):
            raise WrongTypeError(
                f"join_uneven_inputs: joinables has {_shown(one)} of type {type(one).__name__} in it. Pass prepared "
                "models, and optimizers that communicate."
            )
    if even_batches is not None and not isinstance(even_batches, bool):
        raise WrongTypeError(f"join_uneven_inputs: even_batches={even_batches!r}: must be True, False or None.")


def check_hook(call: str, hook: Any, *arguments: str) -> None:
    """Check that ``hook`` can be called with ``arguments``.

    Raises:
        WrongTypeError: It cannot.
    """
    wanted = f"Pass a function of ({', '.join(arguments)})."
    if not callable(hook):
        raise WrongTypeError(f"{call}: hook is {_shown(hook)}, which cannot be called. {wanted}")
    try:
        signature = inspect.signature(hook)
    except ValueError:  # not every callable has one
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise WrongTypeError(f"{call}: hook takes {signature}: {error}. {wanted}") from None


def check_loader(call: str, given: Any) -> None:
    """Check that ``given`` yields batches, each time it is iterated.

    Raises:
        WrongTypeError: It does not.
    """
    if isinstance(given, DataLoader):
        return
    remedy = "Pass a loader: DataLoader(dataset, batch_size=...)."
    what = f"an object of type {type(given).__name__}"
    first = given[0] if isinstance(given, list | tuple) and given else None
    if isinstance(given, type):
        what = f"the class {given.__name__}"
    elif isinstance(given, Iterator):
        remedy = "It can be read once only. Pass the DataLoader, not iter(loader)."
    elif isinstance(first, DataLoader):
        what, remedy = f"a {type(given).__name__} of loaders", "Pass them one by one: prepare(*loaders)."
    elif isinstance(first, str | Real):
        what = f"a {type(given).__name__} with {_shown(first)} of type {type(first).__name__}, which is no batch"
    elif isinstance(given, Iterable) and not isinstance(given, nn.Module | Mapping | str | bytes | Tensor):
        return
    raise WrongTypeError(f"{call}: got {what}. {remedy}")


def uninitialized(subject: str, module: nn.Module) -> ConfigurationError:
    """The error for a module that torch has not initialized."""
    name = type(module).__name__
    return ConfigurationError(
        f"{subject}: {name}.__init__ does not call super().__init__(), so it has no parameters. Call it first."
    )


def check_holds(module: Any, optimizers: Iterable[Optimizer], subject: str, num_processes: int) -> None:
    """Reject an optimizer that has none of the trained parameters; or others, on several processes. On one, warn.

    Args:
        module: The module that is trained, or its parameters.
        optimizers: The optimizers.
        subject: Where they come from, for the message.
        num_processes: How many there are: the gradients of the module's parameters alone are reduced over them.

    Raises:
        ConfigurationError: One holds no parameter of ``module``; or, on several processes, others too.
    """
    owned = {id(each) for each in (module.parameters() if isinstance(module, nn.Module) else module)}
    for optimizer in optimizers:
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        name, others = type(optimizer).__name__, [each for each in held if id(each) not in owned]
        if owned and held and len(others) == len(held):
            raise ConfigurationError(
                f"{subject}: {name} holds {len(held)} parameter(s), none of which is of the module that is trained, so "
                f"its step would not train it. Create it with that module's parameters: {name}(model.parameters(), "
                "...)."
            )
        shapes = [str(tuple(each.shape)) for each in others if each.requires_grad]
        if owned and shapes:
            found = (
                f"{subject}: {name} holds {len(shapes)} parameter(s) that are not of the module that is trained, of "
                f"shape {', '.join(shapes[:5])}."
            )
            remedy = (
                "Make their layer an attribute of the module (of a list of layers, an nn.ModuleList), or prepare it "
                "too: model, criterion, optimizer = runtime.prepare(model, criterion, optimizer)."
            )
            if num_processes > 1:
                raise ConfigurationError(
                    f"{found} Their gradients would not be reduced, and the {num_processes} processes would train "
                    f"different ones. {remedy}"
                )
            logger.warning(
                "%s Unless you save them, no checkpoint has them; they stay on their device. %s", found, remedy
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


M = TypeVar("M", bound=Callable[..., AbstractContextManager[Any]])
T = TypeVar("T")


class _MethodContext(AbstractContextManager[T]):
    """A context that warns if it is dropped before it was entered, as Python does of a coroutine never awaited.

    Args:
        context: The context.
        usage: How to write the call.
    """

    __slots__ = ("_context", "_is_used", "_usage")

    def __init__(self, context: AbstractContextManager[T], usage: str) -> None:
        self._context, self._usage, self._is_used = context, usage, False

    def __enter__(self) -> T:
        self._is_used = True
        return self._context.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._context.__exit__(*error)

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Return the decorated function, if the context can be used as a decorator."""
        self._is_used = True
        context: Any = self._context
        return function if isinstance(context, nullcontext) else context(function)

    def __del__(self) -> None:
        if not self._is_used:
            logger.warning("%s: %s", call_site(), self._message("so the call had no effect"))

    def _message(self, consequence: str) -> str:
        called = self._usage.partition("(")[0]
        return f"{called}: what it returned was used without with, {consequence}. Write: with {self._usage}: ..."

    def _refuse(self, *args: object) -> NoReturn:
        self._is_used = True  # it was named
        raise WrongTypeError(self._message("which it needs"))

    __iter__ = __len__ = __getitem__ = _refuse


def used_by_with(usage: str) -> Callable[[M], M]:
    """Decorator: a method returns a context that tells if it is used without ``with``.

    Args:
        usage: How to write the call, for messages.
    """

    def decorate(method: M) -> M:
        @wraps(method)
        def make(*args: Any, **kwargs: Any) -> _MethodContext[Any]:
            return _MethodContext(method(*args, **kwargs), usage)

        return cast("M", make)  # callers see the type of the method's own context, which may be a decorator

    return decorate
