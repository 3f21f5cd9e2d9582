"""What only a GPU can show. Skipped by declaration where there is none; the README says when it last ran, on what."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch_hal_cuda import CUDAAccelerator, detect, find_usable_cuda_devices
from torch_hal_cuda.management import is_installed

from torch_hal import Module, Trainer

from .problem import OPTIONS, Classifier, by_hand, loader

pytestmark = pytest.mark.cuda

PRECISIONS = {"32-true": 1e-3, "bf16-mixed": 3e-2, "16-mixed": 3e-2}
"""By name: how far the first losses may be from those of float32 on the CPU."""


class Transformer(Module):
    """Tells the sign of a sequence's first number, which lies among noise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Linear(8, 64)
        self.position = nn.Parameter(0.02 * torch.randn(1, 16, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 2)
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Cross entropy."""
        inputs, labels = batch
        hidden = self.encoder(self.embedding(inputs) + self.position)
        loss = nn.functional.cross_entropy(self.head(hidden.mean(1)), labels)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def _sequences() -> DataLoader[Any]:
    inputs = torch.randn(512, 16, 8, generator=torch.Generator().manual_seed(1))
    labels = (inputs[:, 0, 0] > 0).long()
    return DataLoader(TensorDataset(inputs, labels), batch_size=32)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_transformer_trains_to_the_cpus_losses(precision: str) -> None:
    """A small transformer learns, to the losses of float32 on the CPU within what the precision can hold."""
    losses = []
    for accelerator, name in (("cpu", "32-true"), ("cuda", precision)):
        module = Transformer()
        Trainer(accelerator=accelerator, devices=1, precision=name, **{**OPTIONS, "max_epochs": 8}).fit(
            module, _sequences()
        )
        losses.append(module.losses)
    assert max(abs(a - b) for a, b in zip(losses[0][:16], losses[1][:16], strict=True)) <= PRECISIONS[precision]
    assert sum(losses[1][-16:]) < 0.7 * sum(losses[1][:16])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_digits(precision: str) -> None:
    """Handwritten digits are learned: over 90 % of those never seen are read rightly."""
    datasets = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn")
    images, labels = datasets.load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    class Digits(Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=3e-3)

    train = DataLoader(TensorDataset(inputs[:1400], targets[:1400]), batch_size=64, shuffle=True)
    Trainer(accelerator="cuda", devices=1, precision=precision, **{**OPTIONS, "max_epochs": 20}).fit(Digits(), train)
    with torch.no_grad():
        right = net.cpu()(inputs[1400:]).argmax(1) == targets[1400:]
    assert right.float().mean() > 0.9


def test_dp_on_the_devices_there_are() -> None:
    """dp trains to the parameters of a plain loop, on as many GPUs as there are."""
    module = Classifier()
    Trainer(accelerator="cuda", strategy="dp", devices="auto", **OPTIONS).fit(module, loader())
    net, _ = by_hand()
    for name, value in net.state_dict().items():
        assert (module.net.state_dict()[name].cpu() - value).abs().max() <= 1e-4, name
    assert {line.split()[0] for line in module.seen} == {f"cuda:{index}" for index in range(detect.count())}


def test_detection_counts_as_torch_does() -> None:
    """Detection finds what CUDA itself finds, under each way of choosing devices."""
    uuids = detect.uuids()
    assert len(uuids) == torch.cuda.device_count()
    choices = ["", "0", "-1", "0,0", "0,99", uuids[0], uuids[0][:12]]
    code = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    for arguments in choices:
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": arguments}
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
        assert detect.count(environ) == int(done.stdout), arguments


def test_asking_leaves_the_process_forkable() -> None:
    """After availability and number were asked, a forked process can use the GPU."""
    code = (
        "import os, torch\n"
        "from torch_hal_cuda import CUDAAccelerator\n"
        "accelerator = CUDAAccelerator()\n"
        "assert accelerator.is_available() and accelerator.auto_device_count()\n"
        "assert accelerator.fork_unsafe_reason() is None\n"
        "child = os.fork()\n"
        "if not child: os._exit(int(torch.ones(1, device='cuda:0').item()) + 6)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.skipif(not is_installed(), reason="needs nvidia-ml-py, of the extra 'stats'")
def test_statistics_are_nvmls() -> None:
    """Statistics are those that the management library gives for the same GPU, and in its units."""
    pynvml: Any = importlib.import_module("pynvml")
    accelerator = CUDAAccelerator()
    device = torch.device("cuda:0")
    accelerator.setup_device(device)
    held = torch.ones(64, 2**20, device=device)
    stats = accelerator.get_device_stats(device)
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    assert stats["memory_allocated_bytes"] >= held.nbytes
    assert stats["memory_used_bytes"] >= held.nbytes
    assert abs(stats["memory_total_bytes"] - memory.total) <= 0.05 * memory.total
    assert abs(stats["temperature_celsius"] - pynvml.nvmlDeviceGetTemperature(handle, 0)) <= 10
    assert 0 <= stats["utilization_percent"] <= 100
    assert 1 <= stats["power_watts"] <= 2000
    accelerator.teardown()


@pytest.mark.skipif(not is_installed(), reason="needs nvidia-ml-py, of the extra 'stats'")
def test_an_occupied_gpu_is_not_picked() -> None:
    """A GPU on which another process holds memory is not among those picked."""
    free = find_usable_cuda_devices()
    code = (
        f"import sys, torch; held = torch.ones(1, device='cuda:{free[0]}'); print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        if len(free) == 1:
            with pytest.raises(ValueError, match="in use by process"):
                find_usable_cuda_devices(1)
        else:
            assert free[0] not in find_usable_cuda_devices()
    finally:
        other.communicate()


def test_memory_is_given_back() -> None:
    """When run and module are gone, so is all that tensors held on the GPU."""
    gc.collect()
    before = torch.cuda.memory_allocated(0)
    module = Transformer()
    trainer = Trainer(accelerator="cuda", devices=1, **OPTIONS)
    trainer.fit(module, _sequences())
    assert torch.cuda.memory_allocated(0) > before
    del module, trainer
    gc.collect()
    assert torch.cuda.memory_allocated(0) == before


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_tf32_is_used_where_allowed(precision: str, tmp_path: Path) -> None:
    """Products of float32 matrices lose digits with "high" on GPUs that have TF32, and not with "highest"."""
    accelerator = CUDAAccelerator(float32_matmul_precision=precision)
    accelerator.setup_device(torch.device("cuda:0"))
    try:
        one = torch.randn(512, 512, generator=torch.Generator().manual_seed(0))
        product = (one.cuda() @ one.cuda()).cpu().double()
        error = (product - one.double() @ one.double()).abs().max().item()
        has_tf32 = torch.version.hip is None and torch.cuda.get_device_capability(0) >= (8, 0)
        assert (error > 1e-3) == (precision == "high" and has_tf32)
    finally:
        accelerator.teardown()
