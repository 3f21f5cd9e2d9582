"""What the document on strategies says, in its order.

Strategies and accelerators of plugins are in the tests of these plugins.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import AcceleratorRegistry, Callback, Module, Runtime, Trainer
from core.accelerators import CPUAccelerator
from core.callbacks import ModelCheckpoint
from core.errors import ConfigurationError, UnknownNameError
from core.hints.remedies import remedies
from core.precisions import MixedPrecision
from core.strategies import CheckpointIO, DDPStrategy, SingleDeviceStrategy, StrategyRegistry

from .test_gpu_guide import Small

METHODS = (
    *("launch", "setup_environment", "init_dist_connection", "setup", "setup_module", "configure_ddp", "unwrap_module"),
    *(
        "inference_module",
        "setup_optimizers",
        "backward",
        "optimizer_step",
        "clip_gradients",
        "no_sync",
        "training_step",
    ),
    *("broadcast", "all_gather_object", "module_state", "load_module_state"),
    *("optimizer_state", "load_optimizer_state", "save_checkpoint", "load_checkpoint", "remove_checkpoint", "teardown"),
)
"""Of a DDPStrategy, those that are called on one process too."""


class CustomCheckpointIO(CheckpointIO):
    """Of two methods with the fewest arguments; it makes no folder."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any) -> None:  # type: ignore[override]
        torch.save(checkpoint, path)

    def load_checkpoint(self, path: Any) -> dict[str, Any]:  # type: ignore[override]
        loaded: dict[str, Any] = torch.load(path)
        return loaded


def train(module: Module | None = None, **arguments: Any) -> Trainer:
    """A short fit on the CPU, on one process unless ``arguments`` say otherwise."""
    defaults = {"accelerator": "cpu", "devices": 1, "max_steps": 1, "logger": False, "enable_checkpointing": False}
    trainer = Trainer(**{**defaults, "enable_progress_bar": False, **arguments})
    trainer.fit(module or Small(), DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=4))
    return trainer


@pytest.mark.parametrize(
    "strategy", ["ddp", "ddp_spawn", DDPStrategy(static_graph=True)], ids=["name", "spawn", "object"]
)
def test_a_strategy_by_name_or_with_options(strategy: Any) -> None:
    """With three devices each has three processes; only the object has further options."""
    trainer = Trainer(strategy=strategy, accelerator="cpu", devices=3)
    assert trainer.world_size == 3
    assert type(trainer.strategy) is DDPStrategy
    options = trainer.strategy.ddp_kwargs
    assert options == ({} if isinstance(strategy, str) else {"static_graph": True})


def test_a_strategy_owns_the_module_the_optimizers_and_the_schedulers() -> None:
    """Or says which they are: in ``setup`` it has the accelerator and the plugins, in hooks the rest too."""
    seen: dict[str, Any] = {}

    class WithScheduler(Small):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

        def on_train_start(self) -> None:
            strategy = self.trainer.strategy
            seen["module"], seen["optimizers"] = strategy.lightning_module, strategy.optimizers
            seen["schedulers"] = [config.scheduler for config in strategy.lr_scheduler_configs]

    class CustomDDPStrategy(DDPStrategy):
        def setup(self, trainer: Any) -> None:
            seen["setup"] = type(self.accelerator), self.precision_plugin is self.precision, self.lightning_module
            super().setup(trainer)

    strategy = CustomDDPStrategy()
    assert strategy.lightning_module is None
    assert strategy.optimizers == strategy.lr_scheduler_configs == []
    module = WithScheduler()
    trainer = train(module, strategy=strategy)
    assert seen["setup"] == (CPUAccelerator, True, module)
    assert seen["module"] is module
    assert seen["optimizers"] == trainer.optimizers
    assert [type(each) for each in seen["schedulers"]] == [torch.optim.lr_scheduler.StepLR]


def test_a_strategy_with_parts() -> None:
    """Its accelerator and its precision are those that it was made with."""
    accelerator, precision = CPUAccelerator(), MixedPrecision("bfloat16")
    strategy = DDPStrategy(accelerator=accelerator, precision_plugin=precision)
    trainer = train(accelerator="auto", strategy=strategy)
    assert trainer.strategy is strategy
    assert strategy.accelerator is trainer.accelerator is accelerator
    assert strategy.precision_plugin is trainer.precision_plugin is precision


