"""The base class of callbacks that write what ``predict`` computes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError, quoted
from ..logging import get_logger
from .base import Callback

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

logger = get_logger(__name__)


class WriteInterval(StrEnum):
    """When predictions are written."""

    BATCH = "batch"
    EPOCH = "epoch"
    BATCH_AND_EPOCH = "batch_and_epoch"

    @property
    def on_batch(self) -> bool:
        """Whether after each batch."""
        return self is not WriteInterval.EPOCH

    @property
    def on_epoch(self) -> bool:
        """Whether after the last batch."""
        return self is not WriteInterval.BATCH


class BasePredictionWriter(Callback):
    """Writes what ``predict`` computes: override one or both of its methods, in which every process writes its part.

    ::

        class Writer(BasePredictionWriter):
            def write_on_batch_end(self, trainer, module, prediction, batch_indices, batch, batch_idx, dataloader_idx):
                torch.save((batch_indices, prediction), f"predictions/{dataloader_idx}-{batch_indices[0]}.pt")

        Trainer(callbacks=Writer("batch")).predict(module, loader, return_predictions=False)

    Args:
        write_interval: ``"batch"`` calls :meth:`write_on_batch_end` after each batch, ``"epoch"`` calls
            :meth:`write_on_epoch_end` after the last one, ``"batch_and_epoch"`` calls both.

    Raises:
        ConfigurationError: ``write_interval`` is something else.
    """

    def __init__(self, write_interval: str = "batch") -> None:
        valid = [str(interval) for interval in WriteInterval]
        if write_interval not in valid:
            raise ConfigurationError(f"write_interval={write_interval!r}: unknown. Valid: {quoted(valid)}.")
        self.interval = WriteInterval(write_interval)
        idle = (("on_predict_batch_end", self.interval.on_batch), ("on_predict_epoch_end", self.interval.on_epoch))
        self.idle_hooks = frozenset(hook for hook, is_used in idle if not is_used)
        self._has_warned = False

    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        prediction: Any,
        batch_indices: Sequence[Any] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Write the prediction of one batch.

        Args:
            trainer: The trainer.
            pl_module: The module.
            prediction: What ``predict_step`` returned, where it was computed.
            batch_indices: The indices of the batch's items in the data set; ``None`` for data without indices: an
                iterable-style data set, or a loader that is no DataLoader.
            batch: The batch.
            batch_idx: Its number in this process, from 0.
            dataloader_idx: The number of its loader.
        """

    def write_on_epoch_end(
        self, trainer: Trainer, pl_module: Any, predictions: Sequence[Any], batch_indices: Sequence[Any]
    ) -> None:
        """Write all predictions of this process.

        Args:
            trainer: The trainer.
            pl_module: The module.
            predictions: What ``predict_step`` returned for each batch of this process, with tensors on the CPU; with
                several loaders, such a list for each.
            batch_indices: For each loader, also if it is the only one, the ``batch_indices`` of each batch.
        """

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Reject an interval whose method is not defined."""
        needed = (("write_on_batch_end", self.interval.on_batch), ("write_on_epoch_end", self.interval.on_epoch))
        for method, is_used in needed:
            if stage == "predict" and is_used and getattr(type(self), method) is getattr(BasePredictionWriter, method):
                raise ConfigurationError(
                    f"{type(self).__name__}(write_interval={str(self.interval)!r}): {method} is not defined, so "
                    f"nothing would be written. Define it, or choose another write_interval."
                )

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Call :meth:`write_on_batch_end`."""
        assert trainer.run.evaluation is not None
        indices = trainer.run.evaluation.newest_indices
        self._warn_if_unknown(indices)
        self.write_on_batch_end(trainer, pl_module, outputs, indices, batch, batch_idx, dataloader_idx)

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Call :meth:`write_on_epoch_end`."""
        assert trainer.run.evaluation is not None
        predictions, indices = trainer.run.evaluation.predictions, trainer.run.evaluation.batch_indices
        for of_loader in indices:
            self._warn_if_unknown(*of_loader[:1])
        self.write_on_epoch_end(trainer, pl_module, predictions[0] if len(predictions) == 1 else predictions, indices)

    def _warn_if_unknown(self, *indices: Any) -> None:
        if None in indices and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s: batch_indices is None, since items of this loader have no index. Predict from a DataLoader of a "
                "map-style data set, or have each batch carry what names its items",
                type(self).__name__,
            )
