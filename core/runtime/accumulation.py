"""Gradient accumulation: the micro-batches between two steps of the optimizers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, ExitStack
from operator import attrgetter
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..data.active_passes import ActivePass
from ..errors import ConfigurationError, WrongTypeError
from ..logging import get_logger
from ..strategies.base import Strategy
from .gradient_state import GradientAccumulationPlugin, GradientState

logger = get_logger(__name__)

version_of = attrgetter("_version")
"""How often a tensor was changed in place, as torch counts for autograd."""


class Window:
    """The micro-batches between two steps of the optimizers.

    Each loss is divided by the number of micro-batches. Where the length of the data is known, so is that number when
    the window begins. Otherwise it is :attr:`GradientAccumulationPlugin.num_steps`; if the data ends earlier, what has
    been accumulated is multiplied by the ratio before the last micro-batch.

    Args:
        state: Whether this micro-batch synchronizes gradients, and which loader the loop is in.
        optimizers: All prepared optimizers.
    """

    def __init__(self, state: GradientState, optimizers: Collection[Optimizer]) -> None:
        self._state, self._optimizers = state, optimizers
        self.clear()

    def clear(self) -> None:
        """Forget all micro-batches."""
        self.probes: list[Tensor] = []
        """A parameter of each optimizer. Its version says whether the optimizer has stepped: each step changes it."""
        self._probed: list[ref[Optimizer]] = []
        """The optimizer of each; the user may delete it."""
        self.versions: tuple[int, ...] = ()
        """Those of ``probes`` when a loss outside of ``accumulate()`` last had its backward pass."""
        self.size = 1
        """The number of micro-batches that each loss is divided by."""
        self.number = 1
        """The current micro-batch, from 1; equal to ``size`` in the last one."""
        self.has_gradients = False
        """Whether an earlier micro-batch of this window has left gradients."""
        self.is_inside = False
        """Whether the code is in ``with accumulate()``."""
        self.is_joined = False
        """Whether the code is in ``with join_uneven_inputs()``."""
        self.is_announced = False
        """Whether ``accumulate()`` has returned a context that was not entered."""
        self.losses_outside = 0
        """How many losses had their backward pass outside of ``accumulate()``."""
        self._models: tuple[nn.Module, ...] = ()
        self._divisor: Tensor | None = None
        self._items: Tensor | None = None
        self._has_weighted = self._has_plain = False
        self._batch: tuple[int, int] | None = None
        """The pass and the number of the loader's batch that the newest micro-batch came from."""
        self._has_warned = False

    def probe(self) -> None:
        """Choose the parameters by which the steps of the prepared optimizers are noticed."""
        self.probes, self._probed = [], []
        for one in self._optimizers:
            held = (each for group in one.param_groups for each in group["params"])
            if (first := _first_trained(held)) is not None:
                self.probes.append(first)
                self._probed.append(ref(one, self._forget))

    def _forget(self, deleted: ref[Optimizer]) -> None:
        number = self._probed.index(deleted)
        del self._probed[number], self.probes[number]
        self.versions = self.versions[:number] + self.versions[number + 1 :]

    def announce(self) -> None:
        """Note that ``accumulate()`` is about to return a context.

        Raises:
            ConfigurationError: The last one was not entered.
        """
        self.check_entered()
        self.is_announced = True

    def check_entered(self) -> None:
        """Check that the context that ``accumulate()`` has returned was entered.

        Raises:
            ConfigurationError: It was not.
        """
        if self.is_announced:
            self.is_announced = False
            raise ConfigurationError(
                "accumulate: what the last call returned was not used, so nothing is accumulated. Write the forward "
                "pass, backward and the step in a with block: with runtime.accumulate(model): ..."
            )

    def begin(self, models: tuple[nn.Module, ...]) -> bool:
        """Begin a micro-batch; returns whether it is the window's last."""
        state, self.is_announced = self._state, False
        plugin, newest = state.plugin, state.newest
        if self.is_inside:
            raise ConfigurationError(
                "accumulate: called inside another accumulate. Pass all models to one call: accumulate(a, b)."
            )
        if plugin.sync_with_dataloader and plugin.num_steps > 1:
            self._check_new_batch(plugin.num_steps, newest)
        if self.number >= self.size or (plugin.sync_with_dataloader and state.has_left_window):
            self._begin_window(plugin, newest, models)
        self.number += 1
        self.is_inside, self._models, self._has_weighted = True, models, False
        is_last = self.number >= self.size
        if not is_last and plugin.sync_with_dataloader and newest is not None and newest.is_last():
            is_last = True
            if self.has_gradients and self._divisor is None:
                self._multiply_gradients(self.size / self.number)
            self.size = self.number
        state.enter_micro_batch(newest, is_last)
        return is_last

    def _check_new_batch(self, num_steps: int, newest: ActivePass | None) -> None:
        """Warn once where several micro-batches come from one batch of the loader: those of the last end no window."""
        loader = self._state.active_dataloader
        batch = None if newest is None or loader is None else (id(newest), loader.batches_taken)
        if batch is not None and batch == self._batch and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "accumulate: entered again without a new batch of the loader. A window ends with the data, so with its "
                "last batch each entry is a step by itself. For several micro-batches in a batch, set "
                "gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=%d, sync_with_dataloader=False); "
                "for several models, pass all of them to one call: accumulate(a, b)",
                num_steps,
            )
        self._batch = batch

    def _begin_window(
        self, plugin: GradientAccumulationPlugin, newest: ActivePass | None, models: tuple[nn.Module, ...]
    ) -> None:
        if self.number < self.size and self.has_gradients:  # its loop was left
            for optimizer in self._optimizers:
                optimizer.zero_grad()
            for model in models:
                model.zero_grad()
        left = newest.num_left() if plugin.sync_with_dataloader and newest is not None else None
        self.size = plugin.num_steps if left is None else min(plugin.num_steps, left + 1)
        self.number = 0
        self.has_gradients = self._has_plain = self._has_weighted = False
        self._divisor = self._items = None

    def state_dict(self) -> dict[str, Any]:
        """Where this process is in the window; at its end, if the loop over the data was left."""
        is_left = self._state.has_left_window
        return {
            "is_last": is_left or not self.is_open,
            "size": self.size,
            "number": self.size if is_left else self.number,
            "has_gradients": self.has_gradients,
            "has_plain": self._has_plain,
            "has_weighted": self._has_weighted,
            "divisor": self._divisor,
            "items": self._items,
            "has_unused": self.has_unused and not self.is_open,
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Continue where :meth:`state_dict` was called, with tensors on ``device``."""
        self.size, self.number, self.has_gradients = state["size"], state["number"], state["has_gradients"]
        self._has_plain, self._has_weighted = state["has_plain"], state["has_weighted"]
        self.versions = tuple(map(version_of, self.probes)) if state["has_unused"] else ()
        tensors = (state["divisor"], state["items"])
        self._divisor, self._items = (None if tensor is None else tensor.to(device) for tensor in tensors)
        self._state.enter_micro_batch(None, state["is_last"])

    @property
    def num_steps(self) -> int:
        """The micro-batches of a whole window."""
        return self._state.num_steps

    @property
    def is_open(self) -> bool:
        """Whether gradients wait for a further micro-batch."""
        return not self._state.sync_gradients

    @property
    def has_unused(self) -> bool:
        """Whether there are gradients that no optimizer has stepped with: of this window, or accumulated by hand."""
        known = zip(self._probed, self.probes, self.versions, strict=False)  # no versions before the first loss
        waiting = (one() for one, probe, version in known if version_of(probe) == version)
        groups = (group for one in waiting if one is not None for group in one.param_groups)
        has_gradients = any(each.grad is not None for group in groups for each in group["params"])
        return self.is_open or (has_gradients and not self.is_inside)

    @property
    def has_optimizers(self) -> bool:
        """Whether an optimizer was prepared, whose step waits for the last micro-batch."""
        return bool(self._optimizers)

    @property
    def has_any(self) -> bool:
        """Whether this window has gradients."""
        return self.has_gradients or self._has_plain or self._has_weighted

    def end(self) -> None:
        """End the micro-batch."""
        self.is_inside, self.has_gradients, self._models = False, True, ()
        self.versions = ()

    def plain_divisor(self, outside: int) -> int:
        """The divisor of a loss, so that the sum over the window is the mean.

        Args:
            outside: The number for a loss outside of all windows.

        Raises:
            ConfigurationError: An earlier loss of the window was given with ``num_items``; or ``accumulate`` was
                called without ``with``.
        """
        if not self.is_inside:
            self.check_entered()
            self.losses_outside += 1
            return outside
        if self._divisor is not None:
            raise _mixed()
        self._has_plain = True
        return self.size

    def weighted(self, loss: Tensor, num_items: int | Tensor, strategy: Strategy) -> Tensor:
        """A sum of losses as its share of the mean over all items of the window, in all processes.

        Before the last micro-batch the number of those items is unknown: losses are divided by the first micro-batch's
        number, and the accumulated gradients are corrected before the last one is added.

        Raises:
            ConfigurationError: It was called before in this micro-batch, an earlier loss of the window was given
                without ``num_items``, or processes may be without a batch.
            WrongTypeError: ``num_items`` is not a number.
        """
        if self.is_joined:
            raise ConfigurationError(
                "backward(num_items=...): the processes exchange this number, and in join_uneven_inputs some have no "
                "batch left to do so. Leave num_items out, or use even_batches=True without join_uneven_inputs."
            )
        items = _count(num_items, strategy.root_device)
        is_alone = not self.is_inside
        if is_alone:
            self.check_entered()
            self.losses_outside += 1
        if self._has_weighted and not is_alone:
            raise ConfigurationError(
                "backward(num_items=...): called twice in one micro-batch. Add the losses, and call it once."
            )
        if self._has_plain and not is_alone:
            raise _mixed()
        self._has_weighted = not is_alone
        if not is_alone and self.number < self.size:
            if self._divisor is None:
                ones = torch.ones_like(items)
                self._divisor = ones if self._state.plugin.sync_each_batch else torch.maximum(items, ones)
                self._items = torch.zeros_like(items)
            assert self._items is not None
            self._items += items
            return loss / self._divisor.to(loss.dtype)
        total = items if is_alone or self._items is None else self._items + items
        mean = strategy.reduce(total, "mean")
        factor = torch.where(mean > 0, 1 / mean, torch.zeros_like(mean))
        if not is_alone and self._divisor is not None and self.has_gradients:
            self._multiply_gradients(self._divisor * factor)
        return loss * factor.to(loss.dtype)

    def _multiply_gradients(self, factor: float | Tensor) -> None:
        parameters = {id(p): p for model in self._models for p in model.parameters()}
        parameters |= {id(p): p for o in self._optimizers for group in o.param_groups for p in group["params"]}
        gradients = [p.grad for p in parameters.values() if p.grad is not None]
        if not gradients:
            raise ConfigurationError(
                "accumulate: the gradients of the window cannot be weighted, because the strategy keeps them elsewhere "
                "until they are reduced. Set sync_each_batch=True in GradientAccumulationPlugin."
            )
        for gradient in gradients:
            local = gradient.to_local() if hasattr(gradient, "to_local") else gradient  # of a DTensor
            local.mul_(factor)


def _mixed() -> ConfigurationError:
    return ConfigurationError(
        "backward: num_items was given in some micro-batches of a window and not in others. Give it in all or in none."
    )


def _count(num_items: int | Tensor, device: torch.device) -> Tensor:
    """``num_items`` as a float32 scalar on ``device``."""
    is_number = isinstance(num_items, int | float) and not isinstance(num_items, bool)
    if not (is_number or (isinstance(num_items, Tensor) and num_items.numel() == 1)):
        raise WrongTypeError(f"num_items={num_items!r}: must be a number or a tensor with one element.")
    return torch.as_tensor(num_items, device=device).detach().to(torch.float32).reshape(())


class OptimizerGate:
    """Whether a call of a prepared optimizer's ``step`` and ``zero_grad`` acts.

    ``step`` acts in the last micro-batch of a window. ``zero_grad`` acts unless it would clear gradients that wait for
    the window's step, wherever the loop calls it: before ``backward`` or after ``step``.
    """

    def __init__(self, state: GradientState, window: Window) -> None:
        self._state, self._window = state, window
        self._is_stale = False
        """Whether the gradients were applied, and not cleared since."""
        self._is_waiting = False
        """Whether ``step`` was called before the last micro-batch."""
        self._losses = self._short = 0
        """The losses outside of all windows until the last step, and the steps in a row that had one of them."""

    def state_dict(self) -> dict[str, Any]:
        """What the last calls have left."""
        return {"is_stale": self._is_stale, "is_waiting": self._is_waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self._is_stale, self._is_waiting = state["is_stale"], state["is_waiting"]

    def step(self, step: Callable[..., Any], closure: Callable[[], Any] | None = None) -> Any:
        """Call ``step`` in the last micro-batch.

        Raises:
            ConfigurationError: A closure is given, whose loss would be left out of the window; or ``accumulate`` was
                called without ``with``; or never, and each loss has a step of its own.
        """
        if closure is not None:
            raise ConfigurationError(
                "step: was given a closure, which cannot be combined with gradient_accumulation_steps > 1. Call "
                "runtime.backward(loss) and step(), or set gradient_accumulation_steps=1."
            )
        self._window.check_entered()
        if not self._state.is_managed:
            self._check_accumulated()
        if not self._state.sync_gradients:
            self._is_waiting = True
            return None
        self._is_stale, self._is_waiting = True, False
        return step()

    def _check_accumulated(self) -> None:
        """Refuse the second step in a row that follows one loss: nothing is accumulated.

        A loop that steps after several losses, or says when gradients are synchronized, accumulates by itself.
        """
        losses, self._losses = self._window.losses_outside - self._losses, self._window.losses_outside
        self._short = self._short + 1 if losses == 1 else 0
        if self._short == 2:
            steps = self._state.num_steps
            raise ConfigurationError(
                f"gradient_accumulation_steps={steps}: the optimizer steps after each backward pass, so nothing is "
                f"accumulated, and each loss counts 1/{steps}. Put the forward pass, backward and the step of each "
                "iteration into a with block: with runtime.accumulate(model): ... Or set gradient_accumulation_steps=1."
            )

    def clears(self) -> bool:
        """Whether ``zero_grad`` acts now."""
        acts = self._is_stale or self._state.has_left_window or not (self._is_waiting or self._window.has_any)
        if acts:
            self._is_stale = self._is_waiting = False
        return acts


class MicroBatch(AbstractContextManager[None]):
    """The context of one micro-batch, for :meth:`core.Runtime.accumulate`.

    Args:
        window: The window that it is a part of.
        models: The models that it trains.
        no_sync: Makes the context in which gradients of a model are not reduced; ``None`` if nothing is reduced.
    """

    __slots__ = ("_models", "_no_sync", "_stack", "_versions", "_window")

    def __init__(
        self,
        window: Window,
        models: tuple[nn.Module, ...],
        no_sync: Callable[[nn.Module], AbstractContextManager[Any]] | None,
    ) -> None:
        self._window, self._models, self._no_sync = window, models, no_sync
        self._stack: ExitStack | None = None
        self._versions: list[tuple[Tensor, int]] = []
        """Without a prepared optimizer, and before the last micro-batch: a parameter of each model, and its version."""

    def __enter__(self) -> None:
        if self._window.begin(self._models):
            return
        if not self._window.has_optimizers:
            trained = (_first_trained(model.parameters()) for model in self._models)
            self._versions = [(each, version_of(each)) for each in trained if each is not None]
        if self._no_sync is not None:
            self._stack = ExitStack()
            for model in self._models:
                self._stack.enter_context(self._no_sync(model))

    def __exit__(self, *error: Any) -> None:
        self._window.end()
        if self._stack is not None:
            self._stack.__exit__(*error)
        if error[0] is None and any(version_of(parameter) != version for parameter, version in self._versions):
            raise ConfigurationError(
                "accumulate: parameters changed before the last micro-batch of a window, and no optimizer was "
                "prepared: its step acts in every micro-batch. Prepare it with the model: model, optimizer = "
                "runtime.prepare(model, optimizer)."
            )


def _first_trained(parameters: Iterable[Tensor]) -> Tensor | None:
    return next((parameter for parameter in parameters if parameter.requires_grad), None)
