"""Where a run of a Trainer is: its stage, the position of a fit, and the state that trainer.state shows."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal

import attrs


@attrs.frozen(kw_only=True)
class Stage:
    """One of the Trainer's four methods that run a Module."""

    name: str
    """The Trainer's method."""
    step: str
    """The Module's step."""
    hooks: str
    """How the names of its hooks begin."""
    kind: str
    """The kind of its loaders, as in ``val_dataloader`` and ``limit_val_batches``."""
    loader: str
    """The name of its loader in messages."""
    argument: str = "dataloaders"
    """The argument for its loaders."""

    @property
    def epoch_end(self) -> str:
        """The Module's hook that gets what the steps of an epoch returned; predictions are returned instead."""
        return f"{self.step.removesuffix('_step')}_epoch_end"

    @property
    def limit(self) -> str:
        """The Trainer's argument that limits its batches."""
        return f"limit_{self.kind}_batches"


STAGES: Mapping[str, Stage] = MappingProxyType(
    {
        stage.name: stage
        for stage in (
            Stage(
                name="fit",
                step="training_step",
                hooks="on_train",
                kind="train",
                loader="training",
                argument="train_dataloaders",
            ),
            Stage(name="validate", step="validation_step", hooks="on_validation", kind="val", loader="validation"),
            Stage(name="test", step="test_step", hooks="on_test", kind="test", loader="test"),
            Stage(name="predict", step="predict_step", hooks="on_predict", kind="predict", loader="prediction"),
        )
    }
)
"""By the name of the Trainer's method."""


NOT_SAVED = ("is_accumulating", "computed", "should_stop", "all_stop", "has_ended")
"""The part of the position that is not in a checkpoint."""


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
    skipped_steps: int = 0
    """How many of them changed nothing, since gradients were not finite: a scheduler per step does not count them. Only
    kept if there is one."""
    batches_before: int = 0
    """How many batches this process has trained on in the epochs before the running one."""
    phase: Literal["start", "batches", "end", "over"] = "start"
    """Of the running epoch: before its first batch, within its batches, after its last batch, or in the hooks of its
    end, which a resumed run does not call a second time."""
    validated: int = -1
    """:attr:`batch` at the newest validation of the running epoch; -1 if there was none."""
    train_loaded: int = 0
    """The epoch in which the loader of training was created."""
    val_loaded: int = 0
    """The epoch in which that of validation was created."""
    is_accumulating: bool = False
    """Whether the newest batch's gradients wait for the optimizer's step."""
    computed: int = -1
    """The newest batch of the running epoch that has a loss, so that its gradients may be among those that wait; it is
    :attr:`batch` within its step."""
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

    def first_to_repeat(self, accumulate: int) -> int:
        """The batch that a run begins with which is resumed from here.

        Within a step that is its batch, which has not been trained on yet. If its gradients may be among those of
        earlier batches that wait, it is the first of these.
        """
        repeats = self.is_accumulating and self.computed == self.batch
        return self.batch - self.batch % accumulate if repeats else self.batch

    def reset(self) -> None:
        """Go back to the beginning."""
        self.epoch = self.batch = self.step = self.batches_before = self.train_loaded = self.val_loaded = 0
        self.skipped_steps, self.phase, self.validated = 0, "start", -1
        self.is_accumulating = self.should_stop = False
        self.computed = -1
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
    """The running stage."""

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
        """The prefix of the names of its loaders."""
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
