"""A peer: ``peer.py OUT NAME FRONT_END STEPS [KILLED_AT]``. It joins the peers whose addresses are in OUT/address."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch_hal_hivemind import HivemindStrategy

from torch_hal import Module, Runtime, Trainer, seed_everything
from torch_hal.callbacks import Callback, ModelCheckpoint

OUT, NAME, FRONT_END, STEPS = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
KILLED_AT = int(sys.argv[5]) if len(sys.argv) > 5 else -1
WEIGHTS = torch.tensor([[1.0, -2.0, 3.0, 0.5]])


def batches() -> DataLoader[Any]:
    """This peer's own data, all of one linear function."""
    inputs = torch.randn(8 * 100_000 // 100, 4, generator=torch.Generator().manual_seed(hash(NAME) % 1000))
    return DataLoader(TensorDataset(inputs, inputs @ WEIGHTS.T), batch_size=8)


def write(name: str, content: str) -> None:
    """A file that is there only as a whole."""
    OUT.joinpath(f"{name}.new").write_text(content)
    OUT.joinpath(f"{name}.new").rename(OUT / name)


class Notes(Callback):
    """What the run was like after each call of the optimizer."""

    def __init__(self) -> None:
        self.calls = self.peers = 0
        self.rates: dict[int, float] = {}

    def note(self, step: int, rate: float, strategy: Any) -> None:
        """Called after each call of the optimizer."""
        self.calls += 1
        self.peers = max(self.peers, strategy.num_peers)
        self.rates[step] = rate
        write(f"at-{NAME}", str(step))
        hold("go")
        if step >= 20:
            hold("ready-d")
        if KILLED_AT >= 0 and step >= KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)  # as a real model would take

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Let others join."""
        publish(trainer.strategy)
        write(f"ready-{NAME}", "")

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """See :meth:`note`."""
        self.note(trainer.global_step, trainer.optimizers[0].param_groups[0]["lr"], trainer.strategy)


def hold(name: str) -> None:
    """Wait for what the test, or another peer, writes."""
    while not (OUT / name).exists():
        time.sleep(0.05)


def publish(strategy: Any) -> None:
    """The addresses of the first peer."""
    if not (OUT / "address").exists():
        write("address", json.dumps(strategy.addresses))


class Linear(Module):
    """Its learning rate is a function of the number of steps of all peers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss."""
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        """A rate that falls with each step."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.5)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def strategy() -> HivemindStrategy:
    """Settings of the run."""
    known = json.loads((OUT / "address").read_text()) if (OUT / "address").exists() else []
    return HivemindStrategy(
        run_id="test",
        target_batch_size=48,
        batch_size=8,
        initial_peers=known,
        matchmaking_time=1.5,
        averaging_timeout=6.0,
        delay_state_averaging=False,
    )


def by_trainer(module: Linear, notes: Notes) -> int:
    """The loop is the Trainer's."""
    saving = ModelCheckpoint(str(OUT / f"saved-{NAME}"), every_n_train_steps=5, save_top_k=-1)
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = Trainer(
        accelerator="cpu", strategy=strategy(), max_steps=STEPS, max_epochs=-1, callbacks=[notes, saving], **quiet
    )
    trainer.fit(module, batches())
    return trainer.global_step


def by_runtime(module: Linear, notes: Notes) -> int:
    """A loop of one's own."""
    runtime = Runtime(accelerator="cpu", strategy=strategy())
    options = module.configure_optimizers()
    own = options["lr_scheduler"]["scheduler"]
    model, optimizer, scheduler, loader = runtime.prepare(module, options["optimizer"], own, batches())
    publish(runtime.strategy)
    write(f"ready-{NAME}", "")
    steps = 0
    for batch in loader:
        runtime.backward(nn.functional.mse_loss(model.net(batch[0]), batch[1]))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        assert runtime.optimizer_step_was_skipped == (runtime.strategy.global_steps() == steps)
        steps = runtime.strategy.global_steps()
        notes.note(steps, optimizer.param_groups[0]["lr"], runtime.strategy)
        if steps >= STEPS:
            break
    runtime.teardown()
    return steps


def main() -> None:
    """Train, and say what happened."""
    seed_everything(hash(NAME) % 100)
    module, notes = Linear(), Notes()
    inputs = torch.randn(256, 4, generator=torch.Generator().manual_seed(1))

    def loss() -> float:
        with torch.no_grad():
            return float(nn.functional.mse_loss(module.net(inputs), inputs @ WEIGHTS.T))

    before = loss()
    steps = (by_trainer if FRONT_END == "trainer" else by_runtime)(module, notes)
    said = {
        "steps": steps,
        "calls": notes.calls,
        "peers": notes.peers,
        "rates": notes.rates,
        "before": before,
        "after": loss(),
        "weights": [*module.net.weight.flatten().tolist(), *module.net.bias.tolist()],
    }
    write(f"said-{NAME}", json.dumps(said))


if __name__ == "__main__":
    main()
