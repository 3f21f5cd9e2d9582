"""What the processes of a run observe of unusual modules in a custom loop; see :mod:`.step_observations`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torch_hal import Runtime
from torch_hal_devkit import distributed_problem as problem
from torch_hal_devkit.step_observations import part
from torch_hal_devkit.worker import Journal

__all__ = ["LIMIT", "MODULES", "NORMS", "Parts", "observe_module", "parts_by_hand", "two_by_hand"]

MODULES = ("parts", "two modules", "norm 2.0", "norm inf")
"""What :func:`observe_module` observes, each in its own run: some engines take one module and one optimizer a run."""

NORMS = {"norm 2.0": 2.0, "norm inf": float("inf")}
"""By observation, the ``norm_type``."""

LIMIT = 0.01
"""A norm that the problem's gradients exceed."""

_STEPS = 2

StateOf = Callable[[Any, nn.Module], Mapping[str, Any]]


class Parts(nn.Module):
    """Two layers that share a weight, a frozen layer in evaluation mode, and a buffer that is in no checkpoint."""

    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            self.encode, self.frozen, self.decode = (nn.Linear(problem.FEATURES, problem.FEATURES) for _ in range(3))
        self.decode.weight = self.encode.weight
        self.frozen.requires_grad_(False)
        self.frozen.eval()
        self.register_buffer("offset", torch.arange(problem.FEATURES) / 4, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """One number for each item."""
        output: Tensor = self.decode(self.frozen(self.encode(inputs) + self.offset)).mean(1, keepdim=True)
        return output


class _Second(nn.Module):
    """What is trained next to :func:`torch_hal_devkit.distributed_problem.network`, on its outputs."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(6)
            self.layer = nn.Linear(1, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """One number for each item."""
        output: Tensor = self.layer(inputs)
        return output


def observe_module(runtime: Runtime, journal: Journal, name: str, maker: str, state_of: StateOf) -> None:
    """Observe one of :data:`MODULES`; the arguments are those of :func:`.step_observations.observe_step`."""
    match name:
        case "parts":
            journal.observe(name, _parts, runtime, maker, state_of)
        case "two modules":
            journal.observe(name, _two_modules, runtime, maker, state_of)
        case _ if "norm" in runtime.strategy.clip_algorithms:
            journal.observe(name, _norm, runtime, maker, NORMS[name])


def _parts(runtime: Runtime, maker: str, state_of: StateOf) -> dict[str, Any]:
    """Some steps of :class:`Parts`, and what is not in its state."""
    inputs, targets = (tensor.to(runtime.device) for tensor in part(runtime))
    net = Parts()
    torch.rand(1)  # so that a seed that was set before is another state
    before = torch.get_rng_state()
    prepared, optimizer = runtime.prepare(net, _with_decay(net, maker))
    own: Any = runtime.unwrap_model(prepared)
    found = {
        "modes": {name: layer.training for name, layer in own.named_children()},
        "offset": own.offset.tolist(),
    }
    for _ in range(_STEPS):
        runtime.backward(problem.loss_of(prepared(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
    return {**found, "draws": not torch.equal(before, torch.get_rng_state()), "state": state_of(runtime.strategy, own)}


def parts_by_hand(shards: int, maker: str) -> Mapping[str, Tensor]:
    """The state of :class:`Parts` after the same steps in a plain loop over the batches of all processes."""
    inputs, targets = problem.items(problem.SHARE * shards).tensors
    net = Parts()
    optimizer = _with_decay(net, maker)
    for _ in range(_STEPS):
        problem.loss_of(net(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return net.state_dict()


def _with_decay(net: nn.Module, maker: str) -> torch.optim.Optimizer:
    """The optimizer, with weight decay where it knows it, which moves whatever has a gradient, even of zeros."""
    optimizer = problem.optimizer_of(net, maker)
    for group in optimizer.param_groups:
        if "weight_decay" in group:
            group["weight_decay"] = 0.1
    return optimizer


def _two_modules(runtime: Runtime, maker: str, state_of: StateOf) -> list[Mapping[str, Any]]:
    """Steps of two modules in turn, as of a GAN; the second is trained on the outputs of the first."""
    inputs, targets = (tensor.to(runtime.device) for tensor in part(runtime))
    nets = problem.network(), _Second()
    first, second, *optimizers = runtime.prepare(*nets, *(problem.optimizer_of(net, maker) for net in nets))
    _train_two(first, second, optimizers, inputs, targets, runtime.backward)
    return [state_of(runtime.strategy, runtime.unwrap_model(net)) for net in (first, second)]


def two_by_hand(shards: int, maker: str) -> list[Mapping[str, Tensor]]:
    """The states of the two modules after the same steps in a plain loop over the batches of all processes."""
    nets = problem.network(), _Second()
    optimizers = [problem.optimizer_of(net, maker) for net in nets]
    inputs, targets = problem.items(problem.SHARE * shards).tensors
    _train_two(*nets, optimizers, inputs, targets, torch.Tensor.backward)
    return [net.state_dict() for net in nets]


def _train_two(
    first: nn.Module,
    second: nn.Module,
    optimizers: list[Any],
    inputs: Tensor,
    targets: Tensor,
    backward: Callable[[Tensor], Any],
) -> None:
    for _ in range(_STEPS):
        backward(problem.loss_of(first(inputs), targets))
        optimizers[0].step()
        optimizers[0].zero_grad()
        with torch.no_grad():
            given = first(inputs)
        backward(problem.loss_of(second(given), targets))
        optimizers[1].step()
        optimizers[1].zero_grad()


def _norm(runtime: Runtime, maker: str, norm_type: float) -> float | None:
    """What clipping returns, as it is after the step."""
    inputs, targets = (tensor.to(runtime.device) for tensor in part(runtime))
    net = problem.network()
    prepared, optimizer = runtime.prepare(net, problem.optimizer_of(net, maker))
    runtime.backward(problem.loss_of(prepared(inputs), targets))
    norm = runtime.clip_grad_norm_(prepared.parameters(), LIMIT, norm_type)
    optimizer.step()
    return None if norm is None else float(norm)
