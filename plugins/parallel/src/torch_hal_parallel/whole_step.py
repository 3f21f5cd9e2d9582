"""The Trainer's step through a pipeline: the user's training_step, once for each microbatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from torch_hal.errors import ConfigurationError
from torch_hal.strategies import (
    LoggedValue,
    ProcessGroupStrategy,
    TrainingStep,
    TrainingStepOptions,
    collect_logs,
    compose_training_step,
    reduce_logged,
)
from torch_hal_parallel.pipeline import Microbatches, Pipeline, first_inputs
from torch_hal_parallel.weighing import check_loss, differ, generators

if TYPE_CHECKING:
    from torch_hal_parallel.strategy import ModelParallelStrategy

__all__ = ["StepWithoutCollectives", "pipelined_step", "step_of_loop"]

T = TypeVar("T")


class StepWithoutCollectives(ProcessGroupStrategy):
    """Refuses collectives in a step that one process of a pipeline runs: the others never call them."""

    _refuses = False

    @contextmanager
    def no_collectives(self) -> Iterator[None]:
        """A context in which they are refused."""
        self._refuses = True
        try:
            yield
        finally:
            self._refuses = False

    def alone(self, function: Callable[..., T], *args: Any) -> T:
        """What ``function`` returns, which this process alone calls."""
        with self.no_collectives():
            return function(*args)

    def _check_step(self, name: str) -> None:
        if self._refuses:
            raise ConfigurationError(
                f"{name}: called in a training step with a pipeline, of which only the process with the last stage "
                "runs all. Call it in a hook such as on_train_batch_end; or log the value with sync_dist=True."
            )

    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        """See the base class; so are the next ones."""
        self._check_step("reduce")
        return super().reduce(tensor, reduction)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """See the base class."""
        self._check_step("all_gather")
        return super().all_gather(tensor)

    def broadcast(self, obj: T, src: int = 0) -> T:
        """See the base class."""
        self._check_step("broadcast")
        return super().broadcast(obj, src)

    def barrier(self, name: str | None = None) -> None:
        """See the base class."""
        self._check_step("barrier")
        super().barrier(name)

    def all_gather_object(self, obj: T) -> list[T]:
        """See the base class."""
        self._check_step("all_gather_object")
        return super().all_gather_object(obj)

    def differing(self, call: str, facts: str, site: str = "") -> list[str] | None:
        """See the base class; the first thing that many methods do."""
        self._check_step("a collective")
        return super().differing(call, facts, site)


class _CalledError(BaseException):
    """Ends a training step where it calls the model; not an Exception, so that the user's own code lets it pass."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.inputs, self.named = args, kwargs


def pipelined_step(
    strategy: ModelParallelStrategy,
    pipeline: Pipeline,
    forward: Callable[[Any, int], Tensor | None],
    options: TrainingStepOptions,
) -> TrainingStep:
    """One batch of the Trainer.

    The user's step runs up to its call of the model, to learn the inputs; and once for each microbatch in the process
    with the last stage, where that call returns the output of the pipeline. The loss is known after backward.
    """
    pending: list[tuple[Any, int, Tensor]] = []
    checked = False

    def begin(batch: Any, batch_idx: int) -> Tensor:
        loss = torch.full((), torch.nan, device=strategy.root_device)
        pending[:] = [(batch, batch_idx, loss)]
        return loss

    def run(scaled: Tensor) -> None:
        nonlocal checked
        del scaled
        batch, batch_idx, loss = pending.pop()
        before = None if checked else generators(strategy)
        inputs = _inputs(strategy, forward, batch, batch_idx)
        if before is not None and differ(before, generators(strategy)):
            raise ConfigurationError(
                "training_step: draws random numbers before it calls the model, and a pipeline runs it again for each "
                "microbatch. Draw them in the data set, or after the call."
            )
        checked = True
        batches = Microbatches(batch, pipeline.microbatches)
        logged: list[LoggedValue] = []

        def loss_of(output: Tensor, *indices: int) -> Tensor:
            given = strategy.model_calls(lambda *args, **kwargs: output)
            with given, collect_logs(logged.append), strategy.no_collectives():
                found = forward(batches(*indices), batch_idx)
            if found is None:
                raise ConfigurationError(
                    "training_step: returned None for a microbatch, which a pipeline cannot skip. Return a loss."
                )
            return found / options.accumulate

        loss.copy_(pipeline.forward_backward(inputs, loss_of) * options.accumulate)
        strategy.average()
        values = pipeline.from_last(_reduced(logged))
        check_loss(strategy, pipeline, loss_of, "training_step", options.module.module)
        if values:
            owner: Any = options.module.module
            log = owner.log  # of the user's Module; what has logged is one
            for name, value, arguments in values:
                log(name, value, **arguments)

    def clip_gradients(value: float, algorithm: str) -> None:
        strategy.clip_gradients(options.module.parameters(), value, algorithm)

    return compose_training_step(
        begin,
        options,
        backward=run,
        optimizer_step=strategy.make_optimizer_step(options.optimizer),
        clip_gradients=clip_gradients,
        no_sync=strategy.no_sync,
    )


def step_of_loop(
    strategy: ModelParallelStrategy,
    pipeline: Pipeline,
    inputs: Sequence[Any],
    targets: Any,
    loss_fn: Callable[[Any, Any], Tensor],
) -> Tensor:
    """One batch of the user's own loop; returns its mean loss, without a graph."""
    targets_of = Microbatches(targets, pipeline.microbatches)

    def loss_of(output: Tensor, *indices: int) -> Tensor:
        return strategy.alone(loss_fn, output, targets_of(*indices))

    loss = pipeline.forward_backward(inputs, loss_of)
    check_loss(strategy, pipeline, loss_of, "loss_fn", loss_fn)
    strategy.average()
    return loss


def _reduced(logged: Sequence[LoggedValue]) -> list[tuple[str, Any, dict[str, Any]]]:
    """One value for each name, of the whole batch, and the arguments of ``log``."""
    by_name: dict[str, list[LoggedValue]] = {}
    for one in logged:
        by_name.setdefault(one.name, []).append(one)
    reduced = []
    for name, parts in by_name.items():
        first, sizes = parts[0], [part.batch_size for part in parts]
        values = [torch.as_tensor(part.value).detach().cpu() for part in parts]
        value = reduce_logged(values, [1.0 if size is None else size for size in sizes], first.reduce_fx)
        total = None if first.batch_size is None else sum(size or 0 for size in sizes)
        reduced.append((name, value, {**first.options, "reduce_fx": first.reduce_fx, "batch_size": total}))
    return reduced


def _inputs(
    strategy: ModelParallelStrategy, forward: Callable[[Any, int], Tensor | None], batch: Any, batch_idx: int
) -> Sequence[Any]:
    """What the user's step calls the model with."""

    def called(*args: Any, **kwargs: Any) -> Any:
        raise _CalledError(args, kwargs)

    try:
        with strategy.model_calls(called), strategy.no_collectives():
            forward(batch, batch_idx)
    except _CalledError as call:
        return first_inputs(strategy.pipelined, call.inputs, call.named)
    raise ConfigurationError(
        "training_step: did not call the model that is a pipeline. Call it once, or name another as model='name'."
    )
