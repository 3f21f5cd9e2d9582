"""A model traced once: forward and backward as one graph of operators, without the model's Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from stand_ins import recorded
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

__all__ = ["Error", "Graph", "identity_loss"]

_marked: list[Tensor] = []
"""Losses that the model being traced has marked."""


class Error(RuntimeError):
    """What poptorch raises."""


@recorded("identity_loss")
def identity_loss(x: Tensor, reduction: str) -> Tensor:
    """Mark a custom loss: ``"sum"``, ``"mean"`` or ``"none"``."""
    reductions: dict[str, Callable[[Tensor], Tensor]] = {"sum": Tensor.sum, "mean": Tensor.mean, "none": Tensor.clone}
    loss = reductions[reduction](x)
    _marked.append(loss)
    return loss


class Graph:
    """``model`` for arguments like ``args``.

    Args:
        model: What is traced; it runs once, now, and is left as it was.
        args: Arguments for one part of a batch: nested structures of tensors.
        training: Whether gradients of the loss are computed: of the marked one, or of the last result.
    """

    def __init__(self, model: nn.Module, args: tuple[Any, ...], training: bool) -> None:
        parameters = {name: _leaf(tensor, training) for name, tensor in model.named_parameters()}
        buffers = {name: tensor.detach().as_subclass(Tensor).clone() for name, tensor in model.named_buffers()}
        leaves, structure = pytree.tree_flatten(args)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]

        def run(parameters: dict[str, Tensor], buffers: dict[str, Tensor], tensors: list[Tensor]) -> Any:
            given = iter(tensors)
            filled = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            _marked.clear()
            with torch.set_grad_enabled(training):
                output = torch.func.functional_call(
                    model, {**parameters, **buffers}, pytree.tree_unflatten(filled, structure)
                )
                results, self._structure = pytree.tree_flatten(output)
                gradients: list[Tensor | None] = []
                if training:
                    loss = _marked[-1] if _marked else results[-1]
                    gradients = list(torch.autograd.grad(loss, list(parameters.values()), allow_unused=True))
            return [result.detach() for result in results], gradients

        state = torch.get_rng_state()
        with torch.inference_mode(False):
            self._run = make_fx(run)(parameters, buffers, [tensor.clone() for tensor in tensors])
        torch.set_rng_state(state)

    def __call__(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], args: tuple[Any, ...]) -> Any:
        """The results, as a flat list, and the gradients by parameter; buffers are changed in place."""
        tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
        with torch.inference_mode(False), torch.no_grad():
            return self._run(parameters, buffers, tensors)

    def rebuilt(self, results: list[Any]) -> Any:
        """``results`` in the structure that the model returned."""
        return pytree.tree_unflatten(results, self._structure)


def _leaf(tensor: Tensor, training: bool) -> Tensor:
    return tensor.detach().as_subclass(Tensor).clone().requires_grad_(training and tensor.requires_grad)
