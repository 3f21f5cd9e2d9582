"""Times at which gradients are reduced over the processes: accumulation, and uneven numbers of batches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import attrs
from torch import nn

from ...errors import ConfigurationError
from ...logging import get_logger
from ..accumulation import MicroBatch, Window
from ..arguments import check_joinables
from ..gradient_state import GradientState
from ..lifecycle import Life
from ..prepare.modules import strategy_module
from ..prepare.prepared import PreparedObjects

__all__ = ["Synchronization"]

logger = get_logger(__name__)
"""What every process would say alike."""


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
        return MicroBatch(self._window, models, self.no_sync)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """See :meth:`core.Runtime.no_sync`."""
        self._prepared.check_model("no_sync", model)
        self._gradient_state.is_managed = True
        return self._life.live().no_sync(strategy_module(model))

    def trigger_sync_in_backward(self, model: nn.Module) -> AbstractContextManager[Any]:
        """See :meth:`core.Runtime.trigger_sync_in_backward`."""
        self._prepared.check_model("trigger_sync_in_backward", model)
        return self._life.live().sync_in_backward(strategy_module(model))

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
                logger.warning_once(
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
