"""The loop without gradients: validation, test, prediction."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...callbacks.prediction_writer import BasePredictionWriter
from ...data import PreparedLoader
from ...errors import ConfigurationError
from ...logging import show
from ...random import get_rng_state, set_rng_state
from ...runtime.prepare.wrappers import PreparedModule, needs_forward_context
from ...strategies.own_buffers import share_buffers
from ...utilities.nested import map_tensors
from ..metrics.metric import metric_states
from ..metrics.stage_metrics import StageMetrics
from ..module.hooks import overridden
from ..module.module import Module
from ..module.plain_module import as_module
from ..run_context import RunContext, parts_in_evaluation
from ..step.step_module import StepModule
from ..trainer_state import Stage
from .data_sources import agreed_length, length_of, limited, prepared_loaders, why_empty

if TYPE_CHECKING:
    from ..trainer import Trainer

logger = logging.getLogger(__name__)


class EvaluationLoop:
    """One stage of evaluation, which may be run several times.

    Every batch is evaluated once, by one process; none is repeated to even out the number.

    Args:
        context: Of the run that this loop is part of.
        step_module: The module's steps as a forward pass.
        model: ``step_module`` as the runtime prepared it.
        stage: The stage.
        loader: The user's own loader.
        of_training: The metrics of the training that this stage is part of.
    """

    def __init__(
        self,
        context: RunContext,
        step_module: StepModule,
        model: nn.Module,
        stage: Stage,
        loader: Any,
        of_training: StageMetrics | None = None,
    ) -> None:
        self._context, self.step_module, self.stage = context, step_module, stage
        self.strategy = context.runtime.strategy
        self.model = model
        self.reload(loader)
        self.metrics = StageMetrics(self.strategy, of_training=of_training)
        self.predictions: list[list[Any]] = []
        """By loader, the outputs of this process so far, where they are kept; they are until the epoch has ended."""
        self.batch_indices: list[list[Any]] = []
        """By loader, the indices of each batch, where callbacks write predictions."""

    @property
    def newest_indices(self) -> list[Any] | None:
        """The indices of the newest batch, where callbacks write predictions."""
        newest: list[Any] | None = self.batch_indices[-1][-1]
        return newest

    def configure(self) -> None:
        """Get the strategy's module for inference. In a fit this comes after the optimizers are set up."""
        strategy = self.strategy
        self.model = strategy.inference_module(self._context.runtime.strategy_module(self.model))
        if needs_forward_context(strategy.precision):
            self.model = PreparedModule(self.model, self.step_module, strategy.precision)

    def reload(self, loader: Any) -> None:
        """Evaluate the batches of another loader of the user's; every process calls it."""
        self.dataloaders, self.loaders = prepared_loaders(self._context, loader, evaluation=True)
        """The prepared loaders: in the user's structure, and as those that are read one after another."""

    def num_batches(self) -> list[float]:
        """The number of batches of each loader in this process; infinite if it is not known. Every process calls it."""
        limit = self._context.settings.limit_batches(self.stage.kind)
        numbers = []
        for loader in self.loaders:
            own = length_of(loader)
            # A fraction is one of the largest share, so that no process has to leave out all of its batches.
            length = agreed_length(self.strategy, own, smallest=False) if isinstance(limit, float) else own
            numbers.append(min(own, limited(length, limit, self._context.settings.source_of(self.stage.limit))))
        return numbers

    def position(self) -> dict[str, Any]:
        """For ``RunContext.pass_begun``: this process's generators, data and metrics, and what the loggers have."""
        strategy, metric_log = self.strategy, self._context.metric_log
        return {
            "rng": get_rng_state(strategy.accelerator, strategy.root_device),
            "loaders": [loader.state_dict() for loader in self.loaders],
            "metric_objects": metric_states(self._context.module),
            "evaluated": metric_log.state_dict()["evaluated"],
            "loggers": metric_log.loggers_state() if strategy.is_global_zero else [],
        }

    def run(
        self, at_most: float = math.inf, finished: Callable[[], None] | None = None, keeps_outputs: bool = False
    ) -> list[list[Any]]:
        """Evaluate every batch.

        Args:
            at_most: The largest number of batches of each loader, if the settings allow more.
            finished: Called when only the last hook is left, so that what that hook saves does not repeat this.
            keeps_outputs: Whether the outputs are returned.

        Returns:
            For each loader, the outputs of all processes in the order of its batches.

        Raises:
            ConfigurationError: A loader is empty in every process.
        """
        context, hooks = self._context, self.stage.hooks
        is_prediction = self.stage.name == "predict"
        writers = [call for call in context.hooks.callbacks if is_prediction and isinstance(call, BasePredictionWriter)]
        keeps = keeps_outputs or any(writer.interval.on_epoch for writer in writers)
        for loader in self.loaders:  # before their lengths, which may depend on it
            loader.set_epoch(max(loader.epoch, context.progress.epoch))  # not the last order, if there are several
        counts = self.num_batches()
        limits = [min(number, at_most) for number in counts]
        context.batch_counts |= {self.stage.name: counts, context.stage: limits}
        context.metric_log.stage = self.metrics
        with _evaluation_mode(context, hooks), torch.no_grad():
            context.hooks.call(f"{hooks}_start")
            context.hooks.call(f"{hooks}_epoch_start")
            share_buffers(self.strategy, context.module)
            self.predictions, self.batch_indices = [], []
            for number, (loader, num_batches) in enumerate(zip(self.loaders, limits, strict=True)):
                self._run_batches(number, loader, num_batches, keeps, bool(writers))
            self.metrics.dataloader_idx = None
            with nullcontext() if self.metrics.places else self._no_batch_here():
                context.end_epoch_of(self.metrics, self.stage)
            context.metric_log.stage = None
            if finished is not None:
                finished()
            context.hooks.call(f"{hooks}_end")
        outputs, self.predictions, self.batch_indices = self.predictions, [], []
        if not keeps_outputs:
            return [[] for _ in outputs]
        return [_in_order(self.strategy.gather_shards(of_loader)) for of_loader in outputs]

    @contextmanager
    def _no_batch_here(self) -> Iterator[None]:
        """Say of an error in a hook of the epoch's end that this process had no batch, which others have had."""
        try:
            yield
        except Exception as error:
            rank = self.strategy.global_rank
            error.add_note(
                f"Process {rank} had no batch to {self.stage.name}: there are fewer batches than processes, and no "
                f"sample is repeated. Let the hooks of the epoch's end allow for no {self.stage.step}, or take more or "
                "smaller batches."
            )
            raise

    def _run_batches(
        self, number: int, loader: Any, num_batches: float, keeps_outputs: bool, keeps_indices: bool
    ) -> None:
        context, metrics, model, strategy, hooks = (
            self._context,
            self.metrics,
            self.model,
            self.strategy,
            self._context.hooks,
        )
        batch_start, batch_end = (
            hooks.bind_of_loader(f"{self.stage.hooks}_batch_{at}", number) for at in ("start", "end")
        )
        batch_end += context.keepers(self.stage, number)
        end = None if self.stage.name == "predict" else overridden(context.module, Module, f"{self.stage.step}_end")
        metrics.dataloader_idx = number if len(self.loaders) > 1 else None
        self.step_module.use(self.stage.step, metrics.dataloader_idx)
        outputs, indices = list[Any](), list[Any]()
        self.predictions.append(outputs)
        self.batch_indices.append(indices)
        has_indices = keeps_indices and isinstance(loader, PreparedLoader)
        if has_indices:
            loader.keep_indices()
        batch_idx = -1
        is_whole = context.settings.limit_batches(self.stage.kind) is None and num_batches == length_of(loader)
        stop = None if is_whole else int(num_batches)  # all, also where the length is not exact
        batches: Iterator[tuple[int, Any]] = enumerate(context.batch_hooks.applied(islice(loader, stop), number))
        if strategy.inference_is_collective:
            batches = self._in_step(batches, number)
        batches = context.timed_iterator(f"[{self.stage.name}]next", batches)
        call = context.timed(self.stage.step, model)
        mode = torch.inference_mode() if context.settings.inference_mode else torch.no_grad()
        with mode:
            for batch_idx, batch in batches:
                metrics.batch = () if batch is None else batch
                for hook in batch_start:
                    hook(batch, batch_idx)
                output = call(batch, batch_idx)
                if end is not None:
                    output = end(output)
                if keeps_indices:
                    indices.append(loader.newest_indices if has_indices else None)
                for hook in batch_end:
                    hook(output, batch, batch_idx)
                context.metric_log.send_evaluated(metrics, self.stage.name)
                if keeps_outputs:
                    outputs.append(map_tensors(torch.Tensor.cpu, output))
        metrics.batch = None
        is_empty = batch_idx < 0
        if not is_empty:
            metrics.places.add(metrics.dataloader_idx)
        # If another process has more batches, this meets a collective of its step: an error then, in all processes.
        others = f"others may have more batches: gather in {self.stage.hooks}_epoch_end"
        site = f"after {batch_idx + 1} batch(es); {others}"
        if strategy.differing(f"the end of {self.stage.name}", str(is_empty), site) is None and is_empty:
            which = "" if metrics.dataloader_idx is None else f" {number}"
            raise ConfigurationError(
                f"dataloaders: the {self.stage.loader} loader{which} is empty. {why_empty(loader)}"
            )

    def _in_step(self, batches: Iterator[tuple[int, Any]], number: int) -> Iterator[tuple[int, Any]]:
        """``batches``; while other processes still have some, this one joins in their forward passes."""
        strategy, metric_log = self.strategy, self._context.metric_log
        spare: Any = None
        while True:
            current = next(batches, None)
            with strategy.assume_alike():
                have = strategy.all_gather(torch.tensor(current is not None)).tolist()
            if not any(have):
                return
            if spare is None and not all(have):
                received = strategy.broadcast(None if current is None else current[1], have.index(True))
                spare = self._context.batch_hooks.move(received, number)
            if current is not None:
                yield current
                continue
            # What is logged now must not count.
            metric_log.stage = unused = StageMetrics(strategy)
            unused.dataloader_idx, unused.batch = self.metrics.dataloader_idx, () if spare is None else spare
            self.model(spare, 0)
            metric_log.stage = self.metrics


