"""The linear layers of a module, which become torchao's for a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from torch_hal.precisions import Precision, find_parts

__all__ = ["Layers", "LayersPrecision", "linear_layers"]

logger = logging.getLogger(__name__)


def linear_layers(module: nn.Module, kept: Sequence[nn.Module]) -> dict[str, nn.Linear]:
    """The layers of ``module`` that can become torchao's, by name: each ``nn.Linear``, but none of a subclass.

    A subclass may compute something else than ``nn.Linear``, and that of ``nn.MultiheadAttention`` is never called.

    Args:
        module: The module.
        kept: Parts of it that are left out.
    """
    left = {id(one) for part in kept for one in part.modules()}
    return {name: one for name, one in module.named_modules() if type(one) is nn.Linear and id(one) not in left}


class Layers:
    """Layers that are torchao's until they are released. They stay the same objects, with their hooks.

    Args:
        convert: Makes a layer of torchao from one of torch, with the same parameters.
    """

    def __init__(self, convert: Callable[[nn.Linear], nn.Module]) -> None:
        self._convert = convert
        self._changed: list[tuple[nn.Module, type[nn.Module], list[str]]] = []
        """Each layer, the class that it has become, and the attributes that it got."""

    def change(self, precision: str, module: nn.Module, kept: Sequence[nn.Module]) -> None:
        """Make the linear layers of ``module`` torchao's; those that are already are left as they are."""
        for layer in linear_layers(module, kept).values():
            self._change(layer)
        done = {id(layer) for layer, _, _ in self._changed} | {id(one) for part in kept for one in part.modules()}
        linear = [(name, one) for name, one in module.named_modules() if isinstance(one, nn.Linear)]
        left = [f"{name} ({type(one).__name__})" for name, one in linear if id(one) not in done]
        if not linear:
            logger.warning("precision=%r changes nothing in %s: it has no nn.Linear", precision, type(module).__name__)
        elif left:
            logger.warning("precision=%r does not change %s: no nn.Linear itself", precision, ", ".join(left[:5]))

    def _change(self, layer: Any) -> None:
        made = self._convert(layer)
        new = {name: value for name, value in vars(made).items() if name not in vars(layer)}
        parts = {name: part for name, part in made.named_children() if name not in layer._modules}
        vars(layer).update(new)
        layer._modules.update(parts)
        layer.__class__ = type(made)
        self._changed.append((layer, type(made), [*new, *parts]))

    def release(self) -> None:
        """Make the layers those of torch again, unless something else has changed their class since."""
        changed, self._changed = self._changed, []
        for layer, kind, names in changed:
            if type(layer) is kind:
                for name in names:
                    delattr(layer, name)
                layer.__class__ = nn.Linear

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_changed": []}


class LayersPrecision(Precision):
    """The part of a precision that makes the linear layers of a module torchao's for a run, in place."""

    keep_float32: Any = ()
    """Parts of the module that are left out."""
    _layers: Layers | None = None
    """Set by :meth:`connect`."""

    def convert_module(self, module: nn.Module) -> nn.Module:
        """``module`` in float32, its linear layers torchao's, in place."""
        assert self._layers is not None
        converted = super().convert_module(module)
        kept = self.left_out(converted)
        self.check_layers(linear_layers(converted, kept))
        self._layers.change(self.name, converted, kept)
        return converted

    def left_out(self, module: nn.Module) -> list[nn.Module]:
        """The parts of ``module`` whose layers stay those of torch."""
        return find_parts(module, self.keep_float32)

    def check_layers(self, layers: Mapping[str, nn.Linear]) -> None:
        """Refuse layers that torchao cannot change."""

    def teardown(self) -> None:
        """See the base class; the layers are torch's again."""
        super().teardown()
        if self._layers is not None:
            self._layers.release()
