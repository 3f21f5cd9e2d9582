"""What the processes of a run observe of the contract's algebra: drawn values, nested contexts, schedules, a life."""

from __future__ import annotations

import gc
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from torch_hal import Runtime
from torch_hal.environments.base import LAUNCHED
from torch_hal.strategies import REDUCTIONS
from torch_hal_devkit import distributed_problem as problem
from torch_hal_devkit import drawn
from torch_hal_devkit.process_state import OF_A_LIFE, changes, draw, recorded, unusual
from torch_hal_devkit.step_observations import gradients_of, own_items, part
from torch_hal_devkit.watch import watched
from torch_hal_devkit.worker import Journal

__all__ = [
    "CONTRACTS",
    "MILLION",
    "OBJECTS",
    "Late",
    "drawn_object",
    "drawn_tensor",
    "held",
    "late_by_hand",
    "left_behind",
    "normed_by_hand",
    "observe_collectives",
    "observe_contract",
    "scheduled_by_hand",
    "unusual_life",
    "watching",
]

CONTRACTS = ("scheduled", "added group", "nested without sync", "batch norm", "one of two")
"""What :func:`observe_contract` observes, each in its own run."""

MILLION = 10**6
"""Elements of the largest tensor that is reduced, more than what engines send at once."""

_STEPS = 4
_GAMMA, _LOWERED, _LATE_RATE = 0.5, 0.25, 0.3

_VARIABLES = "environment variables"

_OF_A_RUN = ("random state", _VARIABLES, "exception hooks", "module search path", *OF_A_LIFE)
"""Aspects that a run changes: programs draw, variables tell ranks, torch shows exceptions, libraries that an engine
imports add folders; threads have a test."""

_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables by which a later run would take this process for a launched one."""

_references: dict[str, weakref.ref[Any]] = {}
"""The module and the optimizer of the run ``scheduled``."""

OBJECTS = range(len(drawn.SEEDS) + 2)
"""The seeds of :func:`drawn_object`."""

StateOf = Callable[[Any, nn.Module], Mapping[str, Any]]


# -- the process -------------------------------------------------------------------------------------------------------


@contextmanager
def watching(runtime: Runtime) -> Iterator[dict[str, list[str]]]:
    """Watch all calls of the run's strategy and accelerator; yields by kind what they change and may not."""
    with ExitStack() as stack:
        parts = {"strategy": runtime.strategy, "accelerator": runtime.strategy.accelerator}
        yield {kind: stack.enter_context(watched(kind, type(part))) for kind, part in parts.items()}


def left_behind(beginning: dict[str, Any]) -> dict[str, str]:
    """What differs in this process from its beginning, but for what a run changes."""
    now = recorded()
    for state in (beginning, now):
        state["settings of torch"].pop("default generator", None)  # the kit seeds it
        state[_VARIABLES] = {os.fsdecode(name): value for name, value in state[_VARIABLES].items()}
    is_launched = LAUNCHED in now[_VARIABLES]  # its ranks are those of later runs, too
    for name in {*now[_VARIABLES]} - {*beginning[_VARIABLES], *_RANKS}:
        del now[_VARIABLES][name]  # libraries set some of their own as they are imported
    left_out = {*_OF_A_RUN} if is_launched else {*_OF_A_RUN} - {_VARIABLES}
    return {aspect: text for aspect, text in changes(beginning, now).items() if aspect not in left_out}


def unusual_life(make: Callable[[], Runtime]) -> dict[str, str]:
    """What a run leaves changed in a process whose settings are all unusual; it draws before it ends."""
    with unusual():
        runtime = make()
        before = recorded()
        runtime.launch(_visit)
        drawn_before = recorded(("random state",))
        runtime.teardown()
        found = {aspect: text for aspect, text in changes(before, recorded()).items() if aspect not in _OF_A_RUN}
        return {**found, **changes(drawn_before, recorded(("random state",)))}


def _visit(runtime: Runtime) -> None:
    runtime.strategy.barrier()
    runtime.strategy.broadcast(1)
    draw()


# -- collectives -------------------------------------------------------------------------------------------------------


def drawn_object(seed: int, rank: int) -> Any:
    """The object of a rank: of a drawn size and value, so that neither is in the order of ranks."""
    match seed:
        case 0:
            return "the same in each process"
        case 1:
            return ["longer in earlier processes"] * (60 - 20 * min(rank, 2))
        case 2:
            return -rank
        case 6 | 7:
            return drawn.EMPTY[(rank + seed % 2) % len(drawn.EMPTY)]
        case _:
            return drawn.value(Random(1000 * seed + rank))


def drawn_tensor(seed: int, rank: int) -> Tensor:
    """The tensor of a rank, of a shape and layout that the seed draws: whole numbers of any sign, few zeros."""
    dtype = (torch.float32, torch.int64)[seed % 2]
    shape = drawn.tensor(Random(seed), dtype)
    factors = torch.randint(1, 6, shape.shape, generator=torch.Generator().manual_seed(100 * seed + rank))
    signs = torch.randint(0, 2, shape.shape, generator=torch.Generator().manual_seed(7 + 100 * seed + rank)) * 2 - 1
    made = shape.clone(memory_format=torch.preserve_format)
    return made.copy_(factors * signs)


