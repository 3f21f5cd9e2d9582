"""The training step: composed once before the loop, the Strategy's part in it, and what is logged in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import ConfigurationError, quoted
from ..precisions.base import Precision, check_loss
from ..utilities.renamed import Renaming
from .manual_gradients import ManualGradients


@attrs.frozen(kw_only=True)
class TrainingStepOptions:
    """The options of a training step besides the forward pass."""

    optimizer: Optimizer
    """The optimizer that is stepped, as :meth:`core.Strategy.setup_optimizers` returned it."""
    module: nn.Module
    """The module whose gradients are reduced and clipped, as :meth:`core.Strategy.setup_module` returned it."""
    accumulate: int = 1
    """Batches per optimizer step; each loss is divided by this number."""
    clip_value: float | None = None
    """The limit of gradients, as in :meth:`core.Precision.clip_gradients`; ``None`` for no clipping."""
    clip_algorithm: str = "norm"
    """See :meth:`core.Precision.clip_gradients`."""
    customize: Callable[[StepParts], TrainingStep] | None = None
    """Composes the step of a user who overrides parts of it, from the strategy's parts; ``None`` for the default. A
    strategy that runs the whole step by itself leaves it alone, and the Trainer then rejects what was overridden."""


@attrs.frozen(kw_only=True)
class StepParts:
    """The strategy's part of a training step."""

    forward: Callable[[Any, int], Tensor | None]
    """``forward(batch, batch_idx)`` returns the loss, a scalar, or ``None`` to skip the batch."""
    backward: Callable[[Tensor], object]
    """Computes gradients of the loss and reduces them."""
    optimizer_step: Callable[..., Any]
    """``optimizer_step(closure=None)`` applies the gradients."""
    clip_gradients: Callable[[float, str], object]
    """Limits the gradients to a value by an algorithm."""
    no_sync: Callable[[nn.Module], AbstractContextManager[Any]]
    """Returns a context in which gradients of a module are not reduced."""


TrainingStep = Callable[[Any, int, bool], Tensor | None]
"""One batch: ``step(batch, batch_idx, is_step_end)`` runs forward and backward, and steps the optimizer if
``is_step_end``. Returns the loss, or ``None`` if ``forward`` skipped the batch."""


def compose_training_step(
    forward: Callable[[Any, int], Tensor | None],
    options: TrainingStepOptions,
    *,
    backward: Callable[[Tensor], object],
    optimizer_step: Callable[..., Any],
    clip_gradients: Callable[[float, str], object],
    no_sync: Callable[[nn.Module], AbstractContextManager[Any]],
) -> TrainingStep:
    """The step that :meth:`core.Strategy.training_step` makes by default.

    Args:
        forward: ``forward(batch, batch_idx)`` returns the loss, a scalar, or ``None`` to skip the batch.
        options: What else the step does.
        backward: Computes gradients of the loss and reduces them.
        optimizer_step: Applies the gradients.
        clip_gradients: Limits the gradients to a value by an algorithm.
        no_sync: Returns a context in which gradients of a module are not reduced.
    """
    if options.customize is not None:
        parts = StepParts(
            forward=forward,
            backward=backward,
            optimizer_step=optimizer_step,
            clip_gradients=clip_gradients,
            no_sync=no_sync,
        )
        return options.customize(parts)
    module, zero_grad = options.module, options.optimizer.zero_grad
    clip_value, accumulate = options.clip_value, options.accumulate
    if accumulate == 1 and clip_value is None:

        def plain_step(batch: Any, batch_idx: int, is_step_end: bool) -> Tensor | None:
            loss = forward(batch, batch_idx)
            if loss is not None:
                backward(loss)
                optimizer_step()
                zero_grad()
            return loss

        return plain_step

    has_gradients = False

    def accumulating_step(batch: Any, batch_idx: int, is_step_end: bool) -> Tensor | None:
        nonlocal has_gradients
        with nullcontext() if is_step_end else no_sync(module):
            loss = forward(batch, batch_idx)
            if loss is not None:
                backward(loss / accumulate if accumulate > 1 else loss)
                has_gradients = True
        if is_step_end and (has_gradients or holds_gradients(options.optimizer)):
            has_gradients = False
            if clip_value is not None:
                clip_gradients(clip_value, options.clip_algorithm)
            optimizer_step()
            zero_grad()
        return loss

    return accumulating_step


def holds_gradients(optimizer: Optimizer) -> bool:
    """Whether ``optimizer`` has gradients, as of batches of an accumulation that an earlier run has begun."""
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


