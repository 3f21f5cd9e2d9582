"""Running the parts of a batch at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["run_parts"]


def run_parts(
    modules: Sequence[nn.Module],
    parts: Sequence[tuple[Any, Any]],
    devices: Sequence[torch.device],
    select: Callable[[torch.device], None],
) -> list[Any]:
    """Call each module with its part: the first in this thread, each other in one of its own.

    A thread of its own has this one's gradient mode, inference mode and autocast.

    Args:
        modules: One for each part.
        parts: Positional and keyword arguments of each.
        devices: Where each runs.
        select: Makes a device the current one of the thread that calls it.

    Returns:
        What they returned, in order. An exception is raised once all have ended; that of the first part that has one.
    """
    mode = _Mode(devices[0].type)

    def elsewhere(module: nn.Module, part: tuple[Any, Any], device: torch.device) -> Any:
        select(device)
        try:
            with mode.entered():
                return module(*part[0], **part[1])
        except BaseException as error:
            error.add_note(f"raised in the replica on device '{device}'")
            raise

    with ThreadPoolExecutor(max(1, len(parts) - 1), thread_name_prefix="data-parallel") as pool:
        others = [
            pool.submit(elsewhere, *words)
            for words in zip(modules[1:], parts[1:], devices[1 : len(parts)], strict=True)
        ]
        first = modules[0](*parts[0][0], **parts[0][1])
    return [first, *(other.result() for other in others)]


class _Mode:
    """What torch keeps for each thread, as it is in this one."""

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
