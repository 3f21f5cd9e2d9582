"""Precision ``fp8-mixed``: linear layers multiply in float8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from torch_hal.errors import BackendError, ConfigurationError, WrongTypeError, quoted
from torch_hal.precisions import MixedPrecision, Parts
from torch_hal_torchao.engine import load
from torch_hal_torchao.layers import Layers, LayersPrecision, linear_layers
from torch_hal_torchao.recipes import read_recipe

__all__ = ["LAYERS", "RECIPES", "Float8Precision"]

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
LAYERS = ("all", "inner")


class Float8Precision(LayersPrecision, MixedPrecision):
    """``bf16-mixed`` whose linear layers multiply in float8, forward and backward, as torchao's ``Float8Linear`` does.

    Parameters, gradients and the optimizer's state are float32, and so are checkpoints: they load in any precision.
    Inputs, weights and gradients of each product are scaled by their largest absolute value, and rounded to float8.

    Source: torchao, ``convert_to_float8_training``.

    Args:
        recipe: What has one scale: ``"tensorwise"`` a whole tensor, ``"rowwise"`` each row,
            ``"rowwise_with_gw_hp"`` each row, with gradients of weights computed in bfloat16. Or a
            ``torchao.float8.Float8LinearConfig``; shards of FSDP are gathered in the dtype of the precision with any.
        emulate: Round to float8 and multiply in a wider dtype, on devices that cannot multiply float8.
        keep_float32: Parts of the module that stay in float32: classes of modules, and names as in ``named_modules``,
            of which the end is enough.
        layers: Which linear layers multiply in float8: ``"all"``; ``"inner"``, of those whose sizes 16 divides all but
            the first and the last one; or a function of a layer and its name.
        pad_inner_dim: Pad products whose sizes 16 does not divide, which many devices cannot multiply otherwise.

    Raises:
        ConfigurationError: ``recipe`` or ``layers`` is unknown; or, when a module is converted, it lacks a part.
        WrongTypeError: ``emulate`` or ``pad_inner_dim`` is not a bool, or ``keep_float32`` is something else.
    """

    recipe_handler: Any = None
    """What :meth:`of_script` has read."""

    def __init__(
        self,
        recipe: Any = "tensorwise",
        emulate: bool = False,
        keep_float32: Parts = (),
        *,
        layers: str | Callable[[nn.Module, str], bool] = "all",
        pad_inner_dim: bool = False,
    ) -> None:
        is_config = hasattr(recipe, "cast_config_input")
        if not is_config and recipe not in RECIPES:
            raise ConfigurationError(
                f"recipe={recipe!r} is unknown. Valid: {quoted(RECIPES)}, or a torchao.float8.Float8LinearConfig."
            )
        if not callable(layers) and layers not in LAYERS:
            raise ConfigurationError(f"layers={layers!r} is unknown. Valid: {quoted(LAYERS)}, or a function.")
        for name, value in (("emulate", emulate), ("pad_inner_dim", pad_inner_dim)):
            if not isinstance(value, bool):
                raise WrongTypeError(f"{name}={value!r} must be True or False.")
        super().__init__("bfloat16", keep_float32=keep_float32)
        self.name = "fp8-mixed"
        self.rounding = 2.0**-4  # e4m3 has 3 bits behind the point
        self.recipe, self.layers = recipe, layers
        self.emulate = emulate or (is_config and recipe.emulate)
        self.pad_inner_dim = pad_inner_dim or (is_config and recipe.pad_inner_dim)

    @classmethod
    def of_script(cls, handler: Any) -> Float8Precision:
        """The precision that a script asks for by ``kwargs_handlers=[handler]``; see :class:`AORecipeKwargs`.

        Raises:
            ConfigurationError: A setting has no counterpart here.
        """
        made = cls(**read_recipe(handler))
        made.recipe_handler = handler
        return made

    def left_out(self, module: nn.Module) -> list[nn.Module]:
        """See the base class."""
        found = linear_layers(module, super().left_out(module))
        if self.layers == "all":
            return super().left_out(module)
        if self.layers == "inner":
            names = [name for name, one in module.named_modules() if isinstance(one, nn.Linear)]
            ends = {*names[:1], *names[-1:]}
            out = [one for name, one in found.items() if name in ends or one.in_features % 16 or one.out_features % 16]
        else:
            choose: Any = self.layers
            out = [one for name, one in found.items() if not choose(one, name)]
        return [*super().left_out(module), *out]

    def connect(self, device_type: str) -> None:
        """See the base class.

        Raises:
            BackendError: torchao cannot be imported, or this type of device cannot multiply float8.
        """
        super().connect(device_type)
        torchao = load(self.name)
        kind = torchao.float8.Float8LinearConfig
        config = kind.from_recipe_name(self.recipe) if isinstance(self.recipe, str) else self.recipe
        config = replace(
            config, emulate=self.emulate, pad_inner_dim=self.pad_inner_dim, enable_fsdp_float8_all_gather=False
        )
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
