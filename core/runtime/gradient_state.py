"""GradientState and its settings: whether the next step synchronizes gradients, and where the loop is in its data."""

from __future__ import annotations

from typing import Any

import attrs

from ..data import ActivePasses, PreparedLoader
from ..data.active_passes import ActivePass
from ..data.shards import Real
from ..errors import ConfigurationError, WrongTypeError
from ..hints.argument_checks import check_flags, suggest_arguments_of


@suggest_arguments_of
@attrs.frozen(kw_only=True)
class GradientAccumulationPlugin:
    """How gradients are accumulated; under Accelerate's names.

    Raises:
        WrongTypeError: A value has the wrong type.
        ConfigurationError: ``num_steps`` is below 1.
    """

    num_steps: int = 1
    """The number of micro-batches in a window: the optimizers step after the last of them."""
    adjust_scheduler: bool = True
    """Whether a scheduler's count of calls includes the calls that :meth:`Runtime.accumulate` skips.
    The learning rate changes once a window in any case."""
    sync_with_dataloader: bool = True
    """Whether a window ends with the last batch of a pass over a prepared loader, even if it is short. Otherwise it
    continues with the next pass."""
    sync_each_batch: bool = False
    """Whether gradients are reduced over the processes after each micro-batch, which takes less memory under some
    strategies, and more time."""

    def __attrs_post_init__(self) -> None:
        if isinstance(self.num_steps, bool) or not isinstance(self.num_steps, int):
            raise WrongTypeError(f"gradient_accumulation_steps={self.num_steps!r}: must be an integer ≥ 1.")
        if self.num_steps < 1:
            raise ConfigurationError(f"gradient_accumulation_steps={self.num_steps}: must be an integer ≥ 1.")
        check_flags(**{name: value for name, value in attrs.asdict(self).items() if name != "num_steps"})


class GradientState:
    """Where the loop is in its data, and whether the next step synchronizes gradients.

    The active loader is the prepared loader that has yielded the newest batch, until its pass ends: by the end of its
    data, or because the loop is left, also by ``break`` or an exception. In a loop within another loop it is the inner
    loader; after the inner loop, the outer one.

    Args:
        passes: The passes over the loaders of the run.
        plugin: How gradients are accumulated.
    """

    def __init__(self, passes: ActivePasses, plugin: GradientAccumulationPlugin) -> None:
        self.passes, self.plugin = passes, plugin
        self._is_last = True
        self.is_managed = False
        """Whether the loop says when gradients are synchronized: by ``accumulate`` or ``no_sync``, or by setting it."""
        self._source: ActivePass | None = None
        """The pass that the newest micro-batch came from."""

    @property
    def num_steps(self) -> int:
        """The number of micro-batches in a window."""
        return self.plugin.num_steps

    @property
    def adjust_scheduler(self) -> bool:
        """Like :attr:`GradientAccumulationPlugin.adjust_scheduler`."""
        return self.plugin.adjust_scheduler

    @property
    def sync_with_dataloader(self) -> bool:
        """Like :attr:`GradientAccumulationPlugin.sync_with_dataloader`."""
        return self.plugin.sync_with_dataloader

    @property
    def plugin_kwargs(self) -> dict[str, Any]:
        """The settings of the accumulation, by name."""
        return attrs.asdict(self.plugin)

    @property
    def sync_gradients(self) -> bool:
        """Whether gradients are synchronized in this step: the last micro-batch of an accumulation.

        It is true outside of accumulation, and after a loop was left in the middle of a window.
        """
        return self._is_last or self.has_left_window

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self._is_last, self.is_managed = value, True

    @property
    def has_left_window(self) -> bool:
        """Whether the loop over the data was left in the middle of a window."""
        source = self._source
        return not self._is_last and self.sync_with_dataloader and source is not None and source.loader is None

    def is_after_loop(self, num_ended: int) -> bool:
        """Whether the code comes after a loop over the data, and not after a step in it.

        Args:
            num_ended: How many passes had ended when this was last asked.
        """
        if self._source is not None:
            return self._source.loader is None
        return self.sync_gradients and not self.in_dataloader and self.passes.num_ended > num_ended

    @property
    def newest(self) -> ActivePass | None:
        """The pass that has yielded the newest batch; ``None`` outside of all loops."""
        return self.passes.newest

    def enter_micro_batch(self, source: ActivePass | None, is_last: bool) -> None:
        """Note a micro-batch from the pass ``source``, and whether it is the last of its window."""
        self._source, self._is_last, self.is_managed = source, is_last, True

    @property
    def active_dataloader(self) -> PreparedLoader | None:
        """The prepared loader that the loop is in; ``None`` outside of all loops."""
        newest = self.passes.newest
        loader = None if newest is None else newest.loader
        return loader if isinstance(loader, PreparedLoader) else None

    @property
    def in_dataloader(self) -> bool:
        """Whether the loop is in a prepared loader."""
        return self.passes.newest is not None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the newest batch is the last of its pass; false outside of all loops.

        Where the length of the data is unknown, the next batch is read.
        """
        newest = self.passes.newest
        return newest is not None and newest.is_last()

    @property
    def real_samples(self) -> Real | None:
        """Like :attr:`core.data.PreparedLoader.real_samples`, for the newest batch; ``None`` outside of all loops."""
        newest = self.passes.newest
        return None if newest is None else newest.real()

    @property
    def absent_parts(self) -> tuple[int, ...]:
        """The parts of the data that have no batch next to the newest one, which only ``even_batches=False`` leads to.

        By rank, for most strategies. Those processes have left the loop, or are about to.
        """
        newest = self.passes.newest
        return () if newest is None else newest.absent()

    @property
    def remainder(self) -> int:
        """The number of items in the newest global batch that are not padding; -1 if it is complete or unknown."""
        real = self.real_samples
        return -1 if real is None or None in real else sum(count or 0 for count in real)

    def __repr__(self) -> str:
        facts = ("sync_gradients", "in_dataloader", "remainder")
        return f"<GradientState: {', '.join(f'{name}={getattr(self, name)}' for name in facts)}>"