def test_the_registry_says_what_is_registered() -> None:
    """The class, the description and the parameters of core's, a plugin's or the script's own; and it makes objects."""
    StrategyRegistry.register("mine", DDPStrategy, description="DDP with small buckets", bucket_cap_mb=3)
    assert StrategyRegistry["mine"] == {
        "strategy": DDPStrategy,
        "description": "DDP with small buckets",
        "init_params": {"bucket_cap_mb": 3},
    }
    made = StrategyRegistry.get("mine")
    assert type(made) is DDPStrategy
    assert made.ddp_kwargs == {"bucket_cap_mb": 3}
    assert StrategyRegistry["ddp"]["strategy"] is DDPStrategy
    assert StrategyRegistry["ddp"]["description"]
    assert {"ddp", "ddp_spawn", "mine"} <= {*StrategyRegistry.available_strategies()}
    assert StrategyRegistry.get("ddp_", "absent") == "absent"
    with pytest.raises(UnknownNameError, match=r"strategy='ddp_'.* Did you mean 'ddp'"):
        StrategyRegistry["ddp_"]
    assert AcceleratorRegistry.get("cpu").is_available()


def test_a_registered_strategy_with_its_own_checkpoint_io(tmp_path: Path) -> None:
    """It is used by name, writes into folders that do not exist yet, and a run resumes from what it wrote."""
    StrategyRegistry.register(
        "ddp_custom_checkpoint_io",
        DDPStrategy,
        description="DDP Strategy with custom checkpoint io plugin",
        checkpoint_io=CustomCheckpointIO(),
    )
    try:
        module, loader = Small(), DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=4)
        options: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "strategy": "ddp_custom_checkpoint_io"}
        options |= {"default_root_dir": tmp_path / "new" / "folder", "enable_progress_bar": False}
        Trainer(max_epochs=2, **options).fit(module, loader)
        resumed, trainer = Small(), Trainer(max_epochs=2, **options)
        assert trainer.checkpoint_callback is not None
        written = sorted((tmp_path / "new" / "folder").rglob("epoch=*"))
        assert [path.name for path in written] == ["epoch=1-step=4.ckpt"]
        assert all(path.is_file() for path in written)
        trainer.fit(resumed, loader, ckpt_path=written[-1])
        assert torch.equal(resumed.layer.weight, module.layer.weight)
        assert trainer.global_step == 4
    finally:
        StrategyRegistry.remove("ddp_custom_checkpoint_io")


def test_a_configure_ddp_that_sets_the_model() -> None:
    """What it sets as ``self.model`` wraps the module, and can be read until the end of the run, which forgets it."""
    found = []

    class Look(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            found.append(type(strategy.model))

    class Wrapped(nn.parallel.DistributedDataParallel):
        pass

    class CustomDDPStrategy(DDPStrategy):
        def configure_ddp(self) -> None:
            self.model = Wrapped(self.model)

    strategy = CustomDDPStrategy()
    trainer = Trainer(
        accelerator="cpu", strategy=strategy, max_steps=1, enable_checkpointing=False, logger=False, callbacks=Look()
    )
    trainer.fit(Small(), DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=4))
    assert found == [Wrapped]
    with pytest.raises(ConfigurationError, match=r"strategy\.model: there is none\. Read it"):
        _ = strategy.model


@pytest.mark.parametrize("base", [DDPStrategy, SingleDeviceStrategy])
@pytest.mark.parametrize("name", remedies("methods", ["Strategy"]))
def test_a_method_that_nothing_calls(name: str, base: type[Any]) -> None:
    """A strategy that defines it is refused by both front ends, with what to define instead."""
    strategy = type("Custom", (base,), {name: lambda self: None})
    remedy = re.escape(remedies("methods", ["Strategy"])[name])
    for front in (Trainer, Runtime):
        with pytest.raises(ConfigurationError, match=f"Custom defines '{name}'.* {remedy}"):
            front(accelerator="cpu", devices=1, strategy=strategy())


def test_every_method_that_a_strategy_may_define_is_called(tmp_path: Path) -> None:
    """Of the custom strategy of the documents: in a fit with validation and checkpoints, and in one that resumes."""
    called: set[str] = set()

    def noting(name: str) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            called.add(name)
            return getattr(super(Custom, self), name)(*args, **kwargs)

        return method

    own = {name: noting(name) for name in METHODS}
    Custom: Any = type("Custom", (DDPStrategy,), own)  # noqa: N806  # a class
    for path in (None, "last"):
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            strategy=Custom(),
            max_epochs=2 if path is None else 3,
            gradient_clip_val=1.0,
            accumulate_grad_batches=2,
            default_root_dir=tmp_path,
            callbacks=ModelCheckpoint(tmp_path / "saved"),
            enable_progress_bar=False,
            logger=False,
        )
        module, loader = Small(), DataLoader(TensorDataset(torch.randn(16, 2)), batch_size=4)
        module.validation_step = lambda batch, batch_idx: None  # type: ignore[method-assign]
        trainer.fit(module, loader, loader, ckpt_path=path)
    assert {*METHODS} - called == set()
