"""What a Module has for logging: ``log``, ``log_dict``, ``print`` and its loggers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...errors import ConfigurationError, WrongTypeError
from ...hints.argument_checks import suggest_arguments
from ...loggers.base import Logger

__all__ = ["LoggingMembers"]


COUNTED = {
    "step": "The Trainer counts the steps. Log a value as 'step' to replace their number.",
    "epoch": "The Trainer counts the epochs. Remove it.",
}
"""Arguments that other loggers' methods take: what to do."""


class LoggingMembers:
    """The part of a Module that logs."""

    trainer: Any

    @partial(suggest_arguments, remedies=COUNTED, owner="Module.log")
    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[..., Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log a value, in a step or in a hook between the start and the end of an epoch or stage.

        The value is published as ``name``. If the values of steps and of the epoch are both recorded, they are
        published as ``name_step`` and ``name_epoch``, and ``name`` is the newest of both. A value that is logged in a
        hook before the first or after the last step of an epoch belongs to the epoch.

        Args:
            name: The metric's name. A name has the same options in all steps of a stage.
            value: A number or a scalar tensor; it is copied, and stays on its device until it is read. Or an object
                with ``update``, ``compute`` and ``reset``, such as a ``torchmetrics.Metric``, that is an attribute of
                the module: its value in the step is what it returned when it was called, its value in the epoch is
                ``compute()``, and it is reset at the epoch's end.
            prog_bar: Show it in the progress bar.
            logger: Send it to the loggers; ``None`` means ``True``.
            on_step: Record the value of each step; by default only in training.
            on_epoch: Record the value of the epoch over all processes; by default only outside of training steps.
            reduce_fx: How the values of an epoch are reduced: ``mean`` (weighted by batch size), ``sum``, ``min`` or
                ``max``, or torch's function of this name. Sums and means of 16-bit values are computed in 32 bits.
            enable_graph: Only ``False``: values are logged without their graph.
            sync_dist: In training, the value of a step is that of all processes, by name: every process logs it. They
                exchange their values not in each step, but when these are read; see ``docs/logging.md``. The value of
                an epoch is always that of all processes. In evaluation, where processes may take different numbers of
                steps, the value of a step is this process's own.
            sync_dist_group: Only ``None``: values are reduced over all processes.
            add_dataloader_idx: Whether to append ``/dataloader_idx_<n>`` to the name if a stage has several loaders.
            batch_size: The value's weight in the mean; by default the first dimension of the first tensor in the
                batch that has one.
            metric_attribute: Where in the module the metric object is, such as ``"metrics.accuracy"``; found if left
                out.
            rank_zero_only: Whether only process 0 calls this, or is to be recorded.

        Raises:
            ConfigurationError: The value is not a scalar, the reduction is unknown, no epoch or stage is running, an
                option contradicts another one or an earlier call, or ``on_step=True`` outside of the steps. Raised at
                the next exchange, in every process: with ``sync_dist=True``, not all have logged the same names.
        """
        if enable_graph or sync_dist_group is not None:
            raise _refused(name, enable_graph, sync_dist_group)
        self.trainer.metric_log.log(
            name,
            value,
            prog_bar=prog_bar,
            logger=logger,
            on_step=on_step,
            on_epoch=on_epoch,
            reduce_fx=reduce_fx,
            sync_dist=sync_dist,
            add_dataloader_idx=add_dataloader_idx,
            batch_size=batch_size,
            metric_attribute=metric_attribute,
            rank_zero_only=rank_zero_only,
        )

    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **options: Any) -> None:
        """Call :meth:`log` for each item of ``dictionary``: a mapping, or a ``torchmetrics.MetricCollection``."""
        if not callable(getattr(dictionary, "items", None)):
            raise WrongTypeError(f"log_dict: {dictionary!r} is not a mapping of names to values.")
        # The items of a MetricCollection share state, which need not be copied.
        shares = {"copy_state": False} if getattr(dictionary, "_enable_compute_groups", False) else {}
        for name, value in dictionary.items(**shares):
            self.log(name, value, *args, **options)

    @property
    def logger(self) -> Logger | None:
        """The Trainer's first logger; ``None`` if there is none, or no Trainer."""
        trainer = self._newest_trainer
        return None if trainer is None else trainer.logger

    @property
    def loggers(self) -> list[Logger]:
        """The Trainer's loggers; empty without a Trainer."""
        trainer = self._newest_trainer
        return [] if trainer is None else trainer.loggers

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Call the built-in ``print``, in process 0 only."""
        self.trainer.print(*args, **kwargs)

    @property
    def _newest_trainer(self) -> Any:
        """What is running this module, or was the last to do so and still exists; ``None`` without one."""
        running, last = getattr(self, "_trainer", None), getattr(self, "_last_trainer", None)
        return last() if running is None and last is not None else running


def _refused(name: str, enable_graph: bool, sync_dist_group: Any) -> ConfigurationError:
    if enable_graph:
        return ConfigurationError(
            f"log({name!r}, enable_graph=True): a value is logged without its graph. Return what is to be "
            "differentiated from the step."
        )
    return ConfigurationError(
        f"log({name!r}, sync_dist_group={sync_dist_group!r}): values are reduced over all processes. Reduce it over "
        "the group with torch.distributed.all_reduce, and log the result."
    )
