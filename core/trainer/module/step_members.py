"""The part of a Module that steps optimizers: what the Trainer calls in each step, and what manual loops call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from ...runtime.with_guard import used_by_with

if TYPE_CHECKING:
    from ..trainer import Trainer

__all__ = ["CUSTOM_STEP", "ModuleSteps"]

CUSTOM_STEP = ("optimizer_step", "optimizer_zero_grad", "backward", "configure_gradient_clipping")
"""The methods of a Module that change parts of the Trainer's step."""


class ModuleSteps:
    """Optimizers and schedulers of a running fit, and the parts of a training step that a Module may override."""

    automatic_optimization: bool = True
    """Whether the Trainer computes gradients and steps the optimizer. Set it to ``False`` in ``__init__`` to do so in
    ``training_step``, with any number of optimizers."""

    trainer: Trainer

    # -- what the running fit has --------------------------------------------------------------------------------

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """The optimizers of the running fit: one, or a list of several.

        Args:
            use_pl_optimizer: Return optimizers whose ``step`` goes through the precision and the strategy, calls the
                hooks and counts as a step of the run. Each is an instance of the class of its ``optimizer``, which is
                the one without all this.
        """
        found = self._fit_loop("optimizers").controls.optimizers
        chosen = list(found) if use_pl_optimizer else [one.optimizer for one in found]
        return chosen[0] if len(chosen) == 1 else chosen

    def lr_schedulers(self) -> Any:
        """The learning rate schedulers of the running fit: one, a list of several, or ``None``."""
        found = [schedule.scheduler for schedule in self._fit_loop("lr_schedulers").optimization.schedules]
        return None if not found else found[0] if len(found) == 1 else found

    # -- manual optimization -------------------------------------------------------------------------------------

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients of ``loss`` and reduce them over processes, with ``automatic_optimization = False``.

        Every process must call it equally often.

        Args:
            loss: A scalar.
            *args: As of :meth:`torch.Tensor.backward`.
            **kwargs: As of :meth:`torch.Tensor.backward`, such as ``retain_graph=True``.

        Raises:
            ConfigurationError: The Trainer calls backward, or no fit is running.
        """
        self._fit_loop("manual_backward").controls.backward(loss, *args, **kwargs)

    def toggle_optimizer(self, optimizer: Optimizer) -> None:
        """Turn ``requires_grad`` off for all parameters of other optimizers that are not also in this one.

        Call :meth:`untoggle_optimizer` afterwards.
        """
        self._fit_loop("toggle_optimizer").controls.toggle(optimizer)

    def untoggle_optimizer(self, optimizer: Optimizer) -> None:
        """Restore ``requires_grad`` as it was before :meth:`toggle_optimizer`."""
        self._fit_loop("untoggle_optimizer").controls.untoggle(optimizer)

    @used_by_with("self.toggled_optimizer(optimizer)")
    @contextmanager
    def toggled_optimizer(self, optimizer: Optimizer) -> Iterator[None]:
        """:meth:`toggle_optimizer` as a context."""
        self.toggle_optimizer(optimizer)
        try:
            yield
        finally:
            self.untoggle_optimizer(optimizer)

    def clip_gradients(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of an optimizer's parameters in place; scaled gradients are unscaled first.

        Args:
            optimizer: Whose gradients are clipped.
            gradient_clip_val: The largest norm or value; the Trainer's by default, and nothing if that is ``None``.
            gradient_clip_algorithm: ``"norm"`` or ``"value"``; the Trainer's by default.

        Raises:
            ConfigurationError: An argument contradicts the Trainer's, or the strategy cannot clip in this way.
        """
        self._fit_loop("clip_gradients").controls.clip(optimizer, gradient_clip_val, gradient_clip_algorithm)

    # -- parts of the Trainer's step, for overriding -------------------------------------------------------------

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Override it to change how the Trainer steps the optimizer.

        Args:
            epoch: The running epoch.
            batch_idx: The number of the batch in the epoch.
            optimizer: As :meth:`optimizers` returns it.
            optimizer_closure: Runs the training step, clears gradients and runs backward. Pass it to
                ``optimizer.step``, or call it.
        """
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Override it to change how the Trainer clears gradients before backward."""
        optimizer.zero_grad()

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Override it to change how gradients of ``loss``, which is scaled if the precision needs it, are computed."""
        loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Override it to clip gradients in another way, such as with :meth:`clip_gradients`; called before each step.

        Args:
            optimizer: Whose step follows.
            gradient_clip_val: The Trainer's.
            gradient_clip_algorithm: The Trainer's.
        """
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Override it to change how the Trainer steps a scheduler.

        Args:
            scheduler: The scheduler.
            metric: The value that it monitors; ``None`` if it monitors none.
        """
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(metric)

    def _fit_loop(self, name: str) -> Any:
        return self.trainer.running_fit(f"{type(self).__name__}.{name}")
