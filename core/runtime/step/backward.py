"""The parts of a training step that are the run's: backward, clipping and what was skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...checkpoints.base import CheckpointIO
from ...errors import ConfigurationError, WrongTypeError
from ...hints.argument_checks import suggest_arguments
from ...precisions.loss import check_tensor
from ...strategies.step.training_step import tensor_backward
from ...strategies.wrapping.optimizer_wrapper import unwrap_optimizer
from ..with_guard import used_by_with
from .synchronization import Synchronization

__all__ = ["StepParts"]

AUTOCAST = dict.fromkeys(
    ("autocast_handler", "device_type", "dtype", "enabled"), "Set precision= of the Runtime, such as 'bf16-mixed'."
)
"""What to do instead of arguments that other libraries' ``autocast`` has."""


class StepParts(Synchronization):
    """The part of :class:`core.Runtime` that a loop calls in each step."""

    _native_backward: Callable[..., None] | None = None
    """The strategy's function for :meth:`backward`, decided before the loop; ``None`` while the run is not live."""
    _loss_divisor = 1
    """What :meth:`backward` divides losses by outside of :meth:`accumulate`."""

    def _bind_step(self) -> None:
        native = self._strategy.make_backward() if self._may_step() else self._refuse_backward
        native = self._checked(native)
        self._native_backward = self._first_backward(native) if self._taken else native
        self._first_gradients: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}
        self._loss_divisor = self._gradient_state.num_steps

    def _may_step(self) -> bool:
        """Whether an optimizer's step would unscale the gradients of a scaled loss."""
        return bool(self._optimizers) or not self._strategy.precision.scales_loss

    def _refuse_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        raise ConfigurationError(
            f"backward: precision={self._strategy.precision.name!r} scales the loss, but no optimizer was prepared, so "
            "its step would use the scaled gradients. Prepare it with the model: model, optimizer = "
            "runtime.prepare(model, optimizer)."
        )

    def _checked(self, backward: Callable[..., None]) -> Callable[..., None]:
        """``backward``, which first raises the error of a checkpoint that was written in the background."""
        checkpoint_io = self._strategy.checkpoint_io
        if type(checkpoint_io).check is CheckpointIO.check:
            return backward

        def checked(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            checkpoint_io.check()
            backward(loss, *args, **kwargs)

        return checked

    def _first_backward(self, backward: Callable[..., None]) -> Callable[..., None]:
        """``backward``, which at first looks whether the prepared modules are those that are trained."""

        def first(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            self._taken.check(partial(backward, loss, *args, **kwargs), self._prepared.of("models"))
            if self._native_backward is first and not self._taken:
                self._native_backward = backward

        return first

    def _unbind_step(self) -> None:
        self._native_backward = None

    def backward(
        self,
        loss: Tensor = None,  # type: ignore[assignment]  # a call without one is an error that names it, at no cost
        *args: Any,
        num_items: int | Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        """Compute the gradients of ``loss``, a scalar, and reduce them over processes.

        If the precision scales the loss, the gradients are scaled as well. With ``gradient_accumulation_steps`` > 1 the
        loss is divided by the number of micro-batches of its window, or outside of :meth:`accumulate` by that number.

        Args:
            loss: The mean of this micro-batch; with ``num_items`` the sum.
            *args: As of :meth:`torch.Tensor.backward`.
            num_items: The number of items, such as tokens, that ``loss`` is the sum of. The step then uses the mean
                over all items of the window, in all processes, however many each micro-batch has. Every process gives
                it; they exchange one number in the last micro-batch.
            **kwargs: As of :meth:`torch.Tensor.backward`.

        Raises:
            ConfigurationError: ``num_items`` was given twice in a micro-batch, or not in all micro-batches of a window.
        """
        native = self._native_backward
        if native is None:
            strategy = self._live_strategy()
            native = strategy.make_backward() if self._may_step() else self._refuse_backward
        if num_items is not None:
            check_tensor(loss)
            loss = self._window.weighted(loss, num_items, self._strategy)
        elif self._loss_divisor > 1:
            divisor = self._window.plain_divisor(self._loss_divisor)
            if native is tensor_backward and type(loss) is Tensor and not (loss.dim() or args or kwargs):
                native(loss, self._first_gradient(loss, divisor))
                return
            check_tensor(loss)
            loss = loss / divisor
        native(loss, *args, **kwargs)

    def _first_gradient(self, loss: Tensor, divisor: int) -> Tensor:
        """The gradient of ``loss / divisor``, a scalar: where its backward pass begins, without computing it."""
        key = divisor, loss.dtype, loss.device
        gradient = self._first_gradients.get(key)
        if gradient is None:
            gradient = self._first_gradients[key] = torch.ones_like(loss, requires_grad=False) / divisor
        return gradient

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last call of a prepared optimizer's step was none.

        Its gradients were not finite, or the strategy first collects those of further calls or of peers.
        """
        return not all(map(self._strategy.steps_taken, self._optimizers))

    def unscale_gradients(self, optimizer: Optimizer | Iterable[Optimizer] | None = None) -> None:
        """Undo the scaling of the loss in the gradients, in the last micro-batch of a window; further calls do nothing.

        Args:
            optimizer: The optimizers whose gradients are unscaled; all prepared ones by default.

        Raises:
            WrongTypeError: It is neither an optimizer nor a list of optimizers.
        """
        if not (optimizer is None or isinstance(optimizer, Optimizer | list | tuple)):
            raise WrongTypeError(
                f"unscale_gradients: optimizer is an object of type {type(optimizer).__name__}. Pass an optimizer that "
                "prepare returned, or a list of them."
            )
        strategy = self._live_strategy()
        if not (strategy.precision.scales_loss and self._gradient_state.sync_gradients):
            return
        chosen = [optimizer] if isinstance(optimizer, Optimizer) else optimizer
        for one in list(self._optimizers) if chosen is None else chosen:
            strategy.unscale_gradients(unwrap_optimizer(one))

    @partial(suggest_arguments, remedies=AUTOCAST, owner="Runtime.autocast")
    @used_by_with("runtime.autocast()")
    def autocast(self) -> AbstractContextManager[Any]:
        """The precision's forward context, for computations outside a prepared module."""
        return self._live_strategy().precision.forward_context()

    def clip_grad_norm_(
        self, parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0
    ) -> Tensor | None:
        """Clip the norm of all gradients together, in place; scaled gradients are unscaled first.

        Args:
            parameters: The parameters whose gradients are clipped.
            max_norm: The largest norm, ≥ 0.
            norm_type: The order of the norm.

        Returns:
            The norm before clipping, a scalar; ``None`` in a micro-batch that is not the last of its window, where
            nothing is clipped. An engine that clips in its step sets the value there; it is NaN until then.

        Raises:
            ConfigurationError: ``max_norm`` is not a number ≥ 0, or the strategy cannot clip by norm.
        """
        _check_limit("clip_grad_norm_", "max_norm", max_norm)
        return self._clip(parameters, max_norm, "norm", norm_type)

    def clip_grad_value_(self, parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
        """Clip each element of the gradients to ``[-clip_value, clip_value]``; otherwise as :meth:`clip_grad_norm_`."""
        _check_limit("clip_grad_value_", "clip_value", clip_value)
        self._clip(parameters, clip_value, "value", 2.0)

    def _clip(self, parameters: Any, limit: float, algorithm: str, norm_type: float) -> Tensor | None:
        if isinstance(parameters, nn.Module | str | dict) or not isinstance(parameters, Tensor | Iterable):
            raise WrongTypeError(
                f"clip_grad_{algorithm}_: parameters is an object of type {type(parameters).__name__}: must be "
                "parameters. Pass model.parameters()."
            )
        chosen: list[Any] = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        strategy = self._live_strategy()
        strategy.check_clip_algorithm(algorithm)
        if not self._gradient_state.sync_gradients:
            return None
        if strategy.precision.scales_loss:
            wanted = {id(parameter) for parameter in chosen}
            for optimizer in self._optimizers:
                if any(id(p) in wanted for group in optimizer.param_groups for p in group["params"]):
                    strategy.unscale_gradients(optimizer)
        try:
            return strategy.clip_gradients(chosen, limit, algorithm, norm_type)
        except (AttributeError, TypeError, ValueError):
            _check_clipped(chosen, algorithm, norm_type)
            raise


def _check_limit(method: str, argument: str, limit: Any) -> None:
    """Check what gradients are clipped to.

    Raises:
        WrongTypeError: It is not a number.
        ConfigurationError: It is negative, or NaN.
    """
    if not isinstance(limit, int | float | Tensor) or (isinstance(limit, Tensor) and limit.dim()):
        raise WrongTypeError(
            f"{method}: {argument}={limit!r:.100}: must be a number ≥ 0. Call {method}(model.parameters(), 1.0)."
        )
    if not limit >= 0:
        raise ConfigurationError(f"{method}: {argument}={limit!r}: must be a number ≥ 0.")


def _check_clipped(parameters: list[Any], algorithm: str, norm_type: Any) -> None:
    """Explain why gradients could not be clipped, if an argument is the reason.

    Raises:
        WrongTypeError: ``parameters`` has something other than tensors in it, or ``norm_type`` is not a number.
    """
    method = f"clip_grad_{algorithm}_"
    other = next((one for one in parameters if not isinstance(one, Tensor)), None)
    if other is not None:
        raise WrongTypeError(
            f"{method}: parameters has an object of type {type(other).__name__} in it: must be parameters. Pass "
            "model.parameters()."
        ) from None
    if not isinstance(norm_type, int | float) and norm_type != "inf":
        raise WrongTypeError(
            f"{method}: norm_type={norm_type!r}: must be a number, or float('inf') for the largest element."
        ) from None
