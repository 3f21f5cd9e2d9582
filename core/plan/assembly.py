"""From names to objects: constructing a backend, the live Strategy of a Plan, and the Plan that a launcher has sent."""

from __future__ import annotations

from typing import Any

import attrs

from .. import specs
from ..discovery.loading import describe, load
from ..discovery.registry import Registry
from ..environments.local import LAUNCH_VARIABLES, LAUNCHED, claim_ranks
from ..errors import BackendError, ConfigurationError, CoreError
from ..hints.remedies import remedies
from ..kinds import KINDS
from ..specs import BackendSpec
from ..strategies.base import Strategy
from ..strategies.inputs import ProcessPlan
from .model import Choice, Plan
from .request import Argument, Request, checked


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
    """Reject a strategy whose class defines a method of Lightning's strategies that nothing calls here.

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


def construct(spec: BackendSpec, cls: type[Any], **more: Any) -> Any:
    """Create an instance of ``cls`` with the spec's arguments, and name it after the spec.

    Raises:
        CoreError: The class rejects its arguments.
        BackendError: The class raises anything else.
    """
    try:
        part = cls(**more, **spec.init_args)
        part.name = spec.name
    except CoreError:
        raise
    except (Exception, SystemExit) as error:  # a backend's class may raise anything
        arguments = ", ".join(f"{name}={value!r}" for name, value in spec.init_args.items())
        raise BackendError(
            f"{spec.kind} {spec.name!r} is broken: {cls.__qualname__}({arguments}) raises {describe(error)}"
        ) from error
    return part


def take_launched(request: Request) -> Plan | None:
    """The launcher's Plan with live parts of this process; ``None`` if the Plan is the answer to another request.

    The Plan has no reasons and no rejected candidates; see :meth:`core.plan.Plan.for_ranks`.

    Raises:
        CoreError: A part cannot be constructed in this process.
    """
    if request.is_of_process:
        claim_ranks([LAUNCHED], LAUNCH_VARIABLES)
    plan = Plan.from_json(request.environ[LAUNCHED])
    if plan.request != request.describe():
        return None
    strategy = _part("strategy", plan.strategy, request.strategy, request)
    requested = {kind: checked(Argument(kind, value, "strategy")) for kind, value in strategy.requested_parts.items()}
    parts = {
        kind: strategy
        if kind == "strategy"
        else _part(kind, choice, requested.get(kind, getattr(request, kind)), request)
        for kind, choice in plan.choices().items()
    }
    return attrs.evolve(plan, parts=parts)


def _part(kind: str, choice: Choice, value: Any, request: Request) -> Any:
    if not isinstance(value, str):
        return value
    if choice.target is None:
        spec = Registry.read(request.environ).find(kind, choice.name)[0]
    else:
        spec = getattr(specs, KINDS[kind].spec)(name=choice.name, target=choice.target, init_args=choice.init_args)
    return construct(spec, load(spec), **({"environ": request.environ} if kind == "cluster_environment" else {}))
