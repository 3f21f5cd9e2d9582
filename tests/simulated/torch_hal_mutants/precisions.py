"""Each class breaks one rule."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from core.precisions import DoublePrecision, FullPrecision, HalfPrecision, MixedPrecision, Precision
from core.precisions.dtypes import to_floating
from core.precisions.gradient_clipping import clip_gradients
from core.utilities.nested import map_tensors


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


# -- evaluation, groups, closures, outputs -----------------------------------------------------------------------------


class _Bf16(MixedPrecision):
    def __init__(self) -> None:
        super().__init__("bfloat16")


class _Fp16(MixedPrecision):
    def __init__(self) -> None:
        super().__init__("float16")


class EvaluatesInFull(_Bf16):
    """Forward passes without gradients are in float32."""

    def forward_context(self) -> Any:
        return super().forward_context() if torch.is_grad_enabled() else nullcontext()


class UnscalesTheFirstGroup(_Fp16):
    """Of the optimizer's groups, only the first is unscaled."""

    def unscale_gradients(self, optimizer: Any) -> None:
        scale = self._connected_scaler().get_scale()
        super().unscale_gradients(optimizer)
        for group in optimizer.param_groups[1:]:
            for parameter in group["params"]:
                parameter.grad.mul_(scale)


class DropsTheClosure(FullPrecision):
    """``optimizer.step`` is called without the user's closure."""

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        return optimizer.step()


class ForgetsTheLoss(FullPrecision):
    """``step(closure)`` does not return the closure's loss."""

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        super().optimizer_step(optimizer, closure)


class DetachesTheSecond(FullPrecision):
    """The second of several outputs is detached."""

    def convert_output(self, data: Any) -> Any:
        seen = []

        def convert(tensor: Tensor) -> Tensor:
            seen.append(tensor)
            return tensor.detach() if len(seen) == 2 else tensor

        return map_tensors(convert, data)


class DetachesInputs(DoublePrecision):
    """Converted inputs pass no gradients on."""

    def convert_input(self, data: Any) -> Any:
        return map_tensors(torch.Tensor.detach, super().convert_input(data))


class ConvertsTopTensors(DoublePrecision):
    """Inputs within lists stay in float32."""

    def convert_input(self, data: Any) -> Any:
        if isinstance(data, dict):
            return {name: self.convert_input(value) for name, value in data.items()}
        return super().convert_input(data) if isinstance(data, Tensor) else data


class ConvertsTopOutputs(_Bf16):
    """Outputs within tuples stay in 16 bits."""

    def convert_output(self, data: Any) -> Any:
        return {
            n: super(ConvertsTopOutputs, self).convert_output(v) if isinstance(v, Tensor) else v
            for n, v in data.items()
        }


class StepsTheRest(_Fp16):
    """An overflow in the second group leaves out that group's step only."""

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        self.unscale_gradients(optimizer)
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None and parameter.grad.isfinite().all():
                        parameter.sub_(parameter.grad * group["lr"])
                        parameter.grad.zero_()
        return super().optimizer_step(optimizer, closure)


class ReplacesParameters(FullPrecision):
    """``convert_module`` makes new parameters, which an optimizer made before does not know."""

    def convert_module(self, module: nn.Module) -> nn.Module:
        for part in module.modules():
            for name, parameter in list(part.named_parameters(recurse=False)):
                part.register_parameter(name, nn.Parameter(parameter.detach().clone()))
        return module


class NeedsAllGradients(FullPrecision):
    """A parameter without a gradient stops the step."""

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.add_(0)
        return super().optimizer_step(optimizer, closure)


class UpdatesAtEachStep(_Fp16):
    """The scale changes between the steps of two optimizers, whose gradients have the old one."""

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        result = super().optimizer_step(optimizer, closure)
        scaler = self._connected_scaler()
        scaler.update(scaler.get_scale() * 2)
        self._unscaled.clear()
        return result


class RoundsStochastically(FullPrecision):
    """A forward pass draws from the host's generator."""

    def convert_input(self, data: Any) -> Any:
        torch.rand(1)
        return data


class FreezesAfterwards(FullPrecision):
    """A forward pass leaves gradients disabled."""

    def convert_output(self, data: Any) -> Any:
        torch.set_grad_enabled(False)
        return data


