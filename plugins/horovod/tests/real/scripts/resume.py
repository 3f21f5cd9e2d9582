"""``python resume.py FOLDER EPOCHS [CHECKPOINT]``: trains so many epochs in all, and keeps what came of it."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from problem import Classifier, custom_loop, flat, loader, net

from torch_hal import Module, Runtime, Trainer, seed_everything
from torch_hal.callbacks import Callback

folder, epochs, *checkpoint = Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
seed_everything(3)


class Keep(Callback):
    """Writes a checkpoint at the end of each epoch."""

    def on_train_epoch_end(self, trainer: Trainer, module: Module) -> None:
        """See the base class."""
        trainer.save_checkpoint(folder / f"epoch {trainer.current_epoch}")


trainer = Trainer(
    accelerator="cpu",
    strategy="horovod",
    devices=2,
    precision="16-mixed",
    max_epochs=epochs,
    enable_progress_bar=False,
    enable_checkpointing=False,
    logger=False,
    callbacks=[Keep()],
)
module = Classifier()
trainer.fit(module, loader(shuffle=True), ckpt_path=checkpoint[0] if checkpoint else None)
with trainer.runtime as runtime:
    if runtime.is_main_process:
        torch.save({"parameters": flat(module), "losses": torch.stack(module.losses)}, folder / "result.pt")
    runtime.barrier()

with Runtime(accelerator="cpu", strategy="horovod", devices=2) as runtime:
    written = folder / "runtime"
    if not checkpoint:
        model = net(0)
        runtime.save({"model": runtime.prepare(model), "note": "kept"}, written)
    else:
        model = runtime.prepare(net(runtime.process_index + 1))
        assert runtime.load(Path(checkpoint[0]).with_name("runtime"), {"model": model}) == {"note": "kept"}
        assert torch.equal(flat(runtime.unwrap_model(model)), flat(net(0)))
    custom_loop(runtime, epochs=1)