def observe_collectives(journal: Journal, runtime: Runtime, eager: bool) -> None:
    """Exchange drawn objects, of processes that arrive in any order, and, on eager devices, drawn tensors."""
    strategy, rank, size = runtime.strategy, runtime.process_index, runtime.num_processes
    for seed in OBJECTS:
        if seed % size == rank:
            time.sleep(0.05)  # whoever is late has its place by rank
        journal.observe(
            f"drawn objects {seed}",
            lambda seed=seed: [*map(repr, strategy.all_gather_object(drawn_object(seed, rank)))],
        )
        source = seed % size
        journal.observe(
            f"drawn broadcast {seed}", lambda s=seed, src=source: repr(strategy.broadcast(drawn_object(s, rank), src))
        )
        journal.observe(
            f"drawn shards {seed}", lambda s=seed: [*map(repr, strategy.gather_shards(drawn_object(s, rank)))]
        )
        if eager and seed in drawn.SEEDS:
            journal.observe(f"drawn tensors {seed}", _reduced, runtime, drawn_tensor(seed, rank))
    journal.observe("differing", _differing, runtime)
    if eager:
        journal.observe("a million", _million, runtime)


def _reduced(runtime: Runtime, given: Tensor) -> dict[str, Any]:
    given = given.to(runtime.device)
    before = given.clone()
    found = {name: runtime.strategy.reduce(given, name).tolist() for name in REDUCTIONS}
    found["gathered"] = runtime.strategy.all_gather(given).tolist()
    return {**found, "untouched": torch.equal(given, before)}


