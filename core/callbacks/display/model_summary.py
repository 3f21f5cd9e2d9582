"""Shows at the start of a fit what the module consists of: a table of its layers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.flop_counter import FlopCounterMode

from ...hints.argument_checks import check_count
from ...loggers.values import inference
from ...logging import show
from ...random import get_rng_state, set_rng_state
from ...utilities.nested import map_tensors
from ..base import Callback

if TYPE_CHECKING:
    from ...trainer.trainer import Trainer

logger = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Layer:
    """One row of a summary."""

    name: str
    type: str
    parameters: int
    trainable: int
    """How many of the parameters are trained."""
    training: bool | None
    """The module's mode; ``None`` for a row that is not a module."""
    flops: int | None = None
    """The floating-point operations of a forward pass; ``None`` if they were not counted."""


@attrs.frozen(kw_only=True)
class Summary:
    """A module's layers and totals; ``str`` makes the table."""

    layers: Sequence[Layer]
    parameters: int
    trainable: int
    size: int
    """The bytes of all parameters."""
    modules_training: int
    modules_evaluating: int
    flops: int | None = None
    notes: Sequence[str] = ()
    """What the numbers leave out."""

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The titles of the columns, and the rows."""
        header = ["", "Name", "Type", "Params", "Trainable", "Mode"]
        rows = [
            [
                str(number) if layer.training is not None else "",
                layer.name,
                layer.type,
                number_of(layer.parameters),
                f"{100 * layer.trainable / layer.parameters:.0f}%" if layer.parameters else "",
                "" if layer.training is None else "train" if layer.training else "eval",
            ]
            for number, layer in enumerate(self.layers)
        ]
        if self.flops is not None:
            header.append("FLOPs")
            for row, layer in zip(rows, self.layers, strict=True):
                row.append("" if layer.flops is None else number_of(layer.flops))
        return header, rows

    def __str__(self) -> str:
        header, rows = self.table()
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        title, *lines = [" | ".join(map(str.ljust, row, widths)) for row in (header, *rows)]
        rule = "-" * len(title)
        return "\n".join(line.rstrip() for line in (title, rule, *lines, rule, *self.totals(), *self.notes))

    def totals(self) -> Iterator[str]:
        """The lines below the table."""
        totals = {
            "Trainable params": number_of(self.trainable),
            "Non-trainable params": number_of(self.parameters - self.trainable),
            "Total params": number_of(self.parameters),
            "Size of params (MB)": f"{self.size / 1e6:,.3f}",
            "Modules in train mode": str(self.modules_training),
            "Modules in eval mode": str(self.modules_evaluating),
        }
        if self.flops is not None:
            totals["Total FLOPs"] = number_of(self.flops)
        width = max(map(len, totals.values()))
        return (f"{value.ljust(width)} {name}" for name, value in totals.items())


def summarize(module: nn.Module, max_depth: int = 1, flops: Mapping[str, int] | None = None) -> Summary:
    """The layers of ``module`` down to ``max_depth`` levels, and totals of all its parameters.

    A parameter that several layers share counts in each of them, and once in the totals. One that is divided among
    processes counts as a whole.

    Args:
        module: The module.
        max_depth: How many levels of layers to list; -1 for all.
        flops: The floating-point operations of a forward pass by the layer's name, ``""`` for the module.
    """
    listed = [
        (name, layer)
        for name, layer in module.named_modules()
        if name and (max_depth == -1 or name.count(".") < max_depth)
    ]
    layers = [
        Layer(
            name=name,
            type=type(layer).__name__,
            parameters=sum(map(_count, layer.parameters())),
            trainable=_trainable(layer.parameters()),
            training=layer.training,
            flops=None if flops is None else flops.get(name, 0),
        )
        for name, layer in listed
    ]
    in_layers = {parameter for child in module.children() for parameter in child.parameters()}
    own = [parameter for parameter in module.parameters() if parameter not in in_layers]
    if own:
        layers.append(
            Layer(
                name="(its own)",
                type="parameters",
                parameters=sum(map(_count, own)),
                trainable=_trainable(own),
                training=None,
            )
        )
    parameters = list(module.parameters())
    modes = [part.training for part in module.modules()]
    lazy = sum(map(is_lazy, parameters))
    return Summary(
        layers=layers,
        parameters=sum(map(_count, parameters)),
        trainable=_trainable(parameters),
        size=sum(_count(parameter) * parameter.element_size() for parameter in parameters if not is_lazy(parameter)),
        modules_training=sum(modes),
        modules_evaluating=len(modes) - sum(modes),
        flops=None if flops is None else flops.get("", 0),
        notes=(f"Not counted: {lazy} parameters that have no shape before the first forward pass.",) if lazy else (),
    )


def number_of(count: int) -> str:
    """``count`` for people: ``129``, ``1.2 K``, ``25.6 M``."""
    value = float(count)
    for unit in ("", " K", " M", " B"):
        if round(value, 1) < 1000:
            return f"{count}" if not unit else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:,.1f} T"


def _count(parameter: Any) -> int:
    """The elements of a parameter, over all processes."""
    if is_lazy(parameter):
        return 0
    # Where a library keeps only this process's part in the parameter, it notes the whole's size there. DTensors
    # have the whole's shape.
    whole: int = getattr(parameter, "ds_numel", parameter.numel())
    return whole


def _trainable(parameters: Iterator[nn.Parameter] | Sequence[nn.Parameter]) -> int:
    return sum(_count(parameter) for parameter in parameters if parameter.requires_grad)


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
    generators = get_rng_state(strategy.accelerator, strategy.root_device)
    try:
        with inference(module):
            yield
    finally:
        set_rng_state(generators, strategy.accelerator, strategy.root_device)
