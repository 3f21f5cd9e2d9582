"""The same through the Trainer; the strategy's name is the first argument."""

import sys
from typing import Any

from problem import EPOCHS, leave, model, optimizer, shuffled
from torch import Tensor, nn

from core import Module, Trainer, seed_everything


class Regression(Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = model()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.model(inputs), targets)

    def configure_optimizers(self) -> Any:
        return optimizer(self)

    def on_fit_end(self) -> None:
        leave(self.model, self.trainer.runtime.process_index)


def main() -> None:
    seed_everything(0)
    module = Regression()
    trainer = Trainer(
        strategy=sys.argv[1],
        devices=2,
        accelerator="cpu",
        max_epochs=EPOCHS,
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(module, shuffled())
    assert trainer.global_step == 50
    # Whatever started the processes, the one that asked has the trained parameters.
    leave(module.model, 100 + trainer.runtime.process_index)


if __name__ == "__main__":
    main()
