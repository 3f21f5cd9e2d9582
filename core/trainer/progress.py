"""The position of a fit: epoch, step, batch, and whether it has been asked to stop."""

from __future__ import annotations

from typing import Any, Literal

import attrs

__all__ = ["Progress"]


NOT_SAVED = ("is_accumulating", "should_stop", "all_stop", "has_ended")
"""What a checkpoint does not hold of the position."""


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
    batches_before: int = 0
    """How many batches this process has trained on in the epochs before the running one."""
    phase: Literal["start", "batches", "end", "over"] = "start"
    """Of the running epoch: before its first batch, within its batches, after its last batch, or in the hooks of its
    end, which a resumed run does not call a second time."""
    validated: int = -1
    """:attr:`batch` at the newest validation of the running epoch; -1 if there was none."""
    is_accumulating: bool = False
    """Whether the newest batch's gradients wait for the optimizer's step."""
    should_stop: bool = False
    """Whether this process asks to end ``fit``; several processes agree on it at steps that all of them know."""
    all_stop: bool = False
    """Whether all processes end ``fit`` after the running optimizer step. A callback that decides for all sets both."""
    has_ended: bool = False
    """Whether ``fit`` has trained as long as it should."""

    @property
    def completed_epochs(self) -> int:
        """How many epochs were trained on all of their batches."""
        return self.epoch + (self.phase in ("end", "over"))

    @property
    def begun_epochs(self) -> int:
        """The running epoch, from 0; after the end of ``fit``, how many epochs were begun."""
        return self.epoch + (self.has_ended and self.phase == "batches" and self.batch > 0)

    @property
    def is_in_epoch(self) -> bool:
        """Whether the running epoch's batches have begun, and the hooks of its end have not."""
        return self.phase in ("batches", "end")

    @property
    def total_batches(self) -> int:
        """How many batches this process has trained on, in all epochs."""
        return self.batches_before + self.batch

    def reset(self) -> None:
        """Go back to the beginning."""
        self.epoch = self.batch = self.step = self.batches_before = 0
        self.phase, self.is_accumulating, self.should_stop, self.validated = "start", False, False, -1
        self.all_stop = self.has_ended = False

    def start_batches(self) -> None:
        """Begin the running epoch's batches."""
        self.phase, self.batch, self.validated = "batches", 0, -1

    def note_validation(self) -> None:
        """Note that a validation is over."""
        self.validated = self.batch

    def finish_batches(self) -> None:
        """Note that all of the running epoch's batches were trained on."""
        self.phase = "end"

    def start_end(self) -> None:
        """Note that the hooks of the epoch's end begin, unless the epoch was left before its last batch."""
        if self.phase == "end":
            self.phase = "over"

    def finish_epoch(self) -> None:
        """Go on to the next epoch, unless the running one was left before its last batch."""
        if self.phase == "over":
            self._next_epoch()

    def _next_epoch(self) -> None:
        self.epoch, self.batches_before, self.batch = self.epoch + 1, self.total_batches, 0
        self.phase, self.validated = "start", -1

    def state_dict(self) -> dict[str, Any]:
        """The position for a checkpoint, without the request to stop; at the end of an epoch, the start of the next."""
        state = attrs.evolve(self)
        if state.phase == "over":
            state._next_epoch()
        return attrs.asdict(state, filter=lambda attribute, _: attribute.name not in NOT_SAVED)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the position of :meth:`state_dict`."""
        for name in self.state_dict():
            setattr(self, name, state[name])
