"""What a step logs while it runs on parts of a batch: logged once, for the whole batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from core import Module

__all__ = ["joined_logs"]

_COMBINED = {"mean", "sum", "min", "max"}


@contextmanager
def joined_logs(parts: Sequence[nn.Module], sizes: Sequence[int], device: torch.device) -> Iterator[None]:
    """Within, what :class:`core.Module` in ``parts`` log is kept; afterwards it is logged by those of the first.

    A value is combined over the parts as ``reduce_fx`` says, a mean weighted by ``batch_size`` or else by the part's
    size: so what is logged is the whole batch's. Of several values of one name in a part, each has its turn.

    Args:
        parts: The original and its replicas.
        sizes: How many items each has.
        device: Where the values are combined.
    """
    loggers = [[module for module in part.modules() if isinstance(module, Module)] for part in parts]
    logs = [[_PartLog(size) for _ in loggers[0]] for size in sizes]
    for modules, own_logs in zip(loggers, logs, strict=True):
        for module, log in zip(modules, own_logs, strict=True):
            module.__dict__["log"] = log.log
    try:
        yield
    finally:
        for module in loggers[0]:
            del module.__dict__["log"]
    for module, of_module in zip(loggers[0], zip(*logs, strict=True), strict=True):
        for turns in _turns(of_module):
            _log_joined(module, turns, device)


class _PartLog:
    """Keeps what one module logs on one part."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.kept: dict[tuple[str, int], dict[str, Any]] = {}
        """By name, and the how manieth of that name: the arguments of ``log``."""

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str = "mean",
        sync_dist: bool = False,
        batch_size: int | None = None,
    ) -> None:
        """As :meth:`core.Module.log`, for later."""
        turn = 0
        while (name, turn) in self.kept:
            turn += 1
        self.kept[name, turn] = {
            "name": name,
            "value": value.detach().clone() if isinstance(value, Tensor) else value,
            "prog_bar": prog_bar,
            "on_step": on_step,
            "on_epoch": on_epoch,
            "reduce_fx": reduce_fx,
            "sync_dist": sync_dist,
            "batch_size": batch_size,
        }


Turn = tuple[dict[str, Any], int]
"""The arguments of one call of ``log``, and the size of the part that it was about."""


def _turns(logs: Sequence[_PartLog]) -> list[list[Turn]]:
    """What the parts logged, that of one name and turn together, in the order of the first part that logged it."""
    keys = dict.fromkeys(key for log in logs for key in log.kept)
    return [[(log.kept[key], log.size) for log in logs if key in log.kept] for key in keys]


def _log_joined(module: Module, turns: Sequence[Turn], device: torch.device) -> None:
    arguments = dict(turns[0][0])
    values = [said["value"] for said, _ in turns]
    if arguments["reduce_fx"] in _COMBINED and all(map(_is_scalar, values)):  # else Module.log says what is wrong
        sizes = [size if said["batch_size"] is None else said["batch_size"] for said, size in turns]
        arguments["value"] = _combined(values, arguments["reduce_fx"], sizes, device)
        if arguments["batch_size"] is not None:
            arguments["batch_size"] = sum(sizes)
    module.log(**arguments)


def _is_scalar(value: Any) -> bool:
    return value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, int | float)


def _combined(values: Sequence[Any], reduce_fx: str, sizes: Sequence[int], device: torch.device) -> Any:
    own = [value.to(device).reshape(()) if isinstance(value, Tensor) else value for value in values]
    if reduce_fx == "mean":
        return sum(value * size for value, size in zip(own, sizes, strict=True)) / (sum(sizes) or 1)
    if reduce_fx == "sum":
        return sum(own)
    stacked = torch.stack([torch.as_tensor(value, device=device) for value in own])
    return stacked.min() if reduce_fx == "min" else stacked.max()
