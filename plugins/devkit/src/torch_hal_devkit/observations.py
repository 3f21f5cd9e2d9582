"""What the processes of a run observe, for the suites to check; these functions run in each process.

What they take, and what the :class:`torch_hal_devkit.worker.Journal` records, is plain data. ``arguments`` are those
of a front end, and ``optimizer``, the function that creates one.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader

from torch_hal import Runtime, Trainer
from torch_hal.callbacks import Callback, ModelCheckpoint
from torch_hal.errors import ConfigurationError
from torch_hal.strategies import Strategy
from torch_hal_devkit import distributed_problem as problem
from torch_hal_devkit.collective_observations import observe_objects, observe_tensors, save_below_a_file
from torch_hal_devkit.contract_observations import (
    CONTRACTS,
    held,
    left_behind,
    observe_collectives,
    observe_contract,
    unusual_life,
    watching,
)
from torch_hal_devkit.module_observations import MODULES, observe_module
from torch_hal_devkit.problem import Losses
from torch_hal_devkit.process_state import recorded
from torch_hal_devkit.quick import QUICK_NAMES
from torch_hal_devkit.step_observations import STEPS, observe_step, threads
from torch_hal_devkit.worker import Journal

__all__ = ["ACCUMULATE", "CLIPS", "ITEMS"]

_BEGINNING = recorded()
"""This process before the run."""

ITEMS = 11
"""The number of items to evaluate and train on; not divisible by the number of processes."""

ACCUMULATE = 4
"""Batches of an accumulation; an epoch ends with a shorter one."""

CLIPS = {"norm": 0.01, "value": 0.002}
"""By algorithm, a limit that the problem's gradients exceed."""

# -- one run of everything -----------------------------------------------------------------------------------------


def full_run(directory: str, arguments: Mapping[str, Any], eager: bool, precisions: list[str]) -> None:
    """Observe a run that succeeds.

    Args:
        directory: For the journals and checkpoints.
        arguments: The front ends' arguments.
        eager: Whether the devices run single operations on tensors.
        precisions: Further ones to train in.
    """
    _trainer(arguments).runtime.launch(_full_run, directory, arguments, eager, precisions)


def _full_run(
    runtime: Runtime, directory: str, arguments: Mapping[str, Any], eager: bool, precisions: list[str]
) -> None:
    with watching(runtime) as changed:
        _observe_all(runtime, directory, arguments, eager, precisions)
        Journal(directory, runtime.process_index).observe("changed by calls", lambda: changed)


def _observe_all(
    runtime: Runtime, directory: str, arguments: Mapping[str, Any], eager: bool, precisions: list[str]
) -> None:
    only = QUICK_NAMES if arguments.get("quick") else None
    journal = Journal(directory, runtime.process_index, only)
    shards = runtime.strategy.data_shards
    supports_custom_loop = runtime.strategy.supports_custom_loop
    journal.observe("who", _who, runtime)
    observe_objects(journal, runtime)
    if eager:
        observe_tensors(journal, runtime)
    observe_collectives(journal, runtime, eager)
    journal.observe("saving refused", save_below_a_file, runtime, directory)
    runtime.teardown()
    journal.observe("after teardown", _afterwards)
    journal.observe("after another teardown", runtime.strategy.teardown)
    journal.observe("unusual life", unusual_life, lambda: _trainer(arguments).runtime)
    if supports_custom_loop and eager:
        for name, options in _LOOPS.items():
            journal.observe(
                f"custom loop{name}", _custom_loop, arguments, directory if not name else "", shards, options
            )
        _steps(journal, arguments, directory)
    _training(journal, arguments, directory, shards, precisions)
    journal.observe("after all", _afterwards)


def _trainer(arguments: Mapping[str, Any], **options: Any) -> Trainer:
    saves = any(isinstance(callback, ModelCheckpoint) for callback in options.get("callbacks", ()))
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    quiet |= {"enable_checkpointing": saves, "max_epochs": problem.EPOCHS}
    return Trainer(**{**quiet, **_of_a_front_end(arguments), **options})


def _of_a_front_end(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in ("optimizer", "quick")}


