"""Import DeepSpeed for one type of device, and release what it keeps after a run."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torch_hal.errors import BackendError

__all__ = ["PICKLED", "import_deepspeed", "load_file", "meet", "part", "quiet"]

PICKLED = frozenset(
    {
        "collections.defaultdict",
        "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.runtime.zero.config.OffloadDeviceEnum",
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.utils.tensor_fragment.fragment_address",
    }
)
"""What the engine writes into its files in addition to tensors and plain values."""

LOCK_SECONDS = 60
"""A lock that is older may be a killed process's. Other processes of the same run have just begun."""

_ACCELERATOR = "DS_ACCELERATOR"
_GROUPS = ("_WORLD_GROUP", "_ZERO_PARAM_INTRA_PARALLEL_GROUP", "_TENSOR_MODEL_PARALLEL_GROUP", "_MODEL_PARALLEL_GROUP")
_GROUPS_BY_NAME = ("_EXPERT_PARALLEL_GROUP", "_EXPERT_DATA_PARALLEL_GROUP", "_ALL_TO_ALL_GROUP")


def import_deepspeed(device_type: str) -> Any:
    """DeepSpeed, set to devices of ``device_type``, whatever other devices this machine has.

    Raises:
        BackendError: DeepSpeed does not support that type of device, or cannot be imported.
    """
    before = os.environ.get(_ACCELERATOR)
    os.environ[_ACCELERATOR] = device_type  # it reads the variable whenever it looks for its accelerator
    try:
        chosen: Any = importlib.import_module("deepspeed.accelerator.real_accelerator")
        if chosen.ds_accelerator is not None and chosen.ds_accelerator._name != device_type:
            chosen.ds_accelerator = None
        chosen.get_accelerator()
        return importlib.import_module("deepspeed")
    except (ImportError, ValueError, AssertionError, AttributeError) as error:
        raise BackendError(
            f"DeepSpeed cannot be used on devices of type {device_type!r}: {error}. Check that it supports them, and "
            "run: pip install deepspeed"
        ) from error
    finally:
        if before is None:
            del os.environ[_ACCELERATOR]
        else:
            os.environ[_ACCELERATOR] = before


def part(name: str) -> Any:
    """A module of DeepSpeed, such as ``"utils.groups"``; DeepSpeed itself for an empty name."""
    return importlib.import_module(f"deepspeed.{name}" if name else "deepspeed")


def meet(local_rank: int, local_size: int, shared_memory_op: bool) -> Callable[[], None]:
    """Let DeepSpeed use the process group that this process has joined.

    Args:
        local_rank: This process's rank on its machine.
        local_size: The number of processes on this machine.
        shared_memory_op: Whether DeepSpeed may compile its operator for collectives over shared memory on the CPU.

    Returns:
        A function that releases the process group; call it after engines are released.

    Warns:
        UserWarning: Torch waits for a lock before it loads one of DeepSpeed's operators, without a time limit.
    """
    if local_rank == 0:
        _warn_of_locks()
    if not shared_memory_op:
        part("ops").__compatible_ops__["deepspeed_shm_comm"] = False
    # torch warns of deprecated collectives that DeepSpeed calls, thousands of times; users cannot change that.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning, r"torch\.distributed")
    part("comm").init_distributed(dist_backend=dist.get_backend(), dist_init_required=False, verbose=False)
    # Variables that DeepSpeed expects from a launcher: torchrun does not set LOCAL_SIZE, and a single process has none
    # of them. Without it, stage 3 on the CPU starts a program in each step to count NUMA nodes.
    own = {"RANK": dist.get_rank(), "WORLD_SIZE": dist.get_world_size(), "LOCAL_RANK": local_rank}
    own["LOCAL_SIZE"] = local_size
    added = {name: str(value) for name, value in own.items() if name not in os.environ}
    os.environ.update(added)

    def leave() -> None:
        for name in added:
            os.environ.pop(name, None)
        _forget()

    return leave


def _warn_of_locks() -> None:
    """A process that is killed while it compiles an operator leaves its lock, and the next ones would never start."""
    extensions = os.environ.get("TORCH_EXTENSIONS_DIR")
    folder = Path(extensions or importlib.import_module("torch.utils.cpp_extension").get_default_build_root())
    for name in part("ops").__compatible_ops__:
        for lock in folder.glob(f"{name}/lock" if extensions else f"*/{name}/lock"):
            try:
                is_old = time.time() - lock.stat().st_mtime > LOCK_SECONDS
            except FileNotFoundError:  # released
                continue
            if is_old:
                warnings.warn(
                    f"{lock}: a process compiles DeepSpeed's operator {name}, or was killed while it did. Torch waits "
                    "for that file to go before it loads the operator. If no process compiles, delete the file.",
                    stacklevel=2,
                )


def load_file(path: str | os.PathLike[str], map_location: Any = None, mmap: bool = False) -> Any:
    """A file that the engine has written; ``mmap``: read page by page as it is used. DeepSpeed would run code in it."""
    kinds = [getattr(importlib.import_module(module), kind) for module, _, kind in (n.rpartition(".") for n in PICKLED)]
    with torch.serialization.safe_globals(kinds):
        return torch.load(path, map_location, mmap=mmap, weights_only=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Let DeepSpeed's logger log errors only."""
    logger = logging.getLogger("DeepSpeed")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _forget() -> None:
    """Drop the process groups that DeepSpeed keeps, and undo its changes to torch, which would outlive the run."""
    groups = part("utils.groups")
    for name in _GROUPS:
        if hasattr(groups, name):
            setattr(groups, name, None)
    for name in _GROUPS_BY_NAME:
        getattr(groups, name, {}).clear()
    groups._DATA_PARALLEL_GROUP = groups.mpu = groups.mesh_device = None
    part("comm.comm").cdb = None
    autocast = part("runtime.torch_autocast")  # or later engines would believe that they use autocast
    autocast.TORCH_AUTOCAST_INITIALIZED, autocast.TORCH_AUTOCAST_DTYPE = False, None
    patched = part("runtime.zero.partition_parameters").InsertPostInitMethodToModuleSubClasses
    if hasattr(patched, "linear_bk"):  # stage 3 replaced torch's function
        torch.nn.functional.linear = patched.linear_bk
        del patched.linear_bk
    gc.collect()  # an engine and its hooks refer to one another
