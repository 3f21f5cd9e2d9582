"""Time of a training step on a slow network: four machines as network namespaces on one bridge, each link limited.

    python benchmarks/slow_network.py --rate 100mbit --markdown table.md --png figure.png
    python benchmarks/slow_network.py --rate none --markdown table.md

Needs root and iproute2; matplotlib for ``--png``. All it sets up lies in its own namespaces, deleted at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

MACHINES = 4
PORT = 29500
SECONDS = 1200
RUNS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp, Adam": {},
    "gradient_allreduce": {"algorithm": "gradient_allreduce"},
    "bytegrad": {"algorithm": "bytegrad"},
    "decentralized (all)": {"algorithm": "decentralized"},
    "decentralized (shift_one)": {"algorithm": "decentralized", "peer_selection_mode": "shift_one"},
    "low_precision_decentralized": {"algorithm": "low_precision_decentralized"},
    "async": {"algorithm": "async"},
    "qadam": {"algorithm": "qadam"},
}


# -- the network -----------------------------------------------------------------------------------------------------


def _ip(*options: str) -> None:
    subprocess.run(["ip", *options], check=True)


@contextmanager
def network(rate: str) -> Iterator[list[str]]:
    """Machines on one bridge; yields the names of their namespaces.

    Args:
        rate: Of each link in each direction, as ``tc`` takes it; ``"none"`` for no limit.
    """
    prefix = f"bagua{os.getpid()}"
    hub, machines = f"{prefix}hub", [f"{prefix}m{number}" for number in range(MACHINES)]
    try:
        for name in (hub, *machines):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for number, name in enumerate(machines):
            port = f"port{number}"
            _ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", hub, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            if rate != "none":
                limit = ("root", "tbf", "rate", rate, "burst", "64kb", "latency", "100ms")
                subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "eth0", *limit], check=True)
                subprocess.run(["tc", "-n", hub, "qdisc", "add", "dev", port, *limit], check=True)
        yield machines
    finally:
        for name in (hub, *machines):
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def measure(rate: str, steps: int, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Run one process on each machine; returns what rank 0 measured."""
    with network(rate) as machines, tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "results.json"
        processes = []
        for rank, name in enumerate(machines):
            variables = {
                "RANK": rank,
                "WORLD_SIZE": MACHINES,
                "LOCAL_RANK": 0,
                "LOCAL_WORLD_SIZE": 1,
                "GROUP_RANK": rank,
                "MASTER_ADDR": "10.77.0.1",
                "MASTER_PORT": PORT,
                "GLOO_SOCKET_IFNAME": "eth0",
                "OMP_NUM_THREADS": 1,
            }
            command = [sys.executable, __file__, "--worker", str(out), "--steps", str(steps), "--runs", *names]
            processes.append(
                subprocess.Popen(
                    # Not ip netns exec, which mounts another /sys.
                    ["nsenter", f"--net=/var/run/netns/{name}", *command],
                    env=os.environ | {key: str(value) for key, value in variables.items()},
                )
            )
        try:
            codes = [process.wait(SECONDS) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if any(codes):
            raise SystemExit(f"the processes ended with {codes}")
        results: dict[str, dict[str, float]] = json.loads(out.read_text())
        return results


# -- one process -----------------------------------------------------------------------------------------------------


def _bytes_sent() -> int:
    for line in Path("/proc/net/dev").read_text().splitlines():
        interface, _, numbers = line.partition(":")
        if interface.strip() == "eth0":
            return int(numbers.split()[8])
    raise SystemExit("no interface eth0")


def work(out: Path, steps: int, names: Sequence[str]) -> None:
    """Time every run in this process."""
    results = {}
    for name in names:
        results[name] = _timed(name, steps)
        if os.environ["RANK"] == "0":
            print(f"{name}: {results[name]}", flush=True)  # noqa: T201  a script
    if os.environ["RANK"] == "0":
        out.write_text(json.dumps(results))


@contextmanager
def _watched_rounding() -> Iterator[list[float]]:
    """Seconds that each call took, in any thread, which works out bytes to send or what they stand for."""
    byte_grad = import_module("torch_hal_bagua.algorithms.bytegrad")
    ring = import_module("torch_hal_bagua.algorithms.low_precision_decentralized")
    took: list[float] = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                took.append(time.perf_counter() - begin)

        return call

    places = [(byte_grad, "quantize"), (byte_grad, "dequantize"), (ring, "dequantize")]
    places += [(ring._Known, "message"), (ring._Known, "advance")]
    with ExitStack() as stack:
        for owner, name in places:
            stack.enter_context(patch.object(owner, name, watched(getattr(owner, name))))
        yield took


def _compared(name: str) -> str:
    """Which run of DistributedDataParallel a run is compared with: the one whose optimizer does as much."""
    return "ddp, Adam" if name == "qadam" else "ddp"


def _timed(name: str, steps: int) -> dict[str, float]:
    import torch
    from torch import nn
    from torch_hal_bagua import BaguaStrategy, QAdamOptimizer

    from torch_hal import Runtime
    from torch_hal.strategies import DDPStrategy

    options = RUNS[name]
    strategy = BaguaStrategy(**options) if options else DDPStrategy(bucket_cap_mb=10)
    with Runtime(accelerator="cpu", devices=1, num_nodes=MACHINES, strategy=strategy) as runtime:
        torch.manual_seed(0)
        own = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2560))
        optimizers: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
            "qadam": partial(QAdamOptimizer, warmup_steps=1),
            "ddp, Adam": torch.optim.Adam,
        }
        optimizer: Any = optimizers.get(name, partial(torch.optim.SGD, lr=0.01))(own.parameters())
        parameters = sum(parameter.numel() for parameter in own.parameters())
        model, optimizer = runtime.prepare(own, optimizer)
        generator = torch.Generator().manual_seed(runtime.process_index)
        inputs, targets = torch.randn(8, 512, generator=generator), torch.randn(8, 2560, generator=generator)

        def step() -> None:
            runtime.backward(nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(2):
            step()
        is_async = options.get("algorithm") == "async"
        runtime.barrier()
        sent, seconds = _bytes_sent(), []
        with _watched_rounding() as rounding:
            for _ in range(steps * (50 if is_async else 1)):
                begin = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - begin)
        runtime.barrier()
        return {
            "milliseconds": median(seconds) * 1000,
            "fastest": min(seconds) * 1000,
            "rounding": sum(rounding) / len(seconds) * 1000,
            "megabytes": (_bytes_sent() - sent) / len(seconds) / 1e6,
            "parameters": parameters,
        }


