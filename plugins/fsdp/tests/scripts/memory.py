"""Loads a state of 200 MB under FSDP on three processes, from one file and from the shards of two processes.

Says of each process the memory that a load takes, as a multiple of its share of the state. While shards are loaded, the
process may allocate 1.5 times its share, which is too little for the whole state.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from problem import OUT, say
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from torch_hal import Runtime
from torch_hal.checkpoints import ShardedCheckpointIO, TorchCheckpointIO
from torch_hal.errors import CheckpointError

PROCESSES, FILE, SHARDS = 3, OUT / "file", OUT / "shards"
LAYERS, SIZE = 10, 1300
SHARE = 3 * 4 * LAYERS * SIZE * SIZE / PROCESSES


class Keeper(nn.Module):
    """Keeps what it is given in place of copying it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(50_000))
        self.seen = torch.zeros(50_000)

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state, prefix, *rest)
        self.count = state[f"{prefix}count"]

    def get_extra_state(self) -> Any:
        return {"seen": self.seen}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SIZE, SIZE, bias=False) for _ in range(LAYERS))
        self.keeper = Keeper()

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def wanted(number: int) -> Tensor:
    """The numbers of one of the state's tensors."""
    return (torch.arange(float(SIZE * SIZE)) + number).view(SIZE, SIZE)


def state_of(tensor: Callable[[int], Tensor]) -> dict[str, Any]:
    """The whole state, as torch has it in one process; ``tensor`` makes one from its number."""
    ones = torch.ones(50_000)
    weights = {f"layers.{index}.weight": tensor(index) for index in range(LAYERS)}
    with torch.device("meta"):
        groups = torch.optim.Adam(Layers().parameters()).state_dict()["param_groups"]
    entries = {
        index: {"step": torch.tensor(7.0), "exp_avg": tensor(20 + index), "exp_avg_sq": tensor(40 + index)}
        for index in range(LAYERS)
    }
    model = {**weights, "keeper.count": ones, "keeper._extra_state": {"seen": ones.clone()}}
    return {"model": model, "optimizer": {"state": entries, "param_groups": groups}}


def write() -> None:
    """Write it into one file, and as the shards of two processes."""
    if rank == 0:
        TorchCheckpointIO().save_checkpoint(state_of(wanted), FILE)
    pair = dist.new_group([0, 1])
    if rank < 2:
        mesh = DeviceMesh.from_group(pair, "cpu")

        def shard(number: int) -> Tensor:
            return DTensor.from_local(wanted(number).chunk(2)[rank].clone(), mesh, [Shard(0)], run_check=False)

        io = ShardedCheckpointIO()
        io.group = pair
        io.save_checkpoint(state_of(shard), SHARDS)


def is_equal(model: Layers, optimizer: torch.optim.Optimizer) -> bool:
    """Whether this process has its shards of the state."""
    keeper, found = model.keeper, []
    layers: list[Any] = list(model.layers)
    for index, layer in enumerate(layers):
        entries = optimizer.state[layer.weight]
        found.append(float(entries["step"]) == 7)
        for number, value in (
            (index, layer.weight),
            (20 + index, entries["exp_avg"]),
            (40 + index, entries["exp_avg_sq"]),
        ):
            own = value.to_local().detach()
            first = -(-SIZE // PROCESSES) * rank
            found.append(torch.equal(own, wanted(number)[first : first + len(own)]) and len(own) > 0)
    return all(found) and bool((keeper.count == 1).all() and (keeper.seen == 1).all())


def kilobytes(key: str) -> int:
    return int(Path("/proc/self/status").read_text().partition(f"{key}:")[2].split()[0])


@contextmanager
def allowed(size: float) -> Iterator[None]:
    """A block in which the process may allocate ``size`` bytes; what it maps of files for reading does not count."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (kilobytes("VmData") * 1024 + int(size), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def main(runtime: Runtime) -> None:
    model = Layers()
    optimizer = torch.optim.Adam(model.parameters())
    prepared = runtime.prepare(model, optimizer)
    parts = dict(zip(("model", "optimizer"), prepared, strict=True))
    runtime.backward(prepared[0](torch.ones(2, SIZE)).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    peaks: list[int] = []
    optimizer.register_load_state_dict_pre_hook(lambda *_: peaks.append(kilobytes("RssAnon")))

    def measured(path: Path, key: str) -> dict[str, Any]:
        with torch.no_grad():
            for value in (
                *model.parameters(),
                *(each for entries in optimizer.state.values() for each in entries.values()),
            ):
                value.zero_()
        nn.init.zeros_(model.keeper.count)
        nn.init.zeros_(model.keeper.seen)
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = kilobytes("RssAnon" if key == "RssAnon" else "VmRSS")
        runtime.load(path, parts)
        extra = (peaks.pop() if key == "RssAnon" else kilobytes(key)) - before
        maps = Path("/proc/self/maps").read_text().count(str(path))
        return {"extra": extra * 1024 / SHARE, "maps": maps, "is_equal": is_equal(model, optimizer)}

    # The file is mapped, so the peak of what is resident has pages of it, which the system can take back.
    said = {"one file": measured(FILE, "RssAnon")}
    runtime.load(SHARDS, parts)  # so that everything is imported
    with allowed(1.5 * SHARE):
        said["shards"] = measured(SHARDS, "VmHWM")
        said["shards"]["whole"] = told(lambda: ShardedCheckpointIO().load_checkpoint(SHARDS))
    say(runtime, {"processes": runtime.gather_object([said])})


def told(function: Callable[[], object]) -> str:
    try:
        function()
    except CheckpointError as error:
        return f"CheckpointError: {error}"
    return "loaded"


torch.set_num_threads(1)
with Runtime(accelerator="cpu", strategy="fsdp", devices=PROCESSES) as run:
    run.launch()
    rank = run.process_index
    write()
    run.wait_for_everyone()
    main(run)
