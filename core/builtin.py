"""core's own plugin: it registers core's backends through the same entry points and hooks as any plugin."""

from __future__ import annotations

from collections.abc import Iterator

from .hookspecs import hookimpl
from .specs import AcceleratorSpec, CheckpointIOSpec, ClusterEnvironmentSpec, PrecisionSpec, StrategySpec


@hookimpl
def core_accelerators() -> list[AcceleratorSpec]:
    """The CPU, and any device type that torch itself reports."""
    return [
        AcceleratorSpec(
            name="cpu",
            target="torch_hal.accelerators.cpu:CPUAccelerator",
            description="the CPU, shared by any number of processes",
            priority=0,
        ),
        AcceleratorSpec(
            name="torch",
            target="torch_hal.accelerators.torch_device:TorchDeviceAccelerator",
            description="any device type that torch itself reports, under that type's own name",
            priority=10,
            discover="torch_hal.accelerators.torch_device:device_types",
        ),
    ]


@hookimpl
def core_strategies() -> Iterator[StrategySpec]:
    """One device; DistributedDataParallel with each start method."""
    yield StrategySpec(
        name="single_device",
        target="torch_hal.strategies.single_device:SingleDeviceStrategy",
        description="one process on one device",
        max_processes=1,
    )
    for name, start_method, description in (
        ("ddp", "script", "DistributedDataParallel; starts this script again for each further process"),
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
                target="torch_hal.strategies.ddp:DDPStrategy",
                description=description if not suffix else f"{name} with {suffix[1:]}",
                init_args={"start_method": start_method, **options},
            )
    yield StrategySpec(
        name="ddp_sharded",
        target="torch_hal.strategies.ddp_sharded:DDPShardedStrategy",
        description="DistributedDataParallel, with the optimizer's state sharded over the processes",
    )


@hookimpl
def core_precisions() -> list[PrecisionSpec]:
    """The six dtype policies."""
    return [
        PrecisionSpec(
            name=name,
            target=f"torch_hal.precisions.{target}",
            description=description,
            aliases=aliases,
            init_args=options,
        )
        for name, target, description, aliases, options in (
            ("64-true", "single_dtype:DoublePrecision", "everything in float64", ("64",), {}),
            ("32-true", "single_dtype:FullPrecision", "everything in float32", ("32",), {}),
            ("16-true", "single_dtype:HalfPrecision", "everything in float16", (), {"dtype": "float16"}),
            ("bf16-true", "single_dtype:HalfPrecision", "everything in bfloat16", (), {"dtype": "bfloat16"}),
            ("16-mixed", "mixed:MixedPrecision", "autocast to float16, loss scaling", ("16",), {"dtype": "float16"}),
            ("bf16-mixed", "mixed:MixedPrecision", "autocast to bfloat16", ("bf16",), {"dtype": "bfloat16"}),
        )
    ]


@hookimpl
def core_checkpoint_ios() -> list[CheckpointIOSpec]:
    """Committed directories with a manifest, written by rank 0 or by each rank its shards."""
    return [
        CheckpointIOSpec(
            name="torch",
            target="torch_hal.checkpoints.torch_io:TorchCheckpointIO",
            description="a directory of files and a manifest, written by rank 0 and committed by one rename",
        ),
        CheckpointIOSpec(
            name="sharded",
            target="torch_hal.checkpoints.sharded:ShardedCheckpointIO",
            description="a directory of torch.distributed.checkpoint; each process writes its own shards",
        ),
        CheckpointIOSpec(
            name="safetensors",
            target="torch_hal.checkpoints.safetensors_io:SafetensorsCheckpointIO",
            description="tensors in safetensors' format, other values as torch writes them; needs safetensors",
        ),
        CheckpointIOSpec(
            name="async",
            target="torch_hal.checkpoints.asynchronous:AsyncCheckpointIO",
            description="written in the background, in the format 'torch', or with fsdp 'sharded'",
        ),
    ]


