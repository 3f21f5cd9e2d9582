"""What only some processes of a run do, and where they wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch

from ..errors import LaunchError, WrongTypeError
from ..plan import Plan
from .arguments import check_process
from .exchange.comparison import Agreement, call_site
from .exchange.splitting import split
from .with_guard import used_by_with

__all__ = ["ProcessControl"]

P = ParamSpec("P")
T = TypeVar("T")


class ProcessControl(Agreement):
    """The part of :class:`core.Runtime` that lets processes wait, or some of them do something alone.

    The decorators decide in each call, so they can be used before the processes are started. A function that does not
    run in a process returns ``None`` there.
    """

    def _connect(self, plan: Plan) -> None:
        super()._connect(plan)
        self._is_triggered = False

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Call the built-in ``print``, in process 0 only."""
        if self.is_main_process:
            print(*args, **kwargs)  # noqa: T201  what the user asked for

    # -- waiting -------------------------------------------------------------------------------------------------

    def barrier(self, name: str | None = None) -> None:
        """Wait until every process has called this."""
        strategy = self._live_strategy()
        self._agree("barrier" if name is None else f"barrier({name!r})")
        strategy.barrier(name)

    def wait_for_everyone(self) -> None:
        """Wait until every process has called this."""
        strategy = self._live_strategy()
        self._agree("wait_for_everyone")
        strategy.barrier()

    @used_by_with("runtime.main_process_first()")
    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """A context that process 0 leaves before the others enter it.

        Raises:
            LaunchError: In the other processes: process 0 has left it by an exception.
        """
        with self._first("main_process_first", self.is_main_process, per_node=False):
            yield

    @used_by_with("runtime.local_main_process_first()")
    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """A context that on each machine the local process 0 leaves before the machine's others enter it.

        Raises:
            LaunchError: In the machine's other processes: its process 0 has left it by an exception.
        """
        with self._first("local_main_process_first", self.is_local_main_process, per_node=True):
            yield

    @contextmanager
    def _first(self, name: str, is_first: bool, per_node: bool) -> Iterator[None]:
        strategy = self._live_strategy()
        node = strategy.node_rank if per_node else 0
        site = call_site() if self._debug else None

        def meet(error: BaseException | None = None) -> None:
            self._agree(name, site=site)
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

    # -- in some processes only ----------------------------------------------------------------------------------

    def on_main_process(self, function: Callable[P, T] | None = None) -> Any:
        """Decorator: run ``function`` in process 0 only."""
        return self._only(function, lambda: self.is_main_process)

    def on_local_main_process(self, function: Callable[P, T] | None = None) -> Any:
        """Decorator: run ``function`` in process 0 of each machine only."""
        return self._only(function, lambda: self.is_local_main_process)

    def on_last_process(self, function: Callable[P, T] | None = None) -> Any:
        """Decorator: run ``function`` in the last process only."""
        return self._only(function, lambda: self.process_index == self.num_processes - 1)

    def on_process(self, function: Callable[P, T] | None = None, process_index: int | None = None) -> Any:
        """Decorator: run ``function`` in one process only; in a run of one process, in that one.

        Raises:
            ConfigurationError: In a run of several processes: there is no process ``process_index``.
        """

        def runs_here() -> bool:
            if self.num_processes == 1:
                return True
            return check_process("process_index", process_index, self.num_processes) == self.process_index

        return self._only(function, runs_here)

    def on_local_process(self, function: Callable[P, T] | None = None, local_process_index: int | None = None) -> Any:
        """Decorator: run ``function`` in one process of each machine only; in a run of one process, in that one.

        Raises:
            ConfigurationError: In a run of several processes: a machine has no process ``local_process_index``.
        """

        def runs_here() -> bool:
            if self.num_processes == 1:
                return True
            count = self._strategy.local_processes
            return check_process("local_process_index", local_process_index, count) == self.local_process_index

        return self._only(function, runs_here)

    def _only(self, function: Callable[P, T] | None, runs_here: Callable[[], bool]) -> Any:
        if function is None:
            return partial(self._only, runs_here=runs_here)
        if not callable(function):
            raise WrongTypeError(
                f"Runtime: a decorator got {function!r}, which is not a function. Write @runtime.on_main_process above "
                "one; pass the number of a process by its name: @runtime.on_process(process_index=1)."
            )

        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> T | None:
            return function(*args, **kwargs) if runs_here() else None

        return run

    # -- telling each other --------------------------------------------------------------------------------------

    def set_trigger(self) -> None:
        """Make the next :meth:`check_trigger` true in every process; may be called in some processes only."""
        self._is_triggered = True

    def check_trigger(self) -> bool:
        """Whether any process has called :meth:`set_trigger` since the last check; every process calls this."""
        strategy = self._live_strategy()
        self._agree("check_trigger")
        flag = torch.tensor(int(self._is_triggered), device=strategy.root_device)
        with strategy.assume_alike():
            is_triggered = bool(strategy.reduce(flag, "max"))
        if is_triggered:
            self._is_triggered = False
        return is_triggered

    @used_by_with("runtime.split_between_processes(inputs) as part")
    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """A context with this process's contiguous part of ``inputs``.

        The parts of all processes, joined by rank, are ``inputs``. Where there are fewer items than processes, the
        last processes have none.

        Args:
            inputs: The same in every process: a list, a tuple, a tensor, an array, a data set of Hugging Face, or a
                dict of them. It is not changed.
            apply_padding: Whether every process has the same number of items: then copies of the last item follow at
                the end. What is gathered of the parts, up to ``len(inputs)``, is without them.

        Raises:
            WrongTypeError: ``inputs`` cannot be divided.
            ConfigurationError: The values of a dict have different lengths.
        """
        strategy = self._live_strategy()
        yield split(inputs, strategy.world_size, strategy.global_rank, apply_padding)
