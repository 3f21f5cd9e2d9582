"""Checkpoints at the end of epochs, after steps or after some time; the best or all of them are kept."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ...checkpoints import absolute, committed_file, is_committed, is_in, store_of
from ...errors import ConfigurationError, CoreError, quoted
from ...hints.argument_checks import check_path
from ..agreement import EveryNSteps, SharedClock, decide_in_process_zero, not_logged
from ..base import Checkpoint, has_validated_in_epoch, is_training, validates_next, validates_once_in_each_epoch
from .arguments import Decision, check_choice, check_interval, check_link, checked_state, make_link
from .paths import DEFAULT, OLDER, candidates, check_filename, fields_of, format_name, scores_as_yaml

if TYPE_CHECKING:
    from ...trainer.trainer import Trainer

logger = logging.getLogger(__name__)

STATE = (
    "monitor",
    "mode",
    "dirpath",
    "best_model_path",
    "best_model_score",
    "current_score",
    "best_k_models",
    "kth_best_model_path",
    "kth_value",
    "last_model_path",
)
"""The attributes that are this callback's state in checkpoints; they change when a checkpoint is committed."""


class ModelCheckpoint(Checkpoint):
    """Writes checkpoints, and keeps the best, the newest or all of them.

    ::

        ModelCheckpoint(monitor="val_loss", save_top_k=3, save_last=True, filename="{epoch}-{val_loss:.2f}")

    Process 0 decides by its own metrics, and the others do as it does. A checkpoint is removed only after those that
    replace it are committed.

    Only a value that was measured after the newest optimizer step is the score of a checkpoint. Where ``monitor`` has
    none, the choice among the best waits until it has: until the end of the validation that follows, for example.
    ``save_last`` does not wait for a later step.

    Args:
        dirpath: The directory, or a URL; ``~`` is the home directory. By default each run has its own: ``checkpoints``
            in the folder of this run that the first logger has, otherwise ``checkpoints/version_N`` in the trainer's
            ``default_root_dir``. A run that is resumed from a checkpoint there continues in its folder.
        filename: The file name, without extension, in which metrics are replaced: ``"{epoch}-{val_loss:.2f}"`` becomes
            ``epoch=2-val_loss=0.12.ckpt``. By default ``"{epoch}-{step}"``.
        monitor: The metric that decides which checkpoints are the best. Without one, the newest is kept.
        verbose: Log each decision at level INFO.
        save_last: Also write ``last.ckpt`` each time; ``"link"`` makes it a link to the checkpoint just written.
        save_top_k: How many of the best checkpoints to keep; -1 keeps all, 0 writes none. Without ``monitor``, only
            1, 0 and -1. ``monitor="step", mode="max"`` keeps the newest k.
        save_on_exception: Write a checkpoint when an exception ends the run.
        save_weights_only: Write only the module's state; a run cannot be resumed from it.
        mode: ``"min"`` or ``"max"``: whether a small or a large metric is good.
        auto_insert_metric_name: Whether ``{epoch}`` in ``filename`` becomes ``epoch=0`` or only ``0``.
        every_n_train_steps: Write after every n-th optimizer step; where a batch takes several, after the batch.
        train_time_interval: Write after this time, at the next step that process 0 finds to be due.
        every_n_epochs: Write at the end of every n-th epoch; 1 if neither of the two before is given.
        save_on_train_epoch_end: Whether to write at the end of the training epoch or after validation. By default
            after validation if it runs more than once in an epoch or not in every epoch; and at the end of an epoch
            without validation, unless ``monitor`` or ``filename`` waits for a metric of the next one.
        enable_version_counter: Whether to write ``name-v1.ckpt`` where another run has written ``name.ckpt``, rather
            than to replace it.

    Raises:
        ConfigurationError: An argument is out of range, or contradicts another one.
        WrongTypeError: ``dirpath`` is not a path, or ``train_time_interval`` not a ``timedelta``.
    """

    CHECKPOINT_JOIN_CHAR = "-"
    CHECKPOINT_EQUALS_CHAR = "="
    CHECKPOINT_NAME_LAST = "last"
    FILE_EXTENSION = ".ckpt"
    STARTING_VERSION = 1

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        monitor: str | None = None,
        verbose: bool = False,
        save_last: bool | Literal["link"] | None = None,
        save_top_k: int = 1,
        save_on_exception: bool = False,
        save_weights_only: bool = False,
        mode: str = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        train_time_interval: timedelta | None = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
        enable_version_counter: bool = True,
    ) -> None:
        check_path("dirpath", dirpath)
        if filename is not None:
            check_filename(filename, auto_insert_metric_name)
        check_choice(save_last, save_top_k, monitor, mode)
        check_interval(every_n_train_steps, every_n_epochs, train_time_interval)
        if every_n_train_steps is None and every_n_epochs is None and train_time_interval is None:
            every_n_epochs = 1
        self._given_dirpath = None if dirpath is None else absolute(dirpath)
        self.filename = filename
        self.monitor = monitor
        self.verbose = verbose
        self.save_last = save_last
        self.save_top_k = save_top_k
        self.save_on_exception = save_on_exception
        self.save_weights_only = save_weights_only
        self.mode = mode
        self.auto_insert_metric_name = auto_insert_metric_name
        self.every_n_train_steps = every_n_train_steps or 0
        self.train_time_interval = train_time_interval
        self.every_n_epochs = every_n_epochs or 0
        self.save_on_train_epoch_end = save_on_train_epoch_end
        self.enable_version_counter = enable_version_counter
        if not self.every_n_train_steps and train_time_interval is None:
            self.idle_hooks = frozenset({"on_train_batch_end"})
        self._clock = None if train_time_interval is None else SharedClock(train_time_interval.total_seconds())
        self._steps = EveryNSteps()
        self._folder: str | None = None
        """The directory of the running fit."""
        self._reset()

    def _reset(self) -> None:
        """Forget the checkpoints of an earlier run."""
        self.dirpath = self._given_dirpath
        """The directory; decided when a run begins, unless it was given."""
        self.best_model_path = ""
        """The best checkpoint; without ``monitor``, the newest. Empty if there is none yet."""
        self.best_model_score: Tensor | None = None
        """The monitored metric of :attr:`best_model_path`."""
        self.current_score: Tensor | None = None
        """The monitored metric of the checkpoint that was written last."""
        self.best_k_models: dict[str, Tensor] = {}
        """The checkpoints that are kept because of their metric, which is the value."""
        self.kth_best_model_path = ""
        """The worst of them, once there are ``save_top_k``."""
        self.kth_value = torch.tensor(torch.inf if self.mode == "min" else -torch.inf)
        """The metric of :attr:`kth_best_model_path`."""
        self.last_model_path = ""
        """The checkpoint that ``save_last`` has written."""
        self._has_warned = False
        self._step_saved = 0  # nothing is to be saved before the first step
        self._is_deferred = False
        self._written: set[str] = set()
        """The checkpoints of this run; some may not be committed yet."""
        self._todo: Decision | None = None
        """The decision at this point of the run that is still to be carried out."""
        self._decided: dict[str, Any] | None = None
        """The state after the newest decision, which the attributes take when its checkpoint is committed."""
        self._step_committed = 0

    # -- what users read and call --------------------------------------------------------------------------------

    @property
    def state_key(self) -> str:
        """Its name in checkpoints, by the arguments in which several ModelCheckpoints may differ."""
        interval = None if self.train_time_interval is None else self.train_time_interval.total_seconds()
        return (
            f"{type(self).__qualname__}(monitor={self.monitor!r}, mode={self.mode!r}, every_n_train_steps="
            f"{self.every_n_train_steps}, every_n_epochs={self.every_n_epochs}, train_time_interval={interval})"
        )

    def format_checkpoint_name(
        self,
        metrics: Mapping[str, Any],
        filename: str | None = None,
        ver: int | None = None,
        prefix: str | None = None,
    ) -> str:
        """The path of a checkpoint with these metrics.

        Args:
            metrics: Numbers or scalar tensors, by name; one that is missing is written as 0.
            filename: A format in place of this callback's own.
            ver: The number that distinguishes it from another checkpoint of the same name.
            prefix: What the name begins with.
        """
        char, insert = self.CHECKPOINT_EQUALS_CHAR, self.auto_insert_metric_name
        name = format_name(filename or self.filename or DEFAULT, metrics, insert, char)
        parts = [*([] if prefix is None else [prefix]), name, *([] if ver is None else [f"v{ver}"])]
        return os.path.join(self.dirpath or "", self.CHECKPOINT_JOIN_CHAR.join(parts) + self.FILE_EXTENSION)

    def to_yaml(self, filepath: str | os.PathLike[str] | None = None) -> None:
        """Write the kept checkpoints and their metrics as YAML, by default to ``best_k_models.yaml`` in ``dirpath``."""
        if filepath is None:
            if self.dirpath is None:
                raise ConfigurationError("to_yaml: no run has decided on a directory yet. Give filepath.")
            filepath = os.path.join(self.dirpath, "best_k_models.yaml")
        with committed_file(absolute(filepath)) as file:
            file.write_text(scores_as_yaml(self.best_k_models), encoding="utf-8")

    # -- when -------------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Begin a run: decide on the directory."""
        if stage != "fit":
            return
        self._reset()
        if self.dirpath is None:
            self.dirpath = trainer.run.folder
        check_link(self.save_last, self.dirpath)
        self._folder = self.dirpath

    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """End a run: a checkpoint that cannot be written in the background is an error here."""
        trainer.strategy.checkpoint_io.wait()
        self._folder = None

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Start the clock, and the count of steps."""
        self._steps.restart(trainer.global_step)
        if self._clock is not None:
            self._clock.restart(trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Write a checkpoint if enough steps or enough time have passed."""
        if self._todo is not None or self._is_due_after_step(trainer):
            self._reach(trainer, "step")

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write a checkpoint, if one is due after validation."""
        if is_training(trainer):
            self._reach(trainer, "validation")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write a checkpoint, if one is due at the epoch's end."""
        self._reach(trainer, "epoch")

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the last checkpoint, if there is none yet."""
        if self.save_last and not self.state_dict()["last_model_path"] and trainer.global_step:
            self._make_decision(trainer, "end")
            self._carry_out(trainer)

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Forget checkpoints that could not be written. Write one with ``save_on_exception``."""
        with suppress(CoreError):  # it has been logged, and another error, or the same one, ends the run
            trainer.strategy.checkpoint_io.wait()
        self._decided, self._todo, self._step_saved = None, None, self._step_committed
        if not self.save_on_exception or not is_training(trainer) or trainer.global_step == self._step_saved:
            return
        path = self.format_checkpoint_name(candidates(trainer)[0])
        try:
            trainer.save_checkpoint(path, self.save_weights_only)
        except CoreError as failure:  # the error that ends the run must not be hidden by this one
            logger.warning("save_on_exception: no checkpoint could be written: %s", failure)
            return
        logger.info("%s has ended the run; saved %s", type(exception).__name__, path)

    def _saves_on_train_epoch_end(self, trainer: Trainer) -> bool:
        if self.save_on_train_epoch_end is not None:
            return self.save_on_train_epoch_end
        return validates_once_in_each_epoch(trainer) or not has_validated_in_epoch(trainer)

    def _is_due_after_step(self, trainer: Trainer) -> bool:
        step = trainer.global_step
        if self.every_n_train_steps:
            return self._steps.is_due(step, self.every_n_train_steps) and step != self._step_saved
        if self._clock is None or step == self._step_saved or trainer.progress.is_accumulating:
            return False
        if not self._clock.is_due(step, trainer.strategy):
            return False
        self._clock.restart(step)
        return True

    def _decide_after(self, trainer: Trainer, when: str) -> None:
        is_turn = self.every_n_epochs > 0 and (trainer.current_epoch + 1) % self.every_n_epochs == 0
        is_epochs = is_turn and (when == "epoch") == self._saves_on_train_epoch_end(trainer)
        is_due = when == "step" or is_epochs
        if self._is_deferred or is_due:
            self._make_decision(trainer, when, is_due)

    # -- what -------------------------------------------------------------------------------------------------------

    def _reach(self, trainer: Trainer, when: str) -> None:
        """Decide at one point of the run, then write; every process calls it.

        All ModelCheckpoints decide before the first one writes: its checkpoint contains the state of the others too.
        """
        if self._todo is None:
            self._decide_after(trainer, when)
        if self._todo is None:
            return
        others = [callback for callback in trainer.checkpoint_callbacks if isinstance(callback, ModelCheckpoint)]
        for other in others[others.index(self) + 1 :]:
            if when != "step" or other._is_due_after_step(trainer):
                other._decide_after(trainer, when)
        self._carry_out(trainer)

    def _make_decision(self, trainer: Trainer, when: str, is_due: bool = True) -> None:
        """Decide what is to be written, and take the state that follows; every process calls it.

        ``is_due`` says whether a checkpoint is due now, and not only one that has waited.
        """
        is_saved = trainer.global_step == self._step_saved and not self._is_deferred
        if is_saved or trainer.fast_dev_run or self._todo is not None:
            return
        follows = when == "step" and validates_next(trainer)
        decision = decide_in_process_zero(trainer, lambda: self._decide(trainer, when, is_due, follows))
        if decision.state is None:
            self._is_deferred = True
            return
        # Before saving: the checkpoint holds this callback's state, which must be true when it is loaded.
        self._decided, self._is_deferred = decision.state, decision.state["_is_deferred"]
        self._todo = decision

    def _carry_out(self, trainer: Trainer) -> None:
        """Write the checkpoints that are due, then remove those that they replace."""
        decision, self._todo = self._todo, None
        if decision is None:
            return
        for path in (decision.save, decision.last):
            if path is not None:
                self._step_saved = trainer.global_step
                self._written.add(path)
                trainer.save_checkpoint(path, self.save_weights_only)
        if decision.link is not None:
            make_link(trainer.strategy, *decision.link)
        trainer.strategy.checkpoint_io.when_committed(partial(self._commit, self.state_dict()))
        for path in decision.remove:
            self._written.discard(path)
            if path not in self._of_others(trainer):
                trainer.strategy.remove_checkpoint(path)

    def _decide(self, trainer: Trainer, when: str, is_due: bool, follows: bool) -> Decision:
        """In process 0: what is to be written, and what removed."""
        metrics, older = candidates(trainer)
        chooses = when != "end" and self.save_top_k != 0
        lacks = chooses and self.monitor is not None and (self.monitor not in metrics or self.monitor in older)
        unnamed = [name for name in fields_of(self.filename or DEFAULT) if name not in metrics or name in older]
        if (follows or trainer.progress.phase == "end") and (lacks or (chooses and unnamed and when == "step")):
            return Decision()  # the metric of this step is that of the validation, or of the epoch, that ends next
        has_validated = has_validated_in_epoch(trainer, default=True)
        is_between = when == "epoch" and self.save_on_train_epoch_end is None and not has_validated
        if lacks:
            # What waits since a step may be for a value of the training epoch, which comes after its validation.
            is_early = when == "step" or (when == "validation" and self._is_deferred)
            if self.monitor not in metrics and has_validated and not is_early:
                raise not_logged(
                    type(self).__name__,
                    str(self.monitor),
                    metrics,
                    "Log it with self.log before each checkpoint, or write checkpoints less often, as with "
                    "every_n_epochs.",
                )
            if not is_between:
                self._warn_of_older(trainer, [str(self.monitor)], "The choice among the best waits for the next one")
        waits = lacks or (chooses and is_between and bool(unnamed))
        if waits:
            if not (self.save_last and is_due):
                return Decision()
            chooses = False
        elif chooses and (named := older.intersection(unnamed)):
            self._warn_of_older(trainer, named, "The file name has nan in its place")
        state = {**self.state_dict(), "_is_deferred": waits}
        save, replaced = self._choose(trainer, metrics, state) if chooses else (None, None)
        last, link, previous = self._choose_last(trainer, metrics, state, save)
        remove = [path for path in (replaced, previous) if path and path not in (save, last, link and link[0])]
        return Decision(
            state=state,
            save=save,
            last=last,
            link=link,
            remove=tuple(path for path in remove if self._owns(trainer, path)),
        )

    def _choose(
        self, trainer: Trainer, metrics: Mapping[str, Any], state: dict[str, Any]
    ) -> tuple[str | None, str | None]:
        """Take this checkpoint among the best of ``state``; returns its path and the one it replaces, if there are."""
        if self.monitor is None:
            replaced = state["best_model_path"] if self.save_top_k == 1 else ""
            path = state["best_model_path"] = self._free_name(trainer, metrics, self.filename, replaced)
            return path, replaced
        score = torch.as_tensor(metrics[self.monitor]).detach().cpu()
        if score.isnan():
            score = torch.full_like(score.float(), torch.inf if self.mode == "min" else -torch.inf)
        sign, kept = (1 if self.mode == "min" else -1), state["best_k_models"]
        is_full = self.save_top_k != -1 and len(kept) >= self.save_top_k
        worst = max(kept, key=lambda path: sign * float(kept[path])) if is_full else None
        if worst is not None and not sign * float(score) < sign * float(kept[worst]):
            self._tell(trainer, f"{self.monitor}={float(score):.5g} is not among the best {self.save_top_k}")
            return None, None
        if worst is not None:
            del kept[worst]
        path = self._free_name(trainer, metrics, self.filename, worst)
        kept[path] = state["current_score"] = score
        if self.save_top_k in (-1, len(kept)):
            state["kth_best_model_path"] = max(kept, key=lambda path: sign * float(kept[path]))
            state["kth_value"] = kept[state["kth_best_model_path"]]
        state["best_model_path"] = min(kept, key=lambda path: sign * float(kept[path]))
        state["best_model_score"] = kept[state["best_model_path"]]
        self._tell(trainer, f"{self.monitor}={float(score):.5g} is among the best; saving {path}")
        return path, worst

    def _choose_last(
        self, trainer: Trainer, metrics: Mapping[str, Any], state: dict[str, Any], saved: str | None
    ) -> tuple[str | None, tuple[str, str] | None, str]:
        """The last checkpoint to write, or the link to make; and the last one before."""
        if not self.save_last:
            return None, None, ""
        previous = state["last_model_path"]
        path = state["last_model_path"] = self._free_name(trainer, metrics, self.CHECKPOINT_NAME_LAST, previous)
        if self.save_last == "link" and saved is not None:
            return None, (path, saved), previous
        return path, None, previous

    def _free_name(
        self, trainer: Trainer, metrics: Mapping[str, Any], filename: str | None, replaced: str | None
    ) -> str:
        """The path for ``filename``, with a number if a checkpoint other than ``replaced`` has the path already."""
        path, number = self.format_checkpoint_name(metrics, filename), self.STARTING_VERSION
        taken = self._written - {replaced} | self._of_others(trainer)  # some are not committed yet
        while self.enable_version_counter and (path in taken or (path != replaced and store_of(path).exists())):
            path = self.format_checkpoint_name(metrics, filename, ver=number)
            number += 1
        return path

    def _owns(self, trainer: Trainer, path: str) -> bool:
        """Whether ``path`` may be removed: a checkpoint in the directory, not the one that was resumed from."""
        kept = trainer.run.given_ckpt_path
        if kept is not None and absolute(kept) == absolute(path):
            return False
        return is_in(path, self.dirpath or os.curdir) and (path in self._written or is_committed(path))

    def _of_others(self, trainer: Trainer) -> set[str]:
        """The checkpoints that other ModelCheckpoints of this run have, or are about to write."""
        found = trainer.checkpoint_callbacks
        others = (each for each in found if isinstance(each, ModelCheckpoint) and each is not self)
        paths = itemgetter("best_model_path", "last_model_path")
        kept = ({*(of := each.state_dict())["best_k_models"], *paths(of), *each._written} for each in others)
        return set().union(*kept) - {""}

    def _warn_of_older(self, trainer: Trainer, names: Iterable[str], effect: str) -> None:
        if not self._has_warned:
            logger.warning(OLDER, type(self).__name__, trainer.global_step, quoted(names), effect)
        self._has_warned = True

    def _tell(self, trainer: Trainer, what: str) -> None:
        if self.verbose:
            logger.info("epoch %d, step %d: %s", trainer.current_epoch, trainer.global_step, what)

    # -- state ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The checkpoints that are kept, and what they are chosen by; also those that are being written."""
        kept = {name: getattr(self, name) for name in STATE} if self._decided is None else self._decided
        own = {"_is_deferred": self._is_deferred, "step_saved": self._step_saved}
        return {**kept, "best_k_models": dict(kept["best_k_models"]), **own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned; of a run in another directory, only its best checkpoint."""
        if self._folder is None or state_dict["dirpath"] == self._folder:
            self._set(checked_state(state_dict))
            self._is_deferred = state_dict["_is_deferred"]
            # A batch that takes no step saves nothing again.
            self._step_saved = self._step_committed = state_dict.get("step_saved", 0)
            return
        self.best_model_path = state_dict["best_model_path"]
        logger.info(
            "%s: the resumed run has its checkpoints in %s. This run saves in %s, and does not remove the others",
            type(self).__name__,
            state_dict["dirpath"],
            self._folder,
        )

    def _commit(self, state: Mapping[str, Any]) -> None:
        """Take the state of a checkpoint that is committed, maybe in another thread."""
        self._set(state)
        self._step_committed = state["step_saved"]

    def _set(self, state: Mapping[str, Any]) -> None:
        for name in STATE:
            setattr(self, name, state[name])
        self.best_k_models = dict(state["best_k_models"])
