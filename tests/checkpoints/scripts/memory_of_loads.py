"""Loads a run's state of 120 MB in three formats; prints the anonymous memory while it is loaded, and what is mapped.

Run with a directory. One JSON object for each way to load.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from core import Module, Runtime, Trainer
from core.errors import CheckpointError

LAYERS, SIZE = 10, 1000
STATE = 3 * 4 * LAYERS * SIZE * SIZE
FOLDER = Path(sys.argv[1])
peak = 0


def anonymous() -> int:
    return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) * 1024


def note(*_: Any) -> None:
    global peak
    peak = max(peak, anonymous())


class Keeps(torch.optim.Adam):
    """Keeps what it is given, next to what torch takes of it."""

    def load_state_dict(self, state_dict: Any) -> None:
        self.kept = [entries["exp_avg"].detach() for entries in state_dict["state"].values()]
        super().load_state_dict(state_dict)


Keeps.__name__ = "Adam"  # a checkpoint of another optimizer is an error


class Counter(nn.Module):
    """Keeps what it is given in place of copying it, in all ways that torch has."""

    kept: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.ones(50_000))
        self.seen = torch.ones(50_000)
        self.register_load_state_dict_pre_hook(self.keep)  # type: ignore[no-untyped-call]

    def keep(self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        self.kept = state[f"{prefix}count"]

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state, prefix, *rest)
        self.count = state[f"{prefix}count"]

    def get_extra_state(self) -> Any:
        return {"seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]


class Layers(Module):
    optimizer_class: type[torch.optim.Adam] = torch.optim.Adam

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(SIZE, SIZE, bias=False) for _ in range(LAYERS)])
        self.counter = Counter()
        self.register_load_state_dict_post_hook(note)  # type: ignore[no-untyped-call]

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = self.layers(batch).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        self.optimizer = self.optimizer_class(self.parameters())
        self.optimizer.register_load_state_dict_post_hook(note)
        return self.optimizer


class Hooked(Layers):
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.kept = checkpoint["state_dict"]


def values(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [*module.parameters(), *(value for entries in optimizer.state.values() for value in entries.values())]


def measure(name: str, load: Callable[[], Any], current: Callable[[], list[Tensor]], wanted: list[Tensor]) -> None:
    global peak
    before = peak = anonymous()
    kept = load()
    extra = (peak - max(before, anonymous())) / STATE
    maps = Path("/proc/self/maps").read_text().count(str(FOLDER))
    is_equal = all(map(torch.equal, current(), wanted))
    print(json.dumps({"name": name, "extra": extra, "maps": maps, "is_equal": is_equal}))
    del kept


def trainer(**options: Any) -> Trainer:
    return Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, **options)


def of_runtime(io: str) -> None:
    runtime = Runtime(accelerator="cpu", devices=1, checkpoint_io=io)
    module = Layers()
    model, optimizer = runtime.prepare(module, module.configure_optimizers())
    runtime.backward(model.training_step(torch.ones(2, SIZE), 0))
    optimizer.step()
    runtime.save_state(FOLDER / f"{io}-state")
    runtime.save({"model": model, "optimizer": optimizer, "more": {"x": torch.ones(3)}}, FOLDER / f"{io}-parts")

    def current() -> list[Tensor]:
        return values(module, module.optimizer)

    def change() -> None:
        with torch.no_grad():
            for each in current():
                each.add_(1)

    wanted = [each.detach().clone() for each in current()]
    change()
    measure(f"{io} load_state", lambda: runtime.load_state(FOLDER / f"{io}-state"), current, wanted)
    change()
    parts = {"model": model, "optimizer": optimizer}
    measure(f"{io} load", lambda: runtime.load(FOLDER / f"{io}-parts", parts), current, wanted)

    place = max((each for each in (FOLDER / f"{io}-parts", *FOLDER.glob(f"{io}-parts/*")) if each.is_file()), key=_size)
    with place.open("r+b") as file:
        file.seek(place.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    try:
        runtime.load(FOLDER / f"{io}-parts", parts)
    except CheckpointError:
        measure(f"{io} damaged", lambda: None, current, wanted)


def _size(path: Path) -> int:
    return path.stat().st_size


def of_trainer(io: str) -> None:
    module = Layers()
    loader: DataLoader[Any] = DataLoader(torch.ones(2, SIZE))  # type: ignore[arg-type]
    first = trainer(checkpoint_io=io, enable_checkpointing=False)
    first.fit(module, loader)
    path = FOLDER / f"{io}.ckpt"
    first.save_checkpoint(path)
    wanted = [each.detach().clone() for each in values(module, module.optimizer)]
    del module, first
    keeps = type("LayersOfKeeps", (Layers,), {"optimizer_class": Keeps})
    for kind in (Layers, Hooked, keeps):
        resumed = kind()
        fit = trainer(checkpoint_io=io, enable_checkpointing=False)

        def current(module: Any = resumed) -> list[Tensor]:
            return values(module, module.optimizer)

        load = partial(fit.fit, resumed, loader, ckpt_path=path)
        measure(f"{io} fit {kind.__name__}", load, current, wanted)
    made: list[Layers] = []
    measure(
        f"{io} weights",
        lambda: made.append(Layers.load_from_checkpoint(path)),
        lambda: list(made[0].parameters()),
        wanted[:LAYERS],
    )


for each in ("torch", "sharded", "safetensors"):
    of_runtime(each)
    of_trainer(each)
