"""One run of `startup.py`: imports a front end, makes one optimizer step, and says when each was done.

The times are seconds since the process was started, which the environment variable ``STARTED`` has. Everything that is
not needed by the front end is imported by none.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any


def since_start() -> float:
    """Seconds since `startup.py` started this run."""
    return time.time() - float(os.environ["STARTED"])


def main(name: str, devices: int) -> None:
    """Train one step on ``devices`` processes; process 0 prints the times."""
    times: dict[str, Any] = {}
    done = STEPS[name](devices, lambda: times.setdefault("imported", since_start()))
    times["stepped"] = since_start()
    if done:
        print(*(f"{key}={value}" for key, value in times.items()), flush=True)


def network() -> Any:
    import torch

    model = torch.nn.Linear(8, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(4, 8)


def plain(devices: int, imported: Any) -> bool:
    """By hand; started by torchrun if there are two processes."""
    import torch

    imported()
    model, optimizer, inputs = network()
    if devices == 1:
        model(inputs).sum().backward()
        optimizer.step()
        return True
    torch.distributed.init_process_group("gloo")
    torch.nn.parallel.DistributedDataParallel(model)(inputs).sum().backward()
    optimizer.step()
    is_first = torch.distributed.get_rank() == 0
    torch.distributed.destroy_process_group()
    return is_first


def nothing(devices: int, imported: Any) -> bool:
    """Python and torch alone: what everything below contains."""
    import torch  # noqa: F401

    imported()
    return True


def runtime(devices: int, imported: Any) -> bool:
    from core import Runtime

    imported()
    front = Runtime(accelerator="cpu", devices=devices)
    front.launch()
    model, optimizer, inputs = network()
    model, optimizer = front.prepare(model, optimizer)
    front.backward(model(inputs).sum())
    optimizer.step()
    return front.is_main_process


def trainer(devices: int, imported: Any, strategy: str = "auto") -> bool:
    from core import Module, Trainer

    imported()
    chosen: Any = {"accelerator": "cpu", "devices": devices, "strategy": strategy}
    run = Trainer(**chosen, max_epochs=1, logger=False, enable_checkpointing=False, **QUIET)
    run.fit(small(Module)(), loader())
    return run.is_global_zero


def forked(devices: int, imported: Any) -> bool:
    return trainer(devices, imported, "ddp_fork")


def accelerate(devices: int, imported: Any) -> bool:
    """Accelerate; started by torchrun if there are two processes."""
    from accelerate import Accelerator

    imported()
    front = Accelerator(cpu=True)
    model, optimizer, inputs = network()
    model, optimizer = front.prepare(model, optimizer)
    front.backward(model(inputs).sum())
    optimizer.step()
    return bool(front.is_main_process)


def fabric(devices: int, imported: Any) -> bool:
    from lightning.fabric import Fabric

    imported()
    front = Fabric(accelerator="cpu", devices=devices)
    front.launch()
    model, optimizer, inputs = network()
    model, optimizer = front.setup(model, optimizer)
    front.backward(model(inputs).sum())
    optimizer.step()
    return bool(front.is_global_zero)


def lightning(devices: int, imported: Any) -> bool:
    from lightning.pytorch import LightningModule, Trainer

    imported()
    run = Trainer(accelerator="cpu", devices=devices, max_epochs=1, logger=False, enable_checkpointing=False, **QUIET)
    run.fit(small(LightningModule)(), loader())
    return bool(run.is_global_zero)


def loader() -> Any:
    """Eight rows."""
    import torch

    rows: Any = torch.ones(8, 8)
    return torch.utils.data.DataLoader(rows, batch_size=4)


QUIET: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False}


def small(base: Any) -> Any:
    import torch

    class Net(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Net


STEPS = {
    "torch": nothing,
    "by hand": plain,
    "Runtime": runtime,
    "Trainer": trainer,
    "ddp_fork": forked,
    "Accelerate": accelerate,
    "Fabric": fabric,
    "Lightning": lightning,
}

if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
