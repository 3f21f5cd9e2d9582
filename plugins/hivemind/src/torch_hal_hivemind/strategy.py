"""Strategy ``hivemind``: peers on any machines collect the gradients of one batch, and take a step together."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypedDict, Unpack

import torch
from torch.optim import Optimizer

from torch_hal.errors import BackendError, ConfigurationError, LaunchError, WrongTypeError, quoted
from torch_hal.hints.argument_checks import check_count
from torch_hal.strategies import SingleDeviceStrategy, StrategyParts, keyword_parameters
from torch_hal_hivemind.absent_gradients import AbsentGradients

__all__ = ["HivemindOptions", "HivemindStrategy"]

logger = logging.getLogger(__name__)


class HivemindOptions(TypedDict, total=False):
    """Arguments that are passed to ``hivemind.Optimizer``."""

    matchmaking_time: float
    averaging_timeout: float
    allreduce_timeout: float
    load_state_timeout: float
    average_state_every: int
    delay_state_averaging: bool
    use_local_updates: bool
    client_mode: bool
    grad_compression: Any
    state_averaging_compression: Any
    load_state_compression: Any
    shutdown_timeout: float
    verbose: bool


class HivemindArguments(StrategyParts, HivemindOptions, total=False):
    """All further arguments of the strategy."""


_REFUSED = {
    "scheduler": "schedulers are stepped by the front end, once for each step of all peers",
    "reuse_grad_buffers": "the front end clears gradients after each call",
    "offload_optimizer": "hivemind would make the optimizer itself, and yours would not be stepped",
    "delay_optimizer_step": "hivemind would make the optimizer itself, and yours would not be stepped",
    "delay_grad_averaging": "hivemind would make the optimizer itself, and yours would not be stepped",
    "auxiliary": "a peer without data has no loop; start hivemind's own",
}
"""Arguments of ``hivemind.Optimizer`` that contradict what torch-hal does, and why."""


class HivemindStrategy(SingleDeviceStrategy):
    """Peers that may join and leave at any time; each is a run of one process on one device.

    Each peer computes gradients of its own batches. When all of them together have had ``target_batch_size`` samples,
    their gradients are averaged and each takes the same step: only that is a step for schedulers, ``max_steps`` and
    checkpoints. A peer that comes late, or has missed steps, loads the state of another one, and its count with it.

    Source: Ryabinin and Gusev, Learning@home, 2020; ``hivemind.Optimizer``.

    Args:
        run_id: The name of the run. Peers with the same one train together.
        target_batch_size: Samples of all peers for each step. Without it and ``batch_size``, calls are counted in place
            of samples, and each call is a step: a first peer by itself, without ``initial_peers``.
        batch_size: Samples of this peer for each call of the optimizer's step: those of a batch times
            ``accumulate_grad_batches``.
        initial_peers: Addresses of some peers, as their :attr:`addresses` say; none for the first.
        host_maddrs: Where this peer listens, such as ``["/ip4/0.0.0.0/tcp/0"]``; by default, only for this machine.
        dht_options: Further arguments of ``hivemind.DHT``. Relays are not used unless it says so.
        **others: Options of ``hivemind.Optimizer``, see :class:`HivemindOptions`; and the parts of a strategy.

    Raises:
        ConfigurationError: An argument is missing, unknown or out of range.
        WrongTypeError: ``run_id`` is not a string.
    """

    name = "hivemind"
    counts_steps: ClassVar[bool] = True
    # A loss that is scaled would need hivemind's own scaler.
    precisions = ("32-true", "64-true", "bf16-mixed")
    extra_arguments = keyword_parameters(HivemindOptions.__annotations__)

    def __init__(
        self,
        *,
        run_id: str = "torch-hal",
        target_batch_size: int | None = None,
        batch_size: int | None = None,
        initial_peers: Sequence[str] = (),
        host_maddrs: Sequence[str] = ("/ip4/127.0.0.1/tcp/0",),
        dht_options: Mapping[str, Any] | None = None,
        **others: Unpack[HivemindArguments],
    ) -> None:
        arguments: dict[str, Any] = {**others}
        for name, reason in _REFUSED.items():
            if name in arguments:
                raise ConfigurationError(f"{name}={arguments[name]!r}: cannot be used: {reason}. Leave it out.")
        self.options = {name: arguments.pop(name) for name in others if name in HivemindOptions.__annotations__}
        super().__init__(**arguments)
        if not isinstance(run_id, str) or not run_id:
            raise WrongTypeError(f"run_id={run_id!r}: must be a string that names the run.")
        sizes = {"target_batch_size": target_batch_size, "batch_size": batch_size}
        if not initial_peers and set(sizes.values()) == {None}:
            sizes = dict.fromkeys(sizes, 1)
        missing = [name for name, value in sizes.items() if not value]
        if missing:
            raise ConfigurationError(
                f"strategy='hivemind' needs {quoted(missing)}: pass strategy=HivemindStrategy(run_id='...', "
                "target_batch_size=1024, batch_size=32, initial_peers=[...])."
            )
        for name, value in sizes.items():
            check_count(name, value, 1)
        self.run_id = run_id
        self.target_batch_size, self.batch_size = sizes.values()
        self.initial_peers = tuple(initial_peers)
        self.host_maddrs = tuple(host_maddrs)
        self.dht_options = {"use_relay": False, "use_auto_relay": False, **(dht_options or {})}
        self._sharing: str | None = None
        """How this process shared tensors before the run."""
        self._dht: Any = None
        """hivemind's own, of the running run."""
        self._engine: Any = None
        self._optimizer: Optimizer | None = None
        self._gradients: AbsentGradients | None = None
        self._taken = self._steps = self._groups = 0

    # -- life ----------------------------------------------------------------------------------------------------

    def setup_environment(self) -> None:
        """Prepare the device, and meet the other peers.

        Raises:
            BackendError: hivemind cannot be imported.
            LaunchError: None of ``initial_peers`` answers, or the addresses cannot be used.
        """
        super().setup_environment()
        self._sharing = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
        try:
            import hivemind
        except ImportError as error:
            raise BackendError(f"strategy='hivemind': hivemind cannot be imported: {error}.") from error
        # As the import does, but in every run of this process: hivemind's processes share tensors in this way.
        torch.multiprocessing.set_sharing_strategy(  # type: ignore[no-untyped-call]
            os.environ.get("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_system")
        )
        try:
            self._dht = hivemind.DHT(
                initial_peers=list(self.initial_peers),
                host_maddrs=list(self.host_maddrs),
                start=True,
                **self.dht_options,
            )
        except Exception as error:  # hivemind raises errors of its processes, of any kind
            raise LaunchError(
                f"strategy='hivemind': cannot meet peers (initial_peers={list(self.initial_peers)}): "
                f"{type(error).__name__}: {error}. Check that one of them is running and can be reached from here."
            ) from error
        logger.info("peers can join run %r with initial_peers=%s", self.run_id, self.addresses)

    def teardown(self, failed: bool = False) -> None:
        """Say goodbye to the peers; see :meth:`core.Strategy.teardown`."""
        engine, self._engine, self._optimizer = self._engine, None, None
        dht, self._dht = self._dht, None
        gradients, self._gradients = self._gradients, None
        if gradients is not None:
            gradients.release()
        try:
            if engine is not None:
                self._steps = int(engine.local_epoch)
                engine.shutdown()
        finally:
            if dht is not None:
                dht.shutdown()
            if self._sharing is not None:
                torch.multiprocessing.set_sharing_strategy(self._sharing)  # type: ignore[no-untyped-call]
                self._sharing = None
            super().teardown(failed)

    @property
    def addresses(self) -> list[str]:
        """The addresses of this peer, which others can pass as ``initial_peers``; empty before the run."""
        return [] if self._dht is None else [str(address) for address in self._dht.get_visible_maddrs()]

    @property
    def num_peers(self) -> int:
        """Number of peers that report progress now, this one included."""
        return 1 if self._engine is None else max(1, int(self._engine.tracker.global_progress.num_peers))

    # -- steps ---------------------------------------------------------------------------------------------------

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """The optimizer, as it is; hivemind steps it.

        Raises:
            ConfigurationError: There are several.
        """
        prepared = super().setup_optimizers(optimizers)
        if len(prepared) + (self._optimizer is not None) > 1:
            raise ConfigurationError(
                "strategy='hivemind' steps one optimizer. Use parameter groups instead of several."
            )
        if prepared:
            self._optimizer = prepared[0]
            self._taken = self._steps = 0
            self._groups = len(prepared[0].param_groups)
            self._engine = self._start(prepared[0])
        return prepared

    def _start(self, optimizer: Optimizer) -> Any:
        import hivemind

        gradients = AbsentGradients(optimizer)
        with _own_interrupts():
            engine = hivemind.Optimizer(
                dht=self._dht,
                run_id=self.run_id,
                target_batch_size=self.target_batch_size,
                batch_size_per_step=self.batch_size,
                optimizer=optimizer,
                **self.options,
            )
        gradients.undo_first_step()
        self._gradients = gradients
        return engine

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Add this peer's gradients to those of all; take the step if they are enough.

        Raises:
            ConfigurationError: A group was added to the optimizer after :meth:`setup_optimizers`.
        """
        if len(optimizer.param_groups) != self._groups:
            raise ConfigurationError(
                "add_param_group: hivemind shares the parameters that the optimizer had in prepare, and would not "
                "train those that come later. Add the group before prepare."
            )
        engine, own = self._engine, [_settings(group) for group in optimizer.param_groups]
        before = engine.local_epoch
        assert self._gradients is not None  # since setup_optimizers
        with self._gradients.counted(closure) as counted:
            result = engine.step(counted)
        self._taken = engine.local_epoch - before
        # The state of another peer has its learning rate too; here the schedule of this peer is stepped as often.
        for group, settings in zip(optimizer.param_groups, own, strict=True):
            group.update(settings)
        return result

    def global_steps(self) -> int:
        """The number of steps that the peers have taken together."""
        return self._steps if self._engine is None else int(self._engine.local_epoch)

    def steps_taken(self, optimizer: Optimizer) -> int:
        """How many of them the last call was: 0 while gradients are collected, more after the state of another peer."""
        del optimizer
        return max(self._taken, 0)

    # -- state ---------------------------------------------------------------------------------------------------

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimizer's, with the number of steps of all peers."""
        state = super().optimizer_state(optimizer)
        if self._gradients is not None:
            state = self._gradients.state_dict(state)
        return {**state, "global_steps": self.global_steps()}

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load what :meth:`optimizer_state` returned; if other peers are further, the next step loads their state."""
        own = dict(state)
        steps = int(own.pop("global_steps", 0))
        if self._engine is None or self._gradients is None:
            super().load_optimizer_state(optimizer, own)
            return
        with self._gradients.loaded():
            super().load_optimizer_state(optimizer, own)
        engine = self._engine
        engine.state_averager.local_epoch = steps
        if engine.grad_averager is not None:
            engine.grad_averager.reset_accumulated_grads_()
        # Otherwise the tracker takes this peer to be away from the others until it has asked them again, some seconds
        # later: hivemind discards gradients of the calls until then, or collects them for one step.
        with engine.tracker.pause_updates():
            engine.tracker.update_epoch(steps)


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Keep this process's handler of SIGINT: hivemind sets one that ignores Ctrl-C, for the processes it starts."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if handler is not None and signal.getsignal(signal.SIGINT) is not handler:
            signal.signal(signal.SIGINT, handler)


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}
