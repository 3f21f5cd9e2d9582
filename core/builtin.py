"""core's own plugin: its backends enter through the same entry points and hooks as anyone's."""

from __future__ import annotations

from collections.abc import Iterator

from core.hookspecs import hookimpl
from core.specs import (
    AcceleratorSpec,
    CheckpointIOSpec,
    ClusterEnvironmentSpec,
    PrecisionSpec,
    StrategySpec,
)


@hookimpl
def core_accelerators() -> list[AcceleratorSpec]:
    """The CPU, and whatever device type torch itself reports."""
    return [
        AcceleratorSpec(
            name="cpu",
            target="core.accelerators.cpu:CPUAccelerator",
            description="processes on the CPU",
            priority=0,
        ),
        AcceleratorSpec(
            name="torch",
            target="core.accelerators.torch_device:TorchDeviceAccelerator",
            description="any device type that torch itself reports, under that type's own name",
            priority=10,
            serves="core.accelerators.torch_device:device_types",
        ),
    ]


@hookimpl
def core_strategies() -> Iterator[StrategySpec]:
    """One device; DistributedDataParallel with each way of starting processes."""
    yield StrategySpec(
        name="single_device",
        target="core.strategies.single_device:SingleDeviceStrategy",
        description="one process on one device",
        max_processes=1,
    )
    for name, start_method, description in (
        ("ddp", "script", "DistributedDataParallel; starts this script once more for each further process"),
        ("ddp_spawn", "spawn", "DistributedDataParallel; spawns the processes"),
        ("ddp_fork", "fork", "DistributedDataParallel; forks the processes"),
        ("ddp_notebook", "fork", "DistributedDataParallel; forks the processes, for interactive sessions"),
    ):
        for suffix, options in (
            ("", {}),
            ("_find_unused_parameters_true", {"find_unused_parameters": True}),
            ("_find_unused_parameters_false", {"find_unused_parameters": False}),
        ):
            yield StrategySpec(
                name=name + suffix,
                target="core.strategies.ddp:DDPStrategy",
                description=description if not suffix else f"{name} with {suffix[1:]}",
                init_args={"start_method": start_method, **options},
            )
    yield StrategySpec(
        name="ddp_sharded",
        target="core.strategies.ddp_sharded:DDPShardedStrategy",
        description="DistributedDataParallel, with the optimizer's state divided among the processes",
    )


@hookimpl
def core_precisions() -> list[PrecisionSpec]:
    """The six dtype policies."""
    return [
        PrecisionSpec(
            name=name, target=f"core.precisions.{target}", description=description, aliases=aliases, init_args=options
        )
        for name, target, description, aliases, options in (
            ("64-true", "double:DoublePrecision", "everything in float64", ("64",), {}),
            ("32-true", "full:FullPrecision", "everything in float32", ("32",), {}),
            ("16-true", "half:HalfPrecision", "everything in float16", (), {"dtype": "float16"}),
            ("bf16-true", "half:HalfPrecision", "everything in bfloat16", (), {"dtype": "bfloat16"}),
            ("16-mixed", "mixed:MixedPrecision", "autocast to float16, scaled loss", ("16",), {"dtype": "float16"}),
            ("bf16-mixed", "mixed:MixedPrecision", "autocast to bfloat16", ("bf16",), {"dtype": "bfloat16"}),
        )
    ]


@hookimpl
def core_checkpoint_ios() -> list[CheckpointIOSpec]:
    """Committed directories with a manifest: written by process 0, or by each process its part."""
    return [
        CheckpointIOSpec(
            name="torch",
            target="core.checkpoints.torch_io:TorchCheckpointIO",
            description="a directory with shards and a manifest, committed by one rename",
        ),
        CheckpointIOSpec(
            name="sharded",
            target="core.checkpoints.sharded:ShardedCheckpointIO",
            description="such a directory of torch.distributed.checkpoint, each process writing what it has",
        ),
    ]


@hookimpl
def core_cluster_environments() -> list[ClusterEnvironmentSpec]:
    """This machine alone, and processes started by torchrun."""
    return [
        ClusterEnvironmentSpec(
            name="local",
            target="core.environments.local:LocalEnvironment",
            description="this machine, processes started by the strategy",
            priority=0,
            detect="core.environments.detect:local",
        ),
        ClusterEnvironmentSpec(
            name="torchelastic",
            target="core.environments.torchelastic:TorchElasticEnvironment",
            description="processes started by torchrun, or by anything that sets the variables it sets",
            detect="core.environments.detect:torchelastic",
        ),
    ]
