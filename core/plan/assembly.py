"""Plan -> live Strategy."""

from __future__ import annotations

from ..errors import ConfigurationError
from ..hints.remedies import remedies
from ..strategies.base import Strategy
from ..strategies.inputs import ProcessPlan
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
    _check_methods(strategy)
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


def _check_methods(strategy: Strategy) -> None:
    """Refuse a strategy whose class defines a method of Lightning's strategies that nothing calls here.

    Raises:
        ConfigurationError: There is one.
    """
    for kind in type(strategy).__mro__:
        if not issubclass(kind, Strategy) or kind.__module__.startswith("torch_hal."):
            continue
        if own := {name for name in vars(kind) if not hasattr(Strategy, name)}:
            known = remedies("methods", ["Strategy"])
            if name := next((name for name in known if name in own), None):
                raise ConfigurationError(
                    f"strategy: {kind.__name__} defines {name!r}, as strategies of Lightning do, but nothing calls it "
                    f"here. {known[name]}"
                )
