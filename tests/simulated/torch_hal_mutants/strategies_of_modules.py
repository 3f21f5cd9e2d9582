"""Each class breaks one rule about modules, or about what goes through a collective."""

from __future__ import annotations

import pickle
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from core.strategies import SingleDeviceStrategy
from torch_hal_mutants.strategies import _Forking


class TrainsTheFrozen(_Forking):
    """Frozen parameters become trainable."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        return super().setup_module(module.requires_grad_())


class PutsAllInTraining(_Forking):
    """Layers in evaluation mode are put into training mode."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        return super().setup_module(module.train())


class FillsInGradients(_Forking):
    """Parameters without gradients get zeros, so that weight decay moves them."""

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        return super().optimizer_step(optimizer, closure)


class SharesNothing(_Forking):
    """A parameter that two layers share becomes two."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        seen: set[nn.Parameter] = set()
        for layer in module.modules():
            for name, parameter in [*layer.named_parameters(recurse=False)]:
                if parameter in seen:
                    layer.register_parameter(name, nn.Parameter(parameter.detach().clone()))
                seen.add(parameter)
        return super().setup_module(module)


class ZeroesWhatIsNotSaved(_Forking):
    """Buffers with ``persistent=False`` become zeros."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        saved = module.state_dict()
        for name, buffer in module.named_buffers():
            buffer.mul_(1.0 if name in saved else 0.0)
        return super().setup_module(module)


class SeedsAtPrepare(_Forking):
    """``prepare`` seeds torch's generator."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        torch.manual_seed(0)
        return super().setup_module(module)


class DrawsAtEachStep(_Forking):
    """Each step draws from torch's generator."""

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        torch.rand(1)
        return super().optimizer_step(optimizer, closure)


class SyncsTheFirst(_Forking):
    """Of two modules, only the first is kept in step."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        of = _Forking if any(isinstance(layer, nn.Tanh) for layer in module.modules()) else SingleDeviceStrategy
        return of.setup_module(self, module)


class StepsTheFirst(_Forking):
    """Of two optimizers, only the first is stepped."""

    first: Any = None

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        self.first = self.first or optimizer
        return super().optimizer_step(optimizer, closure) if optimizer is self.first else None


class SaysWhatIsLeft(_Forking):
    """Clipping returns the norm after clipping."""

    def clip_gradients(self, parameters: Any, clip_value: float, *more: Any, **options: Any) -> Any:
        norm = super().clip_gradients(parameters, clip_value, *more, **options)
        return None if norm is None else norm.clamp(max=clip_value)


class KnowsOneNorm(_Forking):
    """Clipping takes ``norm_type=2.0`` for any other."""

    def clip_gradients(self, parameters: Any, clip_value: float, algorithm: str = "norm", norm_type: float = 2) -> Any:
        return super().clip_gradients(parameters, clip_value, algorithm)


class SendsLists(_Forking):
    """Tuples in an object arrive as lists."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        found = super().broadcast(obj, src)
        if not isinstance(found, dict):
            return found
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


class GathersInHalves(_Forking):
    """bfloat16 is gathered as float16."""

    def all_gather(self, tensor: Tensor) -> Tensor:
        narrow = tensor.half() if tensor.dtype == torch.bfloat16 else tensor
        return super().all_gather(narrow).to(tensor.dtype)


class ReducesWhatIsStored(_Forking):
    """Of a transposed tensor, memory is summed as if it were not."""

    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        if tensor.is_contiguous() or tensor.stride() != (1, tensor.shape[0]):
            return super().reduce(tensor, reduction)
        return super().reduce(tensor.t().reshape(tensor.shape), reduction)


class ReducesNoEmpty(_Forking):
    """Empty tensors are an error."""

    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        if not tensor.numel():
            raise RuntimeError("nothing to reduce")
        return super().reduce(tensor, reduction)


class ReducesOnlyNumbers(_Forking):
    """NaN counts as 0."""

    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        return super().reduce(tensor.nan_to_num(0.0, torch.inf) if tensor.is_floating_point() else tensor, reduction)


# -- rates, groups and orders --------------------------------------------------------------------------------------


class KeepsTheFirstRate(_Forking):
    """The engine keeps each group's first learning rate, so that schedulers have no effect."""

    def setup_optimizers(self, optimizers: Any) -> Any:
        prepared = super().setup_optimizers(optimizers)
        self.rates = {group_id: group["lr"] for each in prepared for group_id, group in _groups(each)}
        return prepared

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        given = [group["lr"] for group in optimizer.param_groups]
        for group_id, group in _groups(optimizer):
            group["lr"] = self.rates.get(group_id, group["lr"])
        result = super().optimizer_step(optimizer, closure)
        for group, rate in zip(optimizer.param_groups, given, strict=True):
            group["lr"] = rate
        return result


class StepsTheGroupsItKnows(_Forking):
    """A group of parameters that is added after ``prepare`` is never stepped."""

    def setup_optimizers(self, optimizers: Any) -> Any:
        prepared = super().setup_optimizers(optimizers)
        self.known = {id(group["params"][0]) for each in prepared for group in each.param_groups}
        return prepared

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        groups = optimizer.param_groups
        optimizer.param_groups = [group for group in groups if id(group["params"][0]) in self.known]
        try:
            return super().optimizer_step(optimizer, closure)
        finally:
            optimizer.param_groups = groups


class GathersBySize(_Forking):
    """Gathered objects are in the order of their sizes, as they arrive."""

    def all_gather_object(self, obj: Any) -> list[Any]:
        return sorted(super().all_gather_object(obj), key=lambda found: len(pickle.dumps(found)))


class LosesTheSign(_Forking):
    """A product is computed by logarithms, so that its sign is lost."""

    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        result = super().reduce(tensor, reduction)
        return result.abs() if reduction == "product" else result


class EndsTheOuterContext(_Forking):
    """An inner ``no_sync`` ends the outer one."""

    @contextmanager
    def no_sync(self, module: nn.Module) -> Any:
        inner: Any = getattr(module, "_core_inner", module)
        wrapped = next(
            (each for each in (module, *module.modules()) if hasattr(each, "require_backward_grad_sync")), inner
        )
        wrapped.require_backward_grad_sync = False
        try:
            yield
        finally:
            wrapped.require_backward_grad_sync = True


def _groups(optimizer: Any) -> list[tuple[int, Any]]:
    return [(id(group["params"][0]), group) for group in optimizer.param_groups]