@hookimpl
def core_cluster_environments() -> list[ClusterEnvironmentSpec]:
    """This machine alone, and processes started by torchrun, MPI or SLURM."""
    where = ("MASTER_ADDR", "MASTER_PORT")
    of_slurm = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_ID", "SLURM_NTASKS", "SLURM_NPROCS")
    return [
        ClusterEnvironmentSpec(
            name="local",
            target="torch_hal.environments.local:LocalEnvironment",
            description="this machine; the strategy starts the processes",
            priority=0,
            detect="torch_hal.environments.local:LocalEnvironment.detect",
            rank="NODE_RANK",
            variables=(
                *("CORE_LAUNCHED_PLAN", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
                *where,
            ),
        ),
        ClusterEnvironmentSpec(
            name="torchelastic",
            target="torch_hal.environments.torch_env:TorchElasticEnvironment",
            description="processes started by torchrun, or by a launcher that sets the same variables",
            detect="torch_hal.environments.torch_env:TorchElasticEnvironment.detect",
            rank="RANK",
            size="WORLD_SIZE",
            requires=("LOCAL_RANK", *where),
            variables=(
                *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"),
                *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE", *where),
            ),
        ),
        ClusterEnvironmentSpec(
            name="kubeflow",
            target="torch_hal.environments.torch_env:KubeflowEnvironment",
            description="replicas of Kubeflow's PyTorchJob, with one process each",
            priority=46,
            detect="torch_hal.environments.torch_env:KubeflowEnvironment.detect",
            rank="RANK",
            size="WORLD_SIZE",
            requires=("KUBERNETES_SERVICE_HOST", *where),
            excludes="LOCAL_RANK",
            min_processes=2,
            variables=where,
        ),
        ClusterEnvironmentSpec(
            name="lsf",
            target="torch_hal.environments.lsf:LSFEnvironment",
            description="processes started by jsrun in a job of LSF",
            priority=44,
            detect="torch_hal.environments.lsf:LSFEnvironment.detect",
            rank="JSM_NAMESPACE_RANK",
            size="JSM_NAMESPACE_SIZE",
            requires="LSB_JOBID",
            min_processes=2,
            variables=("JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
        ),
        ClusterEnvironmentSpec(
            name="pmix",
            target="torch_hal.environments.slurm:PMIxEnvironment",
            description="processes started by SLURM's srun --mpi=pmix",
            priority=35,
            detect="torch_hal.environments.slurm:PMIxEnvironment.detect",
            rank="PMIX_RANK",
            size="SLURM_STEP_NUM_TASKS",
            requires="SLURM_PROCID",
            min_processes=2,
            variables=("PMIX_NAMESPACE", *of_slurm),
        ),
        ClusterEnvironmentSpec(
            name="plain",
            target="torch_hal.environments.torch_env:PlainEnvironment",
            description="processes that were given RANK and WORLD_SIZE, but no local rank",
            priority=10,
            detect="torch_hal.environments.torch_env:PlainEnvironment.detect",
            rank="RANK",
            size="WORLD_SIZE",
            requires=where,
            excludes="LOCAL_RANK",
            min_processes=2,
            variables=("LOCAL_WORLD_SIZE", *where),
        ),
        ClusterEnvironmentSpec(
            name="openmpi",
            target="torch_hal.environments.mpi:OpenMPIEnvironment",
            description="processes started by Open MPI's mpirun",
            priority=40,
            detect="torch_hal.environments.mpi:OpenMPIEnvironment.detect",
            rank="OMPI_COMM_WORLD_RANK",
            size="OMPI_COMM_WORLD_SIZE",
            min_processes=2,
            variables=(
                *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_NODE_RANK"),
                *("PMIX_RANK", "PMIX_NAMESPACE"),
            ),
        ),
        ClusterEnvironmentSpec(
            name="slurm",
            target="torch_hal.environments.slurm:SlurmEnvironment",
            description="processes started by SLURM's srun",
            priority=30,
            detect="torch_hal.environments.slurm:SlurmEnvironment.detect",
            rank="SLURM_PROCID",
            size="SLURM_STEP_NUM_TASKS",
            min_processes=2,
            variables=of_slurm,
        ),
        ClusterEnvironmentSpec(
            name="mpich",
            target="torch_hal.environments.mpi:MPICHEnvironment",
            description="processes started by mpiexec of MPICH, and of others with its launcher",
            priority=37,
            detect="torch_hal.environments.mpi:MPICHEnvironment.detect",
            rank="PMI_RANK",
            size="PMI_SIZE",
            requires="MPI_LOCALRANKID",
            min_processes=2,
            variables=("PMI_FD", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        ),
    ]
