"""A table of a module's layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from torch import nn
from torch.nn.parameter import is_lazy

__all__ = ["Layer", "Summary", "number_of", "summarize"]


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
                _share(layer),
                "" if layer.training is None else _mode(layer.training),
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
        lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        title = " | ".join(cell.ljust(width) for cell, width in zip(header, widths, strict=True))
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


def _share(layer: Layer) -> str:
    return "" if layer.parameters == 0 else f"{100 * layer.trainable / layer.parameters:.0f}%"


def _mode(training: bool) -> str:
    return "train" if training else "eval"
