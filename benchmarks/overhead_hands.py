"""The engines of `overhead_engines.py`: the strategy by its name, and the same engine driven by hand.

By hand is as the engine's own documents say, with the settings that the strategy has by default. Bagua's algorithms
have no other engine: there the algorithm itself, an object of torch-hal-bagua, is called around torch's loop.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from overhead_task import HandWrittenLoop, Task, leave_out, sgd
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

__all__ = ["ENGINES", "Engine", "beside_itself"]

Loader = DataLoader[Any]
Loop = HandWrittenLoop
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Engine:
    """A strategy and its engine.

    Attributes:
        name: As the table calls it.
        hand: How the table names the engine by hand.
        strategy: Gives what the front end takes as ``strategy``.
        by_hand: Gives the loop by hand for a network and its batches.
        needs: Packages to import.
        make_optimizer: Of both sides.
        launcher: The module that starts several processes, and its options.
        repeats: Whether two runs in several processes end with the same bits.
        is_list: Whether the batches are a list, as in :class:`Task`; else the limit does not apply.
        calls: Its class or module, as ``module:name``, and what of it both sides call that the bar leaves out.
    """

    name: str
    hand: str
    strategy: Callable[[], Any]
    by_hand: Callable[[nn.Module, Loader], Loop]
    needs: tuple[str, ...] = ()
    make_optimizer: Callable[[nn.Module], Optimizer] = sgd
    launcher: tuple[str, ...] = ("torch.distributed.run", "--standalone", "--nproc-per-node")
    repeats: bool = True
    is_list: bool = True
    calls: tuple[str, tuple[str, ...]] = ("", ())

    def command(self, processes: int, *script: str) -> list[str]:
        """What starts ``script``, a file of Python and its arguments, in so many processes."""
        if processes == 1:
            return [sys.executable, *script]
        program = [sys.executable] if self.launcher[0].startswith("horovod") else []  # Horovod's starts any program
        return [sys.executable, "-m", *self.launcher, str(processes), *program, *script]

    def leave_out_calls(self) -> None:
        """Let the clock ``outside`` stand still while the engine is at work."""
        target, methods = self.calls
        module, _, name = target.partition(":")
        for method in methods:
            leave_out(getattr(import_module(module), name), method)

    @property
    def missing(self) -> list[str]:
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def beside_itself(task: Task, engine: Engine) -> nn.Module:
    """The engine by hand as a front end."""
    if "horovod" in engine.needs:
        import_module("horovod.torch").init()
    elif task.processes > 1:
        dist.init_process_group("gloo")
    else:
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")  # DeepSpeed reads them
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    loop = engine.by_hand(task.network(), task.loader(is_divided=True))
    for _ in range(task.epochs):
        loop.start_epoch()
        loop.take(task.steps)
    loop.close()
    return loop.network


# -- torch ---------------------------------------------------------------------------------------------------------


def ddp(network: nn.Module, loader: Loader, **options: Any) -> Loop:
    return Loop(network, loader, DistributedDataParallel(network, **options))


def ddp_sharded(network: nn.Module, loader: Loader) -> Loop:
    """DistributedDataParallel with ZeroRedundancyOptimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(network.parameters(), optimizer_class=torch.optim.SGD, lr=0.01)
    return Loop(network, loader, DistributedDataParallel(network), optimizer)


def fsdp(network: nn.Module, loader: Loader) -> Loop:
    """``fully_shard`` on each layer and the whole."""
    from torch.distributed.fsdp import fully_shard

    for layer in network:  # type: ignore[attr-defined]  # a Sequential
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(network)
    return Loop(network, loader)


# -- DeepSpeed -----------------------------------------------------------------------------------------------------


class DeepSpeedLoop(Loop):
    """The engine runs forward and backward passes and steps; gradients are cleared by its step."""

    def take(self, steps: int) -> None:
        engine, criterion = self.model, self.criterion
        for inputs, targets in self.stretch(steps):
            loss = criterion(engine(inputs), targets)
            engine.backward(loss)  # type: ignore[operator]
            engine.step()  # type: ignore[operator]


def deepspeed(network: nn.Module, loader: Loader, stage: int) -> Loop:
    """``deepspeed.initialize``."""
    import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False  # nor does the strategy compile it
    # As DeepSpeed's own launcher has it: stage 3 on the CPU else starts a program in each step, to count NUMA nodes.
    os.environ["LOCAL_SIZE"] = str(dist.get_world_size())
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "managed_gradient_accumulation": False,  # a step is where the loop says so
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage, "reduce_bucket_size": sum(p.numel() for p in network.parameters())},
    }
    optimizer = sgd(network)
    engine = import_module("deepspeed").initialize(model=network, optimizer=optimizer, config=config)[0]
    return DeepSpeedLoop(network, loader, engine, optimizer)


# -- Horovod -------------------------------------------------------------------------------------------------------


