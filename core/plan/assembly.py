"""Plan -> live Strategy."""

from __future__ import annotations

from typing import Any

import torch

from core.discovery.loading import load
from core.plan.model import Plan
from core.specs import BackendSpec
from core.strategies.base import Strategy

__all__ = ["assemble"]


def assemble(plan: Plan) -> Strategy:
    """The strategy that ``plan`` describes, with its parts connected.

    Raises:
        CoreError: A backend's class cannot be imported or refuses what it was given.
    """
    strategy: Strategy = _live(plan.parts["strategy"])
    strategy.name = plan.strategy.name
    strategy.connect(
        accelerator=plan.parts["accelerator"],
        precision=_live(plan.parts["precision"]),
        checkpoint_io=_live(plan.parts["checkpoint_io"]),
        cluster_environment=plan.parts["cluster_environment"],
        parallel_devices=[torch.device(device) for device in plan.devices],
        num_nodes=plan.num_nodes,
        plan=plan.to_json(),
    )
    return strategy


def _live(part: Any) -> Any:
    return load(part)(**part.init_args) if isinstance(part, BackendSpec) else part
