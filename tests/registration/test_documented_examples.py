"""The examples of the documents that describe this system hold as they are written there."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer
from core.errors import ConfigurationError
from core.strategies import CheckpointIO, DDPStrategy, StrategyRegistry


class Small(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class CustomCheckpointIO(CheckpointIO):
    """Of two methods with the fewest arguments; it makes no folder."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any) -> None:  # type: ignore[override]
        torch.save(checkpoint, path)

    def load_checkpoint(self, path: Any) -> dict[str, Any]:  # type: ignore[override]
        loaded: dict[str, Any] = torch.load(path)
        return loaded


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
    """What it sets as ``self.model`` wraps the module, and can be read while the Trainer keeps the run."""
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
    assert type(strategy.model) is Wrapped
    del trainer
    gc.collect()
    with pytest.raises(ConfigurationError, match=r"strategy\.model: there is none\. Read it"):
        _ = strategy.model
