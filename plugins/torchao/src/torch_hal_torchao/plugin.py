"""The backends of this package; importing it imports neither torch nor torchao."""

from __future__ import annotations

from torch_hal.hookspecs import hookimpl
from torch_hal.specs import PrecisionSpec

__all__ = ["core_precisions"]


@hookimpl
def core_precisions() -> list[PrecisionSpec]:
    """Precisions ``fp8-mixed``, ``int8-qat`` and ``int4-qat``."""
    qat = "torch_hal_torchao.qat:QATPrecision"
    return [
        PrecisionSpec(
            name="fp8-mixed",
            target="torch_hal_torchao.float8:Float8Precision",
            description="float32 parameters, linear layers multiply in float8, autocast to bfloat16 elsewhere",
        ),
        PrecisionSpec(
            name="int8-qat",
            target=qat,
            init_args={"weights": "int8"},
            description="quantization-aware training for int8 weights and activations",
        ),
        PrecisionSpec(
            name="int4-qat",
            target=qat,
            init_args={"weights": "int4"},
            description="quantization-aware training for int4 weights and int8 activations",
        ),
    ]
