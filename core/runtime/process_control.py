"""Code that only some processes run, and points where processes wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch

from ..errors import LaunchError, WrongTypeError
from ..strategies.call_sites import call_site
from .checks import check_process
from .comparison import Agreement
from .lifecycle import Life

__all__ = ["ProcessControl", "only"]

P = ParamSpec("P")
T = TypeVar("T")


class ProcessControl:
    """What lets processes wait, or some of them do something alone.

    Args:
        life: Of the run.
        agreement: Compares what the processes are about to do.
    """

    def __init__(self, life: Life, agreement: Agreement) -> None:
        self._life, self._agreement = life, agreement
        self.is_triggered = False
        """Whether this process has called :meth:`core.Runtime.set_trigger`."""

    def wait(self, call: str, name: str | None = None) -> None:
        """Wait until every process has called this.

        Args:
            call: The method of the Runtime, for messages.
            name: What tells this place from others.
        """
        strategy = self._life.live()
        self._agreement.agree(call if name is None else f"{call}({name!r})")
        strategy.barrier(name)

    @contextmanager
    def first(self, name: str, is_first: bool, per_node: bool) -> Iterator[None]:
        """A context that one process leaves before others enter it.

        Args:
            name: The method of the Runtime, for messages.
            is_first: Whether it is this process.
            per_node: Whether one process of each machine goes first, before those of that machine.
        """
        strategy = self._life.live()
        node = strategy.node_rank if per_node else 0
        site = call_site() if self._agreement.debug else None

        def meet(error: BaseException | None = None) -> None:
            self._agreement.agree(name, site=site)
            text = None if error is None else f"{type(error).__name__}: {error}"
            for rank, (at, failure) in enumerate(strategy.all_gather_object((node, text))):
                if failure is not None and at == node and not is_first:
                    raise LaunchError(f"{name}: rank {rank}, which went first, failed: {failure}")

        if not is_first:
            meet()
            yield
            return
        try:
            yield
        except BaseException as error:
            meet(error)
            raise
        meet()

    def is_process(self, process_index: int | None) -> bool:
        """See :meth:`core.Runtime.on_process`."""
        strategy = self._life.strategy
        if strategy.world_size == 1:
            return True
        return check_process("process_index", process_index, strategy.world_size) == strategy.global_rank

    def is_local_process(self, local_process_index: int | None) -> bool:
        """See :meth:`core.Runtime.on_local_process`."""
        strategy = self._life.strategy
        if strategy.world_size == 1:
            return True
        return (
            check_process("local_process_index", local_process_index, strategy.local_processes) == strategy.local_rank
        )

    def check_trigger(self) -> bool:
        """See :meth:`core.Runtime.check_trigger`."""
        strategy = self._life.live()
        self._agreement.agree("check_trigger")
        flag = torch.tensor(int(self.is_triggered), device=strategy.root_device)
        with strategy.assume_alike():
            is_triggered = bool(strategy.reduce(flag, "max"))
        if is_triggered:
            self.is_triggered = False
        return is_triggered


def only(function: Callable[P, T] | None, runs_here: Callable[[], bool]) -> Any:
    """``function``, which returns ``None`` in processes where ``runs_here`` is false; a decorator without it."""
    if function is None:
        return partial(only, runs_here=runs_here)
    if not callable(function):
        raise WrongTypeError(
            f"Runtime: a decorator got {function!r}, which is not a function. Write @runtime.on_main_process above "
            "one; pass the number of a process by its name: @runtime.on_process(process_index=1)."
        )

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T | None:
        return function(*args, **kwargs) if runs_here() else None

    return run
