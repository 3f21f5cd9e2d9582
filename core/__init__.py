"""torch-hal: install a package, and its hardware works by name in any PyTorch training script.

Every public name is imported when it is first used; ``import core`` alone imports no torch. ``torch_hal`` and ``core``
are two names of this package: the real one, and the one that most scripts write. In a project that has its own package
``core``, write ``from torch_hal import Trainer``.
"""

from __future__ import annotations

import os
import sys

if not os.path.isfile(__file__):
    raise ImportError(
        f"torch-hal was imported from {__file__}, which is not a file. torch-hal reads its own files and runs some of "
        "them as scripts, so it does not work in a zip archive, or in a frozen program without its source files. "
        "Install it in a folder, as pip does; give PyInstaller --collect-all torch_hal --copy-metadata torch-hal."
    )

if __name__ != "torch_hal":
    from torch_hal.utilities.second_name import share

    share(__name__, __file__)

from .kinds import KINDS
from .utilities.lazy import lazy_names

TYPE_CHECKING = False  # true for type checkers; importing typing would take a quarter of a listing's time
if TYPE_CHECKING:
    from typing import Any

    from .accelerators import Accelerator
    from .callbacks import Callback
    from .checkpoints import CheckpointIO
    from .data import skip_first_batches
    from .environments import ClusterEnvironment
    from .errors import CoreError
    from .logging import get_logger, rank_zero_info, rank_zero_only, rank_zero_warn
    from .plan import Plan, Request, resolve
    from .precisions import Precision
    from .random import seed_everything, set_seed
    from .registration import (
        AcceleratorRegistry,
        CheckpointIORegistry,
        ClusterEnvironmentRegistry,
        PrecisionRegistry,
        StrategyRegistry,
    )
    from .runtime import GradientAccumulationPlugin, ProjectConfiguration, Runtime, release_memory
    from .runtime.accelerate_handlers import (
        AutocastKwargs,
        DDPCommunicationHookType,
        DistributedDataParallelKwargs,
        DummyOptim,
        DummyScheduler,
        InitProcessGroupKwargs,
        ProfileKwargs,
    )
    from .runtime.batch_size import find_executable_batch_size
    from .runtime.local_sgd import LocalSGD
    from .runtime.notebook import notebook_launcher
    from .runtime.partial_state import (
        AcceleratorState,
        DistributedType,
        PartialState,
        broadcast,
        broadcast_object_list,
        clear_device_cache,
        gather,
        gather_object,
        init_empty_weights,
        init_on_device,
        is_initialized,
        set_module_tensor_to_device,
        synchronize_rng_states,
        tqdm,
    )
    from .runtime.prepare.wrappers import extract_model_from_parallel, is_peft_model
    from .strategies import Strategy
    from .trainer import DataModule, Module, Trainer
    from .trainer.tuner import Tuner, find_batch_size, find_learning_rate

__version__ = "0.1.0"

__all__ = [
    "Accelerator",
    "AcceleratorRegistry",
    "AcceleratorState",
    "AutocastKwargs",
    "Callback",
    "CheckpointIO",
    "CheckpointIORegistry",
    "ClusterEnvironment",
    "ClusterEnvironmentRegistry",
    "CoreError",
    "DDPCommunicationHookType",
    "DistributedDataParallelKwargs",
    "DistributedType",
    "DataModule",
    "DummyOptim",
    "DummyScheduler",
    "GradientAccumulationPlugin",
    "InitProcessGroupKwargs",
    "LocalSGD",
    "Module",
    "PartialState",
    "Plan",
    "Precision",
    "PrecisionRegistry",
    "ProfileKwargs",
    "ProjectConfiguration",
    "Request",
    "Runtime",
    "Strategy",
    "StrategyRegistry",
    "Trainer",
    "Tuner",
    "__version__",
    "broadcast",
    "broadcast_object_list",
    "clear_device_cache",
    "extract_model_from_parallel",
    "find_batch_size",
    "find_executable_batch_size",
    "find_learning_rate",
    "gather",
    "gather_object",
    "get_logger",
    "init_empty_weights",
    "init_on_device",
    "is_initialized",
    "is_peft_model",
    "notebook_launcher",
    "rank_zero_info",
    "rank_zero_only",
    "rank_zero_warn",
    "release_memory",
    "resolve",
    "seed_everything",
    "set_module_tensor_to_device",
    "set_seed",
    "skip_first_batches",
    "synchronize_rng_states",
    "tqdm",
]

_HOMES = {
    **{kind.base_name: kind.base.partition(":")[0] for kind in KINDS.values()},
    **{kind.registry: "torch_hal.registration" for kind in KINDS.values()},
    "Callback": "torch_hal.callbacks",
    "CoreError": "torch_hal.errors",
    **dict.fromkeys(
        (
            "DistributedType",
            "broadcast",
            "broadcast_object_list",
            "clear_device_cache",
            "gather",
            "gather_object",
            "init_empty_weights",
            "init_on_device",
            "set_module_tensor_to_device",
            "synchronize_rng_states",
            "tqdm",
        ),
        "torch_hal.runtime.partial_state",
    ),
    **dict.fromkeys(("AcceleratorState", "PartialState", "is_initialized"), "torch_hal.runtime.partial_state"),
    **dict.fromkeys(
        (
            "AutocastKwargs",
            "DDPCommunicationHookType",
            "DistributedDataParallelKwargs",
            "DummyOptim",
            "DummyScheduler",
            "InitProcessGroupKwargs",
        ),
        "torch_hal.runtime.accelerate_handlers",
    ),
    "DataModule": "torch_hal.trainer",
    "GradientAccumulationPlugin": "torch_hal.runtime",
    "LocalSGD": "torch_hal.runtime.local_sgd",
    "Module": "torch_hal.trainer",
    "Plan": "torch_hal.plan",
    "ProfileKwargs": "torch_hal.runtime.accelerate_handlers",
    "ProjectConfiguration": "torch_hal.runtime",
    "Request": "torch_hal.plan",
    "Runtime": "torch_hal.runtime",
    "Trainer": "torch_hal.trainer",
    **dict.fromkeys(("Tuner", "find_batch_size", "find_learning_rate"), "torch_hal.trainer.tuner"),
    "find_executable_batch_size": "torch_hal.runtime.batch_size",
    **dict.fromkeys(("get_logger", "rank_zero_info", "rank_zero_only", "rank_zero_warn"), "torch_hal.logging"),
    **dict.fromkeys(("extract_model_from_parallel", "is_peft_model"), "torch_hal.runtime.prepare.wrappers"),
    "notebook_launcher": "torch_hal.runtime.notebook",
    "release_memory": "torch_hal.runtime",
    "resolve": "torch_hal.plan",
    "seed_everything": "torch_hal.random",
    "set_seed": "torch_hal.random",
    "skip_first_batches": "torch_hal.data",
}

_TORCH_FREE = ("torch_hal.errors", "torch_hal.registration")
"""The modules that import no torch."""

_find, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if "torch" not in sys.modules and _HOMES.get(name, "torch_hal.errors") not in _TORCH_FREE:
        from .discovery.metadata import check_before_torch

        check_before_torch(os.environ)
    return _find(name)


if getattr(sys, "frozen", False):
    from .utilities.child_process import run_as_frozen_child

    run_as_frozen_child()