@contextmanager
def _evaluation_mode(context: RunContext, hooks: str) -> Iterator[None]:
    """Put the module in evaluation mode, and afterwards each submodule back in the mode that it had.

    The module's hook ``{hooks}_model_eval`` does the first if it is overridden; ``{hooks}_model_train`` is called last.
    """
    modes = [(part, part.training) for part in context.module.modules()]
    context.evaluating = parts_in_evaluation(context.module)
    for put in context.hooks.bind_module(f"{hooks}_model_eval") or [context.module.eval]:
        put()
    try:
        yield
    finally:
        context.evaluating = None
        for part, training in modes:
            part.training = training
    for change in context.hooks.bind_module(f"{hooks}_model_train"):
        change()


def _in_order(by_shard: list[list[Any]]) -> list[Any]:
    """The outputs of all shards in the order of the batches: shard ``r`` of ``n`` has every n-th, starting at ``r``."""
    absent = object()
    turns = zip_longest(*by_shard, fillvalue=absent)
    return [output for turn in turns for output in turn if output is not absent]


def evaluated(
    trainer: Trainer, stage: str, model: nn.Module | None, ckpt_path: str | os.PathLike[str] | None
) -> tuple[Any, str | os.PathLike[str] | None]:
    """``model`` as a Module, and the checkpoint to load.

    Without ``model``, the module of the trainer's last fit; its best checkpoint unless ``ckpt_path`` names another.

    Raises:
        ConfigurationError: There is no module, or no best checkpoint.
    """
    if model is not None:
        return as_module(model), ckpt_path
    last = None if trainer.run.finished is None else trainer.run.finished.module
    if last is None:
        raise ConfigurationError(
            f"{stage}: no fit of this trainer has ended, so it has no module. Pass one: trainer.{stage}(model, ...)."
        )
    if ckpt_path is None:
        best = getattr(trainer.checkpoint_callback, "best_model_path", "")
        if not best:
            raise ConfigurationError(
                f"{stage}: without a model, the best checkpoint of the last fit is loaded, and no ModelCheckpoint of "
                f"this trainer has written one. Pass the model as it is now: trainer.{stage}(model, ...)."
            )
        ckpt_path = "best"
        if trainer.is_global_zero:
            show(logger, f"{stage}: no model was passed, so the best checkpoint of the last fit is loaded: {best}")
    return last, ckpt_path


