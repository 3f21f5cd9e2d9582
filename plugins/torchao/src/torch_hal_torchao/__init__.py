"""torchao in torch-hal: precisions ``fp8-mixed``, ``int8-qat`` and ``int4-qat``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_hal.utilities.lazy import lazy_names

if TYPE_CHECKING:
    from torch_hal_torchao.float8 import Float8Precision
    from torch_hal_torchao.qat import QATPrecision
    from torch_hal_torchao.recipes import AORecipeKwargs, FP8RecipeKwargs

__all__ = ["AORecipeKwargs", "FP8RecipeKwargs", "Float8Precision", "QATPrecision"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("AORecipeKwargs", "FP8RecipeKwargs"), "torch_hal_torchao.recipes"),
        "Float8Precision": "torch_hal_torchao.float8",
        "QATPrecision": "torch_hal_torchao.qat",
    },
)
