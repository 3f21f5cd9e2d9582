"""Saves and loads what DeepSpeed's stage 3 keeps on a drive as if it were in memory.

DeepSpeed 0.19.8 copies its files from the drive next to a checkpoint that does not contain them, and does not load them
into its optimizer. Here checkpoints have the same content wherever the state is kept.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torch_hal.errors import CheckpointError
from torch_hal.utilities.nested import map_tensors
from torch_hal_deepspeed.library import load_file, part

__all__ = ["mapped", "take_charge"]

Part = tuple[Tensor, Mapping[str, Any]]
"""A process's shard of a sub-group: the weights that the optimizer steps, and their optimizer state."""


def take_charge(engine: Any) -> None:
    """Let DeepSpeed's ``engine`` of stage 3 load what it keeps on a drive, one sub-group at a time.

    When loading a checkpoint of another number of processes, each parameter group gets its own options back; DeepSpeed
    would give all of them the options of the first.
    """
    divided = engine.optimizer
    divided.load_hp_checkpoint_state_from_checkpoint_dir_stage3 = partial(_load_universal, divided)
    if not (divided.swap_optimizer or divided.params_in_nvme_and_cpu):
        return
    engine.zero_nvme_offload_optimizer = lambda: (
        False
    )  # it then copies no files, and loads as if everything were in memory
    engine.checkpoint_engine.load = _map_file
    divided._rigid_load_state_dict = partial(_load_own, divided)
    divided.refresh_fp32_params = partial(_refresh, divided)
    if divided.swap_optimizer:
        swapper = divided.optimizer_swapper
        swapper._adjust_for_misaligned_lengths = partial(_align, swapper.numel_alignment)


def _align(alignment: int, tensors: list[Tensor], offsets: list[int]) -> tuple[list[Tensor], list[int]]:
    """Replaces DeepSpeed's function: cut gradients so that parts on the drive start at aligned offsets.

    Each part is read back to its offset in a buffer; if the offset is not aligned, the read fails silently.
    """
    pieces: list[tuple[Tensor, int]] = []
    for tensor, offset in zip(tensors, offsets, strict=True):
        first = min(-offset % alignment, tensor.numel())
        last = tensor.numel() - (tensor.numel() - first) % alignment
        cuts = ((0, first), (first, last), (last, tensor.numel()))
        pieces += [(tensor[start:end], offset + start) for start, end in cuts if start < end]
    return [piece for piece, _ in pieces], [start for _, start in pieces]


@contextmanager
def mapped(engine: Any) -> Iterator[None]:
    """A context in which the tensors that DeepSpeed's ``engine`` keeps on a drive are memory-mapped files.

    They are read page by page as they are used; writing to them writes to the files.

    Raises:
        CheckpointError: A file on the drive cannot be read.
    """
    divided = engine.optimizer
    swaps = getattr(divided, "swap_optimizer", False)
    swapped = list(divided.optimizer_swapper.swap_params_info.values()) if swaps else []
    frozen = [parameter for parameter in engine.module.parameters() if _is_frozen_on_drive(parameter)]
    try:
        for info in swapped:
            for held in info.tensors:
                held.compute_tensor.data = _map(held.swap_path, info.numel(), info.dtype())
        for parameter in frozen:
            swapper, own = parameter.nvme_swapper, parameter.ds_tensor
            own.data = _map(swapper.get_path(parameter, must_exist=True), own.ds_numel, swapper.dtype)
        yield
    finally:
        for info in swapped:
            info.release_memory()
        for parameter in frozen:
            parameter.ds_tensor.data = parameter.nvme_swapper.invalid_buffer.data


def _is_frozen_on_drive(parameter: Any) -> bool:
    """Whether ``parameter`` is on a drive and not trained. DeepSpeed's optimizer handles the trained ones."""
    if parameter.requires_grad or getattr(parameter, "nvme_swapper", None) is None:
        return False
    status = part("runtime.swap_tensor.partitioned_param_swapper").PartitionedParamStatus
    return bool(parameter.ds_tensor.status is status.NOT_AVAILABLE)


