"""The part of a Strategy that computes and applies gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from ...errors import ConfigurationError, quoted
from ...precisions.base import Precision
from ...utilities.renamed import Renaming
from .manual_gradients import ManualGradients
from .training_step import TrainingStep, TrainingStepOptions, compose_training_step, tensor_backward

__all__ = ["StepMethods"]


class StepMethods(Renaming):
    """Backward, clipping and the optimizer's step of a :class:`core.Strategy`, bound once before the loop."""

    name: str
    precision: Precision
    clip_algorithms: ClassVar[tuple[str, ...]] = ("norm", "value")
    """The algorithms it can clip gradients by; see :meth:`core.Precision.clip_gradients`."""
    counts_steps: ClassVar[bool] = False
    """Whether a call of an optimizer's step may be no step of the whole run, or several: an engine collects gradients
    of a number of peers until they are enough. Then :meth:`global_steps` and :meth:`steps_taken` count."""

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients of ``loss``, a scalar, and reduce them over processes."""
        self.precision.backward(loss, *args, **kwargs)

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Apply the gradients; returns what the optimizer's ``step`` returns."""
        return self.precision.optimizer_step(optimizer, closure)

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        """A context in which backward does not reduce gradients of ``module``, which :meth:`setup_module` returned."""
        del module
        return nullcontext()

    def accumulation_state(self, module: nn.Module) -> dict[str, Any]:
        """What the wrapper of ``module`` knows between two batches of an accumulation: plain values."""
        del module
        return {}

    def load_accumulation_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """Load what :meth:`accumulation_state` returned."""
        del module, state

    def sync_in_backward(self, module: nn.Module) -> AbstractContextManager[Any]:
        """A context in which backward reduces the gradients of ``module``, also after a forward pass in no_sync."""
        del module
        return nullcontext()

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Undo the scaling of the loss in the optimizer's reduced gradients; see :class:`core.Precision`."""
        self.precision.unscale_gradients(optimizer)

    def clip_gradients(
        self, parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Tensor | None:
        """Limit the gradients of ``parameters``, which are unscaled; see :meth:`core.Precision.clip_gradients`."""
        return self.precision.clip_gradients(parameters, clip_value, algorithm, norm_type)

    def training_step(self, forward: Callable[[Any, int], Tensor | None], options: TrainingStepOptions) -> TrainingStep:
        """The whole training step, composed once before the loop.

        Override it if an engine owns backward and step, or runs the step only as one compiled whole.

        Args:
            forward: ``forward(batch, batch_idx)`` returns the loss, a scalar, or ``None`` to skip the batch.
            options: What else the step does.
        """
        optimizer, module = options.optimizer, options.module

        def clip_gradients(clip_value: float, algorithm: str) -> None:
            self.unscale_gradients(optimizer)
            self.clip_gradients(module.parameters(), clip_value, algorithm)

        return compose_training_step(
            forward,
            options,
            backward=self.make_backward(),
            optimizer_step=self.make_optimizer_step(optimizer),
            clip_gradients=clip_gradients,
            no_sync=self.no_sync,
        )

    def manual_gradients(self, module: nn.Module) -> ManualGradients:
        """How the gradients of a loop are reduced that calls backward within the forward pass of ``module``.

        Override it if backward reduces gradients only after the forward pass, as DistributedDataParallel does.

        Args:
            module: As :meth:`core.Strategy.setup_module` returned it.
        """
        return ManualGradients(self.make_backward(), partial(self.no_sync, module))

    def make_backward(self) -> Callable[..., None]:
        """The function that the loop calls for :meth:`backward`: the tensor's own if nothing overrides it.

        The front end asks for it again each time that modules or optimizers were prepared.
        """
        if type(self).backward is StepMethods.backward:
            return self.precision.backward if self.precision.overrides("backward") else tensor_backward
        return self.backward

    def make_optimizer_step(self, optimizer: Optimizer) -> Callable[..., Any]:
        """``step(closure=None)``, which the loop calls for :meth:`optimizer_step`: the optimizer's own by default."""
        return optimizer.step if self.uses_native_step() else partial(self.optimizer_step, optimizer)

    def global_steps(self) -> int:
        """The number of steps that the whole run has taken, with all its peers, if :attr:`counts_steps`."""
        raise NotImplementedError(f"{type(self).__name__} does not count steps")

    def steps_taken(self, optimizer: Optimizer) -> int:
        """How many steps of the whole run the last call of the optimizer's step was, for schedulers: 0 or 1 by default.

        Override it, with :attr:`counts_steps`, where an engine makes one step of several calls.

        Args:
            optimizer: The user's own.
        """
        return 0 if self.precision.step_was_skipped(optimizer) else 1

    def uses_native_step(self) -> bool:
        """Whether the optimizer's own ``step`` does all that :meth:`optimizer_step` would do."""
        is_default = type(self).optimizer_step is StepMethods.optimizer_step
        return is_default and not self.precision.overrides("optimizer_step")

    def check_clip_algorithm(self, algorithm: str, argument: str = "algorithm") -> None:
        """Refuse a value of ``argument`` that is not one of :attr:`clip_algorithms`.

        Raises:
            ConfigurationError: It is not.
        """
        if algorithm not in self.clip_algorithms:
            raise ConfigurationError(
                f"{argument}={algorithm!r}: strategy {self.name!r} cannot clip gradients by it. Valid: "
                f"{quoted(self.clip_algorithms)}."
            )
