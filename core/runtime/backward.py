"""The backward pass of a loop of the user's own: what it does to the gradients, and when they are reduced."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import ref

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..checkpoints.base import CheckpointIO
from ..data import PreparedLoader
from ..errors import ConfigurationError, WrongTypeError
from ..hints.remedies import add_remedy
from ..logging import get_logger
from ..precisions.base import check_tensor
from ..strategies.base import Strategy
from ..strategies.training_step import tensor_backward
from ..strategies.wrapping import unwrap_optimizer
from .accumulation import MicroBatch, Window
from .checks import check_joinables
from .gradient_state import GradientState
from .lifecycle import Life
from .prepare.prepared import PreparedObjects
from .prepare.wrappers import Called, called_of, own_module, strategy_module

SKIPPED_TWICE = (
    "load_state: the loop then read %s batch(es) of epoch %s before its first backward, so it does not train on them. "
    "The loader continues by itself after the last batch before the checkpoint. Remove the lines of the script that "
    "skip batches, such as: if step < resume_step: continue"
)

logger = logging.getLogger(__name__)
rank_zero_logger = get_logger(__name__)
"""For messages that would be the same in every process."""


class Backward:
    """The strategy's function for the backward pass, decided before the loop.

    Args:
        strategy: Of the run.
        prepared: What the run has prepared.
        gradient_state: How gradients are accumulated.
        window: The micro-batches between two steps.
    """

    __slots__ = (
        "_continued",
        "_first_gradients",
        "_gradient_state",
        "_prepared",
        "_strategy",
        "_takes_gradient",
        "divisor",
        "native",
        "window",
    )

    def __init__(
        self, strategy: Strategy, prepared: PreparedObjects, gradient_state: GradientState, window: Window
    ) -> None:
        self._strategy, self._prepared = strategy, prepared
        self._gradient_state, self.window = gradient_state, window
        self.unbind()

    def bind(self) -> Callable[..., None]:
        """Decide the function; call it when the run is live, and after each change of what is prepared."""
        # Without an optimizer, no step would unscale the gradients of a scaled loss.
        may_step = self._prepared.optimizers or not self._strategy.precision.scales_loss
        native = self._strategy.make_backward() if may_step else self._refuse_backward
        self._takes_gradient = native is tensor_backward
        native = self._checked(self._reduced(native))
        is_watched = self._prepared.taken or self._continued or self._strategy.root_device.type != "cpu"
        self.native: Callable[..., None] | None = self._first_backward(native) if is_watched else native
        """The function; ``None`` until it is decided."""
        self.window.probe()
        self.divisor = self._gradient_state.num_steps
        """The divisor of losses outside of ``accumulate``."""
        assert self.native is not None
        return self.native

    def unbind(self) -> None:
        """Forget the function, at the end of the run."""
        self.native, self.divisor = None, 1
        self._first_gradients: dict[tuple[int, torch.dtype, torch.device], Tensor] = {}
        self._continued: list[tuple[ref[PreparedLoader], int, int]] = []
        """The loaders that a checkpoint has put within a pass, each with its epoch and the batches before."""

    def continue_from(self, loaders: Iterable[PreparedLoader]) -> None:
        """Have the first backward pass look whether the loop has skipped batches that a checkpoint has left out.

        Args:
            loaders: Those whose positions were loaded.
        """
        inside = [loader for loader in loaders if loader.batches_taken and not loader.is_at_end]
        self._continued = [(ref(loader), loader.epoch, loader.batches_taken) for loader in inside]
        self.bind()

    def _check_skips(self) -> None:
        continued, self._continued = self._continued, []
        for known, epoch, before in continued:
            loader = known()
            if loader is None or loader.epoch == epoch or loader.is_evaluation:
                continue
            is_same_pass = loader.epoch == epoch + 1
            try:
                skipped = loader.batches_taken - before - 1 if is_same_pass else len(loader) - before
            except TypeError:
                continue  # of a stream it is not known whether any was left
            if skipped > 0 and self._strategy.is_global_zero:
                logger.warning(SKIPPED_TWICE, skipped, epoch)

    def _refuse_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        raise ConfigurationError(
            f"backward: precision={self._strategy.precision.name!r} scales the loss, but no optimizer was prepared, so "
            "its step would use the scaled gradients. Prepare it with the model: model, optimizer = "
            "runtime.prepare(model, optimizer)."
        )

    def _reduced(self, backward: Callable[..., None]) -> Callable[..., None]:
        """``backward``, which reduces gradients each time, also of several losses of one forward pass."""
        strategy = self._strategy
        models = [model for model in self._prepared.of("models") if hasattr(model, "_core_called")]
        if type(strategy).sync_in_backward is Strategy.sync_in_backward or not models:
            return backward
        known = [(model._core_called, ref(model)) for model in models]
        sharing = _Sharing(models)
        shares = bool(sharing)

        def reduced(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            if shares:
                sharing.begin(known)
            told = [model for called, model in known if called.spend()]
            if told and shares:
                told = sharing.newest(told)
            if not told:
                backward(loss, *args, **kwargs)
                return
            try:
                with ExitStack() as stack:
                    for model in filter(None, (one() for one in told)):
                        stack.enter_context(strategy.sync_in_backward(strategy_module(model), loss))
                    backward(loss, *args, **kwargs)
            except RuntimeError as error:
                add_remedy(error)
                raise

        return reduced

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
        """``backward``, which at first looks whether the loop uses what it was given as it should, and the device."""

        def first(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            self._check_skips()
            try:
                self._prepared.taken.check(partial(backward, loss, *args, **kwargs), self._prepared.of("models"))
            except RuntimeError as error:
                add_remedy(error)
                raise
            if self.native is first and not self._prepared.taken:
                self.native = backward

        return first

    def accumulated(
        self, loss: Tensor, num_items: int | Tensor | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Compute the gradients of a loss as its share of the mean over its window."""
        native = self.native
        assert native is not None
        if num_items is not None:
            check_tensor(loss)
            native(self.window.weighted(loss, num_items, self._strategy), *args, **kwargs)
            return
        divisor = self.window.plain_divisor(self.divisor)
        if self._takes_gradient and type(loss) is Tensor and not (loss.dim() or args or kwargs):
            native(loss, self._first_gradient(loss, divisor))
            return
        check_tensor(loss)
        native(loss / divisor, *args, **kwargs)

    def _first_gradient(self, loss: Tensor, divisor: int) -> Tensor:
        """The gradient of ``loss / divisor``, a scalar: where its backward pass begins, without computing it."""
        key = divisor, loss.dtype, loss.device
        gradient = self._first_gradients.get(key)
        if gradient is None:
            gradient = self._first_gradients[key] = torch.ones_like(loss, requires_grad=False) / divisor
        return gradient


