"""torch-hal: install a package, and its hardware works by name in any PyTorch training script.

Every public name is imported when it is first asked for; ``import core`` alone imports no torch.
"""

from __future__ import annotations

from core.lazy import lazy_names

TYPE_CHECKING = False  # type checkers take it for true; importing typing costs a listing a quarter of its time
if TYPE_CHECKING:
    from core.accelerators import Accelerator
    from core.checkpoints import CheckpointIO
    from core.environments import ClusterEnvironment
    from core.errors import CoreError
    from core.plan import Plan, Request, resolve
    from core.precisions import Precision
    from core.random import seed_everything
    from core.registration import (
        AcceleratorRegistry,
        CheckpointIORegistry,
        ClusterEnvironmentRegistry,
        PrecisionRegistry,
        StrategyRegistry,
    )
    from core.runtime import Runtime
    from core.strategies import Strategy
    from core.trainer import Callback, Module, Trainer

__all__ = [
    "Accelerator",
    "AcceleratorRegistry",
    "Callback",
    "CheckpointIO",
    "CheckpointIORegistry",
    "ClusterEnvironment",
    "ClusterEnvironmentRegistry",
    "CoreError",
    "Module",
    "Plan",
    "Precision",
    "PrecisionRegistry",
    "Request",
    "Runtime",
    "Strategy",
    "StrategyRegistry",
    "Trainer",
    "resolve",
    "seed_everything",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Accelerator": "core.accelerators",
        "AcceleratorRegistry": "core.registration",
        "Callback": "core.trainer",
        "CheckpointIO": "core.checkpoints",
        "CheckpointIORegistry": "core.registration",
        "ClusterEnvironment": "core.environments",
        "ClusterEnvironmentRegistry": "core.registration",
        "CoreError": "core.errors",
        "Module": "core.trainer",
        "Plan": "core.plan",
        "Precision": "core.precisions",
        "PrecisionRegistry": "core.registration",
        "Request": "core.plan",
        "Runtime": "core.runtime",
        "Strategy": "core.strategies",
        "StrategyRegistry": "core.registration",
        "Trainer": "core.trainer",
        "resolve": "core.plan",
        "seed_everything": "core.random",
    },
)
