"""Runs the parts of a batch in parallel threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from torch_hal.strategies import collect_logs
from torch_hal_cuda.parallel.logs import PartLog

__all__ = ["run_parts"]


def run_parts(
    modules: Sequence[nn.Module],
    parts: Sequence[tuple[Any, Any]],
    devices: Sequence[torch.device],
    select: Callable[[torch.device], None],
    logs: Sequence[PartLog],
) -> list[Any]:
    """Call each module with its part: the first in this thread, each other in a new thread.

    The new threads have this thread's gradient mode, inference mode and autocast.

    Args:
        modules: One per part.
        parts: Positional and keyword arguments of each part.
        devices: The device of each part.
        select: Makes a device the current one of the calling thread.
        logs: The log of each part, which takes what its module logs.

    Returns:
        The outputs, in order. If parts raise, the first part's exception is raised once all have ended.
    """
    mode = _Mode(devices[0].type)

    def run(module: nn.Module, part: tuple[Any, Any], device: torch.device, log: PartLog) -> Any:
        select(device)
        try:
            with mode.entered(), collect_logs(log):
                return module(*part[0], **part[1])
        except BaseException as error:
            error.add_note(f"raised in the replica on device '{device}'")
            raise

    with ThreadPoolExecutor(max(1, len(parts) - 1), thread_name_prefix="data-parallel") as pool:
        others = [
            pool.submit(run, *arguments)
            for arguments in zip(modules[1:], parts[1:], devices[1 : len(parts)], logs[1:], strict=True)
        ]
        with collect_logs(logs[0]):
            first = modules[0](*parts[0][0], **parts[0][1])
    return [first, *(other.result() for other in others)]


class _Mode:
    """The thread-local modes of torch, copied from this thread."""

    def __init__(self, device_type: str) -> None:
        self.grad = torch.is_grad_enabled()
        self.inference = torch.is_inference_mode_enabled()
        self.cache = torch.is_autocast_cache_enabled()
        self.autocast = {
            kind: torch.get_autocast_dtype(kind)
            for kind in dict.fromkeys((device_type, "cpu"))
            if torch.is_autocast_enabled(kind)
        }

    @contextmanager
    def entered(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for kind, dtype in self.autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=self.cache))
            yield
