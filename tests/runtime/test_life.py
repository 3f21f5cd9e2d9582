"""The life of a Runtime, who and where it says it is, and seeding."""

from __future__ import annotations

import pickle
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from core import Runtime, Trainer, seed_everything
from core.accelerators import CPUAccelerator
from core.errors import ConfigurationError, CoreError, LaunchError

from .problem import batch, mse, network, runtime


class CountingCPU(CPUAccelerator):
    """Counts its setups and teardowns."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def setup_device(self, device: torch.device) -> None:
        self.events.append("setup")
        super().setup_device(device)

    def teardown(self) -> None:
        self.events.append("teardown")
        super().teardown()


def counting() -> tuple[Runtime, list[str]]:
    accelerator = CountingCPU()
    return Runtime(accelerator=accelerator, devices=1), accelerator.events


def test_who_and_where() -> None:
    """Process 0 of 1 on the CPU, before and after launch; the plan says why."""
    one = runtime()
    for _ in range(2):
        assert (one.num_processes, one.process_index, one.local_process_index) == (1, 0, 0)
        assert one.is_main_process
        assert one.is_local_main_process
        assert one.device == torch.device("cpu")
        one.launch()
    assert one.plan.strategy.name == "single_device"


def test_construction_starts_nothing() -> None:
    """Neither does asking who one is; the first use of what needs the device does, once."""
    one, events = counting()
    assert one.num_processes == 1
    assert "not launched" in repr(one)
    assert events == []
    one.prepare(network())
    one.gather(torch.ones(1))
    one.launch()
    assert events == ["setup"]
    assert "live" in repr(one)


@pytest.mark.parametrize("front_end", [Runtime, Trainer])
@pytest.mark.parametrize("strategy", ["single_device", "ddp", "ddp_spawn", "ddp_fork"])
def test_properties_start_nothing(front_end: Any, strategy: str) -> None:
    """Every property of a front end can be read before the processes are started; here this is process 0 of the run."""
    accelerator, devices = CountingCPU(), 1 if strategy == "single_device" else 2
    one = front_end(accelerator=accelerator, strategy=strategy, devices=devices)
    found = {}
    for name in dir(front_end):
        if isinstance(getattr(front_end, name, 0), property):
            with suppress(ConfigurationError):  # there is no run that could have it
                found[name] = getattr(one, name)
    assert found["strategy"].name == strategy
    assert found["strategy"].world_size == devices
    assert found["is_main_process" if front_end is Runtime else "is_global_zero"] is True
    assert found.get("process_index", 0) == 0
    assert accelerator.events == []
    runtime_of = one if front_end is Runtime else one.runtime
    assert "not launched" in repr(runtime_of)


def test_backward_alone_starts_as_well() -> None:
    """A loop whose first call is backward needs no launch before it."""
    one, events = counting()
    weight = torch.ones((), requires_grad=True)
    one.backward(weight * 2)
    assert weight.grad is not None
    assert weight.grad.item() == 2
    assert events == ["setup"]


def test_a_with_block_tears_down_once() -> None:
    """At its end, or when it is left by an error; tearing down again does nothing; the next block starts it again."""
    one, events = counting()
    with one as entered:
        assert entered is one
        one.launch()
    one.teardown()
    assert events == ["setup", "teardown"]
    with pytest.raises(ZeroDivisionError), one:
        one.launch(lambda given: 1 / 0)
    assert events == ["setup", "teardown"] * 2
    with one:
        pass
    assert events == ["setup", "teardown"] * 2, "what was never used needs no teardown"
    with one:
        one.backward(torch.ones((), requires_grad=True))
    assert events == ["setup", "teardown"] * 3
    with pytest.raises(ConfigurationError, match="the run has ended"):
        one.backward(torch.ones((), requires_grad=True))


def test_after_end_training_a_script_saves(tmp_path: Path) -> None:
    """Scripts end their trackers first; the run ends when the next one begins, whatever that one's settings are."""
    one = runtime()
    model = one.prepare(nn.Linear(3, 1))
    one.end_training()
    one.wait_for_everyone()
    one.save(one.get_state_dict(model), tmp_path / "weights.pt")
    assert torch.equal(torch.load(tmp_path / "weights.pt")["weight"], model.weight)
    assert one.gather(torch.ones(1)).tolist() == [1.0]
    another = runtime(precision="bf16-mixed")
    another.wait_for_everyone()
    with pytest.raises(ConfigurationError, match=r"another run began after end_training\(\)"):
        one.wait_for_everyone()
    one.end_training()
    runtime().wait_for_everyone()
    another.wait_for_everyone()


def test_launch_calls_the_function() -> None:
    """With the Runtime and the arguments; its result comes back; nested calls run in the same process."""
    one = runtime()

    def train(given: Runtime, *args: Any, **kwargs: Any) -> Any:
        assert given is one
        return args, kwargs, given.launch(lambda inner: inner is one)

    assert one.launch(train, 1, key=2) == ((1,), {"key": 2}, True)
    assert one.launch() is None


