"""Training equals a plain loop of torch bit for bit: on the CPU, and on a GPU where there is one."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve, frozen
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from torch_hal import Module, Runtime, Trainer, find_executable_batch_size, seed_everything

from .problem import OPTIONS

on_gpu = pytest.mark.cuda
ACCELERATORS = ["cpu", pytest.param("cuda", marks=on_gpu)]
PRECISIONS = ["32-true", "bf16-mixed", "16-mixed"]
DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
EPOCHS = 2


def momentum(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer whose steps depend on those before."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@frozen
class Case:
    """How a loop trains."""

    precision: str = "32-true"
    accumulate: int = 1
    clip: float | None = None
    optimizer: Callable[..., torch.optim.Optimizer] = momentum


CASES = {
    "momentum": Case(),
    "clipped": Case(clip=0.1),
    "accumulated": Case(accumulate=3),
    "fused": Case(optimizer=partial(torch.optim.AdamW, fused=True)),
    "all": Case(accumulate=2, clip=0.1, optimizer=torch.optim.AdamW),
}


def make_net() -> nn.Module:
    """The same each time; it draws random numbers on its device, and has running statistics."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 16))


def loader(workers: int = 0, shuffle: bool = False) -> DataLoader[Any]:
    """Six batches, the last of them smaller."""
    inputs = torch.randn(88, 16, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs, inputs.flip(1)), batch_size=16, num_workers=workers, shuffle=shuffle)