def _million(runtime: Runtime) -> list[float]:
    result = runtime.strategy.reduce(torch.arange(MILLION, device=runtime.device) % 97 + runtime.process_index, "sum")
    return [len(result), *result[[0, 1, MILLION // 3, MILLION - 1]].tolist()]


def _differing(runtime: Runtime) -> dict[str, Any]:
    strategy, rank, plain = runtime.strategy, runtime.process_index, nn.Linear(1, 1)
    strategy.barrier("of the kit")
    assert strategy.unwrap_module(plain) is plain, "unwrap_module() of a plain module returned another one"
    return {"equal": strategy.differing("kit", "same"), "unequal": strategy.differing("kit", f"of rank {rank}")}


# -- steps -------------------------------------------------------------------------------------------------------------


def observe_contract(runtime: Runtime, journal: Journal, name: str, maker: str, state_of: StateOf) -> None:
    """Observe one of :data:`CONTRACTS`; the arguments are those of :func:`.step_observations.observe_step`."""
    match name:
        case "scheduled":
            journal.observe(name, _scheduled, runtime, maker, state_of)
        case "added group":
            journal.observe(name, _added, runtime, maker, state_of)
        case "batch norm" if runtime.strategy.syncs_batch_norm:
            journal.observe(name, _batch_norm, runtime, maker, state_of)
        case "batch norm":
            journal.observe(name, lambda: None)
        case "nested without sync" if not runtime.strategy.inference_is_collective:
            journal.observe(name, _nested, runtime, maker)
        case "one of two" if not runtime.strategy.inference_is_collective:
            journal.observe(name, _one_of_two, runtime, maker)


def _scheduled(runtime: Runtime, maker: str, state_of: StateOf) -> Mapping[str, Any]:
    """The state after steps whose rates a scheduler lowers, and then the user."""
    inputs, targets = (tensor.to(runtime.device) for tensor in part(runtime))
    net = problem.network()
    optimizer: Any = problem.optimizer_of(net, maker)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, _GAMMA)
    _references.update({"module": weakref.ref(net), "optimizer": weakref.ref(optimizer)})
    prepared, optimizer = runtime.prepare(net, optimizer)
    _take_steps(prepared, optimizer, scheduler, inputs, targets, runtime.backward)
    return state_of(runtime.strategy, runtime.unwrap_model(prepared))


def held() -> list[str]:
    """What is still in memory of the run that has ended, of the module and the optimizer that it prepared."""
    gc.collect()
    return [name for name, reference in _references.items() if reference() is not None]


def _take_steps(
    net: nn.Module, optimizer: Any, scheduler: Any, inputs: Tensor, targets: Tensor, backward: Callable[[Tensor], Any]
) -> None:
    for step in range(_STEPS):
        backward(problem.loss_of(net(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
        if step < _STEPS // 2:
            scheduler.step()
        else:
            for group in optimizer.param_groups:
                group["lr"] *= _LOWERED


def scheduled_by_hand(shards: int, maker: str) -> Mapping[str, Tensor]:
    """The state after the same steps in a plain loop over the batches of all processes."""
    net = problem.network()
    optimizer = problem.optimizer_of(net, maker)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, _GAMMA)
    inputs, targets = problem.items(problem.SHARE * shards).tensors
    _take_steps(net, optimizer, scheduler, inputs, targets, torch.Tensor.backward)
    return net.state_dict()


class Late(nn.Module):
    """The network, and a last layer whose parameters the optimizer gets later."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(9)
            self.late = nn.Linear(1, 1)
        self.early = problem.network()

    def forward(self, inputs: Tensor) -> Tensor:
        """One number for each item."""
        output: Tensor = self.late(self.early(inputs))
        return output


def _added(runtime: Runtime, maker: str, state_of: StateOf) -> Mapping[str, Any]:
    """The state after steps of which the last ones are of further parameters, too."""
    inputs, targets = (tensor.to(runtime.device) for tensor in part(runtime))
    net = Late()
    prepared, optimizer = runtime.prepare(net, problem.optimizer_of(net.early, maker))
    _step_late(prepared, runtime.unwrap_model(prepared), optimizer, inputs, targets, runtime.backward)
    return state_of(runtime.strategy, runtime.unwrap_model(prepared))


def _step_late(
    net: nn.Module, own: Any, optimizer: Any, inputs: Tensor, targets: Tensor, backward: Callable[[Tensor], Any]
) -> None:
    for step in range(_STEPS - 1):
        backward(problem.loss_of(net(inputs), targets))
        optimizer.step()
        net.zero_grad()
        if step == 0:
            optimizer.add_param_group({"params": [*own.late.parameters()], "lr": _LATE_RATE})


def late_by_hand(shards: int, maker: str) -> Mapping[str, Tensor]:
    """The state of :class:`Late` after the same steps in a plain loop over the batches of all processes."""
    net = Late()
    optimizer = problem.optimizer_of(net.early, maker)
    inputs, targets = problem.items(problem.SHARE * shards).tensors
    _step_late(net, net, optimizer, inputs, targets, torch.Tensor.backward)
    return net.state_dict()


class Normed(nn.Module):
    """Layers with batch norm between them, whose parameters the problem's optimizers take."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(10)
            self.first, self.last = nn.Linear(problem.FEATURES, 3), nn.Linear(3, 1)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, inputs: Tensor) -> Tensor:
        """One number for each item."""
        output: Tensor = self.last(self.norm(self.first(inputs)))
        return output


def _batch_norm(runtime: Runtime, maker: str, state_of: StateOf) -> Mapping[str, Any]:
    """The state after steps whose statistics are those of all processes."""
    inputs, targets = (tensor.to(runtime.device) for tensor in part(runtime))
    net = Normed()
    runtime.strategy.sync_batch_norm(net)
    prepared, optimizer = runtime.prepare(net, problem.optimizer_of(net, maker))
    _step_normed(prepared, optimizer, inputs, targets, runtime.backward)
    return state_of(runtime.strategy, runtime.unwrap_model(prepared))


def _step_normed(
    net: nn.Module, optimizer: Any, inputs: Tensor, targets: Tensor, backward: Callable[[Tensor], Any]
) -> None:
    for _ in range(2):
        backward(problem.loss_of(net(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()


def normed_by_hand(shards: int, maker: str) -> Mapping[str, Tensor]:
    """The state of :class:`Normed` after the same steps in a plain loop over the batches of all processes."""
    net = Normed()
    inputs, targets = problem.items(problem.SHARE * shards).tensors
    _step_normed(net, problem.optimizer_of(net, maker), inputs, targets, torch.Tensor.backward)
    return net.state_dict()


def _nested(runtime: Runtime, maker: str) -> dict[str, Any]:
    """Gradients of a backward pass in an outer ``no_sync`` after an inner one, and of one after both."""
    inputs, targets = own_items(runtime)
    net = problem.network()
    net, optimizer = runtime.prepare(net, problem.optimizer_of(net, maker))
    own = runtime.unwrap_model(net)

    def gradients() -> list[float]:
        runtime.backward(problem.loss_of(net(inputs.to(runtime.device)), targets.to(runtime.device)))
        found = gradients_of(own)
        optimizer.zero_grad()
        return found

    alone = problem.network()
    problem.loss_of(alone(inputs), targets).backward()  # type: ignore[no-untyped-call]
    with runtime.no_sync(net):
        with runtime.no_sync(net):
            pass
        within = gradients()
    return {"within": within, "after": gradients(), "alone": gradients_of(alone)}


def _one_of_two(runtime: Runtime, maker: str) -> dict[str, Any]:
    """Gradients of two modules, of which the first is in ``no_sync`` and the other one is not."""
    inputs, targets = own_items(runtime)
    nets = problem.network(), problem.network()
    first, second, *_ = runtime.prepare(*nets, *(problem.optimizer_of(net, maker) for net in nets))
    alone = problem.network()
    problem.loss_of(alone(inputs), targets).backward()  # type: ignore[no-untyped-call]
    inputs, targets = inputs.to(runtime.device), targets.to(runtime.device)
    with runtime.no_sync(first):
        for net in (first, second):
            runtime.backward(problem.loss_of(net(inputs), targets))
    found = [gradients_of(runtime.unwrap_model(net)) for net in (first, second)]
    return {"within": found[0], "without": found[1], "alone": gradients_of(alone)}