def _who(runtime: Runtime) -> dict[str, Any]:
    strategy = runtime.strategy
    return {
        "rank": runtime.process_index,
        "world_size": runtime.num_processes,
        "local_rank": runtime.local_process_index,
        "node_rank": strategy.node_rank,
        "is_main": runtime.is_main_process,
        "device": str(runtime.device),
        "devices": [str(device) for device in strategy.parallel_devices],
        "shards": strategy.data_shards,
        "shard": strategy.data_shard,
        "uses_process_group": strategy.uses_process_group,
        "supports_custom_loop": strategy.supports_custom_loop,
        "inference_is_collective": strategy.inference_is_collective,
        "clip_algorithms": strategy.clip_algorithms,
        "keeps_replicas_equal": strategy.keeps_replicas_equal,
        "keeps_buffers_equal": strategy.keeps_buffers_equal,
        "checkpointed_weights": strategy.checkpointed_weights,
        "brings_checkpoint_io": (
            "checkpoint_io" in strategy.requested_parts or strategy.default_checkpoint_io != "torch"
        ),
        "is_initialized": dist.is_initialized(),
        "planned_size": runtime.plan.world_size,
        "planned_backend": runtime.plan.process_group_backend,
        "live_backends": str(dist.get_backend_config()) if dist.is_initialized() else None,
    }


def _afterwards() -> dict[str, Any]:
    return {
        "process group": dist.is_initialized(),
        "default dtype": str(torch.get_default_dtype()),
        "gradients": torch.is_grad_enabled(),
        "threads": threads(),
        "left": left_behind(_BEGINNING),
    }


# -- custom loops --------------------------------------------------------------------------------------------

_LOOPS: dict[str, dict[str, Any]] = {
    "": {},
    ", accumulating": {"accumulate": ACCUMULATE},
    ", clipping by norm": {"algorithm": "norm"},
    ", clipping by value": {"algorithm": "value"},
}


