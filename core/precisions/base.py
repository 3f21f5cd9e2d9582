"""The Precision: a declaration of dtypes, and hooks that carry it out in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from core.precisions.clipping import clip_gradients

__all__ = ["Precision"]


class Precision:
    """A dtype policy.

    It is a declaration first: the attributes below say what the policy is, and a Strategy whose engine does mixed
    precision itself reads only them. The hooks carry the declaration out in plain torch; the base class's are those of
    32-bit training, and a hook that a subclass leaves alone costs nothing in the loop.
    """

    name: str = "32-true"
    """The name it is asked for by."""
    param_dtype: torch.dtype = torch.float32
    """What parameters are stored in."""
    compute_dtype: torch.dtype = torch.float32
    """What matrix products and convolutions are computed in."""
    reduce_dtype: torch.dtype = torch.float32
    """What gradients are reduced over processes in."""
    buffer_dtype: torch.dtype = torch.float32
    """What floating point buffers are stored in."""
    output_dtype: torch.dtype = torch.float32
    """What the module's floating point outputs are handed over in."""
    scales_loss: bool = False
    """Whether the loss is scaled before backward and gradients are unscaled before the step."""

    def connect(self, device_type: str) -> None:
        """Prepare for devices of one type, as :meth:`core.Accelerator.autocast_device_type` names it.

        Raises:
            BackendError: This precision cannot be had on that type of device.
        """
        del device_type

    def acts_in(self, hook: str) -> bool:
        """Whether the hook of that name does anything of its own; the loop leaves out one that does not."""
        return getattr(type(self), hook) is not getattr(Precision, hook)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """``module`` with parameters and buffers in the declared dtypes, in place where torch can."""
        return module

    def forward_context(self) -> AbstractContextManager[Any]:
        """The context that a forward pass runs in."""
        return nullcontext()

    def convert_input(self, data: Any) -> Any:
        """``data``, any nested structure, with floating point tensors in the dtype that a forward pass takes."""
        return data

    def convert_output(self, data: Any) -> Any:
        """``data``, any nested structure, with floating point tensors in ``output_dtype``."""
        return data

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients of ``loss``, a scalar."""
        loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Apply the gradients; returns what ``optimizer.step`` returns."""
        return optimizer.step(closure) if closure is not None else optimizer.step()

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Undo the scaling of the loss in the optimizer's gradients, once a step however often it is called."""
        del optimizer

    def clip_gradients(
        self, parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Tensor | None:
        """Limit gradients in place; they must be unscaled.

        Args:
            parameters: Whose gradients.
            clip_value: The largest norm, or the largest absolute value.
            algorithm: ``"norm"`` (of all gradients as one vector) or ``"value"`` (each element).
            norm_type: Order of the norm.

        Returns:
            The norm before clipping, a scalar; ``None`` for ``"value"``.

        Raises:
            ConfigurationError: Another algorithm was named.
        """
        return clip_gradients(parameters, clip_value, algorithm, norm_type)

    def state_dict(self) -> dict[str, Any]:
        """What must be kept in a checkpoint: empty, or the scaler's state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`state_dict` gave."""
        del state

    def teardown(self) -> None:
        """Undo what :meth:`connect` set up."""
