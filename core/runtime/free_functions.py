"""Functions and names that need no Runtime: those of the last one, names to compare with, freeing memory."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from ..errors import ConfigurationError
from ..hints.remedies import package
from ..utilities.live_runtimes import last_run
from .partial_state import PartialState
from .prepare.preparing import synchronize_generators
from .settings import read_rng_types

__all__ = [
    "DistributedType",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "release_memory",
    "synchronize_rng_states",
    "tqdm",
]

T = TypeVar("T")


class _Names(type):
    def __getattr__(cls, name: str) -> str:
        if not name.isupper():
            raise AttributeError(f"{cls.__name__} has no attribute {name!r}. Its names are in capitals.")
        return name


class DistributedType(metaclass=_Names):
    """Values of :attr:`core.Runtime.distributed_type`, which are text: ``DistributedType.NO`` is ``"NO"``.

    Strategies of other packages may have any name, so each name in capitals is its own value.
    """


def gather(tensor: Any) -> Any:
    """:meth:`core.Runtime.gather` of the last Runtime.

    Raises:
        ConfigurationError: There is no Runtime.
    """
    return _last_run("gather").gather(tensor)


def gather_object(object: Any) -> list[Any]:  # noqa: A002  Accelerate's name
    """:meth:`core.Runtime.gather_object` of the last Runtime.

    Raises:
        ConfigurationError: There is no Runtime.
    """
    gathered: list[Any] = _last_run("gather_object").gather_object(object)
    return gathered


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """:meth:`core.Runtime.broadcast` of the last Runtime.

    Raises:
        ConfigurationError: There is no Runtime.
    """
    return _last_run("broadcast").broadcast(tensor, from_process)


def broadcast_object_list(object_list: list[T], from_process: int = 0) -> list[T]:
    """:meth:`core.Runtime.broadcast_object_list` of the last Runtime.

    Raises:
        ConfigurationError: There is no Runtime.
    """
    received: list[T] = _last_run("broadcast_object_list").broadcast_object_list(object_list, from_process)
    return received


def synchronize_rng_states(rng_types: Sequence[str], generator: torch.Generator | None = None) -> None:
    """Give each process of the last Runtime the states of process 0's generators; every process calls it.

    Args:
        rng_types: The generators: ``"torch"``, the type of the run's devices, and ``"generator"``.
        generator: The one that ``"generator"`` means.

    Raises:
        ConfigurationError: There is no Runtime or no such generator, or one of ``"generator"`` and ``generator`` is
            missing.
    """
    run = _last_run("synchronize_rng_states")
    strategy = run._life.live()
    kinds = read_rng_types(rng_types, strategy.root_device.type)
    if ("generator" in rng_types) != (generator is not None):
        raise ConfigurationError(
            f"synchronize_rng_states: rng_types={list(rng_types)!r}, generator={generator!r}: pass both 'generator' "
            "and the generator, or neither."
        )
    synchronize_generators(strategy, kinds)
    if generator is not None:
        generator.set_state(strategy.broadcast(generator.get_state()))


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """A progress bar, ``tqdm.auto.tqdm``, that shows in process 0 of each machine only.

    Args:
        *args: As of tqdm.
        main_process_only: Whether the other processes show none; they iterate all the same.
        **kwargs: As of tqdm.

    Raises:
        ConfigurationError: tqdm is not installed.
    """
    if importlib.util.find_spec("tqdm") is None:
        raise ConfigurationError(f"tqdm: it is not installed. Run: pip install {package('torch-hal[progress]')!r}")
    from tqdm.auto import tqdm as bar

    if main_process_only and not PartialState().is_local_main_process:
        kwargs["disable"] = True
    return bar(*args, **kwargs)


def _last_run(function: str) -> Any:
    run = last_run()
    if run is None:
        raise ConfigurationError(
            f"{function}: there is no Runtime in this process. Create one before, or call runtime.{function}(...)."
        )
    return run


def release_memory(*objects: Any) -> list[None]:
    """Collect garbage, and return the unused memory of torch's current accelerator to it.

    ::

        model, optimizer = release_memory(model, optimizer)

    Args:
        *objects: What the caller holds.

    Returns:
        ``None`` for each object, to assign to the names that hold them: memory is freed when nothing refers to it.
    """
    gc.collect()
    if torch.accelerator.is_available():
        empty_cache = getattr(torch.get_device_module(), "empty_cache", None)
        if empty_cache is not None:
            empty_cache()
    return [None] * len(objects)
