"""Options: what is refused, and what the refusal says; all of it before a process is started."""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_hal_bagua import BaguaStrategy, QAdamOptimizer
from torch_hal_bagua.algorithms import ALGORITHMS
from torch_hal_bagua.communication import Layout

from torch_hal import Runtime
from torch_hal.errors import ConfigurationError, CoreError, WrongTypeError

DEFAULTS: dict[str, dict[str, Any]] = {
    "gradient_allreduce": {"hierarchical": False, "average": True},
    "bytegrad": {"hierarchical": True, "average": True},
    "decentralized": {"hierarchical": True, "peer_selection_mode": "all", "communication_interval": 1},
    "low_precision_decentralized": {"hierarchical": True, "communication_interval": 1},
    "async": {"peer_selection_mode": "all", "sync_interval_ms": 500, "warmup_steps": 0},
    "qadam": {"hierarchical": True},
}
"""Those of the original."""


def _defaults(kind: Any) -> dict[str, Any]:
    return {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()}


def test_defaults_are_the_originals() -> None:
    """Every algorithm has the options of the original, with its defaults."""
    assert {name: _defaults(kind) for name, kind in ALGORITHMS.items()} == DEFAULTS
    assert _defaults(QAdamOptimizer) | {"params": None} == {
        "params": None,
        "lr": 1e-3,
        "warmup_steps": 100,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
    }


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"algorithm": "bytegrat"}, ConfigurationError, ["algorithm='bytegrat'", "'qadam'", "Did you mean 'bytegrad'"]),
        ({"algorithm": None}, ConfigurationError, ["algorithm=None", "'bytegrad'"]),
        (
            {"algorithm": "bytegrad", "averge": True},
            ConfigurationError,
            ["'averge'", "mean 'average'"],
        ),
        ({"algorithm": "async", "hierarchical": True}, ConfigurationError, ["'hierarchical'", "'sync_interval_ms'"]),
        ({"algorithm": "decentralized", "static_graph": True}, ConfigurationError, ["'static_graph'"]),
        ({"algorithm": "bytegrad", "hierarchical": 1}, WrongTypeError, ["hierarchical=1", "True or False"]),
        (
            {"algorithm": "decentralized", "peer_selection_mode": "ring"},
            ConfigurationError,
            ["peer_selection_mode='ring'", "'all', 'shift_one'"],
        ),
        (
            {"algorithm": "async", "peer_selection_mode": "shift_one"},
            ConfigurationError,
            ["peer_selection_mode='shift_one'", "'all'"],
        ),
        (
            {"algorithm": "low_precision_decentralized", "communication_interval": 0},
            ConfigurationError,
            ["communication_interval=0", ">= 1"],
        ),
        ({"algorithm": "async", "sync_interval_ms": 0.5}, WrongTypeError, ["sync_interval_ms=0.5", "integer"]),
        ({"algorithm": "async", "warmup_steps": True}, WrongTypeError, ["warmup_steps=True"]),
        ({"bucket_cap_mb": 0}, ConfigurationError, ["bucket_cap_mb=0", "positive"]),
        ({"bucket_cap_mb": "10"}, WrongTypeError, ["bucket_cap_mb='10'"]),
        ({"start_method": "thread"}, ConfigurationError, ["start_method='thread'", "'spawn'"]),
    ],
)
def test_refusals(arguments: dict[str, Any], error: type[CoreError], says: list[str]) -> None:
    """What is wrong is named, with what is valid."""
    with pytest.raises(error) as caught:
        BaguaStrategy(**arguments)
    for part in says:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({"lr": -1.0}, "lr=-1.0"), ({"betas": (0.9, 1.0)}, "betas=(0.9, 1.0)"), ({"warmup_steps": 0}, "warmup_steps=0")],
)
def test_optimizer_refusals(arguments: dict[str, Any], says: str) -> None:
    """QAdamOptimizer names what is out of range."""
    with pytest.raises(ConfigurationError, match=r"expected|Valid|must be") as caught:
        QAdamOptimizer([torch.zeros(1, requires_grad=True)], **arguments)
    assert says in str(caught.value)


def test_names() -> None:
    """``bagua`` is the default algorithm, and each has its own name."""
    for name in ALGORITHMS:
        strategy: Any = Runtime(accelerator="cpu", devices=2, strategy=f"bagua_{name}")._strategy
        assert strategy.algorithm.name == name
    default: Any = Runtime(accelerator="cpu", devices=2, strategy="bagua")._strategy
    assert default.algorithm.name == "gradient_allreduce"


