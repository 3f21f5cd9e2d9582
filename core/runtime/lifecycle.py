"""The life of a Runtime: its Plan, its processes, and which of them this one is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

from ..errors import ConfigurationError, LaunchError, WrongTypeError
from ..hints.argument_checks import check_call
from ..hints.attributes import KnownAttributes
from ..plan import Plan, assemble
from ..strategies.base import Strategy
from ..utilities.live_runtimes import note_run, remove_run
from .attributes_elsewhere import FOREIGN
from .properties import FactsView, RunFacts

__all__ = ["RunLife"]

T = TypeVar("T")


class RunLife(RunFacts, KnownAttributes):
    """The part of :class:`core.Runtime` that starts and ends the run; the base of its other parts."""

    _foreign_attributes = FOREIGN

    def _connect(self, plan: Plan) -> None:
        """Take up ``plan``; instead of a constructor, since :meth:`Runtime.from_plan` does without one."""
        self.plan = plan
        self._strategy = assemble(plan)
        self._is_live = self._has_ended = False
        note_run(self)

    def launch(self, function: Callable[..., T] | None = None, *args: Any, **kwargs: Any) -> T | None:
        """Start the processes of the run, and call ``function(runtime, *args, **kwargs)`` in each.

        After :meth:`teardown` it starts the run again.

        Args:
            function: What to run. May be omitted if the script itself is run in each process, by the strategy or by a
                launcher such as torchrun.
            *args: Further arguments.
            **kwargs: Further keyword arguments.

        Returns:
            What ``function`` returned in this process; if this process only supervises the others, in rank 0.

        Raises:
            WrongTypeError: ``function`` cannot be called, or takes other arguments.
            LaunchError: The strategy runs a function and none was given, or a process failed.
        """
        if function is None and self.plan.runs_function:
            raise LaunchError(
                f"strategy={self.plan.strategy.name!r} runs a function in each process, but no function was given. Put "
                "the loop into a function train(runtime) and call runtime.launch(train), or set strategy='ddp' to run "
                "the whole script in each process."
            )
        if function is not None and not callable(function):
            raise WrongTypeError(
                f"launch: function is {function!r}, which cannot be called. Pass a function: runtime.launch(train)."
            )
        if function is not None:
            how = "It gets the Runtime first: def train(runtime, ...), and launch(train, ...) passes further arguments."
            check_call("launch", function, (self, *args), kwargs, how)
        if self._is_live:
            return None if function is None else function(self, *args, **kwargs)
        return self._strategy.launch(_enter, self, function, args, kwargs)

    def teardown(self, failed: bool = False) -> None:
        """Leave the other processes and free all resources; may be called twice. At a script's end this is automatic.

        Methods that need the processes raise an error afterwards, until :meth:`launch` or a ``with`` block starts them.

        Args:
            failed: Whether this process ends with an error; then it does not wait for the others.
        """
        if self._is_live:
            self._is_live, self._has_ended = False, True
            self._unbind_step()
            remove_run(self)
            self._strategy.teardown(failed)

    def _enter(self) -> None:
        """Set up this process, and decide the step path."""
        self._strategy.setup_environment()
        self._is_live, self._has_ended = True, False
        note_run(self)
        self._bind_step()

    def _bind_step(self) -> None:
        """Decide the step path; called when the processes have started, and after each :meth:`Runtime.prepare`."""

    def _unbind_step(self) -> None:
        """Undo :meth:`_bind_step`."""

    def __enter__(self) -> Self:
        self._has_ended = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self.teardown(failed=kind is not None)

    def __getstate__(self) -> dict[str, Any]:
        if self._is_live:
            raise TypeError("a Runtime that is live in this process cannot be sent to another")
        return {**self.__dict__, "plan": self.plan.for_ranks()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def _live_strategy(self) -> Strategy:
        """The strategy, after the processes were started.

        Raises:
            ConfigurationError: The run has ended.
        """
        if self._has_ended:
            raise ConfigurationError(
                "Runtime: the run has ended, because teardown() or end_training() was called or its `with` block was "
                "left. Do this before, create another Runtime, or start this one again: runtime.launch()."
            )
        if not self._is_live:
            self.launch()
        return self._strategy

    @property
    def strategy(self) -> Strategy:
        """The strategy. Before the processes are started, its methods that need them cannot be used."""
        return self._strategy

    @property
    def state(self) -> FactsView:
        """The facts about this process and the run, as one object that prints them."""
        return FactsView(self._strategy, self.plan, type(self))


def _enter(runtime: RunLife, function: Callable[..., T] | None, args: Any, kwargs: Any) -> T | None:
    """Run in each process."""
    runtime._enter()
    if function is None or not runtime.plan.runs_function:
        return None if function is None else function(runtime, *args, **kwargs)
    # The process was started for this function and ends with it, so this is the last chance to tear down.
    with runtime:
        return function(runtime, *args, **kwargs)
