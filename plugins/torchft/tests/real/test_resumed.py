"""All replicas are killed, and started again from their checkpoints; and the conformance kit."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch_hal_devkit import check_backends

from torch_hal.specs import StrategySpec

from .scripts.problem import Linear, loader_of

SCRIPT = Path(__file__).parent / "scripts" / "resumed.py"
STEPS, KILLED_AT, SAVED_AT = 20, 13, 10


@contextmanager
def lighthouse(replicas: int) -> Iterator[str]:
    """Its address."""
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="[::]:0", min_replicas=replicas, join_timeout_ms=100, quorum_tick_ms=20, heartbeat_timeout_ms=400
    )
    try:
        yield server.address()
    finally:
        server.shutdown()


def run_both(out: Path, killed_at: int, *checkpoints: Path) -> list[int]:
    """Run two replicas; the second is killed as soon as the first was. Returns the exit codes."""
    running: list[subprocess.Popen[bytes]] = []
    with lighthouse(2) as address:
        try:
            for number in range(2):
                arguments = [
                    str(out),
                    str(number),
                    address,
                    str(STEPS),
                    str(killed_at),
                    *map(str, checkpoints[number : number + 1]),
                ]
                with (out / f"log-{number}").open("wb") as log:
                    command = [sys.executable, str(SCRIPT), *arguments]
                    running.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
            if running[0].wait(120) != 0:
                running[1].kill()
            return [process.wait(120) for process in running]
        finally:
            for process in running:
                process.kill()
                process.wait()


def by_hand() -> dict[int, list[torch.Tensor]]:
    """The weights after each step: both replicas' gradients are averaged."""
    module = Linear()
    settings = module.configure_optimizers()
    optimizer, scheduler = settings["optimizer"], settings["lr_scheduler"]["scheduler"]
    batches = [list(loader_of(number)) for number in range(2)]
    weights = {}
    for step in range(STEPS):
        gradients: list[Any] = []
        for own in batches:
            inputs, targets = own[step % len(own)]
            gradients.append(torch.autograd.grad(mse_loss(module.net(inputs), targets), list(module.parameters())))
        for parameter, first, second in zip(module.parameters(), *gradients, strict=True):
            parameter.grad = (first + second) / 2
        optimizer.step()
        scheduler.step()
        weights[step + 1] = [parameter.detach().clone() for parameter in module.parameters()]
    return weights


def test_all_are_killed(tmp_path: Path) -> None:
    """Replicas that go on from their checkpoints have bit for bit the weights of a run by hand that was not killed."""
    assert run_both(tmp_path, KILLED_AT) == [-signal.SIGKILL] * 2, (tmp_path / "log-0").read_text()[-3000:]
    saved = [tmp_path / f"saved-{number}" / f"step={SAVED_AT}.ckpt" for number in range(2)]
    assert run_both(tmp_path, -1, *saved) == [0, 0], (tmp_path / "log-0").read_text()[-3000:]
    expected = by_hand()
    for number in range(2):
        found = torch.load(tmp_path / f"weights-{number}")
        assert [*found] == [*range(SAVED_AT + 1, STEPS + 1)]
        for step, weights in found.items():
            assert all(torch.equal(a, b) for a, b in zip(weights, expected[step], strict=True)), (number, step)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_it_passes_the_kit(tmp_path: Path) -> None:
    """One replica does all that a strategy of one process does."""
    with lighthouse(1) as address:
        spec = StrategySpec(
            name="alone",
            target="torch_hal_torchft.strategy:TorchFTStrategy",
            description="of these tests",
            init_args={"lighthouse": address},
        )
        known = f"--expected-failures={Path(__file__).with_name('expected-failures.toml')}"
        check_backends("strategy:alone", folder=tmp_path, options=[known], specs=[spec], min_passed=90)
