"""Usual mistakes in modules, callbacks, data and own loops: the message has the argument, what was given, the remedy.

Nothing here starts a process.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from core import Callback, DataModule, Module, Runtime

from .cases import Mistake, Net, check, loader, runtime, trainer, unprepared


def net(**members: Any) -> Net:
    """A Net with other methods."""
    kind: type[Net] = type("Net", (Net,), members)
    return kind()


def fit(module: Any, train: Any = None, **arguments: Any) -> None:
    fitting = arguments.pop("fitting", {})
    trainer(**arguments).fit(module, loader() if train is None else train, **fitting)


def with_callback(**members: Any) -> None:
    fit(Net(), callbacks=type("Mine", (Callback,), members)())


def prepared(step: Any, **arguments: Any) -> None:
    run = runtime(**arguments)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        step(run, *run.prepare(model, optimizer))
    finally:
        run.teardown()


def first_loss(change: Any, **arguments: Any) -> None:
    prepared(lambda run, model, optimizer: run.backward(change(model(torch.randn(4, 3)))), **arguments)


def other_model() -> Any:
    return torch.optim.SGD(nn.Linear(3, 1).parameters(), lr=0.1)


def calls_backward(self: Any, batch: Any, batch_idx: int) -> Any:
    loss = self.loss(batch)
    loss.backward()
    return loss


def keeps_loss(self: Any, batch: Any, batch_idx: int) -> Any:
    loss = self.kept = self.loss(batch) + getattr(self, "kept", 0.0)
    return loss


def in_half(self: Any, batch: Any, batch_idx: int) -> Any:
    return self.loss([part.half() for part in batch])


def makes_group(self: Any, stage: str) -> None:
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


def twice(run: Runtime, model: nn.Module, optimizer: Any) -> None:
    loss = model(torch.ones(2, 3)).square().mean()
    run.backward(loss)
    run.backward(loss)


def half_step(run: Runtime, model: nn.Module, optimizer: Any) -> None:
    model.half()
    run.backward(model(torch.ones(2, 3).half()).mean())
    optimizer.step()


def stopped_after_first_batch() -> None:
    """A hook that would fail only after the epoch: the error comes before the first batch."""
    seen: list[int] = []

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        seen.append(batch_idx)
        return self.loss(batch)

    try:
        fit(net(training_step=training_step, on_train_epoch_end=lambda self, outputs: None))
    finally:
        assert not seen


class Uninitialized(nn.Module):
    def __init__(self) -> None:
        pass


class WithDataModule(DataModule):
    def train_dataloader(self) -> Any:
        return loader()

    def setup(self) -> None:  # type: ignore[override]
        pass


MISTAKES: dict[str, Mistake] = {
    # -- modules and hooks
    "hook of a module": Mistake(
        stopped_after_first_batch, "Net.on_train_epoch_end", "(outputs)", "on_train_epoch_end(self)"
    ),
    "hook of a callback": Mistake(
        lambda: with_callback(on_train_batch_end=lambda self, trainer, module: None),
        "Mine.on_train_batch_end",
        "(trainer, pl_module, outputs, batch, batch_idx)",
        "on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx)",
    ),
    "hook of a callback without arguments": Mistake(
        lambda: with_callback(on_train_epoch_end=lambda self: None),
        "Mine.on_train_epoch_end()",
        "(trainer, pl_module)",
        "Define it as on_train_epoch_end(self, trainer, pl_module)",
    ),
    "setup without stage": Mistake(
        lambda: fit(net(setup=lambda self: None)), "Net.setup", "(stage)", "Define it as setup(self, stage)"
    ),
    "setup of a DataModule": Mistake(
        lambda: trainer().fit(Net(), WithDataModule()), "WithDataModule.setup()", "(stage)", "setup(self, stage)"
    ),
    "configure_optimizers with arguments": Mistake(
        lambda: fit(net(configure_optimizers=lambda self, params: None)),
        "Net.configure_optimizers",
        "(params)",
        "configure_optimizers(self)",
    ),
    "unknown hook": Mistake(
        lambda: fit(net(on_epoch_end=lambda self: None)), "module: Net", "'on_epoch_end'", "Use on_train_epoch_end"
    ),
    "training_step with too many arguments": Mistake(
        lambda: fit(net(training_step=lambda self, batch, batch_idx, optimizer_idx: None)),
        "training_step",
        "optimizer_idx",
        "training_step(self, batch, batch_idx)",
    ),
    "no training_step": Mistake(
        lambda: fit(type("Empty", (Module,), {"configure_optimizers": Net.configure_optimizers})()),
        "module: Empty",
        "'training_step'",
        "does not define",
    ),
    "no configure_optimizers": Mistake(
        lambda: fit(type("Empty", (Module,), {"training_step": Net.training_step})()),
        "module: Empty",
        "'configure_optimizers'",
        "does not define",
    ),
    "class for a module": Mistake(lambda: fit(Net), "model:", "the class Net", "create an object of it: Net(...)"),
    "swapped arguments of fit": Mistake(
        lambda: trainer().fit(loader(), Net()),  # type: ignore[arg-type]
        "model:",
        "type DataLoader",
        "The module comes first, then the loaders: fit(module, train_dataloaders)",
    ),
    "class for a DataModule": Mistake(
        lambda: fit(Net(), fitting={"datamodule": WithDataModule}),
        "datamodule",
        "the class WithDataModule",
        "create an object of it: WithDataModule(...)",
    ),
    "loader for a DataModule": Mistake(
        lambda: trainer().fit(Net(), datamodule=loader()),  # type: ignore[arg-type]
        "datamodule",
        "type DataLoader",
        "Pass loaders as train_dataloaders",
    ),
    "no loader": Mistake(lambda: trainer().fit(Net()), "train_dataloader", "there is no loader", "Pass train_data"),
    "class for a loader": Mistake(
        lambda: fit(Net(), train=torch.utils.data.DataLoader),
        "train_dataloaders",
        "the class DataLoader",
        "create an object of it: DataLoader(...)",
    ),
    "number for a loader": Mistake(
        lambda: fit(Net(), 3), "train_dataloaders", "type int", "must be a torch DataLoader"
    ),
    "empty loader": Mistake(lambda: fit(Net(), []), "train_dataloaders", "empty", "must yield batches"),
    "misspelt argument of fit": Mistake(
        lambda: fit(Net(), fitting={"val_dataloader": loader()}),
        "Trainer.fit",
        "'val_dataloader'",
        "'val_dataloaders'",
    ),
    "misspelt argument of test": Mistake(
        lambda: trainer().test(Net(), dataloader=loader()),  # type: ignore[call-arg]
        "Trainer.test",
        "'dataloader'",
        "'dataloaders'",
    ),
    "unsafe checkpoint": Mistake(
        lambda: fit(Net(), fitting={"weights_only": False}), "weights_only", "False", "Remove the argument"
    ),
    "missing checkpoint": Mistake(
        lambda: fit(Net(), fitting={"ckpt_path": "/nowhere/epoch=1.ckpt"}), "ckpt", "/nowhere/epoch=1.ckpt", ""
    ),
    # -- what steps return
    "no loss at all": Mistake(
        lambda: fit(net(training_step=lambda self, batch, batch_idx: None)),
        "training_step",
        "None for every batch of epoch 0",
        "return loss",
    ),
    "loss as a number": Mistake(
        lambda: fit(net(training_step=lambda self, batch, batch_idx: self.loss(batch).item())),
        "training_step",
        "returned ",
        "must return the loss, a scalar tensor",
    ),
    "mapping without a loss": Mistake(
        lambda: fit(net(training_step=lambda self, batch, batch_idx: {"los": self.loss(batch)})),
        "training_step",
        "'los'",
        "under 'loss'",
    ),
    "detached loss": Mistake(
        lambda: fit(net(training_step=lambda self, batch, batch_idx: self.loss(batch).detach())),
        "training_step: the loss",
        "does not depend on a parameter",
        "Remove .detach()",
    ),
    "vector loss": Mistake(
        lambda: fit(net(training_step=lambda self, batch, batch_idx: self.layer(batch[0]).square())),
        "training_step: the loss",
        "(4, 1)",
        "loss.mean()",
    ),
    "list for an optimizer's class": Mistake(
        lambda: fit(net(configure_optimizers=lambda self: torch.optim.SGD)),
        "configure_optimizers",
        "torch.optim.sgd.SGD",
        "create an object of it: SGD(...)",
    ),
    "partial call of an optimizer's class": Mistake(
        lambda: fit(net(configure_optimizers=lambda self: [partial(torch.optim.SGD, lr=0.1)])),
        "configure_optimizers",
        "functools.partial",
        "Finish it: SGD(...)",
    ),
    "class for a scheduler": Mistake(
        lambda: fit(net(configure_optimizers=lambda self: ([Net.configure_optimizers(self)], [StepLR]))),
        "configure_optimizers",
        "lr_scheduler.StepLR",
        "create an object of it: StepLR(...)",
    ),
    "class for a scheduler in a mapping": Mistake(
        lambda: fit(
            net(
                configure_optimizers=lambda self: {
                    "optimizer": Net.configure_optimizers(self),
                    "lr_scheduler": {"scheduler": StepLR},
                }
            )
        ),
        "configure_optimizers",
        "lr_scheduler.StepLR",
        "create an object of it: StepLR(...)",
    ),
    "class for a callback of a module": Mistake(
        lambda: fit(net(configure_callbacks=lambda self: [Callback])),
        "configure_callbacks",
        "callbacks.base.Callback",
        "create an object of it: Callback(...)",
    ),
    "detached loss in a mapping, mixed precision": Mistake(
        lambda: fit(
            net(training_step=lambda self, batch, batch_idx: {"loss": self.loss(batch).detach()}),
            precision="bf16-mixed",
        ),
        "training_step: the loss",
        "does not depend on a parameter",
        "Remove .detach()",
    ),
    "vector loss, scaled and accumulated": Mistake(
        lambda: fit(
            net(training_step=lambda self, batch, batch_idx: self.layer(batch[0])),
            precision="16-mixed",
            accumulate_grad_batches=2,
        ),
        "training_step: the loss",
        "(4, 1)",
        "loss.mean()",
    ),
    "backward in training_step": Mistake(
        lambda: fit(net(training_step=calls_backward)), "training_step", "called before", "Remove loss.backward()"
    ),
    "backward in training_step, accumulated": Mistake(
        lambda: fit(net(training_step=calls_backward), accumulate_grad_batches=2, gradient_clip_val=1.0),
        "training_step",
        "called before",
        "the Trainer calls it; or set self.automatic_optimization = False",
    ),
    "loss of an earlier step": Mistake(
        lambda: fit(net(training_step=keeps_loss)), "training_step", "called before", "keep that as tensor.detach()"
    ),
    "float16 parameters under 16-mixed": Mistake(
        lambda: fit(net(on_train_start=lambda self: self.half(), training_step=in_half), precision="16-mixed"),
        "precision='16-mixed'",
        "float16 parameters",
        "Remove .half()",
    ),
    "float16 parameters under 16-mixed, clipped": Mistake(
        lambda: fit(
            net(on_train_start=lambda self: self.half(), training_step=in_half),
            precision="16-mixed",
            gradient_clip_val=1.0,
        ),
        "precision='16-mixed'",
        "float16 parameters",
        "set precision='16-true'",
    ),
    "process group in setup": Mistake(
        lambda: fit(net(setup=makes_group), strategy="ddp"),
        "init_process_group",
        "has made the default process group",
        "Remove the call",
    ),
    "optimizer of another model": Mistake(
        lambda: fit(net(configure_optimizers=lambda self: other_model())),
        "configure_optimizers: SGD",
        "holds 2 parameter(s)",
        "model.parameters()",
    ),
    "three values for optimizers": Mistake(
        lambda: fit(net(configure_optimizers=lambda self: ([Net.configure_optimizers(self)], [], "x"))),
        "configure_optimizers",
        "type tuple, with an object of type list",
        "[optimizer], [scheduler]",
    ),
    "two optimizers": Mistake(
        lambda: fit(net(configure_optimizers=lambda self: [other_model(), other_model()])),
        "configure_optimizers",
        "2 optimizers",
        "automatic_optimization = False",
    ),
    "unknown key of a scheduler": Mistake(
        lambda: fit(
            net(
                configure_optimizers=lambda self: {
                    "optimizer": Net.configure_optimizers(self),
                    "lr_scheduler": {"schedule": None},
                }
            )
        ),
        "configure_optimizers: lr_scheduler",
        "'schedule'",
        "'scheduler'",
    ),
    # -- own loops
    "optimizer not prepared": Mistake(
        lambda: unprepared("16-mixed"), "backward", "'16-mixed'", "runtime.prepare(model, optimizer)"
    ),
    "optimizer of another model in prepare": Mistake(
        lambda: runtime().prepare(nn.Linear(3, 1), other_model()),
        "prepare: SGD",
        "none of which is of the module",
        "model.parameters()",
    ),
    "module without super().__init__": Mistake(
        lambda: runtime().prepare(Uninitialized()), "prepare", "Uninitialized.__init__", "super().__init__()"
    ),
    "Module without super().__init__": Mistake(
        lambda: fit(type("Empty", (Net,), {"__init__": lambda self: None})()),
        "module",
        "Empty.__init__",
        "super().__init__()",
    ),
    "dict in prepare": Mistake(
        lambda: runtime().prepare({"model": nn.Linear(3, 1)}), "prepare", "a dict with", "Pass its objects one by one"
    ),
    "list in prepare": Mistake(
        lambda: runtime().prepare([nn.Linear(3, 1), loader()]), "prepare", "a list with", "Pass its objects one by one"
    ),
    "data set in prepare": Mistake(
        lambda: runtime().prepare(loader().dataset), "prepare", "type TensorDataset", "DataLoader(dataset"
    ),
    "wrapped module in prepare": Mistake(
        lambda: runtime().prepare(nn.DataParallel(nn.Linear(3, 1))), "prepare", "a DataParallel", "model.module"
    ),
    "class in prepare": Mistake(
        lambda: runtime().prepare(nn.Linear), "prepare", "the class Linear", "Create one: Linear(...)"
    ),
    "optimizer's class in prepare": Mistake(
        lambda: runtime().prepare(nn.Linear(3, 1), torch.optim.SGD), "prepare", "the class SGD", "Create one: SGD(...)"
    ),
    "misspelt argument of prepare": Mistake(
        lambda: runtime().prepare(nn.Linear(3, 1), device_placment=[True]),  # type: ignore[call-overload]
        "prepare",
        "'device_placment'",
        "'device_placement'",
    ),
    "length of device_placement": Mistake(
        lambda: runtime().prepare(nn.Linear(3, 1), device_placement=[True, False]),
        "device_placement",
        "2 values for 1 objects",
        "Give one for each",
    ),
    "backward of a number": Mistake(
        lambda: first_loss(lambda output: output.mean().item()), "the loss", "of type float", "without .item()"
    ),
    "backward twice": Mistake(lambda: prepared(twice), "backward", "called before", "Call it once for each step"),
    "float16 parameters in a loop": Mistake(
        lambda: prepared(half_step, precision="16-mixed"),
        "precision='16-mixed'",
        "float16 parameters",
        "Remove .half()",
    ),
    "backward of a vector": Mistake(lambda: first_loss(lambda output: output), "the loss", "(4, 1)", "loss.mean()"),
    "backward of a detached loss": Mistake(
        lambda: first_loss(lambda output: output.mean().detach()), "the loss", "of shape ()", "Remove .detach()"
    ),
    "backward of a vector, scaled": Mistake(
        lambda: first_loss(lambda output: output, precision="16-mixed"), "the loss", "(4, 1)", "loss.mean()"
    ),
    "backward of a number, scaled": Mistake(
        lambda: first_loss(lambda output: output.mean().item(), precision="16-mixed"), "the loss", "float", ".item()"
    ),
    "clipping given a module": Mistake(
        lambda: prepared(lambda run, model, optimizer: run.clip_grad_norm_(model, 1.0)),
        "clip_grad_norm_: parameters",
        "type Linear",
        "Pass model.parameters()",
    ),
    "clipping by value given a module": Mistake(
        lambda: prepared(lambda run, model, optimizer: run.clip_grad_value_(model, 1.0)),
        "clip_grad_value_: parameters",
        "type Linear",
        "Pass model.parameters()",
    ),
    "clipping with swapped arguments": Mistake(
        lambda: prepared(lambda run, model, optimizer: run.clip_grad_norm_(1.0, model.parameters())),
        "max_norm",
        "generator",
        "clip_grad_norm_(model.parameters(), 1.0)",
    ),
    "negative limit of clipping": Mistake(
        lambda: prepared(lambda run, model, optimizer: run.clip_grad_norm_(model.parameters(), -1.0)),
        "max_norm",
        "-1.0",
        "must be a number ≥ 0",
    ),
    "gathering an object": Mistake(
        lambda: prepared(lambda run, model, optimizer: run.gather({"name": "x"})), "gather", "'x'", "gather_object"
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str) -> None:
    """The message names what is wrong, what was given, and what to do."""
    check(MISTAKES[name])


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_unprepared_optimizer_without_scaling(precision: str) -> None:
    """Where no loss is scaled, an optimizer that was not prepared steps by the true gradients, and is not refused."""
    unprepared(precision)


def test_a_batch_may_be_skipped() -> None:
    """None for some of the batches is not an error."""
    fit(net(training_step=lambda self, batch, batch_idx: None if batch_idx else self.loss(batch)))


def test_hooks_may_take_more() -> None:
    """Hooks with defaults, with ``*args`` and with the number of the loader can be called."""
    seen: list[Any] = []
    module = net(
        on_train_epoch_end=lambda self, outputs=None: seen.append("end"),
        on_train_batch_end=lambda self, *arguments: seen.append(len(arguments)),
        on_validation_batch_start=lambda self, batch, batch_idx, dataloader_idx: seen.append(dataloader_idx),
    )
    fit(module, fitting={"val_dataloaders": loader()}, num_sanity_val_steps=0)
    assert seen == [3, 3, 3, 0, 0, 0, "end"]


def test_a_prepared_model_may_come_before_its_optimizer() -> None:
    """Prepared one after another, or an optimizer of a model that was prepared before, is no mistake."""
    run: Runtime = runtime()
    first, second = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    prepared_first = run.prepare(first)
    run.prepare(second, optimizer)
    assert prepared_first is first
    run.teardown()