def _map(path: str, numel: int, dtype: torch.dtype) -> Tensor:
    try:
        return torch.from_file(path, shared=True, size=numel, dtype=dtype)
    except RuntimeError as error:
        raise CheckpointError(f"{path}: DeepSpeed's file on the drive cannot be read: {error}") from error


# -- loading ---------------------------------------------------------------------------------------------------------


def _map_file(path: str, map_location: Any = None) -> Any:
    """A file that DeepSpeed saved, read page by page as it is used."""
    return load_file(path, map_location, mmap=True)


def _load_own(divided: Any, state: Mapping[str, Any], load_optimizer_states: bool = True) -> None:
    """Replaces DeepSpeed's function: load what this process saved with the same number of processes."""
    del load_optimizer_states  # always
    divided._load_global_state_stage3(state)
    saved = state["optimizer_state_dict"]
    weights = state["fp32_flat_groups"]
    _put(divided, saved["param_groups"], len(weights), lambda number: (weights[number], saved["state"].get(number, {})))


def _load_universal(divided: Any, directory: str) -> None:
    """Replaces DeepSpeed's function: load this process's shards of what any number of processes saved."""
    directory = os.path.join(directory, "zero")
    state = _map_file(os.path.join(directory, "optimizer_state.pt"))
    divided._load_global_state_stage3(state)
    saved = state["optimizer_state_dict"]
    steps = {name: value for name, value in saved["state"][0].items() if name == "step"}

    def part_of(number: int) -> Part:
        def own(name: str) -> Tensor:
            folders = (os.path.join(directory, divided.param_names[one]) for one in divided.fp16_groups[number])
            parts = zip(folders, divided.fp16_groups[number], strict=True)
            return torch.cat([divided.load_hp_checkpoint_state(folder, name, one) for folder, one in parts])

        return own("fp32"), {**steps, "exp_avg": own("exp_avg"), "exp_avg_sq": own("exp_avg_sq")}

    _put(divided, saved["param_groups"], len(divided.fp16_groups), part_of)


def _put(divided: Any, groups: list[dict[str, Any]], parts: int, part_of: Callable[[int], Part]) -> None:
    """Load each sub-group's part.

    Raises:
        ValueError: The number of sub-groups is not ``parts``, or the parameter groups differ.
    """
    optimizer = divided.optimizer
    if parts != len(divided.fp32_partitioned_groups_flat):
        raise ValueError(
            f"the checkpoint has {parts} sub-groups, the optimizer {len(divided.fp32_partitioned_groups_flat)}"
        )
    optimizer.load_state_dict({"state": {}, "param_groups": [{**group, "params": []} for group in groups]})
    if divided.swap_optimizer:
        divided.optimizer_swapper.purge_state()
    for number, stepped in enumerate(divided.fp32_partitioned_groups_flat):
        with _swapped_in(divided, number):
            weights, state = part_of(number)
            stepped.data.copy_(weights)
            if state:
                optimizer.state[stepped] = map_tensors(torch.clone, dict(state))
            divided._reassign_or_swap_out_partitioned_parameters(number)


def _refresh(divided: Any) -> None:
    """Replaces DeepSpeed's function: copy the current parameters into the optimizer."""
    for number, stepped in enumerate(divided.fp32_partitioned_groups_flat):
        with _swapped_in(divided, number):
            parameters = divided.fp16_partitioned_groups_flat[number]
            if parameters is None:
                divided._swap_in_sub_group_to_flat_buffer(stepped.data, number)
            else:
                stepped.data.copy_(parameters)


@contextmanager
def _swapped_in(divided: Any, number: int) -> Iterator[None]:
    """A context in which a sub-group's state is in memory; afterwards it is written back to the drive."""
    if not divided._swappable_optimizer_subgroup(number):
        yield
        return
    divided._optimizer_states_and_gradient_swap_in(number)
    yield
    divided._optimizer_states_and_gradient_swap_out(number)
