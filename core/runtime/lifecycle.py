"""The life of a run: its Plan, its strategy, and whether its processes have been started."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigurationError, LaunchError, WrongTypeError
from ..hints.argument_checks import check_call
from ..plan import Plan
from ..strategies.base import Strategy
from ..utilities.live_runtimes import Turn, finished_runs


class Life:
    """Whether the processes of a run have been started; they are when the first part of the Runtime needs them.

    Args:
        plan: What runs.
        strategy: The same, live.
    """

    def __init__(self, plan: Plan, strategy: Strategy) -> None:
        self.plan, self.strategy = plan, strategy
        self.is_live = False
        """Whether this process is one of the run's."""
        self.has_ended = False
        """Whether the run was torn down, and not started again."""
        self.turn = Turn()

    def check_function(self, function: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> None:
        """Check what is to run in each process, before any is started.

        Raises:
            WrongTypeError: ``function`` cannot be called, or takes other arguments.
            LaunchError: The strategy runs a function and none was given.
        """
        if function is None:
            if self.plan.runs_function:
                raise LaunchError(
                    f"strategy={self.plan.strategy.name!r} runs a function in each process, but no function was given. "
                    "Put the loop into a function train(runtime) and call runtime.launch(train), or set "
                    "strategy='ddp' to run the whole script in each process."
                )
            return
        if not callable(function):
            raise WrongTypeError(
                f"launch: function is {function!r}, which cannot be called. Pass a function: runtime.launch(train)."
            )
        how = "It gets the Runtime first: def train(runtime, ...), and launch(train, ...) passes further arguments."
        check_call("launch", function, args, kwargs or {}, how)

    def start(self) -> None:
        """Set up this process for the run, after tearing down earlier runs that have ended."""
        for run in finished_runs():
            run.teardown()
        self.strategy.setup_environment()
        self.is_live, self.has_ended = True, False
        self.turn.take()

    def live(self) -> Strategy:
        """The strategy, after the processes were started.

        Raises:
            ConfigurationError: The run has ended.
        """
        if self.has_ended:
            raise ConfigurationError(
                "Runtime: the run has ended, because teardown() was called, its `with` block was left, or another "
                "run began after end_training(). Do this before, create another Runtime, or start this one again: "
                "runtime.launch()."
            )
        if not self.is_live:
            self.check_function(None)
            self.strategy.launch(self.start)
        return self.strategy

    def finish(self) -> None:
        """Training has ended: the run ends when another one begins, if not before."""
        self.turn.is_finished = self.is_live

    def end(self, failed: bool) -> None:
        """Leave the other processes."""
        if self.is_live:
            self.is_live, self.has_ended = False, True
            self.turn.give_up()
            self.strategy.teardown(failed)

    def __getstate__(self) -> dict[str, Any]:
        if self.is_live:
            raise TypeError("a Runtime that is live in this process cannot be sent to another")
        return {**self.__dict__, "plan": self.plan.for_ranks()}
