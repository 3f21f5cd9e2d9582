"""Precisions ``int8-qat`` and ``int4-qat``: training for integer weights."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from torch_hal.errors import ConfigurationError, quoted
from torch_hal.hints.argument_checks import check_count
from torch_hal.precisions import FullPrecision, Parts, find_parts, read_parts
from torch_hal_torchao.engine import load
from torch_hal_torchao.layers import Layers, LayersPrecision, linear_layers

__all__ = ["QATPrecision"]

_WEIGHTS = {"int8": None, "int4": 32}
"""The dtypes of weights, and the default group size: ``None`` for one scale a row."""

logger = logging.getLogger(__name__)


class QATPrecision(LayersPrecision, FullPrecision):
    """Float32 training in which linear layers compute with weights and inputs rounded as the quantized model has them.

    The gradient passes the rounding unchanged. Parameters, gradients and the optimizer's state are float32, and so are
    checkpoints: they load in any precision. :meth:`quantize` makes the quantized model.

    Source: torchao, ``QATConfig``; Jacob et al., 2018.

    Args:
        weights: ``"int8"`` or ``"int4"``: the dtype of weights, symmetric around 0.
        activations: ``"int8"``: inputs are rounded too, with a scale for each token; ``None``: they are not.
        group_size: Weights of a row that have one scale. By default a whole row for int8, and 32 for int4; layers
            whose inputs 32 does not divide have one scale a row, and are named in the log.
        keep_float32: Parts of the module that are not quantized: classes of modules, and names as in
            ``named_modules``, of which the end is enough.

    Raises:
        ConfigurationError: An argument is unknown or out of range; or, when a module is converted, it lacks a part, or
            a layer cannot be divided into groups.
        WrongTypeError: ``keep_float32`` is something else.
    """

    def __init__(
        self,
        weights: str = "int8",
        activations: str | None = "int8",
        group_size: int | None = None,
        keep_float32: Parts = (),
    ) -> None:
        if weights not in _WEIGHTS:
            raise ConfigurationError(f"weights={weights!r} is unknown. Valid: {quoted(_WEIGHTS)}.")
        if activations not in ("int8", None):
            raise ConfigurationError(f"activations={activations!r} is unknown. Valid: 'int8', or None.")
        if group_size is not None:
            check_count("group_size", group_size, 1)
        self.name = f"{weights}-qat"
        self.rounding = 0.5 / 127 if weights == "int8" else 0.5 / 7
        self.weights, self.activations = weights, activations
        self.group_size = _WEIGHTS[weights] if group_size is None else group_size
        self._any_size = group_size is None
        self.keep_float32 = read_parts(keep_float32)

    def connect(self, device_type: str) -> None:
        """See the base class.

        Raises:
            BackendError: torchao cannot be imported.
        """
        quantization = load(self.name).quantization

        def convert(layer: nn.Linear) -> nn.Module:
            config = quantization.qat.QATConfig(self._config(layer), step="prepare")
            return _prepared_layer(quantization.quantize_, config, layer)

        self._layers = Layers(convert)

    def _config(self, layer: nn.Linear) -> Any:
        """The configuration of a quantized layer, as torchao has it."""
        quantization = load(self.name).quantization
        size = None if self._divides(layer) is False and self._any_size else self.group_size
        per = quantization.PerAxis(0) if size is None else quantization.PerGroup(size)
        dtype = getattr(torch, self.weights)
        if self.activations is None:
            return quantization.IntxWeightOnlyConfig(weight_dtype=dtype, granularity=per)
        return quantization.Int8DynamicActivationIntxWeightConfig(weight_dtype=dtype, weight_granularity=per)

    def _divides(self, layer: nn.Linear) -> bool:
        return self.group_size is None or layer.in_features % self.group_size == 0

    def quantize(self, module: nn.Module) -> nn.Module:
        """A copy of the trained ``module`` on the same device, in evaluation mode, with quantized weights.

        It computes what ``module`` does in evaluation in this precision. ``module`` itself is not changed.

        Raises:
            BackendError: torchao cannot be imported.
            ConfigurationError: As for the class.
        """
        quantization = load(self.name).quantization
        holder = nn.Sequential(copy.deepcopy(module).eval())  # a layer can be replaced only in another module
        # In a run, its layers are torchao's; with this configuration they become torch's.
        quantization.quantize_(holder, quantization.qat.QATConfig(step="convert"))
        layers = linear_layers(holder[0], find_parts(holder[0], self.keep_float32))
        self.check_layers(layers)
        for layer in layers.values():
            quantization.quantize_(holder, self._config(layer), filter_fn=lambda one, _, layer=layer: one is layer)
        quantized: nn.Module = holder[0]
        return quantized

    def check_layers(self, layers: Mapping[str, nn.Linear]) -> None:
        """Refuse layers whose inputs ``group_size`` does not divide, or say that they have one scale a row."""
        odd = [name for name, layer in layers.items() if not self._divides(layer)]
        if odd and self._any_size:
            logger.warning(
                "precision=%r: one scale a row in %s, whose inputs %s does not divide",
                self.name,
                quoted(odd[:10]),
                self.group_size,
            )
        elif odd:
            raise ConfigurationError(
                f"precision={self.name!r}: group_size={self.group_size} does not divide the inputs of "
                f"{quoted(odd[:10])}. Set another group_size, or leave these layers out: keep_float32=[...]."
            )


def _prepared_layer(quantize: Any, config: Any, layer: nn.Linear) -> nn.Module:
    # A layer without values: torchao draws random ones for the new layer, which would change the user's random state.
    holder = nn.Sequential(nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta"))
    quantize(holder, config)
    return holder[0]
