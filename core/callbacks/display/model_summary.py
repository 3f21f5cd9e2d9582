"""Shows at the start of a fit what the module consists of."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ...hints.argument_checks import check_count
from ...logging import show
from ...random import get_rng_state, set_rng_state
from ...utilities.nested import map_tensors
from ..base import Callback
from .layer_table import Summary, summarize

if TYPE_CHECKING:
    from ...trainer.trainer import Trainer

__all__ = ["ModelSummary", "start_line"]

logger = logging.getLogger(__name__)


class ModelSummary(Callback):
    """Shows at the start of ``fit``, in process 0, the module's layers with their numbers of parameters.

    The table goes to the logger ``core.callbacks.display.model_summary`` if that shows messages of level INFO, else
    to the standard error stream. A parameter that is divided among processes counts as a whole.

    If the module has an ``example_input_array`` (a tensor, a tuple of arguments or a dict of them), the table has the
    floating-point operations of a forward pass with it. The forward pass has no effect on the training.

    Args:
        max_depth: How many levels of layers to list; 0 shows nothing, -1 lists all.

    Attributes:
        summary: What was shown last, in process 0; its ``str`` is the table.
    """

    def __init__(self, max_depth: int = 1) -> None:
        check_count("max_depth", max_depth, -1)
        self.max_depth = max_depth
        self.summary: Summary | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Show what runs on what, and the table.

        Every process computes the operations, since a forward pass may need all of them.
        """
        if self.max_depth == 0:
            return
        inputs = getattr(pl_module, "example_input_array", None)
        obstacle = None if inputs is None else _obstacle(trainer.strategy, pl_module)
        flops = None if inputs is None or obstacle else _count_flops(trainer, pl_module, inputs)
        if not trainer.is_global_zero:
            return
        summary = summarize(pl_module, self.max_depth, flops)
        if obstacle:
            summary = attrs.evolve(summary, notes=(*summary.notes, f"FLOPs are not counted: {obstacle}."))
        self.summary = summary
        show(logger, start_line(trainer.plan))
        self.write(summary)

    def write(self, summary: Summary) -> None:
        """Write the table, in process 0."""
        show(logger, f"\n{summary}", end="\n\n")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "summary": None}


def start_line(plan: Any) -> str:
    """The line with which a fit begins: what runs on what."""
    return f"{plan.headline}; details: print(trainer.plan)"


def _obstacle(strategy: Any, module: nn.Module) -> str | None:
    """Why the module cannot be called for its example alone; ``None`` if it can."""
    if not strategy.supports_custom_loop:
        return "the strategy compiles the training step as a whole"
    # Parts are brought together by hooks of the training's forward pass, which this is not.
    if any(hasattr(parameter, "ds_numel") or hasattr(parameter, "full_tensor") for parameter in module.parameters()):
        return "the parameters are divided among the processes"
    return None


def _count_flops(trainer: Trainer, module: nn.Module, inputs: Any) -> dict[str, int]:
    """The floating-point operations of a forward pass, by the layer's name."""
    strategy = trainer.strategy
    inputs = map_tensors(lambda tensor: tensor.to(strategy.root_device), strategy.precision.convert_input(inputs))
    counter = FlopCounterMode(display=False)
    with _unchanged(strategy, module), trainer.metric_log.ignoring(), strategy.precision.forward_context(), counter:
        if isinstance(inputs, dict):
            module(**inputs)
        else:
            module(*(inputs if isinstance(inputs, tuple) else (inputs,)))
    root = type(module).__name__
    counted = {name: sum(operations.values()) for name, operations in counter.get_flop_counts().items()}
    return {"": counter.get_total_flops()} | {
        name.removeprefix(f"{root}."): number for name, number in counted.items() if name.startswith(f"{root}.")
    }


@contextmanager
def _unchanged(strategy: Any, module: nn.Module) -> Iterator[None]:
    """A forward pass within changes nothing: modes and random numbers are as before."""
    modes = [(part, part.training) for part in module.modules()]
    generators = get_rng_state(strategy.accelerator, strategy.root_device)
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training
        set_rng_state(generators, strategy.accelerator, strategy.root_device)
