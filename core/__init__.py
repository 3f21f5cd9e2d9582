"""torch-hal: install a package, and its hardware works by name in any PyTorch training script.

Every public name is imported when it is first used; ``import core`` alone imports no torch. ``torch_hal`` is a second
import name of this package.
"""

from __future__ import annotations

import os
import sys

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
    from .logging import get_logger, rank_zero_only
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
        DDPCommunicationHookType,
        DistributedDataParallelKwargs,
        InitProcessGroupKwargs,
    )
    from .runtime.batch_size import find_executable_batch_size
    from .runtime.free_functions import DistributedType, broadcast_object_list, gather, gather_object
    from .runtime.notebook import notebook_launcher
    from .runtime.prepare.modules import is_peft_model
    from .runtime.profiling import ProfileKwargs
    from .runtime.step.local_sgd import LocalSGD
    from .strategies import Strategy
    from .trainer import DataModule, Module, Trainer
    from .trainer.tuner import Tuner, find_batch_size, find_learning_rate

__version__ = "0.1.0"

__all__ = [
    "Accelerator",
    "AcceleratorRegistry",
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
    "GradientAccumulationPlugin",
    "InitProcessGroupKwargs",
    "LocalSGD",
    "Module",
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
    "broadcast_object_list",
    "find_batch_size",
    "find_executable_batch_size",
    "find_learning_rate",
    "gather",
    "gather_object",
    "get_logger",
    "is_peft_model",
    "notebook_launcher",
    "rank_zero_only",
    "release_memory",
    "resolve",
    "seed_everything",
    "set_seed",
    "skip_first_batches",
]

_HOMES = {
    **{kind.base_name: kind.base.partition(":")[0] for kind in KINDS.values()},
    **{kind.registry: "core.registration" for kind in KINDS.values()},
    "Callback": "core.callbacks",
    "CoreError": "core.errors",
    **dict.fromkeys(
        ("DistributedType", "broadcast_object_list", "gather", "gather_object"), "core.runtime.free_functions"
    ),
    "DDPCommunicationHookType": "core.runtime.accelerate_handlers",
    "DistributedDataParallelKwargs": "core.runtime.accelerate_handlers",
    "DataModule": "core.trainer",
    "GradientAccumulationPlugin": "core.runtime",
    "InitProcessGroupKwargs": "core.runtime.accelerate_handlers",
    "LocalSGD": "core.runtime.step.local_sgd",
    "Module": "core.trainer",
    "Plan": "core.plan",
    "ProfileKwargs": "core.runtime.profiling",
    "ProjectConfiguration": "core.runtime",
    "Request": "core.plan",
    "Runtime": "core.runtime",
    "Trainer": "core.trainer",
    **dict.fromkeys(("Tuner", "find_batch_size", "find_learning_rate"), "core.trainer.tuner"),
    "find_executable_batch_size": "core.runtime.batch_size",
    "get_logger": "core.logging",
    "rank_zero_only": "core.logging",
    "is_peft_model": "core.runtime.prepare.modules",
    "notebook_launcher": "core.runtime.notebook",
    "release_memory": "core.runtime",
    "resolve": "core.plan",
    "seed_everything": "core.random",
    "set_seed": "core.random",
    "skip_first_batches": "core.data",
}

_TORCH_FREE = ("core.errors", "core.registration")
"""The modules that import no torch."""

_find, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if "torch" not in sys.modules and _HOMES.get(name, "core.errors") not in _TORCH_FREE:
        from .discovery.unreadable import check_before_torch

        check_before_torch(os.environ)
    if name not in _HOMES and name[:1].isupper():
        from .hints.imports_elsewhere import check_elsewhere

        check_elsewhere(name, asking=sys._getframe(1).f_code.co_name)
    return _find(name)