def content(net: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, on the CPU."""
    return {name: value.detach().cpu() for name, value in net.state_dict().items()}


def assert_equal(one: tuple[list[float], nn.Module], other: tuple[list[float], nn.Module]) -> None:
    """Losses and nets do not differ in a bit."""
    assert one[0] == other[0]
    theirs = content(other[1])
    for name, value in content(one[1]).items():
        assert torch.equal(value, theirs[name]), name


def by_hand(kind: str, case: Case) -> tuple[list[float], nn.Module]:
    """What a loop of plain torch makes of ``case``."""
    net = make_net().to(kind)
    optimizer = case.optimizer(net.parameters())
    scaler = torch.amp.GradScaler(kind, enabled=case.precision == "16-mixed")
    losses = []
    torch.manual_seed(5)
    for _ in range(EPOCHS):
        batches = list(loader())
        for number, (inputs, targets) in enumerate(batches, start=1):
            with torch.autocast(kind, DTYPES.get(case.precision), enabled=case.precision in DTYPES):
                loss = nn.functional.mse_loss(net(inputs.to(kind)), targets.to(kind))
            scaler.scale(loss / case.accumulate).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.item())
            if number % case.accumulate == 0 or number == len(batches):
                if case.clip is not None:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(net.parameters(), case.clip)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    return losses, net


class Net(Module):
    """Trains `make_net` as a case says."""

    def __init__(self, case: Case = CASES["all"]) -> None:
        super().__init__()
        self.case, self.net, self.losses = case, make_net(), list[float]()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The mean squared error."""
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The case's."""
        return self.case.optimizer(self.net.parameters())


def trainer(kind: str, case: Case, **options: Any) -> Trainer:
    """A Trainer for ``case`` on one device."""
    given = {**OPTIONS, "max_epochs": EPOCHS, "gradient_clip_val": case.clip, **options}
    return Trainer(
        accelerator=kind, devices=1, precision=case.precision, accumulate_grad_batches=case.accumulate, **given
    )


@pytest.mark.parametrize("accelerator", ACCELERATORS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("strategy", ["single_device", "ddp"])
def test_trainer(accelerator: str, precision: str, name: str, strategy: str) -> None:
    """The Trainer, with and without a process group of one."""
    case = evolve(CASES[name], precision=precision)
    module = Net(case)
    torch.manual_seed(5)
    trainer(accelerator, case, strategy=strategy).fit(module, loader())
    assert_equal((module.losses, module.net), by_hand(accelerator, case))


@pytest.mark.parametrize("accelerator", ACCELERATORS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CASES)
def test_runtime(accelerator: str, precision: str, name: str) -> None:
    """A loop on the Runtime, whose batches are copied to the device ahead of time."""
    case = evolve(CASES[name], precision=precision)
    options: dict[str, Any] = {"precision": precision, "gradient_accumulation_steps": case.accumulate}
    with Runtime(accelerator=accelerator, devices=1, **options) as runtime:
        net, losses = make_net(), []
        model, optimizer, batches = runtime.prepare(net, case.optimizer(net.parameters()), loader(workers=2))
        torch.manual_seed(5)
        for _ in range(EPOCHS):
            for inputs, targets in batches:
                with runtime.accumulate(model):
                    loss = nn.functional.mse_loss(model(inputs), targets)
                    losses.append(loss.item())
                    runtime.backward(loss)
                    if case.clip is not None and runtime.sync_gradients:
                        runtime.clip_grad_norm_(model.parameters(), case.clip)
                    optimizer.step()
                    optimizer.zero_grad()
        assert_equal((losses, net), by_hand(accelerator, case))


@pytest.mark.parametrize("accelerator", ACCELERATORS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("checkpoint_io", ["torch", "async", "sharded"])
def test_resume(accelerator: str, precision: str, checkpoint_io: str, tmp_path: Path) -> None:
    """A run that is continued in another process's state draws the same random numbers on the device."""
    case = evolve(CASES["all"], precision=precision)
    runs = []
    for cut in (None, 1):
        module, continued = Net(case), Net(case)
        seed_everything(3)
        options = {"plugins": [checkpoint_io]}
        first = trainer(accelerator, case, max_epochs=cut or 3, **options)
        first.fit(module, loader(workers=2, shuffle=True))
        if cut is None:
            runs.append((module.losses, module.net))
            continue
        first.save_checkpoint(tmp_path / "first.ckpt")
        seed_everything(99)
        again = trainer(accelerator, case, max_epochs=3, **options)
        again.fit(continued, loader(workers=2, shuffle=True), ckpt_path=tmp_path / "first.ckpt")
        runs.append((module.losses + continued.losses, continued.net))
    assert_equal(*runs)


_WITHOUT_GPU = """
import sys
import torch
from tests.test_equality import CASES, Net, loader, trainer
assert not torch.cuda.is_available()
assert torch.load(sys.argv[1], map_location="cpu", weights_only=True)["epoch"] == 2
assert next(Net.load_from_checkpoint(sys.argv[1]).parameters()).device.type == "cpu"
module = Net(CASES["all"])
trainer("cpu", CASES["all"], max_epochs=3).fit(module, loader(), ckpt_path=sys.argv[1])
assert len(module.losses) == 6
"""


@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_a_machine_without_gpus_goes_on(accelerator: str, tmp_path: Path) -> None:
    """A checkpoint of a GPU is read, and continued, where there is none."""
    run = trainer(accelerator, CASES["all"])
    run.fit(Net(), loader())
    run.save_checkpoint(tmp_path / "x.ckpt")
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", _WITHOUT_GPU, str(tmp_path / "x.ckpt")]
    subprocess.run(command, check=True, env=environ, cwd=Path(__file__).parents[1], timeout=300)


@on_gpu
def test_out_of_memory() -> None:
    """A run that takes too much memory raises torch's error; the next one in this process trains as always."""

    class Large(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            _, total = torch.cuda.mem_get_info()
            self.held = torch.empty(2 * total, dtype=torch.uint8, device=self.device)
            return super().training_step(batch, batch_idx)

    with pytest.raises(torch.OutOfMemoryError):
        trainer("cuda", CASES["all"]).fit(Large(), loader())
    gc.collect()
    test_trainer("cuda", "32-true", "all", "single_device")


@on_gpu
def test_a_batch_size_that_fits() -> None:
    """A function is called with nine tenths of the batch size after each error of this kind."""
    _, total = torch.cuda.mem_get_info()

    @find_executable_batch_size(starting_batch_size=4096)
    def train(batch_size: int) -> int:
        torch.empty(total * batch_size // 1900, dtype=torch.uint8, device="cuda")
        return batch_size

    assert train() == 1761  # the next larger of the series is 1957


@on_gpu
def test_recorded_steps() -> None:
    """Steps that torch.compile records as CUDA graphs learn, across runs and a change of the batch's size."""
    module = Net(CASES["momentum"])
    module.net.compile(mode="reduce-overhead")
    for _ in range(2):
        trainer("cuda", CASES["momentum"], max_epochs=4).fit(module, loader())
    assert sum(module.losses[-6:]) < 0.9 * sum(module.losses[:6])
