"""Training on the cards by name."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_hal_acme.accelerator import AcmeAccelerator

import core.random
from core import Trainer

from .problem import OPTIONS, Classifier, loader, losses_by_hand

_SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.parametrize(
    ("precision", "dtype"), [("32-true", None), ("bf16-mixed", torch.bfloat16), ("16-mixed", torch.float16)]
)
@pytest.mark.parametrize("devices", [1, [1]], ids=str)
def test_one_card_equals_the_cpu(devices: int | list[int], precision: str, dtype: torch.dtype | None) -> None:
    """Parameters and batches live on the card that was asked for; the losses are those of the CPU."""
    module = Classifier()
    trainer = Trainer(accelerator="acme", devices=devices, precision=precision, **OPTIONS)
    trainer.fit(module, loader())
    expected = losses_by_hand(Classifier().net, dtype)
    assert max(abs(a - b) for a, b in zip(module.losses, expected, strict=True)) <= 1e-6
    assert module.seen == {f"acme:{0 if devices == 1 else 1}", str(dtype or torch.float32).removeprefix("torch.")}


def test_memory_is_given_back() -> None:
    """When run and module are gone, so is all that they had on the card; before, the statistics show it."""
    accelerator = AcmeAccelerator()
    gc.collect()
    before = accelerator.get_device_stats("acme:0")
    module = Classifier()
    trainer = Trainer(accelerator="acme", devices=1, **OPTIONS)
    trainer.fit(module, loader())
    during = accelerator.get_device_stats(torch.device("acme:0"))
    assert during["memory_allocated_bytes"] > before["memory_allocated_bytes"]
    assert during["memory_allocated_peak_bytes"] > during["memory_allocated_bytes"]
    assert during["memory_total_bytes"] - during["memory_free_bytes"] == during["memory_allocated_bytes"]
    del trainer, module
    gc.collect()
    assert accelerator.get_device_stats("acme:0")["memory_allocated_bytes"] == before["memory_allocated_bytes"]
    assert before["memory_allocated_bytes"] == 0


def test_random_state() -> None:
    """Every generator's state is taken and put back together with the card's, exactly."""
    accelerator = AcmeAccelerator()
    (device,) = accelerator.get_parallel_devices([1])
    state = core.random.get_rng_state(accelerator, device)
    drawn = torch.rand(4, device=device).tolist(), torch.rand(4).tolist()
    core.random.set_rng_state(state, accelerator, device)
    assert (torch.rand(4, device=device).tolist(), torch.rand(4).tolist()) == drawn


def test_auto_is_acme() -> None:
    """The cards come before the CPU, and before the device-neutral accelerator under their own name."""
    trainer = Trainer(devices=1, **OPTIONS)
    assert trainer.runtime.plan.accelerator.name == "acme"
    assert isinstance(trainer.runtime.strategy.accelerator, AcmeAccelerator)


@pytest.mark.parametrize(
    ("strategy", "precision", "autoload"),
    [
        ("ddp", "32-true", "1"),
        ("ddp", "bf16-mixed", "0"),
        ("ddp_spawn", "32-true", "1"),
        ("ddp_spawn", "32-true", "0"),
        ("ddp_fork", "32-true", "1"),
    ],
)
def test_two_cards_equal_ddp_on_the_cpu(tmp_path: Path, strategy: str, precision: str, autoload: str) -> None:
    """Two processes over ACCL train to the losses of DistributedDataParallel on the CPU, however they are started.

    Where torch is kept from loading the cards' backend, core has it imported, in started processes too.
    """
    done = subprocess.run(
        [sys.executable, str(_SCRIPTS / "two.py"), strategy, precision],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "rank 0 equal" in done.stdout
    assert "rank 1 equal" in done.stdout
