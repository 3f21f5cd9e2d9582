"""Weights averaged in the background."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torch_hal_bagua.algorithms.base import Connection, Replica, WeightAlgorithm
from torch_hal_bagua.averager import Averager
from torch_hal_bagua.buckets import weight_buckets
from torch_hal_bagua.communication import Communicator
from torch_hal_bagua.gate import StepGate
from torch_hal_bagua.options import choice, whole_number
from torch_hal_bagua.streams import DeviceOrder

__all__ = ["AsyncModelAverage"]

PEER_SELECTION_MODES = ("all",)


class AsyncModelAverage(WeightAlgorithm):
    """Each process trains independently, while a thread periodically averages the weights over all processes.

    Args:
        peer_selection_mode: ``"all"``: average over all processes.
        sync_interval_ms: The minimum time between two averagings.
        warmup_steps: The number of first steps that average gradients instead, as DistributedDataParallel does.
    """

    name = "async"

    def __init__(self, peer_selection_mode: str = "all", sync_interval_ms: int = 500, warmup_steps: int = 0) -> None:
        self.peer_selection_mode = choice("peer_selection_mode", peer_selection_mode, PEER_SELECTION_MODES)
        self.sync_interval_ms = whole_number("sync_interval_ms", sync_interval_ms, 1)
        self.warmup_steps = whole_number("warmup_steps", warmup_steps, 0)
        self._replicas: list[_AsyncReplica] = []

    @property
    def wraps_module(self) -> bool:
        """Only during the warm-up."""
        return self.warmup_steps > 0

    def replica(self, module: nn.Module, wrapped: nn.Module) -> Replica:
        """See :meth:`Algorithm.replica`."""
        replica = _AsyncReplica(module, wrapped, self.connection, self.sync_interval_ms / 1000, self.warmup_steps)
        self._replicas.append(replica)
        return replica

    def disconnect(self) -> None:
        """Release the run."""
        super().disconnect()
        self._replicas.clear()

    def abort(self) -> None:
        """Stop averaging in all processes; one process has to call it. Returns when no weight changes any more.

        Raises:
            BackendError: A process has ended.
        """
        for replica in self._replicas:
            replica.abort()

    def resume(self) -> None:
        """Resume averaging when every process that called :meth:`abort` has called this."""
        for replica in self._replicas:
            replica.resume()


class _AsyncReplica(Replica):
    def __init__(
        self, module: nn.Module, wrapped: nn.Module, connection: Connection, interval_seconds: float, warmup_steps: int
    ) -> None:
        super().__init__(module)
        self._wrapped, self._warmup_steps = wrapped, warmup_steps
        self._steps = 0
        self._is_aborted = False
        self._is_reading = False
        """Whether the gate was entered only to read the weights."""
        self._gate = StepGate()
        self._order = DeviceOrder(connection.device)
        self._mark: torch.Event | None = None
        self._unsynchronized = ExitStack()
        # A separate group, since the averagers of two modules run in parallel.
        peers = Communicator(connection.layout, hierarchical=False).peers
        assert peers is not None
        buckets = weight_buckets(module.parameters(), connection.bucket_cap_mb)
        self._averager = Averager(buckets, peers, self._gate, self._order, interval_seconds, self._await_step)

    def start(self) -> None:
        self._averager.start()

    def before_forward(self) -> None:
        if not torch.is_grad_enabled():
            self._begin_reading()
        else:
            self._enter_step()

    def before_step(self) -> None:
        if not self._gate.is_in_step:  # gradients that no forward pass of the whole module has computed
            self._enter_step()

    def _enter_step(self) -> None:
        self._averager.check()
        self._gate.enter_step()
        if self._steps >= self._warmup_steps and not self._is_aborted:
            self._averager.run()

    def after_forward(self) -> None:
        if not torch.is_grad_enabled():
            self._end_reading()

    def after_step(self) -> None:
        self._leave_step()
        self._steps += 1
        if self._steps == self._warmup_steps:
            self._end_warmup()

    def _leave_step(self) -> None:
        self._mark = self._order.mark()
        self._gate.leave_step()

    def _await_step(self) -> None:
        """Called by the averager: wait until the device has finished the training thread's last step."""
        self._order.wait(self._mark)

    def _end_warmup(self) -> None:
        """Stop reducing gradients; DistributedDataParallel only forwards calls from now on."""
        if isinstance(self._wrapped, DistributedDataParallel):
            self._unsynchronized.enter_context(self._wrapped.no_sync())

    def abort(self) -> None:
        self._is_aborted = True
        self._gate.leave_step()
        self._averager.pause()

    def resume(self) -> None:
        self._is_aborted = False
        if self._steps >= self._warmup_steps:
            self._averager.run()

    @contextmanager
    def hold(self) -> Iterator[None]:
        self._begin_reading()
        try:
            yield
        finally:
            self._end_reading()

    def _begin_reading(self) -> None:
        if not self._gate.is_in_step:  # during a step no other thread changes the weights
            self._gate.enter_step()
            self._is_reading = True

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _end_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._leave_step()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        was_warming_up = self._steps < self._warmup_steps
        self._steps = state["steps"]
        if was_warming_up and self._steps >= self._warmup_steps:
            self._end_warmup()

    def close(self, failed: bool) -> None:
        self._gate.leave_step()
        try:
            self._averager.leave(failed)
        finally:
            self._unsynchronized.close()
