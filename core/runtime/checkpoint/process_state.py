"""What differs between processes in a checkpoint: random generators, position in the data, gradients; loading parts."""

from __future__ import annotations

import copy
import hashlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from inspect import signature
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...checkpoints.checksums import tensors_in_files
from ...checkpoints.commit import write_errors
from ...checkpoints.manifest import Manifest
from ...checkpoints.safe_unpickling import load_tensors
from ...checkpoints.torch_io import write_shard
from ...data import PreparedLoader
from ...errors import CheckpointError, quoted
from ...plan import Plan
from ...precisions.base import state_dtypes_kept
from ...random import MAX_SEED, get_rng_state, seed_everything, set_rng_state
from ...strategies.base import Strategy
from ...strategies.partial_save import Meeting
from ...strategies.wrapping import unwrap_optimizer
from ...utilities.nested import leaves, map_tensors
from ...utilities.torch_private import uncompiled_names

logger = logging.getLogger(__name__)


def run_facts(plan: Plan) -> dict[str, Any]:
    """The checkpoint's reserved part ``"core"``: world size, names of backends, and versions of their packages."""
    origins = {choice.origin for choice in plan.choices().values() if " " in choice.origin}
    versions = dict(origin.rsplit(" ", 1) for origin in sorted(origins) if origin != "this process")
    return {
        "world_size": plan.world_size,
        "strategy": plan.strategy.name,
        "precision": plan.precision.name,
        "accelerator": plan.accelerator.name,
        "versions": {**versions, "torch": str(torch.__version__)},
    }


def restore(
    checkpoint: dict[str, Any], loads: Mapping[str, Callable[[Any], Any]], path: str | os.PathLike[str]
) -> dict[str, Any]:
    """Call each of ``loads`` with its part of ``checkpoint``; returns the other parts.

    Raises:
        CheckpointError: A part is missing or could not be loaded.
    """
    missing = [name for name in loads if name not in checkpoint]
    if missing:
        raise CheckpointError(
            f"state: checkpoint {os.fspath(path)!r} has no part {quoted(missing)}. Its parts: "
            f"{quoted(sorted(checkpoint))}."
        )
    for name, load in loads.items():
        with load_errors(name, path):
            load(checkpoint[name])
    return {name: part for name, part in checkpoint.items() if name not in loads}


class _StateInFile(dict[str, Any]):
    """The state of an optimizer whose tensors are parts of a checkpoint's file."""


def read_parts(strategy: Strategy, read: Callable[[], dict[str, Any]], parts: Collection[str]) -> dict[str, Any]:
    """What ``read`` returns: a checkpoint, of which ``parts`` take no memory until they are loaded, if possible.

    Args:
        strategy: Loads them.
        read: Reads the checkpoint.
        parts: The states of modules and optimizers, by their names in the checkpoint, that are loaded into these and
            not used otherwise.
    """
    kind = type(strategy)
    is_plain = kind.load_module_state is Strategy.load_module_state
    copies = is_plain and kind.load_optimizer_state is Strategy.load_optimizer_state
    if not (parts and (copies or strategy.copies_loaded_state)):
        return read()  # an engine may keep what it gets
    with tensors_in_files():
        checkpoint = read()
    return {name: _marked(part) if name in parts else _copied(part) for name, part in checkpoint.items()}


def _marked(part: Any) -> Any:
    if isinstance(part, list):
        return [_marked(each) for each in part]
    return _StateInFile(part) if isinstance(part, dict) and "param_groups" in part else part


def _copied(part: Any) -> Any:
    """A copy of ``part``, with the same shards of tensors, which are in memory."""
    return copy.deepcopy(part, {id(each): each for _, each in leaves(part) if hasattr(each, "device_mesh")})


def _copy_taken(optimizer: Optimizer, state: _StateInFile) -> None:
    """Copy what ``optimizer`` has taken from a file as it is."""
    files = {_memory(each) for _, each in leaves(state["state"])} - {0}

    def own(tensor: Tensor) -> Tensor:
        return tensor.clone() if _memory(tensor) in files else tensor

    for parameter, entries in optimizer.state.items():
        optimizer.state[parameter] = map_tensors(own, entries)


def _memory(value: Any) -> int:
    return value.untyped_storage().data_ptr() if type(value) is Tensor and value.layout is torch.strided else 0