def tensor_backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
    """``loss.backward(*args, **kwargs)``."""
    try:
        if args or kwargs:
            loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]
        else:  # the common call; Python makes it without building a tuple and a dictionary
            loss.backward()  # type: ignore[no-untyped-call]
    except (RuntimeError, AttributeError) as error:
        check_loss(loss, error, *args, **kwargs)
        raise


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
        return nullcontext()

    def accumulation_state(self, module: nn.Module) -> dict[str, Any]:
        """What this process knows of ``module`` between two batches of an accumulation: tensors and plain values.

        The wrapper's own, such as what it does next. A strategy with its own :meth:`module_state` has its gradients
        here too; without this method, a checkpoint within an accumulation is an error.
        """
        return {}

    def load_accumulation_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """Load what :meth:`accumulation_state` returned."""

    def sync_in_backward(self, module: nn.Module, loss: Tensor) -> AbstractContextManager[Any]:
        """A context for the backward pass of ``loss``, which reduces the gradients of ``module`` in any case.

        Override it where :meth:`backward` reduces them only once after each forward pass, or not after one in
        :meth:`no_sync`. The loss may depend on other modules alone.
        """
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

    def may_skip_steps(self) -> bool:
        """Whether a call of an optimizer's step may be no step of the whole run; :meth:`steps_taken` says which was.

        Override both where an engine leaves steps out, such as those whose gradients are not finite.
        """
        return self.precision.scales_loss or self.counts_steps

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
        """Reject a value of ``argument`` that is not one of :attr:`clip_algorithms`.

        Raises:
            ConfigurationError: It is not.
        """
        if algorithm not in self.clip_algorithms:
            raise ConfigurationError(
                f"{argument}={algorithm!r}: strategy {self.name!r} cannot clip gradients by it. Valid: "
                f"{quoted(self.clip_algorithms)}."
            )


LOG_REDUCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "mean": lambda a, b: a + b,
    "sum": lambda a, b: a + b,
    "min": lambda a, b: torch.minimum(torch.as_tensor(a), torch.as_tensor(b)),
    "max": lambda a, b: torch.maximum(torch.as_tensor(a), torch.as_tensor(b)),
}
"""How two values of one name become one, by ``reduce_fx``. Values of a mean are weighted before, and divided after."""


@attrs.frozen(kw_only=True)
class LoggedValue:
    """One call of :meth:`core.Module.log`. Use :func:`attrs.evolve` to change what is logged."""

    name: str
    value: Any
    """The value as the module gave it: a number or a scalar tensor, unless the module made a mistake."""
    reduce_fx: str
    """A key of :data:`LOG_REDUCTIONS`, unless the module made a mistake."""
    batch_size: int | None
    """The value's weight in a mean; ``None`` for the size of the running batch."""
    options: Mapping[str, Any]
    """The other arguments of the call, by name."""
    record: Callable[..., None]
    """Takes the arguments of :meth:`core.Module.log`."""

    def log(self) -> None:
        """Log the value in the stage that is running now.

        Raises:
            ConfigurationError: The value is not a scalar, or ``reduce_fx`` is unknown.
        """
        self.record(self.name, self.value, reduce_fx=self.reduce_fx, batch_size=self.batch_size, **self.options)


Collector = Callable[[LoggedValue], None]

log_collector: ContextVar[Collector | None] = ContextVar("log_collector", default=None)
"""What takes the logged values of the current thread; ``None`` if they are logged at once."""


@contextmanager
def collect_logs(take: Collector) -> Iterator[None]:
    """A context in which ``take`` gets every value that a module logs in this thread, and nothing else happens to it.

    Contexts may be nested: values that are logged after the inner one go to the outer one.
    """
    token = log_collector.set(take)
    try:
        yield
    finally:
        log_collector.reset(token)


def reduce_logged(values: Sequence[Any], weights: Sequence[float], reduce_fx: str) -> Any:
    """One value for the whole of what ``values`` are parts of.

    Args:
        values: Numbers, or scalar tensors on one device; at least one.
        weights: The weight of each in a mean, such as its number of items.
        reduce_fx: A key of :data:`LOG_REDUCTIONS`.
    """
    if reduce_fx == "mean":
        values = [value * weight for value, weight in zip(values, weights, strict=True)]
    result = values[0]
    for value in values[1:]:
        result = LOG_REDUCTIONS[reduce_fx](result, value)
    return result / (sum(weights) or 1) if reduce_fx == "mean" else result