LOADER = re.compile(r"/dataloader_idx_(\d+)$")
"""The end of the name of a value that one of several loaders belongs to."""


def results_table(stage: str, results: Sequence[Mapping[str, float]]) -> str:
    """The values of ``validate`` or ``test``: a line for each name, a column for each loader; empty if there are none.

    Args:
        stage: The heading of the names.
        results: By loader, what was logged.
    """
    columns = [{LOADER.sub("", name): f"{value:.6g}" for name, value in values.items()} for values in results]
    names = list(dict.fromkeys(name for column in columns for name in column))
    if not names:
        return ""
    headings = ["value"] if len(columns) == 1 else [f"loader {number}" for number in range(len(columns))]
    rows = [[stage, *headings], *([name, *(column.get(name, "") for column in columns)] for name in names)]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "-" * (sum(widths) + 2 * len(widths) - 2))
    return "\n".join(lines)


def shown(trainer: Trainer, stage: str, verbose: bool, results: list[dict[str, float]]) -> list[dict[str, float]]:
    """``results``, which process 0 prints if ``verbose``."""
    text = results_table(stage, results) if verbose else ""
    if text:
        trainer.print(text)
    return results


def sanity_check(context: RunContext, validation: EvaluationLoop) -> None:
    """Run ``num_sanity_val_steps`` batches of ``validation``, without an effect on anything that follows.

    What is logged goes nowhere; random number generators and the loaders' positions are as before.
    """
    steps = context.settings.num_sanity_val_steps
    if not steps:
        return
    strategy, stage = context.runtime.strategy, context.stage
    context.pass_begun = begun = validation.position()
    context.stage = "sanity_check"
    with context.metric_log.discarding():
        context.hooks.call_callbacks("on_sanity_check_start")
        validation.run(at_most=math.inf if steps == -1 else steps)
        context.hooks.call_callbacks("on_sanity_check_end")
    context.stage = stage
    context.pass_begun = None
    for loader, position in zip(validation.loaders, begun["loaders"], strict=True):
        loader.load_state_dict(position)
    set_rng_state(begun["rng"], strategy.accelerator, strategy.root_device)