class _Sharing:
    """The models that share parameters. One backward pass reduces the gradients of a parameter for one of them.

    Args:
        models: All prepared models.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        held = {ref(model): set(map(id, model.parameters())) for model in models}
        others = {one: [two for two in held if two is not one and held[one] & held[two]] for one in held}
        self._others = {model: found for model, found in others.items() if found}
        self._turn = 0
        self._turns: dict[ref[nn.Module], int] = {}
        """By model, the last backward pass after a forward pass of it."""

    def __bool__(self) -> bool:
        return bool(self._others)

    def begin(self, known: Iterable[tuple[Called, ref[nn.Module]]]) -> None:
        """Note the forward passes before a backward pass."""
        self._turn += 1
        self._turns |= {model: self._turn for called, model in known if called.is_new}

    def newest(self, told: Iterable[ref[nn.Module]]) -> list[ref[nn.Module]]:
        """Those of ``told`` that share parameters with none that had a forward pass later."""
        turns, others = self._turns, self._others
        return [one for one in told if all(turns.get(two, 0) <= turns.get(one, 0) for two in others.get(one, ()))]


class Gradients:
    """Unscales and clips gradients, between ``backward`` and the step.

    Args:
        life: Of the run.
        prepared: What the run has prepared.
        gradient_state: Whether this micro-batch synchronizes gradients.
    """

    def __init__(self, life: Life, prepared: PreparedObjects, gradient_state: GradientState) -> None:
        self._life, self._prepared, self._gradient_state = life, prepared, gradient_state

    def step_was_skipped(self) -> bool:
        """See :attr:`core.Runtime.optimizer_step_was_skipped`."""
        return not all(map(self._life.strategy.steps_taken, self._prepared.optimizers))

    def unscale(self, optimizer: Optimizer | Iterable[Optimizer] | None) -> None:
        """See :meth:`core.Runtime.unscale_gradients`."""
        if not (optimizer is None or isinstance(optimizer, Optimizer | list | tuple)):
            raise WrongTypeError(
                f"unscale_gradients: optimizer is an object of type {type(optimizer).__name__}. Pass an optimizer that "
                "prepare returned, or a list of them."
            )
        strategy = self._life.live()
        if not (strategy.precision.scales_loss and self._gradient_state.sync_gradients):
            return
        chosen = [optimizer] if isinstance(optimizer, Optimizer) else optimizer
        for one in list(self._prepared.optimizers) if chosen is None else chosen:
            strategy.unscale_gradients(unwrap_optimizer(one))

    def clip_norm(self, parameters: Any, max_norm: Any, norm_type: Any) -> Tensor | None:
        """See :meth:`core.Runtime.clip_grad_norm_`."""
        _check_limit("clip_grad_norm_", "max_norm", max_norm)
        return self._clip(parameters, max_norm, "norm", norm_type)

    def clip_value(self, parameters: Any, clip_value: Any) -> None:
        """See :meth:`core.Runtime.clip_grad_value_`."""
        _check_limit("clip_grad_value_", "clip_value", clip_value)
        self._clip(parameters, clip_value, "value", 2.0)

    def _clip(self, parameters: Any, limit: float, algorithm: str, norm_type: float) -> Tensor | None:
        if isinstance(parameters, nn.Module | str | dict) or not isinstance(parameters, Tensor | Iterable):
            raise WrongTypeError(
                f"clip_grad_{algorithm}_: parameters is an object of type {type(parameters).__name__}: must be "
                "parameters. Pass model.parameters()."
            )
        chosen: list[Any] = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        strategy = self._life.live()
        strategy.check_clip_algorithm(algorithm)
        if not self._gradient_state.sync_gradients:
            return None
        if strategy.precision.scales_loss:
            wanted = {id(parameter) for parameter in chosen}
            for optimizer in self._prepared.optimizers:
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


class Synchronization:
    """When gradients are reduced over the processes.

    Args:
        life: Of the run.
        prepared: What the run has prepared.
        gradient_state: Whether this micro-batch synchronizes gradients.
        window: The micro-batches between two steps.
    """

    def __init__(self, life: Life, prepared: PreparedObjects, gradient_state: GradientState, window: Window) -> None:
        self._life, self._prepared, self._gradient_state, self._window = life, prepared, gradient_state, window

    def set_steps(self, value: int) -> None:
        """See :attr:`core.Runtime.gradient_accumulation_steps`."""
        state = self._gradient_state
        plugin = attrs.evolve(state.plugin, num_steps=value)
        if self._prepared.optimizers and (state.num_steps == 1) != (value == 1):
            raise ConfigurationError(
                f"gradient_accumulation_steps={value}: optimizers were prepared for {state.num_steps}. Set it before "
                "prepare, or in Runtime(gradient_accumulation_steps=...)."
            )
        state.plugin = plugin

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """See :meth:`core.Runtime.accumulate`."""
        if self._gradient_state.num_steps == 1:
            return _NOTHING
        for model in models:
            self._prepared.check_model("accumulate", model)
        strategy = self._life.live()
        self._window.announce()
        if strategy.world_size == 1 or self._gradient_state.plugin.sync_each_batch:
            return MicroBatch(self._window, models, None)
        return MicroBatch(self._window, models, self._unreduced)

    def _unreduced(self, model: nn.Module) -> AbstractContextManager[Any]:
        self._gradient_state.is_managed = True
        return _unreduced(model, self._life.live())

    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """See :meth:`core.Runtime.no_sync`."""
        self._prepared.check_model("no_sync", model)
        strategy, called = self._life.live(), called_of(model)
        # Of other strategies it is not known which backward pass was the last one.
        is_known = strategy.world_size > 1 and type(strategy).sync_in_backward is not Strategy.sync_in_backward
        new = [each for each in self._prepared.optimizers if each not in called.checked_by]
        if is_known and new:
            held = set(map(id, model.parameters()))
            hook = partial(_check_reduced, called, ref(strategy), type(own_module(model, strategy)).__name__)
            for optimizer in new:
                if any(id(each) in held for group in optimizer.param_groups for each in group["params"]):
                    called.checked_by.add(optimizer)
                    optimizer.register_step_pre_hook(hook)
        return self._unreduced(model)

    def trigger_sync_in_backward(self, model: nn.Module) -> AbstractContextManager[Any]:
        """See :meth:`core.Runtime.trigger_sync_in_backward`."""
        self._prepared.check_model("trigger_sync_in_backward", model)
        self._life.live()
        return called_of(model).forced()

    def join_uneven_inputs(
        self, joinables: Sequence[Any], even_batches: bool | None = None
    ) -> AbstractContextManager[Any]:
        """See :meth:`core.Runtime.join_uneven_inputs`."""
        check_joinables(joinables, even_batches)
        strategy = self._life.live()
        if strategy.world_size == 1:
            return nullcontext()
        num_steps = self._gradient_state.num_steps
        if num_steps > 1:
            raise ConfigurationError(
                f"join_uneven_inputs: cannot be combined with gradient_accumulation_steps={num_steps}: a process that "
                "runs out of batches within a window would take part with zeros instead of the gradients that it has "
                "accumulated. Set gradient_accumulation_steps=1, or even_batches=True without join_uneven_inputs."
            )
        joined = [strategy_module(one) if isinstance(one, nn.Module) else one for one in joinables]
        join = partial(strategy.join_uneven, joined)
        return _Joining(join, self._prepared.of("loaders"), even_batches, self._window)


def _check_reduced(called: Called, strategy: ref[Strategy], name: str, *step: Any) -> None:
    """Before a step, once there was a ``no_sync``: warn if the gradients were not reduced."""
    known = strategy()
    if called.is_local and known is not None and known.keeps_replicas_equal:
        warnings.warn(
            f"step: the last backward pass of {name} was in no_sync, so the gradients are those of this process "
            "alone, and the processes now train different models. Have the forward and backward pass before a step "
            "outside of no_sync, or use accumulate(model). For processes that step alone: LocalSGD.",
            stacklevel=1,
        )


@contextmanager
def _unreduced(model: nn.Module, strategy: Strategy) -> Iterator[None]:
    with called_of(model).paused(), strategy.no_sync(strategy_module(model)):
        yield


class _Joining(AbstractContextManager[None]):
    """Loaders with another ``even_batches``, in a strategy's context."""

    def __init__(self, join: Any, loaders: list[Any], even_batches: bool | None, window: Window) -> None:
        self._join, self._loaders, self._even_batches, self._window = join, loaders, even_batches, window
        self._before: list[tuple[Any, bool]] = []

    def __enter__(self) -> None:
        self._context = self._join()
        if self._even_batches is not None:
            self._before = [(loader, loader.even_batches) for loader in self._loaders if loader.is_map_style]
            for loader, _ in self._before:
                loader.even_batches = self._even_batches
            if any(loader.even_batches != self._even_batches for loader in self._loaders):
                rank_zero_logger.warning_once(
                    "join_uneven_inputs: even_batches=%s changes loaders of map-style data only, and this run has "
                    "others. For these pass it to the Runtime",
                    self._even_batches,
                )
        self._window.is_joined = True
        self._context.__enter__()

    def __exit__(self, *error: Any) -> None:
        try:
            self._context.__exit__(*error)
        finally:
            self._window.is_joined = False
            for loader, value in self._before:
                loader.even_batches = value


_NOTHING: AbstractContextManager[None] = nullcontext()
"""The context of a micro-batch that is a window by itself."""