def _custom_loop(
    arguments: Mapping[str, Any], directory: str, shards: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    with Runtime(**_of_a_front_end(arguments)) as runtime:
        return runtime.launch(_loop, arguments["optimizer"], directory, shards, **options) or {}


def _loop(
    runtime: Runtime, maker: str, directory: str, shards: int, accumulate: int = 1, algorithm: str | None = None
) -> dict[str, Any]:
    net = problem.network()
    net, optimizer, loader = runtime.prepare(net, problem.optimizer_of(net, maker), problem.loader(shards))
    losses = []
    for _ in range(problem.EPOCHS):
        for number, (inputs, targets) in enumerate(loader):
            if (number + 1) % accumulate and number + 1 < problem.STEPS:
                with runtime.no_sync(net):
                    loss = problem.loss_of(net(inputs), targets)
                    runtime.backward(loss / accumulate)
            else:
                loss = problem.loss_of(net(inputs), targets)
                runtime.backward(loss / accumulate)
                if algorithm == "norm":
                    runtime.clip_grad_norm_(net.parameters(), CLIPS["norm"])
                elif algorithm == "value":
                    runtime.clip_grad_value_(net.parameters(), CLIPS["value"])
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
    if directory:
        runtime.save({"net": net, "optimizer": optimizer, "step": len(losses)}, Path(directory, "from the loop"))
    return {"losses": [loss.item() for loss in losses], "state": _state(runtime.strategy, runtime.unwrap_model(net))}


def _steps(journal: Journal, arguments: Mapping[str, Any], directory: str) -> None:
    for name in (*STEPS, *MODULES, *CONTRACTS):
        if journal.only is None or name in journal.only:
            journal.observe(f"steps: {name}", _step, arguments, directory, name)
            if name == "scheduled":
                journal.observe("held", held)


def _step(arguments: Mapping[str, Any], directory: str, name: str) -> None:
    with Runtime(**_of_a_front_end(arguments)) as runtime:
        runtime.launch(_observe_step, directory, name, arguments["optimizer"])


def _observe_step(runtime: Runtime, directory: str, name: str, maker: str) -> None:
    observe = observe_step if name in STEPS else observe_module if name in MODULES else observe_contract
    observe(runtime, Journal(directory, runtime.process_index), name, maker, _state)


def _state(strategy: Strategy, net: nn.Module) -> dict[str, Any]:
    """The state of ``net`` in this process; if each process has a part of it, the whole as rank 0 gathers it."""
    if not strategy.inference_is_collective:
        return _plain(net.state_dict())
    whole = strategy.whole_module_state(net)
    return strategy.broadcast(_plain(whole) if strategy.is_global_zero else {})


def _plain(state: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: value.cpu().tolist() for name, value in state.items()}


class _Parts(Callback):
    """Gathers the parts of a module from all processes, while they are still connected."""

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = None

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.strategy.inference_is_collective:
            self.state = _state(trainer.strategy, pl_module.net)


class _Seams(Callback):
    """The module's state where the first epoch ends, and where training begins."""

    def __init__(self) -> None:
        self.states: dict[str, Any] = {}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.states["start"] = _state(trainer.strategy, pl_module.net)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.states.setdefault("first epoch", _state(trainer.strategy, pl_module.net))


# -- the Trainer ---------------------------------------------------------------------------------------------------


def _training(
    journal: Journal, arguments: Mapping[str, Any], directory: str, shards: int, precisions: list[str]
) -> None:
    fit = partial(_fit, arguments, lambda: problem.loader(shards))
    saving = ModelCheckpoint(os.path.join(directory, "saved"), save_top_k=-1)
    journal.observe("fit", partial(fit, callbacks=[saving]))
    journal.observe("fit again", fit)
    journal.observe("fit, decaying", partial(fit, decays=True))
    journal.observe("fit, accumulating", partial(fit, accumulate_grad_batches=ACCUMULATE))
    for algorithm, limit in CLIPS.items():
        options: dict[str, Any] = {"gradient_clip_val": limit, "gradient_clip_algorithm": algorithm}
        journal.observe(f"fit, clipping by {algorithm}", partial(fit, **options))
    for precision in precisions:
        journal.observe(f"{precision} is taken", _make, arguments, precision)
        journal.observe(f"fit in {precision}", partial(fit, precision=precision))
    journal.observe("fit uneven", _fit, arguments, lambda: DataLoader(problem.items(ITEMS), batch_size=2, shuffle=True))
    journal.observe("fit a stream", _fit, arguments, lambda: DataLoader(problem.Stream(ITEMS), batch_size=2))
    journal.observe("predict", _predict, arguments)
    journal.observe("validate", _validate, arguments)
    if "bf16-mixed" in precisions:
        journal.observe("predict in bf16-mixed", _computed_in, arguments, "bf16-mixed")
    resumable = ModelCheckpoint(os.path.join(directory, "resumable"), "{epoch}", save_top_k=-1)
    whole = partial(_fit, arguments, partial(_shuffled, shards), callbacks=[resumable], decays=True)
    journal.observe("uninterrupted", whole)


def _make(arguments: Mapping[str, Any], precision: str) -> None:
    _trainer(arguments, precision=precision)


def _shuffled(shards: int) -> DataLoader[Any]:
    return DataLoader(
        problem.items(problem.SHARE * problem.STEPS * shards),
        batch_size=problem.SHARE,
        shuffle=True,
    )


def _fit(
    arguments: Mapping[str, Any],
    loader: Callable[[], DataLoader[Any]],
    *,
    callbacks: list[Any] | None = None,
    ckpt_path: str | None = None,
    decays: bool = False,
    **options: Any,
) -> dict[str, Any]:
    torch.manual_seed(11)
    losses, parts, module = Losses(), _Parts(), problem.Regression(arguments["optimizer"], decays=decays)
    seams = [_Seams()] if decays and not _keeps_replicas_equal(arguments) else []
    trainer = _trainer(arguments, callbacks=[losses, parts, *seams, *(callbacks or [])], **options)
    trainer.fit(module, loader(), ckpt_path=ckpt_path)
    state = _plain(module.net.state_dict()) if parts.state is None else parts.state
    more = {"states": seams[0].states} if seams else {}
    return {"losses": losses.values, "state": state, "steps": trainer.global_step, **more}


def _keeps_replicas_equal(arguments: Mapping[str, Any]) -> bool:
    return _trainer(arguments).strategy.keeps_replicas_equal


def _predict(arguments: Mapping[str, Any]) -> list[list[float]]:
    outputs = _trainer(arguments).predict(problem.Regression(), DataLoader(problem.items(ITEMS), batch_size=2))
    rows: list[list[float]] = torch.cat(outputs).tolist()
    return rows


def _computed_in(arguments: Mapping[str, Any], precision: str) -> list[str]:
    """The dtypes of a linear layer's outputs in ``predict``."""
    module, computed = problem.Regression(), []
    module.net[0].register_forward_hook(lambda _module, _inputs, output: computed.append(str(output.dtype)))  # type: ignore[index]
    _trainer(arguments, precision=precision).predict(module, DataLoader(problem.items(ITEMS), batch_size=2))
    return sorted(set(computed))


def _validate(arguments: Mapping[str, Any]) -> float:
    (found,) = _trainer(arguments).validate(
        problem.Regression(), DataLoader(problem.items(ITEMS), batch_size=2), verbose=False
    )
    return found["loss"]


# -- further runs --------------------------------------------------------------------------------------------------


def resumed(directory: str, arguments: Mapping[str, Any], ckpt_path: str) -> None:
    """Resume the run ``uninterrupted`` from the checkpoint of its first epoch."""
    _trainer(arguments).runtime.launch(_resumed, directory, arguments, ckpt_path)


def _resumed(runtime: Runtime, directory: str, arguments: Mapping[str, Any], ckpt_path: str) -> None:
    journal, shards = Journal(directory, runtime.process_index), runtime.strategy.data_shards
    runtime.teardown()
    rest = partial(_fit, arguments, partial(_shuffled, shards), ckpt_path=ckpt_path, decays=True)
    journal.observe("resumed", rest)


def read(directory: str, arguments: Mapping[str, Any], path: str) -> None:
    """Read the checkpoint that the custom loop wrote."""
    _trainer(arguments).runtime.launch(_read, directory, arguments["optimizer"], path)


def _read(runtime: Runtime, directory: str, maker: str, path: str) -> None:
    Journal(directory, runtime.process_index).observe("read", _load, runtime, maker, path)


def _load(runtime: Runtime, maker: str, path: str) -> dict[str, Any]:
    net = problem.network()
    net, optimizer = runtime.prepare(net, problem.optimizer_of(net, maker))
    rest = runtime.load(path, {"net": net, "optimizer": optimizer})
    return {"rest": rest, "state": _state(runtime.strategy, runtime.unwrap_model(net))}


def started(directory: str, arguments: Mapping[str, Any]) -> None:
    """What processes observe that a launcher started."""
    _trainer(arguments).runtime.launch(_started, directory, arguments)


def _started(runtime: Runtime, directory: str, arguments: Mapping[str, Any]) -> None:
    journal, shards = Journal(directory, runtime.process_index), runtime.strategy.data_shards
    journal.observe("who", _who, runtime)
    observe_objects(journal, runtime)
    runtime.teardown()
    journal.observe("fit", partial(_fit, arguments, lambda: problem.loader(shards)))


def collectives(directory: str, arguments: Mapping[str, Any], eager: bool, fails: bool) -> None:
    """Exchange drawn values only, in a number of processes that the strategy may refuse.

    Args:
        directory: For the journals.
        arguments: The front ends' arguments.
        eager: Whether the devices run single operations on tensors.
        fails: Whether rank 0 then raises an exception, as in :func:`failing`.
    """
    try:
        trainer = _trainer(arguments)
    except ConfigurationError as error:
        Journal(directory, 0).observe("refused", str, str(error))
        return
    trainer.runtime.launch(_collectives, directory, eager, fails)


def _collectives(runtime: Runtime, directory: str, eager: bool, fails: bool) -> None:
    journal = Journal(directory, runtime.process_index)
    journal.observe("who", _who, runtime)
    observe_collectives(journal, runtime, eager)
    if fails:
        _fail(runtime, journal, "raise", 0)
    runtime.teardown()


def failing(directory: str, arguments: Mapping[str, Any], how: str, victim: int) -> None:
    """Run processes of which one fails while the others wait for it.

    Args:
        directory: For the journals.
        arguments: The front ends' arguments.
        how: ``"kill"`` or ``"raise"``.
        victim: The rank of the failing process.
    """
    _trainer(arguments).runtime.launch(_failing, directory, how, victim)


def _failing(runtime: Runtime, directory: str, how: str, victim: int) -> None:
    _fail(runtime, Journal(directory, runtime.process_index), how, victim)


def _fail(runtime: Runtime, journal: Journal, how: str, victim: int) -> None:
    runtime.strategy.barrier()
    journal.observe("failed", time.time)
    if runtime.process_index == victim:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("planted by the conformance kit")
    runtime.strategy.barrier()
    journal.observe("came through", time.time)
