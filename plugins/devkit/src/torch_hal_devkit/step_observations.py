"""What the processes of a run observe of single passes and steps in a custom loop; see :mod:`.observations`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torch_hal import Runtime
from torch_hal_devkit import distributed_problem as problem
from torch_hal_devkit.worker import Journal

__all__ = ["STEPS", "Averaging", "Heads", "gradients_of", "observe_step", "own_items", "part", "threads"]

PASSES = 3
"""Training passes of :class:`Averaging`."""


class Averaging(nn.Module):
    """A linear layer, and a buffer that follows the mean of the inputs as batch normalization does."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            self.linear = nn.Linear(problem.FEATURES, 1)
        self.register_buffer("mean", torch.zeros(1))
        self.begins: list[Tensor] = []
        """The buffer at the beginning of each pass."""

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's outputs."""
        self.begins.append(self.mean.detach().clone())
        self.mean.mul_(0.5).add_(inputs.detach().mean() * 0.5)
        output: Tensor = self.linear(inputs)
        return output


class Heads(nn.Module):
    """Several outputs, nested, next to values that are no tensors; each depends on its own parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(problem.FEATURES, 1) for _ in range(3))

    def forward(self, inputs: Tensor, *, factor: float, skipped: Tensor | None = None) -> dict[str, Any]:
        """By name, outputs of each layer."""
        return {
            "first": self.first(inputs),
            "pair": (self.second(inputs) * factor, [self.third(inputs)]),
            "nothing": skipped,
            "text": "kept",
        }


def threads() -> list[str]:
    """The names of this process's threads besides the main one, the kit's and the launcher's own."""
    return sorted(
        thread.name
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and not thread.name.startswith(("core-", "pytest"))
    )


def gradients_of(net: nn.Module) -> list[float]:
    """All gradients of a module, one after another."""
    gradients = [parameter.grad for parameter in net.parameters()]
    return [value for gradient in gradients if gradient is not None for value in gradient.cpu().flatten().tolist()]


STEPS = ("prepared", "step with a closure", "outputs", "buffers", "without sync", "after an exception")
"""What :func:`observe_step` observes, each in its own run: some engines take one module and one optimizer a run."""


def observe_step(
    runtime: Runtime, journal: Journal, name: str, maker: str, state_of: Callable[[Any, nn.Module], Mapping[str, Any]]
) -> None:
    """Observe one of :data:`STEPS`.

    Args:
        runtime: A Runtime whose processes are connected.
        journal: Records what is observed.
        name: Which one.
        maker: As in :func:`torch_hal_devkit.distributed_problem.optimizer_of`.
        state_of: ``state_of(strategy, module)`` is the whole state of a prepared module, as plain data.
    """
    match name:
        case "prepared":
            journal.observe(name, _prepared, runtime, maker, state_of)
        case "step with a closure":
            journal.observe(name, _step_with_a_closure, runtime, maker, state_of)
        case "outputs":
            journal.observe(name, _outputs, runtime, maker)
        case "buffers":
            journal.observe(name, _buffers, runtime, maker)
        case "without sync" if not runtime.strategy.inference_is_collective:
            journal.observe(name, _backward_without_sync, runtime, maker)
        case "after an exception" if not runtime.strategy.inference_is_collective:
            journal.observe(name, _backward_after_an_exception, runtime, maker)


def _prepared(runtime: Runtime, maker: str, state_of: Any) -> Mapping[str, Any]:
    """The state of a prepared module whose values differed between processes before."""
    net = problem.network()
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.add_(runtime.process_index)
    net, _ = runtime.prepare(net, problem.optimizer_of(net, maker))
    found: Mapping[str, Any] = state_of(runtime.strategy, runtime.unwrap_model(net))
    return found


