"""Batch normalization over the batches of all processes.

Source: Ioffe and Szegedy, Batch Normalization, ICML 2015; :class:`torch.nn.SyncBatchNorm`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from ..errors import ConfigurationError
from ..utilities.torch_private import BatchNorm, check_input_dim

Sum = Callable[[Tensor], Tensor]
"""Returns the sum of a contiguous tensor over all processes; it may change the tensor."""


class _Total(torch.autograd.Function):
    """The sum of a tensor over all processes; so is the gradient, since each process's loss depends on that sum."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, add: Sum) -> Tensor:
        ctx.add = add
        return add(tensor.detach().clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.add(gradient.clone(memory_format=torch.contiguous_format)), None


def _total(tensor: Tensor, add: Sum) -> Tensor:
    total: Tensor = _Total.apply(tensor, add)  # type: ignore[no-untyped-call]
    return total


class _Restorable(nn.Module):
    """A layer whose class was changed. Copies and pickles of it have the class that it had before."""

    _plain: type[nn.Module]
    _add: Sum | None = None

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        state = {name: value for name, value in self.__dict__.items() if name != "_add"}
        return _new, (self._plain,), state


class SyncedBatchNorm(_Restorable, BatchNorm):
    """A batch norm layer that, while training, normalizes over the batches of all processes, in plain torch.

    The result is that of one process with the joined batch; the batches can have different sizes, also 0.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # the name is torch's
        """Like :class:`torch.nn.SyncBatchNorm`."""
        if not self.training or self._add is None:
            return super().forward(input)
        check_input_dim(self, input)
        over = [dim for dim in range(input.dim()) if dim != 1]
        shape = [1, -1, *[1] * (input.dim() - 2)]
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        own = values.new_tensor([values.numel() // values.size(1)])
        total = _total(torch.cat([values.sum(over), own]), self._add)
        count = total[-1].detach()
        mean = total[:-1] / count
        centered = values - mean.view(shape)
        variance = _total(centered.square().sum(over), self._add) / count
        normalized = centered * torch.rsqrt(variance + self.eps).view(shape)
        self._track(mean.detach(), variance.detach() * (count / (count - 1).clamp(min=1)))
        if self.affine:
            normalized = normalized * self.weight.to(values.dtype).view(shape) + self.bias.to(values.dtype).view(shape)
        result: Tensor = normalized.to(input.dtype)
        return result

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        """Update the running statistics, as torch does."""
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            running.lerp_(new.to(running.dtype), factor)


class _TorchsBatchNorm(_Restorable, nn.SyncBatchNorm):
    """torch's own layer, for devices that have its kernels."""

    process_group = None


def synchronize(module: nn.Module, add: Sum | None) -> list[nn.Module]:
    """Make each batch norm layer of ``module`` normalize over all processes while it trains, in place.

    Layers stay the same objects, with their parameters, buffers and hooks; they change their class.

    Args:
        module: The module.
        add: Sums a tensor over all processes; ``None`` for torch's own layers, which use the process group.

    Returns:
        The layers, for :func:`desynchronize`.

    Raises:
        ConfigurationError: A layer is not initialized, or has its own forward pass.
    """
    layers = list(_batch_norms(module))
    for layer in layers:
        if not isinstance(layer, SyncedBatchNorm):
            kind: Any = type(layer)
            layer.__class__ = _class_of(SyncedBatchNorm if add is not None else _TorchsBatchNorm, kind)
        if add is not None:
            layer.__dict__["_add"] = add
    return layers


def desynchronize(layers: list[nn.Module]) -> None:
    """Undo :func:`synchronize`."""
    for layer in layers:
        layer.__dict__.pop("_add", None)
        if "_plain" in vars(type(layer)):  # otherwise a strategy has changed the class further, such as FSDP
            layer.__class__ = vars(type(layer))["_plain"]


def has_torch_kernels(device: torch.device) -> bool:
    """Whether :class:`torch.nn.SyncBatchNorm` can run on ``device``: the CPU, for one, lacks its kernels."""
    try:
        torch.batch_norm_stats(torch.ones(2, 1, device=device), 1e-5)
    except (NotImplementedError, RuntimeError):
        return False
    return True


def _batch_norms(module: nn.Module) -> Iterator[nn.Module]:
    for name, layer in module.named_modules():
        if not isinstance(layer, BatchNorm) or isinstance(layer, nn.SyncBatchNorm):
            continue
        if isinstance(layer, LazyModuleMixin):
            raise ConfigurationError(
                f"sync_batchnorm=True: {name!r} is a {type(layer).__name__} without parameters yet. Run a batch "
                "through the module first, or use a layer with num_features."
            )
        if type(layer).forward not in (BatchNorm.forward, SyncedBatchNorm.forward):
            raise ConfigurationError(
                f"sync_batchnorm=True: {name!r} is a {type(layer).__name__} with a forward of its own, which would not "
                "be synchronized. Use torch.nn.BatchNorm1d, BatchNorm2d or BatchNorm3d."
            )
        yield layer


def _new(kind: type[nn.Module]) -> nn.Module:
    return kind.__new__(kind)


@cache
def _class_of(base: Any, plain: Any) -> Any:
    return type(plain.__name__, (base, plain), {"_plain": plain, "__module__": plain.__module__})