def test_an_error_in_the_function_is_the_callers() -> None:
    """The very error, not one made from it."""
    error = KeyError("planted")

    def fails(given: Runtime) -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        runtime().launch(fails)
    assert caught.value is error


def test_a_strategy_that_runs_functions_is_given_one() -> None:
    """Where each process runs a function, launching without one is refused before any is started."""
    one = Runtime(accelerator="cpu", strategy="ddp_spawn", devices=2)
    for start in (one.launch, lambda: one.prepare(network()), lambda: one.backward(torch.ones(()))):
        with pytest.raises(LaunchError, match=r"'ddp_spawn'.*no function was given.*runtime.launch\(train\)"):
            start()


def test_two_one_after_another() -> None:
    """A second Runtime with other arguments does what it says, and leaves the first as it was."""
    inputs, targets = batch()
    results: dict[str, torch.Tensor] = {}
    for name in ("16-mixed", "64-true", "32-true", "16-mixed"):
        one, module = runtime(precision=name), network()
        model, optimizer = one.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
        for _ in range(3):
            optimizer.zero_grad()
            one.backward(mse(model(inputs), targets))
            optimizer.step()
        found = vector(module)
        assert found.dtype is (torch.float64 if name == "64-true" else torch.float32)
        assert torch.equal(results.setdefault(name, found), found)
        assert torch.get_default_dtype() is torch.float32
        one.teardown()


def test_two_at_once() -> None:
    """Interleaved step by step they do what each does alone."""
    inputs, targets = batch()
    loops = []
    for name in ("16-mixed", "bf16-mixed"):
        one, module = runtime(precision=name), network()
        loops.append((name, one, module, *one.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))))
    for _ in range(3):
        for _, one, _, model, optimizer in loops:
            optimizer.zero_grad()
            one.backward(mse(model(inputs), targets))
            optimizer.step()
    for name, _, module, *_ in loops:
        alone, other = runtime(precision=name), network()
        model, optimizer = alone.prepare(other, torch.optim.SGD(other.parameters(), lr=0.1))
        for _ in range(3):
            optimizer.zero_grad()
            alone.backward(mse(model(inputs), targets))
            optimizer.step()
        assert torch.equal(vector(module), vector(other))


def vector(module: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def test_pickling() -> None:
    """One that is not live arrives whole, with its plan; one that is live is not sent."""
    one = runtime(precision="16-mixed")
    arrived = pickle.loads(pickle.dumps(one))
    assert arrived.plan == one.plan.for_ranks()
    module = network()
    model, optimizer = arrived.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
    inputs, targets = batch()
    arrived.backward(mse(model(inputs), targets))
    assert arrived.clip_grad_norm_(module.parameters(), 1.0) is not None
    optimizer.step()
    with pytest.raises(TypeError, match="live"):
        pickle.dumps(arrived)


@pytest.mark.parametrize(
    "arguments",
    [
        {"accelerator": "cpuu"},
        {"strategy": "single_devise"},
        {"precision": "fp8"},
        {"devices": "abc"},
        {"devices": 0},
        {"num_nodes": 0},
        {"checkpoint_io": "tape"},
        {"cluster_environment": "moon"},
        {"accelerator": 5},
        {"precision": object()},
    ],
)
def test_wrong_arguments_are_refused_on_construction(arguments: dict[str, Any]) -> None:
    """By name, with what was given."""
    ((name, _),) = arguments.items()
    with pytest.raises(CoreError, match=rf"^{name}\b"):
        Runtime(**arguments)


def test_words_have_names() -> None:
    """None is taken by position, where it could be mistaken for another."""
    with pytest.raises(TypeError):
        Runtime("cpu")  # type: ignore[call-arg]


def test_seed_everything_seeds_all_generators() -> None:
    """Python's, numpy's and torch's draw the same again, and the seed is handed back."""
    draws = []
    for _ in range(2):
        assert seed_everything(42) == 42
        draws.append((random.random(), np.random.rand(), torch.rand(()).item()))
    assert draws[0] == draws[1]
    seed_everything(43)
    assert random.random() != draws[0][0]
    assert np.random.rand() != draws[0][1]
    assert torch.rand(()).item() != draws[0][2]


@pytest.mark.parametrize("seed", [-1, 2**32, 1.0, "1", True])
def test_what_is_no_seed(seed: Any) -> None:
    """Refused, with the valid range; the generators are left alone."""
    state = torch.get_rng_state()
    with pytest.raises(ConfigurationError, match=r"seed=.* must be an integer from 0 to 4294967295"):
        seed_everything(seed)
    assert torch.equal(torch.get_rng_state(), state)
    seed_everything(2**32 - 1)