_LACKING = ", which the optimizer that was saved does not have"


def class_of(optimizer: Optimizer) -> str:
    """The name of the user's class of an optimizer, which a checkpoint has next to its state."""
    return type(unwrap_optimizer(optimizer)).__name__


def load_optimizer(
    strategy: Strategy,
    optimizer: Optimizer,
    state: dict[str, Any],
    plan: Plan,
    facts: Mapping[str, Any],
    saved_class: str | None,
) -> None:
    """Load ``state`` into ``optimizer``: in the dtypes that it was saved in, unless the precision is another by now.

    Args:
        strategy: The strategy.
        optimizer: The user's own, as the strategy set it up.
        state: What the strategy's ``optimizer_state`` gave.
        plan: Of this run.
        facts: Of the run that saved it, or empty; see :func:`run_facts`.
        saved_class: What :func:`class_of` gave, or ``None`` if it is not known.

    Raises:
        ValueError: It is of an optimizer of another kind, or with other parameter groups.
    """
    kind, groups = class_of(optimizer), optimizer.param_groups
    if saved_class not in (None, kind):
        raise ValueError(
            f"{kind} is not the optimizer that was saved, which is {saved_class}: its state has other entries. Create "
            f"{saved_class}, or load the model's weights alone and begin with a new {kind}"
        )
    # An engine's state may have no groups, or be no mapping.
    saved = state.get("param_groups") if isinstance(state, Mapping) else None
    if isinstance(saved, list) and len(saved) != len(groups):
        raise ValueError(
            f"{kind} has {len(groups)} parameter group(s), and was saved with {len(saved)}. Groups that a run has "
            "added have to be there before: call add_param_group in on_load_checkpoint, or before load_state"
        )
    if isinstance(state, _StateInFile) and type(optimizer).load_state_dict is not Optimizer.load_state_dict:
        state = _copied(dict(state))  # it may keep more of it than its state
    try:
        with state_dtypes_kept(optimizer) if facts.get("precision") == plan.precision.name else nullcontext():
            strategy.load_optimizer_state(optimizer, state)
        if isinstance(state, _StateInFile):
            _copy_taken(optimizer, state)
    except KeyError as error:
        raise ValueError(f"{kind} needs {error}{_LACKING}") from error
    settings = getattr(optimizer, "defaults", {})
    for before, now in zip(groups, optimizer.param_groups, strict=False):
        if absent := [name for name in settings if name in before and name not in now]:
            raise ValueError(f"{kind} needs {absent[0]!r}{_LACKING}")
    if saved_class is None and isinstance(state, Mapping):
        _check_class(optimizer, state.get("state"))


def _check_class(optimizer: Optimizer, state: Any) -> None:
    """Check one of torch's optimizers after it was loaded from a checkpoint that does not name its class.

    Args:
        optimizer: The user's own.
        state: Of the parameters, as the checkpoint has it.

    Raises:
        ValueError: It is of another class.
    """
    kind = type(unwrap_optimizer(optimizer))
    if not kind.__module__.startswith("torch.optim."):
        return
    found = {key for entries in state.values() for key in entries} if isinstance(state, Mapping) else set()
    one = nn.Parameter(torch.zeros(1, 1))
    one.grad = torch.zeros(1, 1)
    group = optimizer.param_groups[0]
    settings = {name: group[name] for name in signature(kind).parameters if name in group and name not in _KERNELS}
    with suppress(RuntimeError, TypeError):  # LBFGS needs a closure, SparseAdam sparse gradients
        fresh = kind([one], **settings)
        fresh.step()
        if found and not found.issuperset(fresh.state[one]):
            raise ValueError(
                f"{kind.__name__} is not the optimizer that was saved, whose class the checkpoint does not name: its "
                f"state has {quoted(sorted(found))} and not {quoted(sorted(fresh.state[one]))}. Create an optimizer of "
                f"its class, or load the model's weights alone and begin with a new {kind.__name__}"
            )


_KERNELS = ("params", "foreach", "fused", "capturable", "differentiable")
"""Settings that change how a step is computed, and not what is kept."""


