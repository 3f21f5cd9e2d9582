"""Plan -> live Strategy."""

from __future__ import annotations

from ..strategies.base import Strategy
from ..strategies.foreign_methods import check_methods
from ..strategies.process_plan import ProcessPlan
from .model import Plan

__all__ = ["assemble"]


def assemble(plan: Plan) -> Strategy:
    """Connect the live parts of ``plan``.

    Call this once for each Plan: the strategy that is returned is the Plan's own part, and so are its parts.

    Returns:
        The strategy, ready to be launched.

    Raises:
        CoreError: The strategy rejects a part that was resolved for it, or has a method that nothing calls.
    """
    parts = dict(plan.parts)
    strategy: Strategy = parts.pop("strategy")
    check_methods(strategy)
    strategy.name = plan.strategy.name
    strategy.imported_modules = plan.imports
    parts["accelerator"].import_backend()
    strategy.connect(
        **parts,
        plan=ProcessPlan(
            devices=plan.devices,
            num_nodes=plan.num_nodes,
            world_size=plan.world_size,
            launcher=plan.launcher,
            process_group_backend=plan.process_group_backend,
            plan_for_ranks=plan.for_ranks().to_json(),
        ),
    )
    return strategy