@pytest.mark.parametrize("name", ["decentralized", "low_precision_decentralized", "async", "qadam"])
def test_scaled_losses_are_refused(name: str) -> None:
    """Where not every gradient is averaged, a precision that scales the loss is refused by name."""
    with pytest.raises(ConfigurationError, match=r"does not support precision '16-mixed'.*'bf16-mixed'"):
        Runtime(accelerator="cpu", devices=2, strategy=f"bagua_{name}", precision="16-mixed")


def test_odd_pairs_are_refused() -> None:
    """An odd number of processes cannot be paired; one that is not paired at all can run."""

    def runtime(devices: int, **options: Any) -> Runtime:
        strategy = BaguaStrategy("decentralized", peer_selection_mode="shift_one", **options)
        return Runtime(accelerator="cpu", devices=devices, strategy=strategy)

    with pytest.raises(ConfigurationError, match="peer_selection_mode='shift_one': 3 processes"):
        runtime(3, hierarchical=False)
    for devices in (1, 2, 4):
        runtime(devices, hierarchical=False)
    runtime(3)  # one machine, and so no one to be paired with


def test_optimizers_that_do_not_fit() -> None:
    """qadam asks for its optimizer; algorithms on weights for one optimizer a module, without closures."""
    net = torch.nn.Linear(2, 2)
    with Runtime(accelerator="cpu", devices=1, strategy="bagua_qadam") as runtime:
        with pytest.raises(ConfigurationError, match=r"optimizer SGD.*QAdamOptimizer"):
            runtime.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        runtime.prepare(QAdamOptimizer(net.parameters()))
        with pytest.raises(ConfigurationError, match="a second one"):
            runtime.prepare(QAdamOptimizer(net.parameters()))
    with Runtime(accelerator="cpu", devices=1, strategy="bagua_decentralized") as runtime:
        _, optimizer = runtime.prepare(net, torch.optim.SGD([net.weight], lr=0.1))
        with pytest.raises(ConfigurationError, match="two optimizers share a module"):
            runtime.prepare(torch.optim.SGD([net.bias], lr=0.1))
        with pytest.raises(ConfigurationError, match="closure"):
            optimizer.step(lambda: 0.0)


def test_the_optimizer_can_be_imported_first() -> None:
    """A script that asks for the strategy by name imports nothing else of the package."""
    subprocess.run([sys.executable, "-c", "from torch_hal_bagua import QAdamOptimizer"], check=True, timeout=60)


def test_qadam_refuses_a_second_averaging() -> None:
    """After the warm-up, a second backward pass that would be averaged before the step is refused; no_sync is not."""
    net = torch.nn.Linear(2, 1)
    with Runtime(accelerator="cpu", devices=1, strategy="bagua_qadam") as runtime:
        model, optimizer = runtime.prepare(net, QAdamOptimizer(net.parameters(), warmup_steps=1))

        def backward() -> None:
            runtime.backward(model(torch.ones(1, 2)).sum())

        for _ in range(3):
            with runtime.no_sync(model):
                backward()
            backward()
            optimizer.step()
            optimizer.zero_grad()
        backward()
        with pytest.raises(RuntimeError, match="backward was called twice"):
            backward()


@pytest.mark.parametrize(
    ("name", "hierarchical", "layout", "warns"),
    [
        ("bytegrad", True, Layout(rank=0, world_size=2, local_world_size=2), True),
        ("qadam", True, Layout(rank=0, world_size=3, local_world_size=3), True),
        ("bytegrad", True, Layout(rank=1, world_size=2, local_world_size=2), False),
        ("bytegrad", True, Layout(rank=0, world_size=4, local_world_size=2), False),
        ("bytegrad", False, Layout(rank=0, world_size=2, local_world_size=2), False),
        ("decentralized", True, Layout(rank=0, world_size=2, local_world_size=2), False),
    ],
)
def test_a_run_that_compresses_nothing_says_so(
    name: str, hierarchical: bool, layout: Layout, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, in process 0: on one machine the hierarchical form averages in full precision."""
    kind: Any = ALGORITHMS[name]
    algorithm = kind(hierarchical=hierarchical)
    algorithm.connect(SimpleNamespace(layout=layout))
    assert ("hierarchical=False" in caplog.text) == warns


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [({}, True), ({"algorithm": "decentralized"}, False), ({"broadcast_buffers": False}, False)],
)
def test_whose_buffers(arguments: dict[str, Any], kept: bool) -> None:
    """Evaluation takes process 0's, unless processes train with their own."""
    assert BaguaStrategy(**arguments).keeps_buffers_equal is kept
