"""What each strategy holds in each process: simulated where torch runs the strategy, otherwise by a formula."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import Optimizer

from torch_hal import Module
from torch_hal.errors import ConfigurationError, nearest
from torch_hal.precisions import FullPrecision, HalfPrecision, MixedPrecision, Precision

from .fake_run import Held, Step, fake_copy, fake_processes, fake_steps
from .model_source import Source

__all__ = ["PRECISIONS", "STRATEGIES", "Row", "estimate"]

PRECISIONS: dict[str, Callable[[], Precision]] = {
    "32-true": FullPrecision,
    "bf16-mixed": lambda: MixedPrecision("bfloat16"),
    "bf16-true": lambda: HalfPrecision("bfloat16"),
}
"""The precisions that are estimated."""
STRATEGIES = (
    "single_device",
    "ddp",
    "ddp_sharded",
    "fsdp",
    "deepspeed_stage_1",
    "deepspeed_stage_2",
    "deepspeed_stage_3",
)
"""The strategies that are estimated."""

_BUCKET = 500_000_000
"""Elements of DeepSpeed's ``reduce_bucket_size``, its default."""
_GATHERED = 1_000_000_000
"""Elements of DeepSpeed's ``stage3_max_live_parameters``, its default."""


@attrs.frozen(kw_only=True)
class Row:
    """What each process holds under one strategy, in bytes."""

    strategy: str
    precision: str
    devices: int
    parameters: int = 0
    gradients: int = 0
    """Whole at the end of the backward pass."""
    optimizer: int = 0
    """The optimizer's state, and float32 copies of parameters that an engine keeps for it."""
    buckets: int = 0
    """Where gradients are collected to be sent, and parameters that are gathered."""
    activations: int | None = None
    """Of one batch, between its forward and its backward pass; ``None`` if the step is not known."""
    peak: int = 0
    """The most at any time of a step; without activations if these are not known."""
    source: str = "simulated"
    """``simulated``, or ``formula``."""
    problem: str = ""
    """Why there is no estimate."""


def estimate(
    source: Source, devices: int, strategies: Sequence[str], precisions: Sequence[str], optimizer: str = "Adam"
) -> list[Row]:
    """The rows for each strategy and precision.

    Args:
        source: The model.
        devices: Number of processes, one for each device.
        strategies: Some of :data:`STRATEGIES`.
        precisions: Some of :data:`PRECISIONS`.
        optimizer: Of ``torch.optim``, if neither the model nor the script makes one.

    Raises:
        ConfigurationError: The model has parameters of unknown size, or its step fails, or there is no such optimizer.
    """
    if any(isinstance(each, nn.UninitializedParameter) for each in source.module.parameters()):
        raise ConfigurationError("the model has lazy parameters, whose sizes are not known before its first batch.")
    rows = []
    for name in precisions:
        held = _run(source, name, optimizer)
        for strategy in strategies:
            count = 1 if strategy == "single_device" else devices
            row = Row(strategy=strategy, precision=name, devices=count)
            if strategy == "fsdp":
                try:
                    whole = _run(source, name, optimizer, divided_by=count)
                    rows.append(_whole(row, whole, 0, whole.peak))
                except ConfigurationError as error:
                    rows.append(attrs.evolve(row, problem=str(error)))
            elif strategy.startswith("deepspeed"):
                rows.append(_deepspeed(row, held, int(strategy[-1])))
            else:
                rows.append(_replicated(row, held))
    return [row if source.batch is not None else attrs.evolve(row, activations=None) for row in rows]


# -- simulated -------------------------------------------------------------------------------------------------------


def _run(source: Source, precision_name: str, optimizer: str, divided_by: int | None = None) -> Held:
    """Take steps without memory, divided as ``fsdp`` does if ``divided_by`` is a number of processes."""
    precision, mode = PRECISIONS[precision_name](), FakeTensorMode(allow_non_fake_inputs=True)
    precision.connect("cpu")
    with mode:
        module, optimizers = fake_copy((source.module, source.optimizers), [source.module], precision)
    step = Step(module)
    if isinstance(module, Module):
        module.__dict__["log"] = module.__dict__["log_dict"] = _ignored
    try:
        if divided_by is None:
            with mode:
                optimizers = optimizers or _optimizers(module, optimizer)
            return fake_steps(step, optimizers, source.batch, precision, mode)
        with fake_processes(divided_by):
            mesh = init_device_mesh("cpu", (divided_by,), mesh_dim_names=("shard",))
            before = dict(step.named_parameters(remove_duplicate=False))
            with mode:
                _divide(step, mesh, precision)
                optimizers = optimizers or _optimizers(module, optimizer)
            _follow(optimizers, before, step)
            return fake_steps(step, optimizers, source.batch, precision, mode)
    except ConfigurationError:
        raise
    except Exception as error:
        doing = "" if source.batch is None else " The batch has to be as the step takes it: see --batch."
        raise ConfigurationError(f"the step fails: {type(error).__name__}: {str(error)[:300]}.{doing}") from error


def _ignored(*arguments: Any, **options: Any) -> None:
    """In place of ``log``, which needs a Trainer."""