class IgnoresRates(FullPrecision):
    """All groups are stepped at the rate of the first."""

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        for group in optimizer.param_groups:
            group["lr"] = optimizer.param_groups[0]["lr"]
        return super().optimizer_step(optimizer, closure)


# -- what is the user's ------------------------------------------------------------------------------------------------


class Unfreezes(DoublePrecision):
    """Frozen parameters become trainable."""

    def convert_module(self, module: nn.Module) -> nn.Module:
        return super().convert_module(module).requires_grad_()


class PutsAllInTraining(DoublePrecision):
    """Layers in evaluation mode are put into training mode."""

    def convert_module(self, module: nn.Module) -> nn.Module:
        return super().convert_module(module).train()


class WidensTheData(HalfPrecision):
    """A step gives the parameters' `data` another dtype for a while."""

    def __init__(self) -> None:
        super().__init__("bfloat16")

    def overrides(self, hook: str) -> bool:
        return hook == "optimizer_step" or super().overrides(hook)

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        gradients = [parameter.grad for parameter in parameters]
        for dtype in (torch.float32, torch.bfloat16):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = None
                parameter.data = parameter.data.to(dtype)
                parameter.grad = gradient.to(dtype)
            if dtype is torch.float32:
                optimizer.step()
        return loss


class SharesNothing(FullPrecision):
    """A parameter that two layers share becomes two."""

    def convert_module(self, module: nn.Module) -> nn.Module:
        for layer in module.modules():
            for name, parameter in [*layer.named_parameters(recurse=False)]:
                if parameter.requires_grad and name == "weight":
                    layer.register_parameter(name, nn.Parameter(parameter.detach().clone()))
        return module


class LowersTheProducts(FullPrecision):
    """Preparing a module sets torch's matmul precision for the whole process."""

    def convert_module(self, module: nn.Module) -> nn.Module:
        torch.set_float32_matmul_precision("medium")
        return module


class ConvertsInPlace(DoublePrecision):
    """Tensors in the user's own dicts are replaced."""

    def convert_input(self, data: Any) -> Any:
        if isinstance(data, dict):
            data.update({name: self.convert_input(value) for name, value in data.items()})
            return data
        return type(data)(map(self.convert_input, data)) if type(data) in (list, tuple) else super().convert_input(data)


class KnowsNoNames(DoublePrecision):
    """Named tuples reach the module as tuples."""

    def convert_input(self, data: Any) -> Any:
        return tuple(map(self.convert_input, data)) if isinstance(data, tuple) else super().convert_input(data)


class TakesRealParts(DoublePrecision):
    """Of complex inputs the real part remains."""

    def convert_input(self, data: Any) -> Any:
        return super().convert_input(map_tensors(lambda found: found.real if found.is_complex() else found, data))


class BackpropagatesOnce(FullPrecision):
    """``retain_graph=True`` is dropped."""

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        super().backward(loss, *args, **{name: value for name, value in kwargs.items() if name != "retain_graph"})


class BeginsWithOne(FullPrecision):
    """``gradient=`` is dropped."""

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        super().backward(loss, *args, **{name: value for name, value in kwargs.items() if name != "gradient"})


class KnowsOneNorm(FullPrecision):
    """Clipping takes ``norm_type=2.0`` for any other."""

    def clip_gradients(
        self, parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Tensor | None:
        return clip_gradients(parameters, clip_value, algorithm)


class ClearsAfterwards(FullPrecision):
    """A step removes the gradients."""

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        result = super().optimizer_step(optimizer, closure)
        optimizer.zero_grad()
        return result


class LooksAway(FullPrecision):
    """NaN in gradients becomes 0."""

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None if parameter.grad is None else parameter.grad.nan_to_num()
        return super().optimizer_step(optimizer, closure)


class SaysNothingOfIt(MixedPrecision):
    """A skipped step is never reported."""

    def __init__(self) -> None:
        super().__init__("float16")

    def step_was_skipped(self, optimizer: Any) -> bool:
        return False


class NarrowsDoubles(MixedPrecision):
    """Outputs in float64 come out in float32."""

    def __init__(self) -> None:
        super().__init__("bfloat16")

    def convert_output(self, data: Any) -> Any:
        return to_floating(data, torch.float32)


class LeavesFloat32(DoublePrecision):
    """After a forward pass the default dtype is float32, whatever it was before."""

    def forward_context(self) -> Any:
        return self._context()

    @contextmanager
    def _context(self) -> Any:
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)
