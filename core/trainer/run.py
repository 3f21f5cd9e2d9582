"""A run of a Trainer: what ``fit``, ``validate``, ``test`` and ``predict`` write, and what is left of it afterwards."""

from __future__ import annotations

import weakref

import attrs

from .checkpoint.finished_fit import FinishedFit
from .loop.evaluate import EvaluationLoop
from .loop.fit import FitLoop
from .metrics.metric_log import MetricLog
from .module.datamodule import DataModule
from .module.module import Module
from .run_context import RunContext
from .trainer_state import Progress


@attrs.define(kw_only=True, eq=False)
class Run:
    """The state of the running or the last ``fit``, ``validate``, ``test`` or ``predict``.

    A new one is made for each run, from what the last one has left. The Trainer itself keeps only its arguments.
    """

    metric_log: MetricLog
    """Everything that the module logs."""
    progress: Progress = attrs.field(factory=Progress)
    """The position of the running or the last ``fit``."""
    function: str | None = None
    """The Trainer's method; ``None`` before the first run."""
    module: weakref.ref[Module] | None = None
    """Not kept alive."""
    datamodule: DataModule | None = None
    """What creates the loaders; ``None`` if loaders were passed."""
    batch_counts: dict[str, list[float]] = attrs.field(factory=dict)
    """By stage, the number of batches of each loader; of earlier runs too."""
    given_ckpt_path: str | None = None
    """The path that the user gave; ``None`` for ``"last"`` and ``"best"``."""
    ckpt_path: str | None = None
    """The checkpoint that it was started from."""
    folder: str | None = None
    """The folder for the checkpoints of the ``fit``, once it is decided."""
    interrupted: bool = False
    """Whether an exception has ended it."""
    received_sigterm: bool = False
    """Whether the ``fit`` has received SIGTERM, once it has ended."""
    finished: FinishedFit | None = None
    """The last ``fit`` that has ended, to be saved; ``None`` while another one runs."""
    context: RunContext | None = None
    """The context that the loops share; ``None`` while nothing runs, like the next two."""
    fit_loop: FitLoop | None = None
    evaluation: EvaluationLoop | None = None
    """The loop of ``validate``, ``test`` or ``predict``. For a ``fit`` see its ``validation``."""

    @property
    def stage(self) -> str | None:
        """The running stage: ``train``, ``sanity_check``, ``validate``, ``test`` or ``predict``."""
        return None if self.context is None else self.context.stage

    def following(self, function: str, module: Module, ckpt_path: str | None) -> Run:
        """The next run."""
        return attrs.evolve(
            self,
            function=function,
            module=weakref.ref(module),
            ckpt_path=ckpt_path,
            interrupted=False,
            received_sigterm=False,
        )

    def end(self) -> None:
        """Forget what was prepared for it."""
        self.metric_log.stage = self.context = self.fit_loop = self.evaluation = None

    def detached(self) -> Run:
        """To be sent to another process: without what exists only in this one."""
        return attrs.evolve(self, context=None, fit_loop=None, evaluation=None, finished=None, module=None)
