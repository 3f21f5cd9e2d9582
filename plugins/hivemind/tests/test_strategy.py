"""What the strategy does with the engine, for which a module stands in that steps in every third call."""

from __future__ import annotations

import signal
import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch_hal_hivemind import HivemindStrategy

from torch_hal import Runtime
from torch_hal.errors import ConfigurationError, CoreError, LaunchError


class Engine:
    """Stands in for ``hivemind.Optimizer``."""

    def __init__(self, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        self.optimizer, self.options = optimizer, options
        self.state_averager = SimpleNamespace(local_epoch=0)
        self.grad_averager = SimpleNamespace(reset_accumulated_grads_=lambda: self.told.append("reset"))
        self.tracker = SimpleNamespace(
            global_progress=SimpleNamespace(num_peers=3), pause_updates=nullcontext, update_epoch=self._update_epoch
        )
        self.calls, self.is_shut_down = 0, False
        self.told: list[Any] = []
        self.others: dict[torch.Tensor, torch.Tensor] = {}
        """Gradients of other peers."""
        self.fill()
        if not optimizer.state:
            optimizer.step()  # as hivemind does, so that the state exists
        self.fill()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as hivemind does before it starts its processes

    @property
    def local_epoch(self) -> int:
        return int(self.state_averager.local_epoch)

    def fill(self) -> None:
        """As hivemind does, so that each parameter has a gradient."""
        for parameter in self.optimizer.param_groups[0]["params"]:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad

    def _update_epoch(self, epoch: int) -> None:
        self.told.append(epoch)

    def step(self, closure: Any = None) -> None:
        self.calls += 1
        if closure is not None:
            closure()
        self.fill()
        if self.calls % 3 == 0:
            for parameter, gradient in self.others.items():
                parameter.grad = gradient
            self.optimizer.step()
            self.state_averager.local_epoch += 2
            self.optimizer.param_groups[0]["lr"] = 123.0  # another peer's

    def shutdown(self) -> None:
        self.is_shut_down = True


class Table:
    """Stands in for ``hivemind.DHT``."""

    made: list[dict[str, Any]]

    def __init__(self, **options: Any) -> None:
        if options["initial_peers"] == ["absent"]:
            raise RuntimeError("daemon failed to start")
        Table.made.append(options)

    def get_visible_maddrs(self) -> list[str]:
        return ["/ip4/127.0.0.1/tcp/1"]

    def shutdown(self) -> None:
        Table.made.append({"shutdown": True})


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a module in the place of hivemind."""
    module = ModuleType("hivemind")
    module.DHT, module.Optimizer = Table, Engine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hivemind", module)
    Table.made = []


def strategy(**others: Any) -> HivemindStrategy:
    return HivemindStrategy(run_id="one", target_batch_size=48, batch_size=8, **others)


def test_settings_reach_the_engine() -> None:
    """Those of the run at construction; relays are off unless asked for."""
    runtime = Runtime(accelerator="cpu", strategy=strategy(matchmaking_time=2.0, dht_options={"use_relay": True}))
    module = torch.nn.Linear(1, 1)
    runtime.prepare(torch.optim.Adam(module.parameters()))
    engine = runtime.strategy._engine  # type: ignore[attr-defined]
    assert (
        engine.options.items()
        >= {
            "run_id": "one",
            "target_batch_size": 48,
            "batch_size_per_step": 8,
            "matchmaking_time": 2.0,
        }.items()
    )
    assert Table.made[0].items() >= {"use_relay": True, "use_auto_relay": False, "start": True}.items()
    assert runtime.strategy.addresses == ["/ip4/127.0.0.1/tcp/1"]  # type: ignore[attr-defined]
    assert runtime.strategy.num_peers == 3
    runtime.teardown()
    assert engine.is_shut_down
    assert Table.made[1:] == [{"shutdown": True}]


def test_the_engines_first_step_has_no_effect() -> None:
    """Weights do not decay in it, and Adam does not count it."""
    runtime = Runtime(accelerator="cpu", strategy=strategy())
    module = torch.nn.Linear(2, 2)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.5)
    runtime.prepare(module, optimizer)
    assert all(map(torch.equal, before, module.parameters()))
    assert [float(state["step"]) for state in optimizer.state.values()] == [0.0, 0.0]
    runtime.teardown()


OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
    "NAdam": {"lr": 0.01},
    "Rprop": {"lr": 0.01},
    "ASGD": {"lr": 0.01},
    "Adagrad": {"lr": 0.01, "weight_decay": 0.1},
}


class Parts(torch.nn.Module):
    """One layer of three is trained: another one is frozen, and the third is not used."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.used, self.frozen, self.unused = (torch.nn.Linear(2, 2) for _ in range(3))
        self.frozen.requires_grad_(False)

    def loss(self) -> torch.Tensor:
        """Of always the same inputs."""
        loss: torch.Tensor = self.frozen(self.used(torch.ones(1, 2))).square().sum()
        return loss


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_that_of_torch(name: str, closes: bool) -> None:
    """Weights, gradients and state are those of a plain loop, also of parameters that have no gradient."""
    plain, module = Parts(), Parts()
    expected, optimizer = (getattr(torch.optim, name)(net.parameters(), **OPTIMIZERS[name]) for net in (plain, module))
    runtime = Runtime(accelerator="cpu", strategy=strategy())
    _, prepared = runtime.prepare(module, optimizer)
    assert [parameter.grad for parameter in module.parameters()] == [None] * 6

    def backward() -> torch.Tensor:
        prepared.zero_grad()
        loss = module.loss()
        runtime.backward(loss)
        return loss

    for call in range(6):
        if closes:
            prepared.step(backward)
        else:
            backward()
            prepared.step()
        optimizer.param_groups[0]["lr"] = OPTIMIZERS[name]["lr"]
        if call % 3 == 2:
            expected.zero_grad()
            plain.loss().backward()  # type: ignore[no-untyped-call]
            expected.step()
    torch.testing.assert_close(module.state_dict(), plain.state_dict(), rtol=0.0, atol=0.0)
    assert [parameter.grad is None for parameter in module.parameters()] == [False] * 2 + [True] * 4
    state = runtime.strategy.optimizer_state(optimizer)["state"]
    torch.testing.assert_close(state, expected.state_dict()["state"], rtol=0.0, atol=0.0)
    runtime.teardown()
    assert optimizer.state.keys() == set([*module.parameters()][: 6 if name == "Adagrad" else 2])


def test_what_other_peers_train_is_stepped() -> None:
    """A parameter without a gradient here has the mean of all peers: it is stepped if that is not zero."""
    runtime = Runtime(accelerator="cpu", strategy=strategy())
    module = Parts()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    _, prepared = runtime.prepare(module, optimizer)
    before = module.unused.bias.detach().clone()
    runtime.strategy._engine.others = {module.unused.bias: torch.ones(2)}  # type: ignore[attr-defined]
    for _ in range(3):
        runtime.backward(module.loss())
        prepared.step()
    assert torch.equal(module.unused.bias, before - 1)
    runtime.teardown()


def test_a_loaded_state_keeps_the_structure() -> None:
    """Where a checkpoint has no state, the optimizer has one as of the other peers, until torch makes its own."""
    runtime = Runtime(accelerator="cpu", strategy=strategy())
    module = Parts()
    optimizer = torch.optim.NAdam(module.parameters(), lr=0.01)
    _, prepared = runtime.prepare(module, optimizer)
    empty = runtime.strategy.optimizer_state(optimizer)
    assert empty["state"] == {}
    for _ in range(2):
        for _ in range(3):
            runtime.backward(module.loss())
            prepared.step()
        assert len(optimizer.state) == 6
        assert optimizer.state[module.used.weight]["step"] == 1
        runtime.strategy.load_optimizer_state(optimizer, empty)
        assert len(optimizer.state) == 6
        assert runtime.strategy.optimizer_state(optimizer)["state"] == {}
    runtime.teardown()


def test_tensors_are_shared_as_before_after_a_run() -> None:
    """A run shares tensors between processes as hivemind does, also the second one of a process, and then no longer."""
    before = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    assert before != "file_system"
    for _ in range(2):
        runtime = Runtime(accelerator="cpu", strategy=strategy())
        runtime.prepare(torch.optim.SGD(torch.nn.Linear(1, 1).parameters()))
        assert torch.multiprocessing.get_sharing_strategy() == "file_system"  # type: ignore[no-untyped-call]
        runtime.teardown()
        assert torch.multiprocessing.get_sharing_strategy() == before  # type: ignore[no-untyped-call]


def test_ctrl_c_interrupts_while_the_engine_runs() -> None:
    """The process has the handler of SIGINT that it had before."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        runtime = Runtime(accelerator="cpu", strategy=strategy())
        runtime.prepare(torch.optim.SGD(torch.nn.Linear(1, 1).parameters()))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        runtime.teardown()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_group_that_is_added_later_is_refused() -> None:
    """The engine would not train it."""
    runtime = Runtime(accelerator="cpu", strategy=strategy())
    module, late = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    model, optimizer = runtime.prepare(module, torch.optim.SGD(module.parameters(), lr=1.0))
    runtime.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    optimizer.add_param_group({"params": [*late.parameters()]})
    with pytest.raises(ConfigurationError, match=r"add_param_group: .* Add the group before prepare"):
        optimizer.step()
    runtime.teardown()


def test_steps_and_learning_rates() -> None:
    """A call that collects is no step, one that loads another peer's state several; the rate is the peer's own."""
    runtime = Runtime(accelerator="cpu", strategy=strategy())
    module = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    model, prepared, scheduler = runtime.prepare(module, optimizer, scheduler)
    rates = []
    for _ in range(3):
        runtime.backward(model(torch.ones(1, 1)).sum())
        prepared.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1.0, 1.0, 0.25]
    assert runtime.strategy.global_steps() == 2
    state = runtime.strategy.optimizer_state(optimizer)
    runtime.strategy.load_optimizer_state(optimizer, {**state, "global_steps": 7})
    assert runtime.strategy.global_steps() == 7
    assert runtime.strategy._engine.told == ["reset", 7]  # type: ignore[attr-defined]
    runtime.teardown()
    assert runtime.strategy.global_steps() == 7


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"initial_peers": ["/ip4/127.0.0.1/tcp/1"]}, "target_batch_size"),
        ({"target_batch_size": 4}, "batch_size"),
        ({"target_batch_size": 4, "batch_size": -1}, "batch_size=-1"),
        ({"target_batch_size": 4, "batch_size": 2, "offload_optimizer": True}, "offload_optimizer=True"),
        ({"target_batch_size": 4, "batch_size": 2, "run_id": 3}, "run_id=3"),
        ({"target_batch_size": 4, "batch_size": 2, "match_making_time": 3}, "matchmaking_time"),
    ],
)
def test_arguments_that_cannot_be_used(given: dict[str, Any], named: str) -> None:
    """The error names the argument."""
    with pytest.raises(CoreError, match=named):
        HivemindStrategy(**given)


def test_a_first_peer_without_arguments() -> None:
    """Without arguments each call of its optimizer is a batch of one, and a step."""
    runtime = Runtime(accelerator="cpu", strategy=HivemindStrategy())
    runtime.prepare(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0))
    options = runtime.strategy._engine.options  # type: ignore[attr-defined]
    assert (options["target_batch_size"], options["batch_size_per_step"]) == (1, 1)
    assert options["run_id"] == "torch-hal"
    runtime.teardown()


def test_several_optimizers_and_scaled_losses_are_refused() -> None:
    """The engine steps one optimizer, and scales nothing."""
    runtime = Runtime(accelerator="cpu", strategy=strategy())
    parameters = torch.nn.Linear(1, 1).parameters()
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    with pytest.raises(ConfigurationError, match="steps one optimizer"):
        runtime.prepare(optimizer, torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1.0))
    runtime.teardown()
    with pytest.raises(ConfigurationError, match="16-mixed"):
        Runtime(accelerator="cpu", strategy=strategy(), precision="16-mixed")


def test_no_peer_answers() -> None:
    """The error says which were tried and what to do."""
    runtime = Runtime(accelerator="cpu", strategy=strategy(initial_peers=["absent"]))
    with pytest.raises(LaunchError, match=r"cannot meet peers \(initial_peers=\['absent'\]\).*Check that one of them"):
        runtime.launch()
