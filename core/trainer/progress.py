"""Where a fit is: epoch, step, batch, and whether it has been asked to stop."""

from __future__ import annotations

from typing import Any, Literal

import attrs

__all__ = ["Progress"]


@attrs.define
class Progress:
    """The position of a fit. Each of these numbers is kept here and nowhere else.

    A checkpoint holds :meth:`state_dict`, and nothing else, of the position.
    """

    epoch: int = 0
    """The running epoch, from 0; after ``fit``, the number of completed epochs."""
    batch: int = 0
    """How many batches of the running epoch this process has trained on."""
    step: int = 0
    """Optimizer steps taken so far, in all epochs. A step whose batches were all skipped counts."""
    phase: Literal["start", "batches", "end"] = "start"
    """Of the running epoch: before its first batch, within its batches, or after its last batch."""
    is_accumulating: bool = False
    """Whether the newest batch's gradients wait for the optimizer's step."""
    should_stop: bool = False
    """Whether to end ``fit`` after the running optimizer step."""

    @property
    def completed_epochs(self) -> int:
        """How many epochs were trained on all of their batches."""
        return self.epoch + (self.phase == "end")

    @property
    def is_mid_epoch(self) -> bool:
        """Whether the running epoch's batches have begun and have not all been trained on."""
        return self.phase == "batches"

    def reset(self) -> None:
        """Go back to the beginning."""
        self.epoch = self.batch = self.step = 0
        self.phase, self.is_accumulating, self.should_stop = "start", False, False

    def start_batches(self) -> None:
        """Begin the running epoch's batches."""
        self.phase, self.batch = "batches", 0

    def finish_batches(self) -> None:
        """Note that all of the running epoch's batches were trained on."""
        self.phase = "end"

    def finish_epoch(self) -> None:
        """Go on to the next epoch, unless the running one was left before its last batch."""
        if self.phase == "end":
            self.epoch, self.batch, self.phase = self.epoch + 1, 0, "start"

    def state_dict(self) -> dict[str, Any]:
        """The position for a checkpoint: ``epoch`` counts completed epochs; the request to stop is left out."""
        return {
            "epoch": self.completed_epochs,
            "batch": self.batch if self.is_mid_epoch else 0,
            "step": self.step,
            "is_mid_epoch": self.is_mid_epoch,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the position of :meth:`state_dict`."""
        self.epoch, self.batch, self.step = state["epoch"], state["batch"], state["step"]
        self.phase = "batches" if state["is_mid_epoch"] else "start"
