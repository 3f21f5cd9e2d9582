"""The stage and status of a Trainer, as ``trainer.state`` shows them."""

from __future__ import annotations

from enum import StrEnum

import attrs

__all__ = ["RunningStage", "TrainerFn", "TrainerState", "TrainerStatus"]


class TrainerStatus(StrEnum):
    """How far a Trainer is."""

    INITIALIZING = "initializing"
    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"

    @property
    def stopped(self) -> bool:
        """Whether its last run has ended."""
        return self in (TrainerStatus.FINISHED, TrainerStatus.INTERRUPTED)


class TrainerFn(StrEnum):
    """The method of a Trainer that is running, or was run last."""

    FITTING = "fit"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"


class RunningStage(StrEnum):
    """What runs now."""

    TRAINING = "train"
    SANITY_CHECKING = "sanity_check"
    VALIDATING = "validate"
    TESTING = "test"
    PREDICTING = "predict"

    @property
    def evaluating(self) -> bool:
        """Whether it is validation or test; the sanity check counts."""
        return self in (RunningStage.VALIDATING, RunningStage.TESTING, RunningStage.SANITY_CHECKING)

    @property
    def dataloader_prefix(self) -> str:
        """What the names of its loaders begin with."""
        return "val" if self in (RunningStage.VALIDATING, RunningStage.SANITY_CHECKING) else self.value


@attrs.frozen(kw_only=True)
class TrainerState:
    """The state of a Trainer at one moment."""

    status: TrainerStatus
    """``interrupted`` is also a run that has failed."""
    fn: TrainerFn | None
    """``None`` before the first run."""
    stage: RunningStage | None
    """``None`` while nothing runs."""

    @property
    def finished(self) -> bool:
        """Whether the last run has ended as it should."""
        return self.status is TrainerStatus.FINISHED

    @property
    def stopped(self) -> bool:
        """Whether the last run has ended."""
        return self.status.stopped
