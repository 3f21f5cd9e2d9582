"""Context parallelism: each process has a part of every sequence, and attention sees all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_gather_single_autograd
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from torch_hal.errors import ConfigurationError
from torch_hal.utilities.nested import map_tensors
from torch_hal_parallel.gradients import Line

__all__ = ["SequenceSplit", "positions"]

_active: ContextVar[SequenceSplit | None] = ContextVar("torch_hal_parallel.context", default=None)


def positions(length: int, device: torch.device | str | None = None) -> Tensor:
    """Where the ``length`` tokens that a model sees are in their sequence: ``torch.arange`` of this process's part.

    Without context parallelism, or outside of the model's forward pass, it is ``torch.arange(length)``.

    Args:
        length: Number of tokens that the model sees in this process.
        device: Of the result.
    """
    split = _active.get()
    first = 0 if split is None else split.line.rank * length
    return torch.arange(first, first + length, device=device)


class SequenceSplit:
    """Splits what a model is called with along sequences, and joins what it returns.

    Args:
        line: The processes that share a sequence.
        dimension: The dimension of the model's inputs and outputs that is the sequence.
    """

    def __init__(self, line: Line, dimension: int) -> None:
        self.line, self.dimension = line, dimension
        self._attended = False

    def apply(self, model: nn.Module) -> None:
        """Let ``model`` see this process's part of each sequence, in place."""
        for module in model.modules():
            if not type(module).__module__.startswith("torch.nn."):
                # Each module of the user's, so that one whose forward pass runs again in the backward pass attends
                # in the same way.
                module.forward = partial(self._attending, module.forward)
        model.forward = partial(self._split_and_join, type(model).__name__, model.forward)

    def _attending(self, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if _active.get() is self:
            return forward(*args, **kwargs)
        with self._activated(), _Attention(self):
            return forward(*args, **kwargs)

    @contextmanager
    def _activated(self) -> Iterator[None]:
        token = _active.set(self)
        try:
            yield
        finally:
            _active.reset(token)

    def _split_and_join(self, name: str, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        length = self._length(name, args, kwargs)
        args, kwargs = map_tensors(partial(self._own_part, length), (args, kwargs))
        self._attended = False
        output = forward(*args, **kwargs)
        if not self._attended:
            raise ConfigurationError(
                f"context={self.line.world_size}: {name} did not call torch.nn.functional.scaled_dot_product_attention "
                "with whole sequences, so its parts would not see each other. Use that function for its attention, or "
                "leave context out."
            )
        return map_tensors(partial(self._whole, length // self.line.world_size), output)

    def _length(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        first = next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), None)
        if first is None or first.dim() <= self.dimension:
            raise ConfigurationError(
                f"context={self.line.world_size}: {name} was called without a tensor that has a dimension "
                f"{self.dimension}, which is the sequence. Pass one first, or set sequence_dim."
            )
        length = first.shape[self.dimension]
        if length % self.line.world_size:
            raise ConfigurationError(
                f"context={self.line.world_size}: does not divide sequences of length {length}, the size of dimension "
                f"{self.dimension} of the inputs of {name}. Pad them, or set sequence_dim."
            )
        return length

    def _own_part(self, length: int, tensor: Tensor) -> Tensor:
        if tensor.dim() <= self.dimension or tensor.shape[self.dimension] != length:
            return tensor
        return tensor.tensor_split(self.line.world_size, self.dimension)[self.line.rank]

    def _whole(self, length: int, tensor: Tensor) -> Tensor:
        if tensor.dim() <= self.dimension or tensor.shape[self.dimension] != length:
            raise ConfigurationError(
                f"context={self.line.world_size}: an output of shape {tuple(tensor.shape)} has not the length "
                f"{length} of a process's part of the sequence in dimension {self.dimension}. Return one value for "
                "each token, and compute the loss outside of the model."
            )
        joined: Tensor = _Join.apply(tensor, self.line, self.dimension)  # type: ignore[no-untyped-call]
        return joined

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **others: Any,
    ) -> Tensor:
        """Attention of this process's queries to the keys and values of all processes."""
        length = query.shape[-2]
        if attn_mask is not None or key.shape[-2] != length:
            what = "an attn_mask" if attn_mask is not None else f"{key.shape[-2]} keys for {length} queries"
            raise ConfigurationError(
                f"context={self.line.world_size}: scaled_dot_product_attention was called with {what}. Only "
                "self-attention of whole sequences is supported, with is_causal=True or without a mask."
            )
        self._attended = True
        key, value = (
            all_gather_single_autograd(one.contiguous(), one.dim() - 2, self.line.group) for one in (key, value)
        )
        mask = None
        if is_causal:
            own = positions(length, query.device)
            mask = own[:, None] >= torch.arange(key.shape[-2], device=query.device)
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout_p, **others)


class _Attention(TorchFunctionMode):
    """Replaces torch's attention while a model runs that is split along sequences."""

    def __init__(self, split: SequenceSplit) -> None:
        super().__init__()
        self._split = split

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is functional.scaled_dot_product_attention:
            return self._split.attend(*args, **(kwargs or {}))
        if func is functional.multi_head_attention_forward:
            raise ConfigurationError(
                f"context={self._split.line.world_size}: torch.nn.MultiheadAttention is not supported. Use a layer "
                "that calls torch.nn.functional.scaled_dot_product_attention."
            )
        return func(*args, **(kwargs or {}))


class _Join(torch.autograd.Function):
    """The parts of all processes, joined.

    Every process computes the same loss from the joined output. A parameter's gradient is the sum of what the parts
    contribute; since gradients are averaged over these processes, each contribution counts that many times.
    """

    @staticmethod
    def forward(ctx: Any, part: Tensor, line: Line, dimension: int) -> Tensor:
        ctx.line, ctx.dimension = line, dimension
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(line.world_size)]
        dist.all_gather(parts, part, group=line.group)
        return torch.cat(parts, dimension)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        line: Line = ctx.line
        own = gradients[0].tensor_split(line.world_size, ctx.dimension)[line.rank]
        return own * line.world_size, None, None
