"""The contenders of `overhead.py` and `overhead_engines.py`: one training run, as each front end's documentation says.

Each function takes a :class:`Task`, trains its network on its batches, and returns the network: the parameters that it
ends with prove that the same work was done.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch.distributed as dist
from overhead_hands import ddp
from overhead_task import AccumulatingLoop, Batch, HandWrittenLoop, MixedLoop, Task, sgd
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from core import Module, Runtime, Trainer

__all__ = ["Contender", "contenders", "on_several_processes", "runtime", "trainer_bare"]


@dataclass(frozen=True)
class Contender:
    """A way to train.

    Attributes:
        name: As the table calls it.
        train: Does the whole run; returns the network.
        loop: Gives the loop by hand that it is compared with.
        bar: Microseconds a step that it may take beyond that loop; ``None`` for no promise.
        is_list: Whether its data is a list, as in :class:`Task`.
    """

    name: str
    train: Callable[[Task], nn.Module]
    loop: Callable[[nn.Module, DataLoader[Any]], HandWrittenLoop] = HandWrittenLoop
    bar: float | None = None
    is_list: bool = False


def contenders() -> list[Contender]:
    """All that can run here; the first is the loop by hand against itself, and shows how exact the figures are."""
    found = [
        Contender("plain loop", plain),
        Contender("torch-hal Runtime", runtime, bar=5),
        Contender("torch-hal Trainer, bare", trainer_bare, bar=25),
        Contender("torch-hal Trainer, all three", trainer_all_three, bar=80),
        Contender("torch-hal Runtime, bf16-mixed", partial(runtime, precision="bf16-mixed"), MixedLoop),
        Contender("torch-hal Runtime, accumulate", runtime_accumulate, AccumulatingLoop, bar=15),
    ]
    if importlib.util.find_spec("lightning") is not None:
        found += [
            Contender("Lightning Fabric", fabric),
            Contender("Lightning Trainer, bare", lightning_bare),
            Contender("Lightning Trainer, all three", lightning_all_three),
        ]
    if importlib.util.find_spec("accelerate") is not None:
        found.append(Contender("Accelerate", accelerate))
        found.append(Contender("Accelerate, accumulate", accelerate_accumulate, AccumulatingLoop))
    return found


def on_several_processes() -> list[Contender]:
    """Those that take a step at each batch, next to DistributedDataParallel: with a list, and with a class of data."""
    alike = [replace(one, loop=ddp, bar=None) for one in contenders() if one.loop is HandWrittenLoop]
    return [
        replace(one, name=f"{one.name}, {data}", is_list=data == "list") for data in ("list", "class") for one in alike
    ]


def own_loop(task: Task, backward: Callable[[Tensor], Any], model: Any, optimizer: Any, loader: Any) -> None:
    """A loop as torch's tutorial has it, with a front end's backward."""
    criterion = nn.MSELoss()
    for _ in range(task.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            backward(loss)
            optimizer.step()


def accumulating_loop(task: Task, front: Any, model: Any, optimizer: Any, loader: Any) -> None:
    """A step after every second batch, with the Runtime or Accelerate."""
    criterion = nn.MSELoss()
    for _ in range(task.epochs):
        for inputs, targets in loader:
            with front.accumulate(model):
                loss = criterion(model(inputs), targets)
                front.backward(loss)
                optimizer.step()
                optimizer.zero_grad()


def plain(task: Task) -> nn.Module:
    """By hand."""
    network = task.network()
    model: nn.Module = network
    if task.processes > 1:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        model = DistributedDataParallel(network)
    own_loop(task, Tensor.backward, model, sgd(network), task.loader(is_divided=True))
    return network


# -- torch-hal -----------------------------------------------------------------------------------------------------


def runtime(task: Task, make_optimizer: Callable[[nn.Module], Optimizer] = sgd, **arguments: Any) -> nn.Module:
    """Your own loop on the Runtime, which is given ``arguments`` in addition to the device."""
    network = task.network()
    runtime = Runtime(accelerator="cpu", devices=task.processes, **arguments)
    own_loop(task, runtime.backward, *runtime.prepare(network, make_optimizer(network), task.loader()))
    runtime.teardown()
    return network


def runtime_accumulate(task: Task) -> nn.Module:
    """A step after every second batch."""
    network = task.network()
    runtime = Runtime(accelerator="cpu", devices=1, gradient_accumulation_steps=2)
    accumulating_loop(task, runtime, *runtime.prepare(network, sgd(network), task.loader()))
    runtime.teardown()
    return network


class Regression(Module):
    """The network as a torch-hal Module."""

    def __init__(self, network: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer] = sgd) -> None:
        super().__init__()
        self.network = network
        self.criterion = nn.MSELoss()
        self.make_optimizer = make_optimizer

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        inputs, targets = batch
        loss: Tensor = self.criterion(self.network(inputs), targets)
        return loss

    def configure_optimizers(self) -> Optimizer:
        return self.make_optimizer(self.network)


class LoggedRegression(Regression):
    """The same, with its loss in the progress bar."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, prog_bar=True)
        return loss