def _step_with_a_closure(runtime: Runtime, maker: str, state_of: Any) -> dict[str, Any]:
    """One step whose optimizer calls forward and backward by itself, on this process's part of a batch."""
    inputs, targets = (tensor.to(runtime.device) for tensor in part(runtime))
    net = problem.network()
    optimizer: Any
    net, optimizer = runtime.prepare(net, problem.optimizer_of(net, maker))
    calls: list[Tensor] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = problem.loss_of(net(inputs), targets)
        runtime.backward(loss)
        calls.append(loss.detach())
        return loss

    returned = optimizer.step(closure)
    return {
        "calls": len(calls),
        "returned": None if returned is None else float(returned),
        "loss": float(calls[0]) if calls else None,
        "state": state_of(runtime.strategy, runtime.unwrap_model(net)),
    }


def part(runtime: Runtime) -> list[Tensor]:
    """The part of a batch for this process; processes that hold parts of one module take the same."""
    strategy = runtime.strategy
    begin = problem.SHARE * strategy.data_shard
    tensors = problem.items(problem.SHARE * strategy.data_shards).tensors
    return [tensor[begin : begin + problem.SHARE] for tensor in tensors]


def _outputs(runtime: Runtime, maker: str) -> dict[str, Any]:
    """What a prepared module returns, and which outputs a backward pass can begin with."""
    net = Heads()
    net, _ = runtime.prepare(net, problem.optimizer_of(net, maker))
    output = net(part(runtime)[0].to(runtime.device), factor=2.0, skipped=None)
    second, (third,) = output["pair"]
    text = output["text"]  # a strategy that joins the outputs of several devices returns that of each
    runtime.backward(output["first"].mean() + second.mean() + third.mean())
    return {
        "gradients": {
            name: value.requires_grad
            for name, value in (("first", output["first"]), ("second", second), ("third", third))
        },
        "others": {"nothing": output["nothing"], "text": sorted({text} if isinstance(text, str) else set(text))},
        "kinds": [type(output).__name__, type(output["pair"]).__name__, type(output["pair"][1]).__name__],
    }


def _buffers(runtime: Runtime, maker: str) -> list[float]:
    """The buffer with which each of some training passes begins, on items of this process."""
    net = Averaging()
    prepared, optimizer = runtime.prepare(net, problem.optimizer_of(net, maker))
    inputs = part(runtime)[0].to(runtime.device) + runtime.process_index
    for _ in range(PASSES):
        runtime.backward(prepared(inputs).mean())
        optimizer.step()
        optimizer.zero_grad()
    return [float(mean) for mean in net.begins]


def own_items(runtime: Runtime) -> list[Tensor]:
    """Items of this process alone; processes have different numbers of them."""
    return [tensor[runtime.process_index :: runtime.num_processes + 1] for tensor in problem.items(12).tensors]


def _alone(inputs: Tensor, targets: Tensor) -> list[float]:
    alone = problem.network()
    problem.loss_of(alone(inputs), targets).backward()  # type: ignore[no-untyped-call]
    return gradients_of(alone)


def _backward_without_sync(runtime: Runtime, maker: str) -> dict[str, Any]:
    """Gradients of one backward pass under ``no_sync``, and those of a plain backward pass in this process."""
    inputs, targets = own_items(runtime)
    net = problem.network()
    net, _ = runtime.prepare(net, problem.optimizer_of(net, maker))
    with runtime.no_sync(net):
        runtime.backward(problem.loss_of(net(inputs.to(runtime.device)), targets.to(runtime.device)))
    return {"found": gradients_of(runtime.unwrap_model(net)), "alone": _alone(inputs, targets)}


def _backward_after_an_exception(runtime: Runtime, maker: str) -> dict[str, Any]:
    """The same of a backward pass after an exception under ``no_sync``."""
    inputs, targets = own_items(runtime)
    net = problem.network()
    net, _ = runtime.prepare(net, problem.optimizer_of(net, maker))
    try:
        with runtime.no_sync(net):
            raise ZeroDivisionError("planted by the conformance kit")
    except ZeroDivisionError:
        pass
    runtime.backward(problem.loss_of(net(inputs.to(runtime.device)), targets.to(runtime.device)))
    return {"found": gradients_of(runtime.unwrap_model(net)), "alone": _alone(inputs, targets)}
