"""As with_trainer.py, with the module in another form; the form, the strategy, and what to resume from if anything."""

import os
import sys
from pathlib import Path
from typing import Any

from problem import EPOCHS, leave, model, optimizer, shuffled
from torch import Tensor, nn
from torch import distributed as dist

from core import Module, Trainer, seed_everything
from core.callbacks import ModelCheckpoint


class Late(Module):
    """Creates its layers in ``configure_model``."""

    def __init__(self) -> None:
        super().__init__()
        self.model: Any = None

    def configure_model(self) -> None:
        if self.model is None:
            self.model = model()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.model(inputs), targets)

    def configure_optimizers(self) -> Any:
        return optimizer(self)

    def on_fit_end(self) -> None:
        leave(self.model, self.trainer.runtime.process_index)


class Plain(nn.Module):
    """No ``core.Module``."""

    def __init__(self) -> None:
        super().__init__()
        self.model = model()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.model(inputs), targets)

    def configure_optimizers(self) -> Any:
        return optimizer(self)

    def on_fit_end(self) -> None:
        leave(self.model, dist.get_rank())


FORMS = {"late": Late, "plain": Plain}


def main() -> None:
    form, strategy, *resume = sys.argv[1:]
    seed_everything(0)
    module = FORMS[form]()
    trainer = Trainer(
        strategy=strategy,
        devices=2,
        accelerator="cpu",
        max_epochs=EPOCHS,
        enable_progress_bar=False,
        callbacks=ModelCheckpoint(dirpath=Path(os.environ["OUT"]), filename="{epoch}", save_top_k=-1),
        logger=False,
    )
    trainer.fit(module, shuffled(), ckpt_path=resume[0] if resume else None)
    assert trainer.global_step == 50
    leave(module.model, 100)


if __name__ == "__main__":
    main()
