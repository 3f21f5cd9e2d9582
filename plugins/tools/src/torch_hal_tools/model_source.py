"""The model whose memory is estimated: of a class, or what a script gives to ``fit`` or ``prepare``."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import runpy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

import torch_hal
from torch_hal.errors import ConfigurationError, nearest, quoted

__all__ = ["Source", "find_source", "read_batch", "read_values"]

_SHAPE = re.compile(r"(?P<sizes>\d+(x\d+)*)(:(?P<dtype>\w+))?")


@attrs.define
class Source:
    """A model, and what is known of its training."""

    module: nn.Module
    """On any device, or on ``meta``."""
    optimizers: list[Optimizer] | None = None
    """``None`` if the module makes them, or if a default is used."""
    batch: Any = None
    """A batch as the step takes it; ``None`` if there is none."""
    step_is_known: bool = True
    """Whether calling the module is the step: a script's own loop is not known."""
    notes: list[str] = attrs.field(factory=list)
    """What the reader should know of how it was found."""


class _Reached(BaseException):
    """Raised where the script would train. ``except Exception`` in the script does not catch it."""


def find_source(target: str, values: Mapping[str, Any], arguments: Sequence[str], batch: Any) -> Source:
    """The model that ``target`` names.

    Args:
        target: ``package.module:Class``, ``file.py:Class``, or the path of a script.
        values: Arguments of the class.
        arguments: Of the script.
        batch: A batch for the class; ``None`` to take it from the module's own ``train_dataloader``, if it has one.

    Raises:
        ConfigurationError: There is no such module, class or script; or it fails, or trains nothing.
    """
    place, _, name = target.rpartition(":")
    if not place:
        if not os.path.isfile(target):
            raise ConfigurationError(
                f"{target!r} is not a file. Give a script, file.py:Class, or package.module:Class."
            )
        return _of_script(target, arguments)
    return _of_class(_class_of(place, name), values, batch)


def read_values(given: Iterable[str]) -> dict[str, Any]:
    """``["width=64"]`` as ``{"width": 64}``; a value that is no Python literal is text.

    Raises:
        ConfigurationError: One has no ``=``.
    """
    values = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigurationError(f"--init {each!r}: write NAME=VALUE.")
        try:
            values[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[name] = text
    return values


def read_batch(given: Sequence[str]) -> Any:
    """``["32x784", "32:int64"]`` as a tuple of tensors, one alone as a tensor; nothing as ``None``.

    Raises:
        ConfigurationError: One is no shape, or names no dtype.
    """
    tensors = []
    for each in given:
        found = _SHAPE.fullmatch(each)
        dtype = getattr(torch, (found and found["dtype"]) or "float32", None)
        if found is None or not isinstance(dtype, torch.dtype):
            raise ConfigurationError(f"--batch {each!r}: write sizes and a dtype, such as 32x784 or 32:int64.")
        sizes = [int(size) for size in found["sizes"].split("x")]
        tensors.append(torch.empty(sizes, dtype=dtype, device="meta"))
    return None if not tensors else tensors[0] if len(tensors) == 1 else tuple(tensors)


# -- a class ---------------------------------------------------------------------------------------------------------


def _class_of(place: str, name: str) -> Callable[..., Any]:
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            with _beginning_of_path(str(Path(place).resolve().parent)):
                spec.loader.exec_module(module)
        else:
            with _beginning_of_path(os.getcwd()):
                module = importlib.import_module(place)
    except Exception as error:
        raise ConfigurationError(f"{place!r} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise ConfigurationError(f"{place} has no class {name!r}.{nearest(name, vars(module))}")
    return found  # type: ignore[no-any-return]


@contextmanager
def _beginning_of_path(folder: str) -> Any:
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)


def _of_class(make: Callable[..., Any], values: Mapping[str, Any], batch: Any) -> Source:
    name, notes = getattr(make, "__name__", str(make)), []
    try:
        try:
            with torch.device("meta"):
                module = make(**values)
        except TypeError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the user's code needs and meta tensors have not
            notes.append(f"{name} was made in memory, since it cannot be made on meta ({type(error).__name__}).")
            module = make(**values)
    except Exception as error:
        raise ConfigurationError(
            f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items())}) fails: "
            f"{type(error).__name__}: {error}. Give its arguments by --init NAME=VALUE."
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigurationError(f"{name} makes a {type(module).__name__}. It must make a torch.nn.Module.")
    if batch is None and isinstance(module, torch_hal.Module):
        try:
            batch = _first(module.train_dataloader())
        except Exception as error:  # noqa: BLE001 - the user's code
            notes.append(f"train_dataloader gives no batch ({type(error).__name__}: {error}).")
    return Source(module, batch=batch, notes=notes)


# -- a script --------------------------------------------------------------------------------------------------------


def _of_script(path: str, arguments: Sequence[str]) -> Source:
    found: list[Source] = []

    def fit(
        self: Any, model: nn.Module, train_dataloaders: Any = None, val_dataloaders: Any = None, datamodule: Any = None,
        **others: Any,
    ) -> None:  # fmt: skip
        if datamodule is None and isinstance(train_dataloaders, torch_hal.DataModule):
            datamodule = train_dataloaders
        loaders: Any = train_dataloaders
        if datamodule is not None:
            datamodule.prepare_data()
            datamodule.setup("fit")
            loaders = datamodule.train_dataloader()
        elif train_dataloaders is None and isinstance(model, torch_hal.Module):
            model.prepare_data()
            model.setup("fit")
            loaders = model.train_dataloader()
        found.append(Source(model, batch=_first(loaders)))
        raise _Reached

    def prepare(self: Any, *objects: Any, **others: Any) -> None:
        modules = [each for each in objects if isinstance(each, nn.Module)]
        if not modules:
            raise ConfigurationError("prepare was called without a module first: estimate takes the first call.")
        module = modules[0] if len(modules) == 1 else nn.ModuleList(modules)
        optimizers = [each for each in objects if isinstance(each, Optimizer)]
        note = "The loop is the script's own, so activations are not known. Name a class and --batch for these."
        found.append(Source(module, optimizers, step_is_known=False, notes=[note]))
        raise _Reached

    with (
        mock.patch.object(torch_hal.Trainer, "fit", fit),
        mock.patch.object(torch_hal.Runtime, "prepare", prepare),
        mock.patch.object(sys, "argv", [path, *arguments]),
        _beginning_of_path(str(Path(path).resolve().parent)),
        redirect_stdout(sys.stderr),
    ):
        try:
            runpy.run_path(path, run_name="__main__")
        except _Reached:
            return found[0]
        except SystemExit as error:
            raise ConfigurationError(f"{path} has ended with exit code {error.code} before fit or prepare.") from None
        except Exception as error:
            raise ConfigurationError(f"{path} fails: {type(error).__name__}: {error}") from error
    raise ConfigurationError(f"{path} calls neither {quoted(['Trainer.fit', 'Runtime.prepare'])}: it trains nothing.")


def _first(loaders: Any) -> Any:
    """The first batch; ``None`` without a loader."""
    if isinstance(loaders, DataLoader) and loaders.num_workers:
        dataset, collate = loaders.dataset, loaders.collate_fn
        if loaders.batch_sampler is not None and hasattr(dataset, "__getitem__"):  # without starting workers
            return collate([dataset[index] for index in next(iter(loaders.batch_sampler))])
    return None if loaders is None else next(iter(loaders))