def trainer_bare(task: Task, make_optimizer: Callable[[nn.Module], Optimizer] = sgd, **arguments: Any) -> nn.Module:
    """The Trainer with everything off that can be; and with further ``arguments``."""
    module = Regression(task.network(), make_optimizer)
    trainer = Trainer(
        accelerator="cpu",
        devices=task.processes,
        max_epochs=task.epochs,
        enable_checkpointing=False,
        enable_progress_bar=False,
        **arguments,
    )
    trainer.fit(module, task.loader())
    return module.network


def trainer_all_three(task: Task) -> nn.Module:
    """The Trainer with progress bar, a checkpoint each epoch, and the loss logged each step."""
    module = LoggedRegression(task.network())
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(accelerator="cpu", devices=task.processes, max_epochs=task.epochs, default_root_dir=directory)
        trainer.fit(module, task.loader())
    return module.network


# -- others --------------------------------------------------------------------------------------------------------


def accelerate(task: Task) -> nn.Module:
    from accelerate import Accelerator

    network = task.network()
    accelerator = Accelerator(cpu=True)
    own_loop(task, accelerator.backward, *accelerator.prepare(network, sgd(network), task.loader()))
    return network


def accelerate_accumulate(task: Task) -> nn.Module:
    """A step after every second batch, on Accelerate."""
    from accelerate import Accelerator

    network = task.network()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    accumulating_loop(task, accelerator, *accelerator.prepare(network, sgd(network), task.loader()))
    return network


def fabric(task: Task) -> nn.Module:
    from lightning.fabric import Fabric

    network = task.network()
    fabric = Fabric(accelerator="cpu", devices=task.processes)
    fabric.launch()
    model, optimizer = fabric.setup(network, sgd(network))
    own_loop(task, fabric.backward, model, optimizer, fabric.setup_dataloaders(task.loader()))
    return network


OWN_SHARE = {"use_distributed_sampler": False}
"""Lightning's Trainer would shuffle what a sampler of one's own gives."""


def lightning_bare(task: Task) -> nn.Module:
    """Lightning's Trainer in its own mode for measuring overhead."""
    from lightning.pytorch import Trainer

    module = lightning_module(task, logged=False)
    trainer = Trainer(accelerator="cpu", devices=task.processes, max_epochs=task.epochs, barebones=True, **OWN_SHARE)
    trainer.fit(module, task.loader(is_divided=True))
    network: nn.Module = module.network
    return network


def lightning_all_three(task: Task) -> nn.Module:
    """Lightning's Trainer with the same three; without a logger, which torch-hal has none of by default."""
    from lightning.pytorch import Trainer

    module = lightning_module(task, logged=True)
    with tempfile.TemporaryDirectory() as directory:
        trainer = Trainer(
            accelerator="cpu",
            devices=task.processes,
            max_epochs=task.epochs,
            logger=False,
            enable_model_summary=False,
            default_root_dir=directory,
            **OWN_SHARE,
        )
        trainer.fit(module, task.loader(is_divided=True))
    network: nn.Module = module.network
    return network


def lightning_module(task: Task, logged: bool) -> Any:
    from lightning.pytorch import LightningModule

    class LightningRegression(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = task.network()
            self.criterion = nn.MSELoss()

        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            inputs, targets = batch
            loss: Tensor = self.criterion(self.network(inputs), targets)
            if logged:
                self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> Optimizer:
            return sgd(self.network)

    return LightningRegression()
