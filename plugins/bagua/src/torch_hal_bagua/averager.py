"""The thread that averages weights over all processes during training."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum

import torch
import torch.distributed as dist

from torch_hal.errors import BackendError
from torch_hal_bagua.buckets import WeightBucket
from torch_hal_bagua.communication import Peers
from torch_hal_bagua.gate import StepGate
from torch_hal_bagua.streams import DeviceOrder

__all__ = ["Averager", "Wish"]

LEAVE_SECONDS = 30.0
POLL_SECONDS = 0.1

logger = logging.getLogger(__name__)


class Wish(Enum):
    """What a process requests of its averager."""

    RUN = "run"
    PAUSE = "pause"
    LEAVE = "leave"


class Averager:
    """Averages weights over all processes, in rounds that the averagers of all processes run together.

    At the start of a round each averager states its process's wish. If one wishes to leave, all end. If one wishes a
    pause, or its last averaging was less than an interval ago, the round ends there. Otherwise the weights are
    averaged. So no averager ever waits alone in a collective, whatever the training threads do and however many steps
    they take.

    Args:
        buckets: The weights.
        peers: All processes, in a group for this thread only.
        gate: Keeps training steps and changes of weights apart.
        order: The order of work on this process's device.
        interval_seconds: The minimum time between two averagings.
        await_step: Returns once the device has finished the training thread's last step.
    """

    def __init__(
        self,
        buckets: Sequence[WeightBucket],
        peers: Peers,
        gate: StepGate,
        order: DeviceOrder,
        interval_seconds: float,
        await_step: Callable[[], None],
    ) -> None:
        self._buckets, self._peers, self._gate, self._order = buckets, peers, gate, order
        self._interval, self._await_step = interval_seconds, await_step
        self._poll = min(interval_seconds, POLL_SECONDS)
        self._wish = Wish.PAUSE
        self._said = threading.Condition()
        self._told: Wish | None = None
        """The wish that was last stated in a finished round; ``None`` while a new wish is pending."""
        self._error: BaseException | None = None
        self._is_over = self._is_abandoned = False
        self._hurry = threading.Event()
        self.averagings = 0
        """The number of averagings so far."""
        self._thread = threading.Thread(target=self._run, name="bagua-averager", daemon=True)

    def start(self) -> None:
        """Start the rounds, paused; every process must call this at the same point of its script."""
        self._thread.start()

    def run(self) -> None:
        """Request averaging; it begins once every process has requested it."""
        self._wish = Wish.RUN

    def pause(self) -> None:
        """Request a pause, and wait until all know of it: no averaging until every process requests it again.

        Raises:
            BackendError: A process has ended.
        """
        self._say(Wish.PAUSE)
        with self._said:
            self._said.wait_for(lambda: self._told is Wish.PAUSE or self._is_over)
        self.check()

    def leave(self, failed: bool) -> None:
        """Request to leave, and wait until all averagers have ended; if this process has failed, do not wait.

        Raises:
            BackendError: The averaging had failed before.
        """
        if not self._thread.is_alive() and not self._is_over:
            return
        if failed:  # the others find out when this process's connections close, as they would in any collective
            self._is_abandoned = True
            return
        self._say(Wish.LEAVE)
        self._thread.join(LEAVE_SECONDS)
        if self._thread.is_alive():
            logger.warning("rank %s leaves while weights are still being averaged", self._peers.rank)
        self.check()

    def check(self) -> None:
        """Raise the error that ended the thread, if there is one.

        Raises:
            BackendError: The weights could not be averaged.
        """
        if self._error is not None:
            raise BackendError(
                f"algorithm='async': rank {self._peers.rank} could not average its weights with the other processes: "
                f"{self._error}"
            ) from self._error

    def _say(self, wish: Wish) -> None:
        with self._said:
            self._wish, self._told = wish, None
        self._hurry.set()

    def _run(self) -> None:
        try:
            self._order.enter_thread()
            self._rounds()
        except Exception as error:  # noqa: BLE001  check() raises it in the training thread
            self._error = error
        finally:
            with self._said:
                self._is_over = True
                self._said.notify_all()

    def _rounds(self) -> None:
        due = time.monotonic() + self._interval
        while True:
            self._hurry.wait(self._poll)
            self._hurry.clear()
            if self._is_abandoned:
                return
            wish = self._wish
            wishes = [wish is Wish.PAUSE, wish is Wish.LEAVE, time.monotonic() < due]
            counts = torch.tensor(wishes, dtype=torch.int32, device=self._order.device)
            dist.all_reduce(counts, group=self._peers.group)
            pausing, leaving, early = counts.tolist()
            with self._said:
                if self._wish is wish:
                    self._told = wish
                self._said.notify_all()
            if leaving:
                return
            if not pausing and not early:
                self.average()
                due = time.monotonic() + self._interval

    @torch.no_grad()
    def average(self) -> None:
        """``w += sum / n - copy``, where ``copy`` is this process's part of the sum: steps taken meanwhile are kept."""
        with self._gate.between_steps():
            self._await_step()
            copies = [bucket.read().clone() for bucket in self._buckets]
            self._order.finish()
        for bucket, copy in zip(self._buckets, copies, strict=True):
            dist.all_reduce(bucket.buffer, group=self._peers.group)
            bucket.buffer.div_(self._peers.size).sub_(copy)
        with self._gate.between_steps():
            self._await_step()
            for bucket in self._buckets:
                bucket.add()
            self._order.finish()
        self.averagings += 1
