"""The facts of this process, for functions that are given no Runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from ..discovery.ranks import launched_ranks
from ..environments.base import LAUNCHED
from ..environments.local import ranks_environ
from ..errors import ConfigurationError, WrongTypeError, nearest
from ..hints.argument_checks import suggest_arguments_of, suggest_in_methods
from ..hints.attributes import raise_unknown, refuse_assigned
from ..plan import Plan, Request, assemble, resolve
from ..strategies.base import Strategy
from ..utilities.live_runtimes import last_run
from .arguments import check_process
from .exchange.splitting import split
from .process_control import only
from .properties import RunFacts
from .runtime import Runtime
from .with_guard import used_by_with

__all__ = ["AcceleratorState", "PartialState", "is_initialized"]

P = ParamSpec("P")
T = TypeVar("T")


@suggest_in_methods(leave=())
@suggest_arguments_of
class PartialState(RunFacts):
    """Which process this is, also before there is a Runtime; no settings pass through it.

    ::

        with PartialState().main_process_first():
            dataset = download()

    Its facts are those of the last Runtime that was not torn down. Before there is one, they are what the launcher of
    this process has set, such as torchrun; without a launcher this is the only process. Under a launcher, methods that
    wait for other processes connect with them for that time. Processes that a strategy starts run the script when the
    first process has already reached its Runtime: until they create theirs, these methods do not wait.

    Args:
        cpu: Whether the device is the CPU.

    Raises:
        WrongTypeError: ``cpu`` is no bool.
        ConfigurationError: When a fact is read: the last Runtime has another device than the CPU although ``cpu`` is
            set; or it is a setting, such as ``mixed_precision``, and there is no Runtime.
    """

    def __init__(self, cpu: bool = False) -> None:
        if not isinstance(cpu, bool):
            raise WrongTypeError(f"PartialState: cpu={cpu!r}: must be True or False.")
        self._cpu = cpu
        self._own: dict[str | None, Strategy] = {}

    @property
    def _strategy(self) -> Strategy:  # type: ignore[override]  # a different one, once there is a Runtime
        run = last_run()
        if run is None:
            told = _told()
            if told not in self._own:
                self._own[told] = assemble(_launchers_plan(told, self._cpu))
            return self._own[told]
        strategy: Strategy = run.strategy
        if self._cpu and strategy.root_device.type != "cpu":
            raise ConfigurationError(
                f"PartialState(cpu=True): the Runtime of this process is on {strategy.root_device}. Leave it out, or "
                "pass cpu=True to the Runtime."
            )
        return strategy

    def _engine_setting(self, name: str) -> Any:
        return _setting_of_run(name, super()._engine_setting(name))

    @property
    def mixed_precision(self) -> str:
        """That of the last Runtime."""
        return str(_setting_of_run("mixed_precision", super().mixed_precision))

    @property
    def scaler(self) -> Any:
        """That of the last Runtime."""
        return _setting_of_run("scaler", super().scaler)

    def __repr__(self) -> str:
        return f"<PartialState: process {self.process_index} of {self.num_processes}, on {self.device}>"

    if not TYPE_CHECKING:  # it would allow every attribute

        def __getattr__(self, name: str) -> Any:
            return raise_unknown(self, name, "PartialState", self._remedy)

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_assigned(name, value, "PartialState()")
        super().__setattr__(name, value)

    def _remedy(self, name: str) -> str:
        return f" Use runtime.{name}." if hasattr(Runtime, name) else nearest(name, dir(self))

    # -- waiting -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _meeting(self) -> Iterator[Runtime | None]:
        """A Runtime in which the processes wait for each other; ``None`` where there is no one to wait for."""
        run = last_run()
        if run is not None:
            yield run
        elif _told() is not None or self.num_processes == 1:
            yield None
        else:
            with Runtime(cpu=self._cpu) as brief:
                yield brief

    def wait_for_everyone(self) -> None:
        """Like :meth:`core.Runtime.wait_for_everyone`."""
        with self._meeting() as run:
            if run is not None:
                run.wait_for_everyone()

    def destroy_process_group(self) -> None:
        """Tear the last Runtime down, so that its processes leave each other; nothing happens without one."""
        run = last_run()
        if run is not None:
            run.teardown()

    @used_by_with("PartialState().main_process_first()")
    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Like :meth:`core.Runtime.main_process_first`."""
        with self._meeting() as run, nullcontext() if run is None else run.main_process_first():
            yield

    @used_by_with("PartialState().local_main_process_first()")
    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Like :meth:`core.Runtime.local_main_process_first`."""
        with self._meeting() as run, nullcontext() if run is None else run.local_main_process_first():
            yield

    # -- in some processes only --------------------------------------------------------------------------------------

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Call the built-in ``print``, in process 0 of each machine."""
        if self.is_local_main_process:
            print(*args, **kwargs)  # noqa: T201  what the user asked for

    def on_main_process(self, function: Callable[P, T] | None = None) -> Any:
        """Like :meth:`core.Runtime.on_main_process`."""
        return only(function, lambda: self.is_main_process)

    def on_local_main_process(self, function: Callable[P, T] | None = None) -> Any:
        """Like :meth:`core.Runtime.on_local_main_process`."""
        return only(function, lambda: self.is_local_main_process)

    def on_last_process(self, function: Callable[P, T] | None = None) -> Any:
        """Like :meth:`core.Runtime.on_last_process`."""
        return only(function, lambda: self.is_last_process)

    def on_process(self, function: Callable[P, T] | None = None, process_index: int | None = None) -> Any:
        """Like :meth:`core.Runtime.on_process`."""

        def runs_here() -> bool:
            count = self.num_processes
            return count == 1 or check_process("process_index", process_index, count) == self.process_index

        return only(function, runs_here)

    def on_local_process(self, function: Callable[P, T] | None = None, local_process_index: int | None = None) -> Any:
        """Like :meth:`core.Runtime.on_local_process`."""

        def runs_here() -> bool:
            if self.num_processes == 1:
                return True
            count = self._strategy.local_processes
            return check_process("local_process_index", local_process_index, count) == self.local_process_index

        return only(function, runs_here)

    @used_by_with("PartialState().split_between_processes(inputs) as part")
    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Like :meth:`core.Runtime.split_between_processes`.

        Raises:
            ConfigurationError: A strategy has started this process, and there is no Runtime.
        """
        if _told() is not None and last_run() is None:
            raise ConfigurationError(
                "PartialState.split_between_processes: there is no Runtime in this process, and process 0 had none "
                "either when it was here, so it took all inputs. Create the Runtime before, or start the script by "
                "'torch-hal run'."
            )
        yield split(inputs, self.num_processes, self.process_index, apply_padding)


AcceleratorState = PartialState
"""The same, under Accelerate's name for what also has settings."""


def is_initialized() -> bool:
    """Whether there is a Runtime in this process, so that :class:`AcceleratorState` has settings."""
    return last_run() is not None


def _setting_of_run(name: str, value: Any) -> Any:
    return _no_run(name) if last_run() is None else value


def _no_run(name: str) -> NoReturn:
    raise ConfigurationError(
        f"PartialState.{name}: there is no Runtime in this process, and only a Runtime has settings. Create it before."
    )


def _told() -> str | None:
    """What a strategy has told the processes that it starts; ``None`` in others."""
    return ranks_environ().get(LAUNCHED)


def _launchers_plan(told: str | None, cpu: bool) -> Plan:
    """What this process is by its launcher; without one, a single process."""
    if told is not None:
        plan = Plan.from_json(told)
        given: dict[str, Any] = {"accelerator": plan.accelerator.name, "devices": plan.request["devices"]}
        return resolve(Request.read(**given, num_nodes=plan.num_nodes))
    devices: Any = "auto" if launched_ranks()[1] > 1 else 1
    return resolve(Request.read(accelerator="cpu" if cpu else "auto", devices=devices))
