"""Two replicas on torchft itself, of which one is killed and started again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from python_processes import run_python
from torch import nn
from torch_hal_torchft import TorchFTStrategy

from torch_hal import Runtime
from torch_hal.errors import ConfigurationError, LaunchError

SCRIPT = Path(__file__).parent / "scripts" / "replica.py"
STEPS, KILLED_AT = 60, 10
LIMIT = 150.0


@pytest.fixture(scope="module")
def lighthouse() -> Iterator[str]:
    """Its address."""
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="[::]:0", min_replicas=1, join_timeout_ms=1000, quorum_tick_ms=50, heartbeat_timeout_ms=2000
    )
    yield server.address()
    server.shutdown()


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory, lighthouse: str) -> dict[str, Any]:
    """What the replicas saw: a until the end, b until it was killed, c that was started in its place."""
    out = tmp_path_factory.mktemp("replicas")
    running: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str, *killed_at: int) -> None:
        command = [sys.executable, str(SCRIPT), str(out), name, lighthouse, str(STEPS), *map(str, killed_at)]
        with (out / f"log-{name}").open("wb") as log:
            running[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def wait_until(happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT
        while not happened():
            log = "\n".join((out / f"log-{name}").read_text(errors="replace")[-3000:] for name in running)
            assert time.monotonic() < deadline, log
            time.sleep(0.1)

    try:
        start("a")
        start("b", KILLED_AT)
        wait_until(lambda: running["b"].poll() is not None)
        assert running["b"].returncode == -signal.SIGKILL, (out / "log-b").read_text()
        start("b2")
        wait_until(lambda: all(running[name].poll() is not None for name in ("a", "b2")))
        for name in ("a", "b2"):
            assert running[name].returncode == 0, (out / f"log-{name}").read_text()[-3000:]
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    found = {name: json.loads((out / f"said-{name}").read_text()) for name in ("a", "b2")}
    found["at_death"] = int((out / "at-b").read_text())
    found["saved"] = sorted(int(path.name.partition("=")[2].partition(".")[0]) for path in (out / "saved-a").iterdir())
    return found


def test_the_other_goes_on(said: dict[str, Any]) -> None:
    """The replica that was not killed takes all steps, and each counts once; at most a few calls are left out."""
    assert said["a"]["steps"] == STEPS
    assert sorted(map(int, said["a"]["seen"]))[-STEPS:] == list(range(1, STEPS + 1))
    assert STEPS <= said["a"]["calls"] <= STEPS + 10


def test_it_rejoins_and_heals(said: dict[str, Any]) -> None:
    """The one that was started again, with other weights, begins where the other is, and then has bit for bit its
    weights and learning rate after each step."""
    first = min(map(int, said["b2"]["seen"]))
    assert first > said["at_death"] >= KILLED_AT
    assert said["b2"]["calls"] < STEPS
    both = [step for step in said["b2"]["seen"] if step in said["a"]["seen"]]
    assert len(both) >= 10
    for step in both:
        assert said["b2"]["seen"][step] == said["a"]["seen"][step], step


def test_schedulers_follow_the_steps(said: dict[str, Any]) -> None:
    """The learning rate is the same function of the step in both."""
    for name in ("a", "b2"):
        for step, seen in said[name]["seen"].items():
            assert seen["rate"] == pytest.approx(0.05 * 0.98 ** int(step), rel=1e-6), (name, step)


def test_checkpoints_are_of_steps(said: dict[str, Any]) -> None:
    """Every tenth step has one."""
    assert said["saved"] == list(range(10, STEPS + 1, 10))


def test_one_replica_is_a_plain_loop(lighthouse: str) -> None:
    """Alone, a replica has bit for bit the weights of a plain loop, with accumulation."""
    batches = torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(1)).unbind()

    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(4, 1)

    own, plain = network(), network()
    strategy = TorchFTStrategy(lighthouse=lighthouse, replica_id="alone_0")
    with Runtime(accelerator="cpu", strategy=strategy, gradient_accumulation_steps=2) as runtime:
        model, optimizer = runtime.prepare(own, torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9))
        for batch in batches:
            with runtime.accumulate(model):
                runtime.backward(model(batch).pow(2).mean())
                optimizer.step()
                optimizer.zero_grad()
        assert strategy.global_steps() == 3
    by_hand = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for number, batch in enumerate(batches):
        (plain(batch).pow(2).mean() / 2).backward()
        if number % 2:
            by_hand.step()
            by_hand.zero_grad()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(own.parameters(), plain.parameters(), strict=True))


def test_lighthouse_that_is_not_there() -> None:
    """An address at which no lighthouse is raises a LaunchError that names it."""
    strategy = TorchFTStrategy(lighthouse="http://127.0.0.1:9", timeout=2.0)
    runtime = Runtime(accelerator="cpu", devices=1, strategy=strategy)
    with pytest.raises(LaunchError, match=r"lighthouse='http://127.0.0.1:9' cannot be reached"):
        runtime.launch()


def test_several_optimizers(lighthouse: str) -> None:
    """A second optimizer is refused."""
    net = nn.Linear(2, 1)
    with Runtime(accelerator="cpu", strategy=TorchFTStrategy(lighthouse=lighthouse)) as runtime:
        runtime.prepare(net, torch.optim.SGD([net.weight]))
        with pytest.raises(ConfigurationError, match="steps one optimizer"):
            runtime.prepare(torch.optim.SGD([net.bias]))


def test_it_leaves_nothing_behind(lighthouse: str, tmp_path: Path) -> None:
    """A script that trains a step ends by itself, and leaves no process."""
    code = f"""
import torch
from core import Runtime
from torch_hal_torchft import TorchFTStrategy
with Runtime(accelerator="cpu", strategy=TorchFTStrategy(lighthouse={lighthouse!r})) as runtime:
    net = torch.nn.Linear(2, 1)
    model, optimizer = runtime.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    runtime.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
"""
    run_python("-c", code, cwd=tmp_path, timeout=60, leaves_nothing=True)
