"""Two processes, with and without compile, with batch norm over both or not; each leaves its parameters."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from core import Module, Trainer


class Normalized(Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        self.traced = False

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        if torch.compiler.is_compiling():
            self.traced = True
        loss: Tensor = self.network(batch).square().mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    torch.manual_seed(1)
    data: Any = torch.utils.data.DataLoader(torch.randn(44, 6), batch_size=4)  # type: ignore[arg-type]
    compiled = {"backend": "aot_eager"}
    runs: dict[str, Any] = {
        "eager": (None, True),
        "compiled": (compiled, True),
        "eager_apart": (None, False),
        "compiled_apart": (compiled, False),
    }
    for name, (options, synchronizes) in runs.items():
        torch.compiler.reset()
        module = Normalized()
        trainer = Trainer(
            strategy="ddp",
            devices=2,
            accelerator="cpu",
            max_epochs=2,
            sync_batchnorm=synchronizes,
            compile=options,
            enable_progress_bar=False,
            enable_checkpointing=False,
            logger=False,
        )
        trainer.fit(module, data)
        assert module.traced == (options is not None)
        torch.save(module.state_dict(), Path(os.environ["OUT"]) / f"{name}{trainer.global_rank}.pt")


if __name__ == "__main__":
    main()