def _optimizers(module: nn.Module, name: str) -> list[Optimizer]:
    """Those of ``configure_optimizers``; or one of ``torch.optim``, by its name."""
    if isinstance(module, Module):
        try:
            made = module.configure_optimizers()
        except Exception as error:
            raise ConfigurationError(
                f"configure_optimizers fails without a Trainer: {type(error).__name__}: {error}."
            ) from error
        return _found_in(made)
    kind = getattr(torch.optim, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
        names = [each for each in dir(torch.optim) if isinstance(getattr(torch.optim, each), type)]
        raise ConfigurationError(f"torch.optim has no {name!r}.{nearest(name, names)}")
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [kind(trained, lr=0.1)]  # type: ignore[call-arg]


def _found_in(made: Any) -> list[Optimizer]:
    if isinstance(made, Optimizer):
        return [made]
    if isinstance(made, dict):
        return _found_in(made.get("optimizer"))
    if isinstance(made, list | tuple):
        return [optimizer for each in made for optimizer in _found_in(each)]
    return []


def _divide(step: Step, mesh: Any, precision: Precision) -> None:
    """Shard ``step`` as the strategy ``fsdp`` does."""
    try:
        from torch_hal_fsdp.division import Division
    except ImportError as error:
        raise ConfigurationError("needs the strategy itself: install torch-hal-fsdp") from error
    as_it_is = copy.copy(precision)
    as_it_is.convert_module = lambda module: module  # type: ignore[method-assign] # fake tensors have the dtype already
    Division(
        mesh=mesh,
        device=torch.device("cpu"),
        precision=as_it_is,
        wrap_policy="blocks",
        reshard_after_forward=None,
        activation_checkpointing=None,
        compile_blocks=False,
        cpu_offload=False,
        tensor_parallel_plan=None,
        init_fn=None,
    ).apply(step, [step])


def _follow(optimizers: Sequence[Optimizer], before: dict[str, nn.Parameter], step: Step) -> None:
    """Let optimizers that were made before step the shards."""
    now = dict(step.named_parameters(remove_duplicate=False))
    shards = {id(parameter): now[name] for name, parameter in before.items()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [shards.get(id(parameter), parameter) for parameter in group["params"]]


def _whole(row: Row, held: Held, buckets: int, peak: int) -> Row:
    return attrs.evolve(
        row,
        parameters=held.parameters,
        gradients=held.gradients,
        optimizer=held.optimizer,
        buckets=buckets,
        activations=held.activations,
        peak=peak,
    )


def _replicated(row: Row, held: Held) -> Row:
    """The whole model in each process; DistributedDataParallel collects gradients in buckets of their total size."""
    buckets = 0 if row.strategy == "single_device" else held.gradients
    row = _whole(row, held, buckets, held.peak + buckets)
    if row.strategy != "ddp_sharded":
        return row
    share = _largest_share(held.state_of, row.devices)
    return attrs.evolve(row, optimizer=share, peak=row.peak - held.optimizer + share)


def _largest_share(state_of: Sequence[tuple[int, int]], processes: int) -> int:
    """The most state of a process: torch's ZeroRedundancyOptimizer gives the next largest parameter to the emptiest."""
    elements, state = [0] * processes, [0] * processes
    for size, held in sorted(state_of, key=lambda each: -each[0]):
        emptiest = elements.index(min(elements))
        elements[emptiest] += size
        state[emptiest] += held
    return max(state)


# -- by a formula ----------------------------------------------------------------------------------------------------


def _deepspeed(row: Row, held: Held, stage: int) -> Row:
    """By ZeRO's formulas, the buckets of DeepSpeed's default settings, and what torch's profiler shows of its steps.

    Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020, section
    3.1, figure 1. ``docs/strategies.md`` compares what is held between steps with DeepSpeed 0.19.8, and
    ``docs/memory.md`` the peak.
    """
    count, narrow = row.devices, row.precision == "bf16-true"
    elements = sum(size for size, _ in held.state_of)
    width = max(1, held.gradients // max(1, elements))
    state = held.optimizer * 2 + 4 * elements if narrow else held.optimizer  # in float32, with copies of parameters
    parameters = held.parameters if stage < 3 else held.parameters // count
    gradients = held.gradients if stage < 2 else held.gradients // count
    optimizer = state // count
    bucket = width * min(elements, _BUCKET)
    gathered = 0 if stage < 3 else min(held.parameters, width * _GATHERED)
    # Of the backward pass of a single device, all but what is held in another way here.
    others = max(0, held.passes - held.parameters - held.gradients - held.optimizer)
    waiting = held.gradients if stage < 2 else min(held.gradients, gradients + bucket)
    backward = others + parameters + optimizer + bucket + waiting + gathered
    # A step has gradients in float32, and what it computes for the largest parameter, here for all at once.
    largest = width * max((size for size, _ in held.state_of), default=0)
    computed = max(0, held.stepping - held.parameters - held.buffers - held.gradients - held.optimizer)
    copies = 1 + computed / max(1, largest)
    step = parameters + held.buffers + optimizer + int(copies * 4 * elements) // count
    if stage == 3:
        backward += gradients
        step += bucket + (gradients if narrow else 0)
        # Gradients are copied into one tensor, of which gloo makes a copy; the largest parameter is still gathered.
        backward = max(backward, parameters + held.buffers + gradients + optimizer + 3 * bucket + largest)
    return attrs.evolve(
        row,
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        buckets=bucket + gathered,
        activations=held.activations,
        peak=max(backward, step),
        source="formula",
    )
