"""Tensor, pipeline and context parallelism, and replicas, on one mesh of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from torch_hal.errors import ConfigurationError, WrongTypeError
from torch_hal.strategies import (
    InferenceModule,
    ManualGradients,
    ProcessGroupParts,
    TrainingStep,
    TrainingStepOptions,
    average_gradients,
)
from torch_hal.strategies.sharding import (
    FollowedParameters,
    Plan,
    apply_plan,
    check_plan,
    check_size,
    detach_mesh,
    find_plan,
    make_mesh,
    matches,
)
from torch_hal_parallel.arguments import check_used
from torch_hal_parallel.context import SequenceSplit
from torch_hal_parallel.divided import Divided, division_of, record
from torch_hal_parallel.gradients import Line, clip_norm, clip_value, sum_parts
from torch_hal_parallel.pipeline import (
    Pipeline,
    check_balance,
    check_schedule,
    first_inputs,
    stage_numbers,
)
from torch_hal_parallel.placing import bring, check_alone, find_model, inside, plan_for_present
from torch_hal_parallel.stages import Stage, check_pipeline_plan, find_parts, stage_ranges
from torch_hal_parallel.state import OwnParameters, gather_states, load_module, load_optimizer, whole_tensors
from torch_hal_parallel.whole_step import StepWithoutCollectives, pipelined_step, step_of_loop

__all__ = ["ModelParallelStrategy"]

DIMENSIONS = ("pipeline", "data", "context", "tensor")
"""Of the mesh, from the slowest to the fastest: processes along ``tensor`` communicate most, and are neighbours."""


class ModelParallelStrategy(StepWithoutCollectives):
    """A model spread over processes in several ways at once, along the dimensions of one mesh.

    The product of all sizes is the number of processes. Processes that differ in ``data`` take different parts of the
    data, and average gradients; all others work on the same batch. The model is divided in place, and stays so.

    Args:
        data: The number of replicas; by default what the other sizes leave.
        tensor: The number of processes that hold shards of the same layers; ``"node"`` for those of a machine.
        pipeline: The number of processes that hold different layers; ``"node"`` as above.
        context: The number of processes that hold parts of the same sequences; ``"node"`` as above.
        expert: Must be 1: torch 2.13 has no expert parallelism.
        model: The name of the submodule that is spread; by default the prepared module, or in a Module its only
            submodule with parameters.
        tensor_parallel_plan: How layers are sharded: names of modules, in which ``*`` matches any, mapped to
            ``"colwise"``, ``"rowwise"``, ``"sequence"`` or torch's ParallelStyle objects; by default the model's
            attribute of this name.
        pipeline_plan: The names of the model's parts, in which ``*`` matches any, in the order in which the model calls
            them, each with the output of the one before; by default the model's attribute of this name, or all
            children of a Sequential.
        pipeline_split: The number of parts in each stage; by default stages have about equally many parameters.
        schedule: How microbatches go through the pipeline, as torch calls it: ``"GPipe"`` or ``"1F1B"`` with one stage
            in each process, ``"LoopedBFS"``, ``"Interleaved1F1B"``, ``"InterleavedZeroBubble"``, ``"ZBVZeroBubble"`` or
            ``"DualPipeV"`` with two.
        microbatches: The number of parts that a batch is split into; by default the number of stages.
        sequence_dim: The dimension of the model's inputs and outputs that is the sequence.
        **parts: As in :class:`core.strategies.ProcessGroupStrategy`.

    Raises:
        ConfigurationError: An argument is unknown, has an invalid value, or has no effect.
        WrongTypeError: An argument has the wrong type.
    """

    name = "model_parallel"
    inference_is_collective: ClassVar[bool] = True
    keeps_buffers_equal = False
    syncs_batch_norm: ClassVar[bool] = False

    def __init__(
        self,
        *,
        data: int | None = None,
        tensor: int | str = 1,
        pipeline: int | str = 1,
        context: int | str = 1,
        expert: int = 1,
        model: str | None = None,
        tensor_parallel_plan: Plan | None = None,
        pipeline_plan: Iterable[str] | None = None,
        pipeline_split: Sequence[int] | None = None,
        schedule: str = "1F1B",
        microbatches: int | None = None,
        sequence_dim: int = 1,
        **parts: Unpack[ProcessGroupParts],
    ) -> None:
        super().__init__(**parts)
        if data is not None:
            check_size("data", data)
        self.sizes = {"pipeline": pipeline, "data": data, "context": context, "tensor": tensor}
        for name in ("tensor", "pipeline", "context"):
            check_size(name, self.sizes[name], "node")
        if expert != 1:
            raise ConfigurationError(
                f"expert={expert!r}: torch 2.13 has no expert parallelism, and this package has none of its own. Shard "
                "experts by tensor_parallel_plan, or use strategy='fsdp'."
            )
        if pipeline != 1 and context != 1:
            raise ConfigurationError(
                f"context={context!r} with pipeline={pipeline!r}: a sequence that is split cannot go through a "
                "pipeline. Set one of them to 1."
            )
        check_used(
            {"tensor": tensor, "pipeline": pipeline, "context": context},
            tensor_parallel_plan=tensor_parallel_plan,
            pipeline_plan=pipeline_plan,
            pipeline_split=pipeline_split,
            microbatches=microbatches,
            schedule=schedule,
            sequence_dim=sequence_dim,
        )
        if tensor_parallel_plan is not None:
            check_plan(tensor_parallel_plan)
        if pipeline_plan is not None:
            check_pipeline_plan(pipeline_plan)
        check_schedule(schedule)
        if microbatches is not None:
            check_size("microbatches", microbatches)
        if model is not None and not isinstance(model, str):
            raise WrongTypeError(f"model={model!r:.100}: must be the name of a submodule, or None.")
        if isinstance(sequence_dim, bool) or not isinstance(sequence_dim, int) or sequence_dim < 0:
            raise ConfigurationError(f"sequence_dim={sequence_dim!r}: must be an integer of at least 0.")
        self.model_name = model
        self.tensor_parallel_plan = tensor_parallel_plan
        self.pipeline_plan = None if pipeline_plan is None else tuple(pipeline_plan)
        self.pipeline_split = None if pipeline_split is None else tuple(pipeline_split)
        self.schedule, self.microbatches, self.sequence_dim = schedule, microbatches, sequence_dim
        self.engine_settings = {"device_mesh": None}
        self._mesh: DeviceMesh | None = None
        self._lines: dict[str, Line] = {}
        self._pipeline: Pipeline | None = None
        self._pipelined: nn.Module | None = None
        self._modules: list[nn.Module] = []
        self._is_paused = False
        self._followed, self._own = FollowedParameters(), OwnParameters()

    # -- who and where -------------------------------------------------------------------------------------------

    def connect(self, **parts: Any) -> None:
        """See the base class.

        Raises:
            ConfigurationError: The sizes do not multiply to the number of processes, or the precision or the schedule
                does not support them.
        """
        super().connect(**parts)
        given: dict[str, Any] = {
            name: self.local_processes if size == "node" else size for name, size in self.sizes.items()
        }
        others = given["pipeline"] * given["context"] * given["tensor"]
        if given["data"] is None:
            given["data"] = max(1, self.plan.world_size // others)
        if others * given["data"] != self.plan.world_size:
            sizes = ", ".join(f"{name}={given[name]}" for name in DIMENSIONS)
            raise ConfigurationError(
                f"{sizes}: these sizes are for {others * given['data']} processes, but this run has "
                f"{self.plan.world_size}. Choose sizes whose product is that, or leave out data."
            )
        self._size: dict[str, int] = given
        if self.precision.scales_loss and given["pipeline"] * given["tensor"] > 1:
            raise ConfigurationError(
                f"precision={self.precision.name!r} with tensor={given['tensor']}, pipeline={given['pipeline']}: "
                "torch's GradScaler lets processes disagree on whether a step's gradients are finite. Use "
                "'bf16-mixed', or another that does not scale the loss."
            )
        self._microbatches = 1
        if given["pipeline"] > 1:
            stages = sum(len(own) for own in stage_numbers(self.schedule, given["pipeline"]))
            self._microbatches = self.microbatches or stages
            check_balance(self.schedule, self._microbatches, given["pipeline"])

    @property
    def data_shards(self) -> int:
        """The number of parts of the data: that of replicas."""
        return self._size["data"]

    @property
    def data_shard(self) -> int:
        """The part of the data that this process takes."""
        return self.global_rank // (self._size["context"] * self._size["tensor"]) % self._size["data"]

    def init_dist_connection(self) -> None:
        """Join the process group, and create the mesh: (pipeline, data, context, tensor), of those that it has."""
        super().init_dist_connection()
        used = {name: self._size[name] for name in DIMENSIONS if self._size[name] > 1} or {"data": 1}
        self._mesh = make_mesh(self.root_device.type, used)
        self._lines = {name: Line(self.name, self._mesh.get_group(name), self.root_device) for name in used}
        self.release_at_leave(partial(detach_mesh, self._mesh))
        self.release_at_leave(self._let_go)
        self.engine_settings = {"device_mesh": self._mesh}

    @property
    def mesh(self) -> DeviceMesh:
        """All processes of the run, along the dimensions ``pipeline``, ``data``, ``context``, ``tensor`` that it has.

        Raises:
            ConfigurationError: No run is active.
        """
        if self._mesh is None:
            raise ConfigurationError(f"strategy {self.name!r}: there is a mesh only while a run is active.")
        return self._mesh

    def _let_go(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()
        self._lines.clear()
        self._pipeline = self._pipelined = self._mesh = None

    def teardown(self, failed: bool = False) -> None:
        """See the base class; modules stay divided."""
        super().teardown(failed)
        self._let_go()
        self._modules.clear()
        self.engine_settings = {"device_mesh": None}
        self._followed.clear()

    # -- modules -------------------------------------------------------------------------------------------------

    def setup_module(self, module: nn.Module) -> nn.Module:
        """``module`` itself, divided; all processes start with the values of rank 0.

        A model that an earlier run has divided in the same way is used as it is.

        Raises:
            ConfigurationError: It cannot be divided as the arguments require, an earlier run has divided it in another
                way, or the run has a pipelined module already.
        """
        self.precision.convert_module(module)
        before = dict(module.named_parameters(remove_duplicate=False))
        model, name = find_model(module, self.model_name)
        divided = division_of(model)
        absent: set[int] = set()
        parts: list[nn.Module] = []
        ranges: list[range] = []
        if self._size["pipeline"] > 1:
            check_alone(module, model, name, self._size["pipeline"], self._pipelined)
            found = find_parts(model, self.pipeline_plan)
            parts, numbers = list(found.values()), stage_numbers(self.schedule, self._size["pipeline"])
            ranges = stage_ranges(parts, sum(len(own) for own in numbers), self.pipeline_split)
            own = numbers[self._lines["pipeline"].rank]
            absent = inside(
                part
                for number, some in enumerate(ranges)
                if number not in own
                for part in parts[some.start : some.stop]
            )
        owner, plan = find_plan(model, self.tensor_parallel_plan) if self._size["tensor"] > 1 else (model, {})
        over = dict(zip(self.mesh.mesh_dim_names or (), self.mesh.shape, strict=True))
        how: dict[str, object] = {"schedule": self.schedule, "pipeline_split": [len(some) for some in ranges]}
        how |= {"tensor_parallel_plan": dict(plan), "sequence_dim": self.sequence_dim}
        if divided is not None:
            divided.take_up(over, how, self.mesh, self._lines)
        kept = set() if divided is None else inside(iter([model]))
        bring(module, self.root_device, lambda part: id(part) not in absent, self.broadcast_tensor, kept)
        if divided is None:
            divided = Divided(over, how)
            if plan:
                apply_plan(owner, plan_for_present(owner, dict(plan), matches, absent), self.mesh["tensor"])
                divided.mesh = self.mesh
            if self._size["context"] > 1:
                divided.split = SequenceSplit(self._lines["context"], self.sequence_dim)
                divided.split.apply(model)
            record(model, divided)
        if divided.mesh is not None:
            self.release_at_leave(partial(detach_mesh, divided.mesh))
        if parts:
            self._make_pipeline(model, parts, ranges)
        self._followed.record(before, module)
        self._modules.append(module)
        return module

    def _make_pipeline(self, model: nn.Module, parts: Sequence[nn.Module], ranges: Sequence[range]) -> None:
        line, last = self._lines["pipeline"], len(ranges) - 1
        stages = {
            number: Stage(
                parts[ranges[number].start : ranges[number].stop], number == 0, number == last, self.precision
            )
            for number in stage_numbers(self.schedule, line.world_size)[line.rank]
        }
        self._pipelined = model
        self._pipeline = Pipeline(stages, line, self.schedule, self._microbatches, self.root_device)
        self._forward_of_model: Callable[..., Any] = self._evaluate
        model.forward = self._forward_pipelined

    def _forward_pipelined(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward_of_model(*args, **kwargs)

    def _evaluate(self, *args: Any, **kwargs: Any) -> Tensor:
        if self._pipeline is None or self._pipelined is None:
            raise ConfigurationError(
                "module: its pipeline ended with the run. Create a new module, and load a checkpoint."
            )
        if torch.is_grad_enabled():
            raise ConfigurationError(
                f"{type(self._pipelined).__name__}: a pipeline computes gradients while microbatches are under way, so "
                "its forward pass alone has none. In your own loop, call "
                "runtime.strategy.forward_backward(model, inputs, targets, loss_fn); for evaluation, use "
                "torch.no_grad(). The Trainer needs neither."
            )
        return self._pipeline.forward(*first_inputs(self._pipelined, args, kwargs))

    @property
    def pipelined(self) -> nn.Module:
        """The model that is a pipeline.

        Raises:
            ConfigurationError: There is none.
        """
        if self._pipelined is None:
            raise ConfigurationError(f"strategy {self.name!r}: no prepared module is a pipeline.")
        return self._pipelined

    @contextmanager
    def model_calls(self, function: Callable[..., Any]) -> Iterator[None]:
        """A context in which calls of the pipelined model call ``function`` instead."""
        before, self._forward_of_model = self._forward_of_model, function
        try:
            yield
        finally:
            self._forward_of_model = before

    def inference_module(self, module: nn.Module) -> nn.Module:
        """``module``, outside of :class:`torch.inference_mode`, and with the processes that share its batch."""
        return InferenceModule(module)

    def check_compile(self, argument: str) -> None:
        """See the base class; refused for a pipeline, whose forward pass is communication.

        Raises:
            ConfigurationError: It cannot be compiled.
        """
        super().check_compile(argument)
        if self._size["pipeline"] > 1:
            raise ConfigurationError(
                f"{argument}: a pipeline over {self._size['pipeline']} processes cannot be compiled as a whole. "
                "Compile its parts before they are prepared: part.compile()."
            )

    # -- the step ------------------------------------------------------------------------------------------------

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients of ``loss``, a scalar, and average them over the replicas."""
        super().backward(loss, *args, **kwargs)
        self.average()

    def average(self) -> None:
        """Average the gradients of all prepared modules over the replicas, unless in :meth:`no_sync`."""
        if self._is_paused:
            return
        parameters = [one for module in self._modules for one in module.parameters() if not one.is_meta]
        sum_parts(parameters)
        for name in ("context", "data"):
            if self._size[name] > 1:
                average_gradients(parameters, self._lines[name])

    @contextmanager
    def _paused(self) -> Iterator[None]:
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        """A context in which gradients are not averaged."""
        del module
        return self._paused()

    def forward_backward(
        self, module: nn.Module, inputs: Any, targets: Any, loss_fn: Callable[[Any, Any], Tensor]
    ) -> Tensor:
        """Forward and backward of a batch, with gradients averaged: for your own loop, with or without a pipeline.

        Args:
            module: The prepared model.
            inputs: What it is called with: a tensor, or a tuple of arguments.
            targets: A tensor, or a nested structure of tensors; the second argument of ``loss_fn``.
            loss_fn: ``loss_fn(output, targets)`` returns the mean loss of the items it is called with, a scalar. A
                pipeline calls it for each microbatch, in the process with the last stage. In the steps 1, 2, 4, 8, ...
                it also calls it with two microbatches together.

        Returns:
            The mean loss of the batch, without a graph.

        Raises:
            ConfigurationError: The batch cannot be split into microbatches, or its loss is a sum.
        """
        args = inputs if isinstance(inputs, tuple) else (inputs,)
        if self._pipeline is None:
            loss = loss_fn(module(*args), targets)
            self.backward(loss)
            return loss.detach()
        return step_of_loop(self, self._pipeline, args, targets, loss_fn)

    def manual_gradients(self, module: nn.Module) -> ManualGradients:
        """See the base class.

        Raises:
            ConfigurationError: There is a pipeline.
        """
        if self._size["pipeline"] > 1:
            raise ConfigurationError(
                f"automatic_optimization=False: with pipeline={self._size['pipeline']} the schedule computes "
                "gradients. Use automatic optimization, or another strategy."
            )
        return super().manual_gradients(module)

    def training_step(self, forward: Callable[[Any, int], Tensor | None], options: TrainingStepOptions) -> TrainingStep:
        """See the base class; a pipeline runs ``forward`` for each microbatch, with its output of the model."""
        if self._pipeline is None:
            return super().training_step(forward, options)
        return pipelined_step(self, self._pipeline, forward, options)

    def clip_gradients(
        self, parameters: Iterable[nn.Parameter], clip_value_: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Tensor | None:
        """Limit gradients in place; a norm is that of the whole model's gradients.

        Args:
            parameters: All parameters of this process that are clipped together.
            clip_value_: The limit.
            algorithm: ``"norm"`` or ``"value"``.
            norm_type: The order of the norm.
        """
        self.check_clip_algorithm(algorithm)
        if algorithm == "value":
            clip_value(parameters, clip_value_)
            return None
        lines = self._lines
        return clip_norm(
            parameters, clip_value_, norm_type, lines.get("tensor"), lines.get("pipeline"), self.root_device
        )

    # -- optimizers and state ------------------------------------------------------------------------------------

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """The optimizers themselves; their groups hold this process's parameters.

        Raises:
            ConfigurationError: One has already stepped.
        """
        for optimizer in optimizers:
            self._followed.follow(optimizer, self.name, self.mesh["tensor"] if self._size["tensor"] > 1 else None)
            self._own.keep(optimizer)
        return super().setup_optimizers(optimizers)

    def module_state(self, module: nn.Module) -> dict[str, Any]:
        """Whole tensors on the CPU in rank 0, nothing in the others."""
        present = {name: value for name, value in module.state_dict().items() if not getattr(value, "is_meta", False)}
        states = gather_states(whole_tensors(present, self.root_device), self._lines.get("pipeline"))
        order = list(module.state_dict())
        merged = {name: value for state in states for name, value in state.items()}
        return {name: merged[name] for name in order if name in merged} if self.is_global_zero else {}

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """Load this process's part of a state with whole tensors."""
        load_module(module, state, self.root_device)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Like :meth:`module_state`."""
        own = self._own.global_state(optimizer)
        entries = {index: whole_tensors(entry, self.root_device) for index, entry in own["state"].items()}
        states = gather_states(entries, self._lines.get("pipeline"))
        merged = {index: entry for state in states for index, entry in state.items()}
        return {**own, "state": dict(sorted(merged.items())) if self.is_global_zero else {}}

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load this process's part of a state that any mesh, or any other strategy with whole tensors, wrote."""
        load_optimizer(optimizer, self._own, state, self.root_device)
