"""Precision ``fp8-mixed``: linear layers multiply in float8."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from torch_hal.errors import BackendError, ConfigurationError, WrongTypeError, quoted
from torch_hal.precisions import MixedPrecision, Parts
from torch_hal_torchao.engine import load
from torch_hal_torchao.layers import Layers, LayersPrecision

__all__ = ["RECIPES", "Float8Precision"]

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")


class Float8Precision(LayersPrecision, MixedPrecision):
    """``bf16-mixed`` whose linear layers multiply in float8, forward and backward, as torchao's ``Float8Linear`` does.

    Parameters, gradients and the optimizer's state are float32, and so are checkpoints: they load in any precision.
    Inputs, weights and gradients of each product are scaled by their largest absolute value, and rounded to float8.

    Source: torchao, ``convert_to_float8_training``.

    Args:
        recipe: What has one scale: ``"tensorwise"`` a whole tensor, ``"rowwise"`` each row,
            ``"rowwise_with_gw_hp"`` each row, with gradients of weights computed in bfloat16.
        emulate: Round to float8 and multiply in a wider dtype, on devices that cannot multiply float8.
        keep_float32: Parts of the module that stay in float32: classes of modules, and names as in ``named_modules``,
            of which the end is enough.

    Raises:
        ConfigurationError: ``recipe`` is unknown; or, when a module is converted, it lacks a part.
        WrongTypeError: ``emulate`` is not a bool, or ``keep_float32`` is something else.
    """

    def __init__(self, recipe: str = "tensorwise", emulate: bool = False, keep_float32: Parts = ()) -> None:
        if recipe not in RECIPES:
            raise ConfigurationError(f"recipe={recipe!r} is unknown. Valid: {quoted(RECIPES)}.")
        if not isinstance(emulate, bool):
            raise WrongTypeError(f"emulate={emulate!r} must be True or False.")
        super().__init__("bfloat16", keep_float32=keep_float32)
        self.name = "fp8-mixed"
        self.rounding = 2.0**-4  # e4m3 has 3 bits behind the point
        self.recipe, self.emulate = recipe, emulate

    def connect(self, device_type: str) -> None:
        """See the base class.

        Raises:
            BackendError: torchao cannot be imported, or this type of device cannot multiply float8.
        """
        super().connect(device_type)
        torchao = load(self.name)
        config = replace(torchao.float8.Float8LinearConfig.from_recipe_name(self.recipe), emulate=self.emulate)
        convert = partial(_float8_layer, torchao.float8.convert_to_float8_training, config, device_type)
        self._layers = Layers(convert)
        if not self.emulate:
            self._check_products(convert, device_type)

    def _check_products(self, convert: Any, device_type: str) -> None:
        """Refuse a device that cannot do what a layer does."""
        try:
            layer = nn.Linear(16, 16, device="meta").to_empty(device=device_type)  # draws no random numbers
            for parameter in layer.parameters():
                nn.init.ones_(parameter)
            layer = convert(layer)
            with self.forward_context():
                loss = layer(torch.ones(16, 16, device=device_type, dtype=torch.bfloat16)).sum()
            loss.backward()
        except (RuntimeError, NotImplementedError, AssertionError, ValueError) as error:
            cause = f"{error}".strip().partition("\n")[0]
            raise BackendError(
                f"precision={self.name!r}: a device of type {device_type!r} cannot multiply float8: {cause}. Pass "
                "precision=torch_hal_torchao.Float8Precision(emulate=True), which only rounds to float8, or set "
                "'bf16-mixed'."
            ) from error


def _float8_layer(convert: Any, config: Any, device_type: str, layer: nn.Linear) -> nn.Module:
    made: nn.Module = convert(nn.Sequential(layer), config=config)[0]
    kind: Any = type(made)
    made.__class__ = _follows_autocast(kind, device_type)
    return made


@cache
def _follows_autocast(kind: Any, device_type: str) -> Any:
    """Torchao's layer follows the autocast of CUDA only, and in inference mode autocast fails inside of it."""

    class Float8Linear(kind):  # type: ignore[misc]
        def forward(self, inputs: Tensor) -> Any:
            if not torch.is_autocast_enabled(device_type):
                return super().forward(inputs)
            narrow = inputs.to(torch.get_autocast_dtype(device_type))
            with torch.autocast(device_type, enabled=False):
                return super().forward(narrow)

    return Float8Linear
