"""Each class breaks one rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from core.nested import map_tensors
from core.precisions import DoublePrecision, FullPrecision, HalfPrecision, MixedPrecision, Precision
from core.precisions.clipping import clip_gradients
from core.precisions.dtypes import to_floating


class ComputesInFull(FullPrecision):
    compute_dtype = torch.bfloat16


class StoresInHalf(HalfPrecision):
    def __init__(self) -> None:
        super().__init__("bfloat16")
        self.param_dtype = torch.float32

    def convert_module(self, module: nn.Module) -> nn.Module:
        return module.bfloat16()

    def convert_input(self, data: Any) -> Any:
        return to_floating(data, torch.bfloat16)


class LeavesBuffers(DoublePrecision):
    def convert_module(self, module: nn.Module) -> nn.Module:
        buffers = {name: value.clone() for name, value in module.named_buffers()}
        super().convert_module(module)
        for name, value in buffers.items():
            module.register_buffer(name, value)
        return module


class HandsOutHalves(MixedPrecision):
    def __init__(self) -> None:
        super().__init__("bfloat16")

    def convert_output(self, data: Any) -> Any:
        return data


class ConvertsLabels(DoublePrecision):
    def convert_input(self, data: Any) -> Any:
        return map_tensors(torch.Tensor.double, data)


class StepsOnInfinity(MixedPrecision):
    """Looks for no infinite gradients, and lowers the scale as if it had."""

    def __init__(self) -> None:
        super().__init__("float16")

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        self.unscale_gradients(optimizer)
        optimizer.step()
        return super().optimizer_step(optimizer)


class ForgetsTheScale(MixedPrecision):
    def __init__(self) -> None:
        super().__init__("float16")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class ClipsTheScaled(MixedPrecision):
    def __init__(self) -> None:
        super().__init__("float16")

    def clip_gradients(
        self, parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Tensor | None:
        return clip_gradients(parameters, clip_value, algorithm, norm_type)


class UnscalesTwice(MixedPrecision):
    def __init__(self) -> None:
        super().__init__("float16")

    def unscale_gradients(self, optimizer: Any) -> None:
        if optimizer in self._unscaled:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad /= self._connected_scaler().get_scale()
        super().unscale_gradients(optimizer)


class ScalesInSecret(FullPrecision):
    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        super().backward(loss * 4, *args, **kwargs)


class SaysItScales(FullPrecision):
    scales_loss = True


class LeavesADtype(FullPrecision):
    def forward_context(self) -> Any:
        return _Lasting()


class _Lasting:
    def __enter__(self) -> None:
        torch.set_default_dtype(torch.float64)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            torch.set_default_dtype(torch.float32)


class KeepsAnObject(FullPrecision):
    def state_dict(self) -> dict[str, Any]:
        return {"precision": Precision()}


class TearsDownTheDtype(FullPrecision):
    def teardown(self) -> None:
        torch.set_default_dtype(torch.bfloat16)
