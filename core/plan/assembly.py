"""Plan -> live Strategy."""

from __future__ import annotations

import torch

from core.plan.model import Plan
from core.strategies.base import Strategy

__all__ = ["assemble"]


def assemble(plan: Plan) -> Strategy:
    """The strategy that ``plan`` describes, with its parts connected; once for a Plan, whose parts they are."""
    parts = dict(plan.parts)
    strategy: Strategy = parts.pop("strategy")
    strategy.name = plan.strategy.name
    parts["accelerator"].import_backend()
    strategy.connect(
        **parts,
        parallel_devices=[torch.device(device) for device in plan.devices],
        num_nodes=plan.num_nodes,
        plan=plan.to_json(),
    )
    return strategy