@contextmanager
def load_errors(name: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """A context that turns the errors of a ``load_state_dict`` into a CheckpointError with part and checkpoint."""
    try:
        yield
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint {os.fspath(path)!r}: its part {name!r} could not be loaded: {error}\nLoad it into what it was "
            "saved from, with the same sizes and settings."
        ) from error


ABSENT = (
    "%s: not called by rank(s) %s: the states of their random number generators are not in the checkpoint, and a "
    "resumed run seeds them from the states of rank 0. Models, optimizers, schedulers and the position in the data are "
    "exact. To resume bit for bit, call it in every process"
)

AT_END = (
    "load_state: %s was written after the last batch of epoch %s, so the next pass over the loader has no batch and "
    "ends that epoch. If your loop begins with epoch %s, as where it computes it from the number of steps, call "
    "loader.set_epoch(epoch) or skip_first_batches before the loop: then that pass is left out"
)

Prepared = tuple[nn.Module, nn.Module]
"""The user's own module, and the same as the strategy set it up."""


def own_state(
    strategy: Strategy, loaders: Sequence[PreparedLoader], is_open: bool = False, /, **more: Any
) -> dict[str, Any]:
    """The state of this process; see :meth:`ProcessStates.gather`."""
    return {
        "rng": get_rng_state(strategy.accelerator, strategy.root_device),
        "precision": strategy.precision.state_dict(),
        "loaders": [loader.state_dict() for loader in loaders],
        "is_accumulating": is_open,
        **more,
    }


