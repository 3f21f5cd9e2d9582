"""Running a model whose layers are in several processes, by the schedules of torch.distributed.pipelining."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.func import functional_call

from torch_hal.errors import ConfigurationError, quoted
from torch_hal.utilities.nested import map_tensors
from torch_hal_parallel.gradients import Line
from torch_hal_parallel.stages import Stage

__all__ = [
    "SCHEDULES",
    "LossOf",
    "Microbatches",
    "Pipeline",
    "check_balance",
    "check_schedule",
    "first_inputs",
    "stage_numbers",
]

SCHEDULES: Mapping[str, tuple[int, str]] = {
    "gpipe": (1, "loop"),
    "1f1b": (1, "loop"),
    "loopedbfs": (2, "loop"),
    "interleaved1f1b": (2, "loop"),
    "interleavedzerobubble": (2, "loop"),
    "zbvzerobubble": (2, "v"),
    "dualpipev": (2, "v"),
}
"""torch's schedules: stages in each process, and how stages follow one another: round and round, or there and back."""
LossOf = Callable[..., Tensor]
"""``loss_of(output, *indices)`` returns the loss of the microbatches of these numbers as one, a scalar."""
T = TypeVar("T")
NAMES = ("GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


def check_schedule(name: object) -> None:
    """Refuse what is not the name of a schedule.

    Raises:
        ConfigurationError: It is not.
    """
    if not isinstance(name, str) or name.lower() not in SCHEDULES:
        raise ConfigurationError(f"schedule={name!r}: unknown. Valid: {quoted(NAMES)}.")


def stage_numbers(schedule: str, processes: int) -> list[list[int]]:
    """The numbers of the stages that each process holds, in a pipeline of ``processes``."""
    each, order = SCHEDULES[schedule.lower()]
    if order == "v":
        return [[rank, 2 * processes - 1 - rank] for rank in range(processes)]
    return [[rank + turn * processes for turn in range(each)] for rank in range(processes)]


class Microbatches:
    """A batch in parts of equal size: all tensors in it with its number of items are split.

    Args:
        batch: A tensor, or a nested structure of tensors.
        count: The number of parts.

    Raises:
        ConfigurationError: The number of items is not divisible.
    """

    def __init__(self, batch: Any, count: int) -> None:
        sizes: list[int] = []

        def see(tensor: Tensor) -> Tensor:
            if tensor.dim():
                sizes.append(tensor.shape[0])
            return tensor

        map_tensors(see, batch)
        if not sizes or sizes[0] % count:
            given = f"of {sizes[0]} items" if sizes else "without a tensor"
            raise ConfigurationError(
                f"microbatches={count}: a batch {given} cannot be split. Choose a divisor of the batch size as "
                "microbatches, and drop_last=True in the DataLoader if the last batch is smaller."
            )
        self._batch, self._count, self._size = batch, count, sizes[0]

    def __call__(self, *indices: int) -> Any:
        """The parts of these numbers, as one."""

        def part(tensor: Tensor) -> Tensor:
            if not tensor.dim() or tensor.shape[0] != self._size:
                return tensor
            chunks = tensor.chunk(self._count)
            return chunks[indices[0]] if len(indices) == 1 else torch.cat([chunks[index] for index in indices])

        return map_tensors(part, self._batch)


class _TracelessStage(PipelineStage):
    """Torch's stage, which learns the shapes of its output by running a separate forward pass on any values.

    That pass must not change buffers, such as the statistics of batch norm: a resumed run has one more of them. Nor
    must the user's loss be computed of it, with what it logs.
    """

    def _compute_outputs(self, *args: Any, module: nn.Module, **kwargs: Any) -> Any:
        copies = {name: buffer.clone() for name, buffer in module.named_buffers()}
        output = functional_call(module, copies, args, kwargs)
        output.has_any_values = True
        return output


class Pipeline:
    """The stages of this process, and the way of a batch through all of them.

    Args:
        stages: Those of this process, by number.
        line: The processes of the pipeline.
        schedule: The name of torch's schedule.
        microbatches: The number of parts of a batch that are under way at the same time.
        device: Of this process.
    """

    def __init__(
        self, stages: Mapping[int, Stage], line: Line, schedule: str, microbatches: int, device: torch.device
    ) -> None:
        self.stages, self.line, self.microbatches, self._device = stages, line, microbatches, device
        self._schedule = schedule
        self._owners = {
            number: rank for rank, own in enumerate(stage_numbers(schedule, line.world_size)) for number in own
        }
        self._schedules: dict[Any, Any] = {}
        self._loss_of: LossOf | None = None
        self._steps, self._may_compare = 0, microbatches > 1
        self.ends: dict[int, tuple[Tensor, Tensor]] = {}
        """Output and loss of the first and the last microbatch of a step in which losses are compared."""

    @property
    def has_last(self) -> bool:
        """Whether this process computes the loss."""
        return len(self._owners) - 1 in self.stages

    # -- training ------------------------------------------------------------------------------------------------

    @property
    def compares(self) -> bool:
        """Whether the losses of this step are compared, in every process: in the steps 1, 2, 4, 8, ..."""
        return self._may_compare and self._steps & (self._steps - 1) == 0

    def stop_comparing(self) -> None:
        """Compare no more losses: the user knows."""
        self._may_compare = False

    def forward_backward(self, inputs: Sequence[Any], loss_of: LossOf) -> Tensor:
        """Run a batch forward and backward through all stages; gradients are added to those of the parameters.

        Args:
            inputs: Those of the model, for the whole batch; every process passes them.
            loss_of: Called with each microbatch, in the process with the last stage only.

        Returns:
            The mean of the losses, equal in every process, without a graph.
        """
        count = self.microbatches
        schedule = self._schedule_for(inputs)
        self._loss_of = loss_of
        self._steps += 1
        self.ends.clear()
        losses: list[Tensor] = []
        try:
            given = tuple(inputs) if 0 in self.stages else ()
            target = torch.arange(count) if self.has_last else None
            schedule.step(*given, target=target, losses=losses, return_outputs=False)
        finally:
            self._loss_of = None
        mean = torch.zeros((), device=self._device)
        if self.has_last:
            mean = torch.stack([loss.detach().float() for loss in losses]).sum().to(self._device)
        dist.broadcast(mean, self.line.global_rank(self._owners[len(self._owners) - 1]), group=self.line.group)
        return mean

    def _schedule_for(self, inputs: Sequence[Any]) -> Any:
        """Torch's schedule for inputs of these shapes: it keeps buffers of their sizes."""
        key = tuple((tuple(one.shape), one.dtype) if isinstance(one, Tensor) else None for one in inputs)
        if key not in self._schedules:
            Microbatches(inputs, self.microbatches)  # refuses what cannot be split
            total = len(self._owners)
            made = [
                _TracelessStage(stage, number, total, self._device, group=self.line.group)
                for number, stage in sorted(self.stages.items())
            ]
            kind: Any = get_schedule_class(self._schedule)
            single = SCHEDULES[self._schedule.lower()][0] == 1
            # A loss is divided by the number of microbatches where it is computed: torch's own scaling would also
            # scale gradients of batches before.
            self._schedules[key] = kind(
                made[0] if single else made, self.microbatches, loss_fn=self._loss, scale_grads=False
            )
        return self._schedules[key]

    def _loss(self, output: Tensor, index: Tensor) -> Tensor:
        if output.is_meta or hasattr(output, "has_any_values") or self._loss_of is None:  # torch asks for shapes only
            return output.float().sum()
        number = int(index)
        loss = self._loss_of(output, number)
        if self.compares and number in (0, self.microbatches - 1):
            self.ends[number] = (output.detach(), loss.detach())
        return loss / self.microbatches

    def from_last(self, obj: T) -> T:
        """``obj`` of the process with the last stage, in every process."""
        holder = [obj]
        source = self.line.global_rank(self._owners[len(self._owners) - 1])
        dist.broadcast_object_list(holder, source, group=self.line.group)
        return holder[0]

    # -- evaluation ----------------------------------------------------------------------------------------------

    def forward(self, *inputs: Any) -> Tensor:
        """The output of the last stage, in every process; without gradients, and not in microbatches."""
        output: Any = None
        last = len(self._owners) - 1
        for number, owner in sorted(self._owners.items()):
            if owner == self.line.rank:
                output = self.stages[number](*inputs) if number == 0 else self.stages[number](output)
            if number == last or self._owners[number + 1] != owner:
                output = self._send(output, owner)
        whole: Tensor = output
        return whole

    def _send(self, output: Tensor | None, owner: int) -> Tensor:
        source = self.line.global_rank(owner)
        facts: list[Any] = [None if output is None else (output.shape, output.dtype)]
        dist.broadcast_object_list(facts, source, group=self.line.group)
        shape, dtype = facts[0]
        is_owner = owner == self.line.rank and output is not None
        sent = (
            output.contiguous()
            if is_owner and output is not None
            else torch.empty(shape, dtype=dtype, device=self._device)
        )
        dist.broadcast(sent, source, group=self.line.group)
        return sent

    def close(self) -> None:
        """Forget what holds the process group."""
        self._schedules.clear()


def check_balance(schedule: str, microbatches: int, processes: int) -> None:
    """Refuse a number of microbatches that ``schedule`` does not support.

    Raises:
        ConfigurationError: It does not.
    """
    name = schedule.lower()
    if SCHEDULES[name][0] == 1:
        least, step = (processes, 1) if name == "1f1b" else (1, 1)
    elif SCHEDULES[name][1] == "v":
        least, step = 2 * processes, 1
    else:
        least, step = processes, processes
    if microbatches < least or microbatches % step:
        valid = f"a multiple of {step}" if step > 1 else f"at least {least}"
        raise ConfigurationError(
            f"microbatches={microbatches}: schedule={schedule!r} over {processes} processes needs {valid}. Set it to "
            f"{max(least, math.ceil(microbatches / step) * step)}."
        )


def first_inputs(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    """The positional inputs of a pipeline.

    Raises:
        ConfigurationError: There are named ones.
    """
    if kwargs:
        raise ConfigurationError(
            f"pipeline: {type(module).__name__} was called with the named arguments {quoted(sorted(kwargs))}. Pass "
            "them by position."
        )
    return args