# -- what is written -------------------------------------------------------------------------------------------------


def table(results: dict[str, dict[str, float]], rate: str) -> str:
    """The results as Markdown."""
    millions = next(iter(results.values()))["parameters"] / 1e6
    lines = [
        f"{MACHINES} machines, {millions:.1f} million float32 parameters, link rate {rate}:",
        "",
        "| algorithm | ms a step, median | fastest | of it rounding, mean | beyond DDP, median | MB sent a step "
        "| times faster than DDP, median | fastest |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in results.items():
        base, middle, fastest = results[_compared(name)], row["milliseconds"], row["fastest"]
        lines.append(
            f"| {name} | {middle:.0f} | {fastest:.0f} | {row['rounding']:.0f} | {middle - base['milliseconds']:+.0f} "
            f"| {row['megabytes']:.1f} "
            f"| {base['milliseconds'] / middle:.2f} | {base['fastest'] / fastest:.2f} |"
        )
    return "\n".join(lines) + "\n"


def draw(results: dict[str, dict[str, float]], rate: str, path: Path) -> None:
    """The results as a figure."""
    # Only here, and only where it is asked for.
    import_module("matplotlib").use("Agg")
    pyplot = import_module("matplotlib.pyplot")
    names = list(results)[::-1]
    figure, axes = pyplot.subplots(figsize=(8, 3.6))
    bars = axes.barh(names, [results[name]["milliseconds"] for name in names], color="#4477aa")
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.set_xlabel(f"milliseconds a step, {MACHINES} machines, link rate {rate}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.1)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rate", default="100mbit", help="of each link, as tc takes it; none for no limit")
    parser.add_argument("--steps", type=int, default=5, help="steps that are timed")
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS), metavar="RUN")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--png", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.steps, arguments.runs)
        return
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "nsenter"))):
        raise SystemExit("needs root, and ip, tc and nsenter")
    if arguments.png and find_spec("matplotlib") is None:  # now, and not after minutes of measuring
        raise SystemExit("--png: needs matplotlib, which is not installed")
    results = measure(
        arguments.rate, arguments.steps, list(dict.fromkeys([*map(_compared, arguments.runs), *arguments.runs]))
    )
    text = table(results, arguments.rate)
    print(text)  # noqa: T201  a script
    if arguments.markdown:
        arguments.markdown.write_text(text)
    if arguments.png:
        draw(results, arguments.rate, arguments.png)


if __name__ == "__main__":
    main()