@attrs.frozen
class ProcessStates:
    """The states of a run's processes.

    Args:
        strategy: Of the run.
        by_rank: The state of each process that saved; ``None`` for those whose state is not known.
    """

    strategy: Strategy
    by_rank: list[dict[str, Any] | None]

    @classmethod
    def gather(
        cls,
        meeting: Meeting,
        strategy: Strategy,
        loaders: Sequence[PreparedLoader],
        is_open: bool,
        /,
        to_all: bool = False,
        **more: Any,
    ) -> ProcessStates:
        """The states of the processes in ``meeting``, in the one that leads it; warns where a process is absent.

        Args:
            meeting: The processes that save.
            strategy: Of the run.
            loaders: What this process reads.
            is_open: Whether this process has gradients that it has accumulated and not used.
            to_all: Whether the other processes get them too, and not only their own.
            **more: What else differs between the processes, or replaces a part of it, such as ``loaders``.
        """
        if meeting.absent and meeting.is_leader:
            logger.warning(ABSENT, meeting.name, ", ".join(map(str, meeting.absent)))
            if is_open:
                logger.warning(
                    "%s: their accumulated gradients are missing too. Save after an optimizer step", meeting.name
                )
        return cls(strategy, meeting.gather(own_state(strategy, loaders, is_open, **more), to_all))

    @classmethod
    def read(cls, saved: list[dict[str, Any] | None], strategy: Strategy, path: Any, reshard: bool) -> ProcessStates:
        """The states in a checkpoint.

        Raises:
            CheckpointError: It is of another number of processes, and ``reshard`` is false or gradients are open.
        """
        states = cls(strategy, saved)
        if len(saved) == strategy.world_size:
            return states
        if not reshard:
            raise CheckpointError(
                f"checkpoint {os.fspath(path)!r}: saved by {len(saved)} process(es), and this run has "
                f"{strategy.world_size}. Use {len(saved)}, or reshard=True: then each sample that is left of an epoch "
                "is still seen once, but the run does not go on bit for bit."
            )
        if states.is_accumulating:
            raise CheckpointError(
                f"checkpoint {os.fspath(path)!r}: saved within an accumulation of gradients by {len(saved)} "
                "process(es), so only as many can continue it. Use one that was saved after an optimizer step."
            )
        return states

    @property
    def first(self) -> dict[str, Any]:
        """The state of process 0, which leads each save."""
        first = self.by_rank[0]
        assert first is not None
        return first

    @property
    def is_accumulating(self) -> bool:
        """Whether each process has gradients that it has accumulated and not used."""
        return bool(self.first["is_accumulating"])

    def restore_loaders(self, loaders: Sequence[PreparedLoader], path: Any, knows_epoch: bool = True) -> None:
        """Continue the data where it was: its order is the same in all processes, so process 0's position will do.

        Args:
            loaders: What this process reads.
            path: The checkpoint.
            knows_epoch: Whether the script may have its own number of the epoch in the checkpoint. One that has not
                is warned where a script that counts steps begins with another epoch than the data.
        """
        own = self.own if len(self.by_rank) == self.strategy.world_size else None
        for loader, state in zip(loaders, (own or self.first)["loaders"], strict=False):
            with load_errors("loaders", path):
                # What this process read first is known from its own state only.
                loader.load_state_dict(state if own else {**state, "first": None}, reshard=True)
            if not knows_epoch and loader.is_at_end and self.strategy.is_global_zero:
                logger.warning(AT_END, path, loader.epoch, loader.epoch + 1)

    def restore_precision(self, path: Any) -> None:
        """Restore the loss scale, which is this process's own where processes train on their own."""
        with load_errors("precision", path):
            self.strategy.precision.load_state_dict((self.own or self.first)["precision"])

    def restore_generators(self) -> None:
        """Restore this process's random number generators, at the last moment before they are drawn from again.

        If its state is not known, they get a seed that is derived from process 0's.
        """
        strategy, own = self.strategy, self.own
        if own is not None:
            set_rng_state(own["rng"], strategy.accelerator, strategy.root_device)
            return
        text = bytes(self.first["rng"]["torch"].tolist()) + str(strategy.global_rank).encode()
        seed_everything(int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") % MAX_SEED)
        logger.warning(
            "rank %s: the states of its random number generators are not in the checkpoint; they were seeded from "
            "the states of rank 0",
            strategy.global_rank,
        )

    @property
    def own(self) -> dict[str, Any] | None:
        """The state of this process, if it is known."""
        rank = self.strategy.global_rank
        return self.by_rank[rank] if rank < len(self.by_rank) else None


def open_state(modules: Iterable[Prepared], strategy: Strategy) -> list[dict[str, Any]]:
    """What this process has between two batches of an accumulation: gradients, and what they depend on.

    Args:
        modules: The user's own modules, and each as the strategy set it up.
        strategy: Of the run.

    Raises:
        CheckpointError: The strategy keeps gradients by itself, and does not say which.
    """
    kept_by_it = type(strategy).module_state is not Strategy.module_state
    if kept_by_it and type(strategy).accumulation_state is Strategy.accumulation_state:
        raise CheckpointError(
            f"strategy {strategy.name!r} keeps accumulated gradients by itself, and they cannot be saved. Save after "
            "an optimizer step."
        )
    return [
        {
            "gradients": {name: p.grad for name, p in own.named_parameters() if p.grad is not None and not kept_by_it},
            # Within an accumulation each process has its own: they are not sent from process 0 then.
            "buffers": dict(own.named_buffers()),
            "strategy": strategy.accumulation_state(wrapped),
        }
        for own, wrapped in modules
    ]


def load_open_state(modules: Iterable[Prepared], states: list[dict[str, Any]] | None, strategy: Strategy) -> None:
    """Restore what :func:`open_state` returned; a warning if it is not known."""
    if states is None:
        logger.warning("rank %s: its accumulated gradients are not in the checkpoint", strategy.global_rank)
        return
    for (own, wrapped), state in zip(modules, states, strict=True):
        gradients, buffers = (uncompiled_names(state[part]) for part in ("gradients", "buffers"))
        for name, parameter in uncompiled_names(dict(own.named_parameters())).items():
            gradient = gradients.get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        for name, buffer in uncompiled_names(dict(own.named_buffers())).items():
            buffer.copy_(buffers[name])
        strategy.load_accumulation_state(wrapped, state["strategy"])


def write_gradients(modules: Iterable[Prepared], directory: Path, strategy: Strategy) -> None:
    """Write :func:`open_state` into a checkpoint's directory."""
    with write_errors(directory):
        write_shard(open_state(modules, strategy), directory / _gradients(strategy.global_rank), directory)


def read_gradients(modules: Iterable[Prepared], directory: Path, manifest: Manifest, strategy: Strategy) -> None:
    """Restore what :func:`write_gradients` wrote, if this process wrote it."""
    name = _gradients(strategy.global_rank)
    states = load_tensors(manifest.file(directory, name), "cpu") if name in manifest.files else None
    load_open_state(modules, states, strategy)


def _gradients(rank: int) -> str:
    return f"gradients-{rank:05d}.pt"
