"""Strategy ``torchft``: replicas average gradients in each step, and go on without one that is lost."""

from __future__ import annotations

import logging
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, ClassVar, Unpack

import torch
from torch import nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from torch_hal.errors import BackendError, ConfigurationError, LaunchError, WrongTypeError
from torch_hal.hints.argument_checks import check_count
from torch_hal.strategies import SingleDeviceStrategy, StrategyParts
from torch_hal.strategies.store.tcp_store import host_store

__all__ = ["TorchFTStrategy"]

logger = logging.getLogger(__name__)


class TorchFTStrategy(SingleDeviceStrategy):
    """Replicas that average the gradients of each step; each is a run of one process on one device.

    If one is lost, the others leave out the step that it was lost in, and go on without it. When it is started again,
    it loads the state of another one, and takes part in the next step. Only steps that were taken count, for
    schedulers, ``max_steps`` and checkpoints.

    Source: torchft, ``Manager`` and ``DistributedDataParallel``.

    Args:
        lighthouse: The address of torchft's lighthouse, at which replicas meet, such as ``"http://host:29510"``.
        replica_id: A name for this replica that no other one has at the same time; by default, a random one.
        min_replicas: How many a step needs. With fewer, steps are left out until others come.
        timeout: Of each operation of a step, in seconds: so long the others wait for a replica that hangs.
        quorum_timeout: In seconds: so long a step waits until the replicas have agreed on who takes part.
        host: The name or address of this machine, by which the others reach it.
        **parts: As in :class:`core.Strategy`.

    Raises:
        ConfigurationError: An argument is missing, unknown or out of range.
        WrongTypeError: An argument has the wrong type.
    """

    name = "torchft"
    counts_steps: ClassVar[bool] = True
    # A loss that is scaled would need one scale for all replicas.
    precisions = ("32-true", "64-true", "bf16-mixed")

    def __init__(
        self,
        *,
        lighthouse: str | None = None,
        replica_id: str | None = None,
        min_replicas: int = 1,
        timeout: float = 60.0,
        quorum_timeout: float = 60.0,
        host: str | None = None,
        **parts: Unpack[StrategyParts],
    ) -> None:
        super().__init__(**parts)
        if lighthouse is None:
            raise ConfigurationError(
                "strategy='torchft' needs the address of a lighthouse: start one by `torchft_lighthouse "
                "--min_replicas 1`, and pass strategy=TorchFTStrategy(lighthouse='http://host:29510')."
            )
        for name, value in (("lighthouse", lighthouse), ("replica_id", replica_id), ("host", host)):
            if value is not None and (not isinstance(value, str) or not value):
                raise WrongTypeError(f"{name}={value!r}: must be a string.")
        for name, seconds in (("timeout", timeout), ("quorum_timeout", quorum_timeout)):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
                raise ConfigurationError(f"{name}={seconds!r}: must be a number of seconds above 0.")
        check_count("min_replicas", min_replicas, 1)
        self.lighthouse, self.replica_id, self.min_replicas, self.host = lighthouse, replica_id, min_replicas, host
        self.timeout, self.quorum_timeout = timeout, quorum_timeout
        self._manager: Any = None
        self._store: TCPStore | None = None
        self._optimizer: Optimizer | None = None
        self._modules: list[nn.Module] = []
        self._in_step = False
        self._own: list[dict[str, Any]] = []
        """The settings of the groups of parameters, while those of another replica are in use."""
        self._taken = self._steps = 0

    # -- life ----------------------------------------------------------------------------------------------------

    def setup_environment(self) -> None:
        """Prepare the device, and meet the lighthouse.

        Raises:
            BackendError: torchft cannot be imported.
            LaunchError: The lighthouse does not answer.
        """
        super().setup_environment()
        if self.root_device.type != "cpu":
            raise BackendError(
                f"strategy='torchft': device {self.root_device}: torchft's process groups for GPUs were not run on "
                "hardware, so this strategy offers gloo on a CPU only."
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torchft uses names that torch has deprecated
                import torchft
        except ImportError as error:
            raise BackendError(f"strategy='torchft': torchft cannot be imported: {error}.") from error
        host = self.host or socket.gethostname()
        limit = timedelta(seconds=self.timeout)
        self._store = host_store(host)
        try:
            self._manager = torchft.Manager(
                pg=torchft.ProcessGroupGloo(timeout=limit),
                load_state_dict=self._heal,
                state_dict=self._state_for_others,
                min_replica_size=self.min_replicas,
                use_async_quorum=False,  # a replica that rejoins then loads its state before the forward pass
                timeout=limit,
                quorum_timeout=timedelta(seconds=self.quorum_timeout),
                connect_timeout=limit,
                rank=0,
                world_size=1,
                store_addr=host,
                store_port=self._store.port,
                lighthouse_addr=self.lighthouse,
                replica_id=self.replica_id,
                hostname=host,
            )
        except Exception as error:  # torchft raises errors of its server, of any kind
            self._store = None
            raise LaunchError(
                f"strategy='torchft': lighthouse={self.lighthouse!r} cannot be reached: {error}. Check that "
                "`torchft_lighthouse` is running there."
            ) from error
        self._taken = self._steps = 0

    def teardown(self, failed: bool = False) -> None:
        """Leave the other replicas; see :meth:`core.Strategy.teardown`."""
        manager, self._manager = self._manager, None
        self._optimizer, self._modules, self._in_step = None, [], False
        try:
            if manager is not None:
                manager.shutdown(wait=not failed)
        finally:
            self._store = None
            super().teardown(failed)

    @property
    def num_peers(self) -> int:
        """Number of replicas in the current step, this one included."""
        return 1 if self._manager is None or not self._in_step else int(self._manager.num_participants())

    # -- steps ---------------------------------------------------------------------------------------------------

    def setup_module(self, module: nn.Module) -> nn.Module:
        """``module`` in torchft's DistributedDataParallel; without trainable parameters as it is."""
        own = super().setup_module(module)
        self._modules.append(own)
        if not any(parameter.requires_grad for parameter in own.parameters()):
            return own
        import torchft

        wrapped: nn.Module = torchft.DistributedDataParallel(self._manager, own)
        wrapped.register_forward_pre_hook(self._begin_step)
        return wrapped

    def unwrap_module(self, module: nn.Module) -> nn.Module:
        """The user's own module; see :meth:`core.Strategy.unwrap_module`."""
        return super().unwrap_module(module.module if isinstance(module, DistributedDataParallel) else module)

    def inference_module(self, module: nn.Module) -> nn.Module:
        """The wrapped module: its forward pass does not need the other replicas."""
        return self.unwrap_module(module)

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        """A context in which backward does not average gradients."""
        return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()

    def _begin_step(self, module: nn.Module, inputs: Any) -> None:
        """Before the first forward pass of a step: agree on who takes part; load the state of another, if need be."""
        if not self._in_step and torch.is_grad_enabled() and module.training:
            self._manager.start_quorum()
            self._in_step = True

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """The optimizer, as it is.

        Raises:
            ConfigurationError: There are several.
        """
        prepared = super().setup_optimizers(optimizers)
        if len(prepared) + (self._optimizer is not None) > 1:
            raise ConfigurationError("strategy='torchft' steps one optimizer. Use parameter groups instead of several.")
        if prepared:
            self._optimizer = prepared[0]
        return prepared

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Take the step if all replicas that take part have averaged their gradients; else leave it out."""
        loss = None if closure is None else closure()
        if not self._in_step:
            raise ConfigurationError("strategy='torchft': a step needs a forward and a backward pass before it.")
        result = super().optimizer_step(optimizer) if self._manager.should_commit() else None
        for group, settings in zip(optimizer.param_groups, self._own, strict=bool(self._own)):
            group.update(settings)
        self._in_step, self._own = False, []
        steps = int(self._manager.current_step())
        self._taken, self._steps = steps - self._steps, steps
        return result if closure is None else loss

    def global_steps(self) -> int:
        """The number of steps that the replicas have taken together."""
        return self._steps

    def steps_taken(self, optimizer: Optimizer) -> int:
        """How many of them the last call was: 0 if it was left out, more after the state of another replica."""
        del optimizer
        return max(self._taken, 0)

    # -- state ---------------------------------------------------------------------------------------------------

    def _state_for_others(self) -> dict[str, Any]:
        optimizer = {} if self._optimizer is None else self._optimizer.state_dict()
        return {"modules": [module.state_dict() for module in self._modules], "optimizer": optimizer}

    def _heal(self, state: Any) -> None:
        for module, values in zip(self._modules, state["modules"], strict=True):
            module.load_state_dict(values)
        if self._optimizer is not None:
            # This step is taken with the other one's learning rate; after it, the schedule of this replica catches up.
            self._own = [_settings(group) for group in self._optimizer.param_groups]
            self._optimizer.load_state_dict(state["optimizer"])
        logger.info("loaded the state of another replica, at step %d", self._manager.current_step())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimizer's, with what torchft counts."""
        counted = {} if self._manager is None else {"torchft": dict(self._manager.state_dict())}
        return {**super().optimizer_state(optimizer), **counted}

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load what :meth:`optimizer_state` returned; if others are further, the next step loads their state."""
        own = dict(state)
        counted = own.pop("torchft", None)
        super().load_optimizer_state(optimizer, own)
        if counted is not None and self._manager is not None:
            self._manager.load_state_dict(counted)
            self._steps = int(counted["step"])


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}