def horovod(network: nn.Module, loader: Loader) -> Loop:
    hvd = import_module("horovod.torch")
    hvd.broadcast_parameters(network.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(sgd(network), named_parameters=network.named_parameters())
    return Loop(network, loader, optimizer=optimizer)


# -- Bagua's algorithms --------------------------------------------------------------------------------------------


class Algorithm:
    """One of Bagua's algorithms without the strategy, over the process group that is there."""

    def __init__(self, name: str) -> None:
        algorithms = import_module("torch_hal_bagua.algorithms")
        base = import_module("torch_hal_bagua.algorithms.base")
        communication = import_module("torch_hal_bagua.communication")
        processes = dist.get_world_size()
        layout = communication.Layout(dist.get_rank(), processes, processes)
        options = {} if name == "async" else {"hierarchical": False}
        self.algorithm = algorithms.create_algorithm(name, options, ())[0]
        first, *others = [communication.Communicator(layout, False) for _ in range(1 + self.algorithm.threads)]
        self.threads = import_module("torch_hal_bagua.threads").CommunicationThreads(CPU, others)
        self.algorithm.connect(base.Connection(CPU, layout, first, self.threads, 10))
        self._bucket = base.GradientBucket

    def hook(self, state: Any, bucket: Any) -> Any:
        """What DistributedDataParallel calls for a bucket of gradients."""
        del state
        ready = self._bucket(bucket)
        return self.threads.submit(partial(self.algorithm.reduce, ready), ready.values).then(lambda done: done.value())

    def close(self) -> None:
        self.threads.close(failed=False)
        self.algorithm.disconnect()


class GradientLoop(Loop):
    """DistributedDataParallel with the algorithm as its communication hook."""

    def __init__(self, network: nn.Module, loader: Loader, name: str, optimizer: Optimizer) -> None:
        self.own = Algorithm(name)
        model = import_module("torch_hal_bagua.wrapper").FixedBuckets(network, bucket_cap_mb=10)
        model.register_comm_hook(None, lambda state, bucket: self.own.hook(state, bucket))
        self.own.algorithm.take_optimizers([optimizer])
        super().__init__(network, loader, model, optimizer)

    def close(self) -> None:
        self.own.close()


class WeightLoop(Loop):
    """The algorithm's replica of the module, called around forward pass and step."""

    def __init__(self, network: nn.Module, loader: Loader, name: str) -> None:
        super().__init__(network, loader)
        self.own = Algorithm(name)
        self.replica = self.own.algorithm.replica(network, network)
        self.replica.start()

    def take(self, steps: int) -> None:
        model, criterion, optimizer, replica = self.model, self.criterion, self.optimizer, self.replica
        for inputs, targets in self.stretch(steps):
            optimizer.zero_grad()
            replica.before_forward()
            outputs = model(inputs)
            replica.after_forward()
            loss = criterion(outputs, targets)
            loss.backward()
            replica.before_step()
            optimizer.step()
            replica.after_step()

    def close(self) -> None:
        self.replica.close(failed=False)
        self.own.close()


def qadam_optimizer(network: nn.Module) -> Optimizer:
    made: Optimizer = import_module("torch_hal_bagua").QAdamOptimizer(network.parameters(), warmup_steps=100)
    return made


def bagua(algorithm: str, hand: str, by_hand: Callable[[nn.Module, Loader], Loop], **rest: Any) -> Engine:
    def strategy() -> Any:
        options = {} if algorithm == "async" else {"hierarchical": False}
        return import_module("torch_hal_bagua").BaguaStrategy(algorithm, **options)

    return Engine(f"bagua: {algorithm}", hand, strategy, by_hand, ("torch_hal_bagua",), **rest)


def on_gradients(name: str, make_optimizer: Callable[[nn.Module], Optimizer] = sgd) -> Engine:
    """An algorithm that reduces gradients by itself."""

    def by_hand(network: nn.Module, loader: Loader) -> Loop:
        return GradientLoop(network, loader, name, make_optimizer(network))

    return bagua(name, "DDP with the algorithm as hook", by_hand, make_optimizer=make_optimizer)


def on_weights(name: str, **rest: Any) -> Engine:
    return bagua(name, "the algorithm called in the loop", partial(WeightLoop, name=name), **rest)


def deepspeed_stage(stage: int) -> Engine:
    def strategy() -> Any:
        return import_module("torch_hal_deepspeed").DeepSpeedStrategy(stage=stage)

    return Engine(
        f"deepspeed, stage {stage}",
        "deepspeed.initialize",
        strategy,
        partial(deepspeed, stage=stage),
        ("deepspeed", "torch_hal_deepspeed"),
        calls=("deepspeed.runtime.engine:DeepSpeedEngine", ("__call__", "backward", "step")),
    )


ENGINES = [
    Engine("ddp", "DistributedDataParallel", lambda: "ddp", ddp),
    Engine("ddp, each batch seeded", "DistributedDataParallel", lambda: "ddp", ddp, is_list=False),
    Engine("ddp_sharded", "DDP, ZeroRedundancyOptimizer", lambda: "ddp_sharded", ddp_sharded),
    Engine("fsdp", "fully_shard", lambda: "fsdp", fsdp, ("torch_hal_fsdp",)),
    *map(deepspeed_stage, range(4)),
    Engine(
        "horovod",
        "DistributedOptimizer",
        lambda: "horovod",
        horovod,
        ("horovod", "torch_hal_horovod"),
        launcher=("horovod.runner.launch", "--gloo", "-np"),
        calls=("horovod.torch.mpi_ops:mpi_lib", ("horovod_torch_wait_and_clear",)),
    ),
    bagua("gradient_allreduce", "DistributedDataParallel", partial(ddp, bucket_cap_mb=10)),
    on_gradients("bytegrad"),
    on_gradients("qadam", qadam_optimizer),
    on_weights("decentralized"),
    on_weights("low_precision_decentralized"),
    on_weights("async", repeats=False),
]
"""All of them, in the table's order."""
