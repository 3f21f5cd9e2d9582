"""What DeepSpeed's stage 3 keeps on a drive, saved and put back as if it were in memory.

DeepSpeed 0.19.8 copies its files from the drive beside a checkpoint that lacks them, and when it loads it does not give
them back to its optimizer. Here its checkpoints have the same content wherever the state lies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from core.errors import CheckpointError
from core.nested import map_tensors
from torch_hal_deepspeed.library import part

__all__ = ["mapped", "take_charge"]

Part = tuple[Tensor, Mapping[str, Any]]
"""What a process has of a sub-group: its weights as the optimizer steps them, and the optimizer's state of them."""


def take_charge(engine: Any) -> None:
    """Let DeepSpeed's ``engine`` of stage 3 load what it keeps on a drive, a sub-group at a time.

    Wherever it is kept, of what another number of processes saved each group of parameters gets its own options back,
    where DeepSpeed gives all of them those of the first.
    """
    divided = engine.optimizer
    divided.load_hp_checkpoint_state_from_checkpoint_dir_stage3 = partial(_load_universal, divided)
    if not (divided.swap_optimizer or divided.params_in_nvme_and_cpu):
        return
    engine.zero_nvme_offload_optimizer = lambda: False  # it copies no files, and loads as if all were in memory:
    engine.checkpoint_engine.load = _map_file
    divided._rigid_load_state_dict = partial(_load_own, divided)
    divided.refresh_fp32_params = partial(_refresh, divided)
    if divided.swap_optimizer:
        swapper = divided.optimizer_swapper
        swapper._adjust_for_misaligned_lengths = partial(_align, swapper.numel_alignment)


def _align(alignment: int, tensors: list[Tensor], offsets: list[int]) -> tuple[list[Tensor], list[int]]:
    """In place of DeepSpeed's own: cut gradients so that what goes to the drive starts at aligned offsets too.

    It is read back to its offset in a buffer, and where that is not aligned the read fails in silence.
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
    """Within, the tensors that DeepSpeed's ``engine`` has on a drive have its files for memory.

    They are read page by page as they are used; what is written to them is in the files.

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
    """Whether ``parameter`` is on a drive and is not trained: DeepSpeed's optimizer looks after the others."""
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
    """What DeepSpeed saved, read page by page as it is used."""
    return torch.load(path, map_location, mmap=True, weights_only=False)


def _load_own(divided: Any, state: Mapping[str, Any], load_optimizer_states: bool = True) -> None:
    """In place of DeepSpeed's own: take what this process saved, of as many processes as there are now."""
    del load_optimizer_states  # always
    divided._load_global_state_stage3(state)
    saved = state["optimizer_state_dict"]
    weights = state["fp32_flat_groups"]
    _put(divided, saved["param_groups"], len(weights), lambda number: (weights[number], saved["state"].get(number, {})))


def _load_universal(divided: Any, directory: str) -> None:
    """In place of DeepSpeed's own: take this process's part of what any number of processes saved."""
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
    """Give each sub-group its part.

    Raises:
        ValueError: There are more or fewer than ``parts`` sub-groups, or other groups of parameters.
    """
    optimizer = divided.optimizer
    if parts != len(divided.fp32_partitioned_groups_flat):
        raise ValueError(f"{parts} sub-groups where there are {len(divided.fp32_partitioned_groups_flat)}")
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
    """In place of DeepSpeed's own: let the optimizer step the parameters as they are now."""
    for number, stepped in enumerate(divided.fp32_partitioned_groups_flat):
        with _swapped_in(divided, number):
            parameters = divided.fp16_partitioned_groups_flat[number]
            if parameters is None:
                divided._swap_in_sub_group_to_flat_buffer(stepped.data, number)
            else:
                stepped.data.copy_(parameters)


@contextmanager
def _swapped_in(divided: Any, number: int) -> Iterator[None]:
    """Within, what a sub-group has on the drive is in memory; what it is then goes back there."""
    if not divided._swappable_optimizer_subgroup(number):
        yield
        return
    divided._optimizer_states_and_gradient_swap_in(number)
    yield
    divided._optimizer_states_and_gradient_swap_out(number)
