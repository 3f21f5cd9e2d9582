"""Threads that run communication in the order of the requests, in parallel with the training thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import cycle
from queue import SimpleQueue

import torch
from torch import Tensor
from torch.futures import Future

from torch_hal_bagua.communication import Communicator
from torch_hal_bagua.streams import DeviceOrder

__all__ = ["CommunicationThreads"]

JOIN_SECONDS = 30.0

_Task = Callable[[Communicator], None]
_Entry = tuple[_Task, "torch.Event | None", Tensor, "Future[Tensor]"]


class CommunicationThreads:
    """Run tasks on threads in turn; every process assigns the same tasks to the same threads in the same order.

    An algorithm with several collectives runs as one task. As callbacks of asynchronous collectives, its steps could
    run in a different order in each process and match the collectives of another task. While one thread computes or
    waits for a slow peer, another can send its messages.

    Args:
        device: This process's device.
        communicators: One per thread.
    """

    def __init__(self, device: torch.device, communicators: Sequence[Communicator]) -> None:
        self._threads = [_Thread(device, communicator, number) for number, communicator in enumerate(communicators)]
        self._turn = cycle(self._threads)

    def submit(self, task: Callable[[Communicator], None], values: Tensor) -> Future[Tensor]:
        """Submit ``task``, which changes ``values`` in place.

        Args:
            task: Called with the thread's communicator.
            values: The tensor that ``task`` changes.

        Returns:
            A future of ``values``; its ``wait`` raises what ``task`` raised.
        """
        return next(self._turn).submit(task, values)

    def close(self, failed: bool) -> None:
        """End the threads after the submitted tasks; if this process has failed, do not wait for them."""
        for thread in self._threads:
            thread.close(failed)


class _Thread:
    def __init__(self, device: torch.device, communicator: Communicator, number: int) -> None:
        self._order = DeviceOrder(device)
        self._devices: list[int | str | torch.device] = [] if device.type == "cpu" else [device]
        self._communicator = communicator
        self._entries: SimpleQueue[_Entry | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"bagua-communication-{number}", daemon=True)
        self._thread.start()

    def submit(self, task: _Task, values: Tensor) -> Future[Tensor]:
        future: Future[Tensor] = Future(devices=self._devices)
        self._entries.put((task, self._order.mark(), values, future))
        return future

    def close(self, failed: bool) -> None:
        self._entries.put(None)
        if not failed:
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        self._order.enter_thread()
        while (entry := self._entries.get()) is not None:
            task, mark, values, future = entry
            try:
                self._order.wait(mark)
                with torch.no_grad():
                    task(self._communicator)
                self._order.finish()
            except Exception as error:  # noqa: BLE001  raised again in the thread that waits
                future.set_exception(error)  # type: ignore[arg-type]  # annotated as what results are
            else:
                future.set_result(values)
            del entry, task, mark, values, future
