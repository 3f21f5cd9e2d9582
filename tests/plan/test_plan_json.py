"""The Plan as JSON: what started processes receive, and what ``explain --json`` prints."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from core import AcceleratorRegistry, Plan, StrategyRegistry
from core.errors import ConfigurationError
from core.plan import Choice
from core.precisions import MixedPrecision
from core.strategies import DDPStrategy

from .backends import TORCHRUN, AbsentAccelerator, MyIO, TwoAccelerator, plan_of

PLANS: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({}, {}),
    ({}, {"devices": (1, 0), "strategy": "ddp_find_unused_parameters_true", "precision": 16}),
    ({"CORE_DEVICES": "2", "CORE_STRATEGY": "ddp_fork"}, {}),
    ({}, {"strategy": DDPStrategy(precision_plugin=MixedPrecision("bfloat16")), "checkpoint_io": MyIO()}),
    ({}, {"accelerator": "gpu"}),
    ({}, {"strategy": "mine"}),
    (TORCHRUN, {}),
]


@pytest.mark.parametrize(("environ", "arguments"), PLANS)
def test_round_trip(environ: dict[str, str], arguments: dict[str, Any]) -> None:
    """A Plan that went through JSON is equal to what it was, reasons and candidates passed over included."""
    AcceleratorRegistry.register("two", TwoAccelerator, aliases=("gpu",))
    AcceleratorRegistry.register("absent", AbsentAccelerator, aliases=("gpu",))
    StrategyRegistry.register("mine", DDPStrategy, checkpoint_io=MyIO(), bucket_cap_mb=3)
    plan = plan_of(environ, **arguments)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.to_dict() == plan.to_dict() == json.loads(plan.to_json(indent=2))
    assert str(again) == str(plan)
    assert again.accelerator.rejected == plan.accelerator.rejected != ()


def test_live_objects_stay_behind() -> None:
    """The JSON has no live object, and a Plan read from it has none."""
    plan = plan_of()
    assert set(plan.parts) == set(plan.choices())
    assert "parts" not in plan.to_dict()
    assert Plan.from_json(plan.to_json()).parts == {}


def test_plans_of_other_arguments_differ() -> None:
    """Two Plans are equal only where the same was asked for and the same will run."""
    plan = plan_of(precision="bf16")
    assert plan == plan_of(precision="bf16")
    assert plan != plan_of(precision="bf16-mixed")
    assert plan != plan_of({"CORE_PRECISION": "bf16"})


def test_a_plan_is_frozen() -> None:
    """Nothing decides again once there is a Plan."""
    plan = plan_of()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        plan.world_size = 2  # type: ignore[misc]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        plan.strategy.name = "ddp"  # type: ignore[misc]


def _damaged(**changes: Any) -> str:
    data = plan_of().to_dict()
    return json.dumps({name: value for name, value in {**data, **changes}.items() if value is not Ellipsis})


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "1", "nonsense", _damaged(format=2), _damaged(strategy=...), _damaged(strategy={}), _damaged(x=1)],
    ids=["empty", "object", "list", "number", "no JSON", "format", "lacks a kind", "lacks a name", "has more"],
)
def test_what_is_no_plan(text: str) -> None:
    """Anything else is refused in one way, and says what is wrong with it."""
    with pytest.raises(ConfigurationError, match="not the JSON of a Plan"):
        Plan.from_json(text)


def test_what_only_this_process_has_is_left_out() -> None:
    """A class or an argument that JSON cannot hold is not in a Choice: processes find it in their own code."""
    StrategyRegistry.register("by_class", DDPStrategy, bucket_cap_mb=3)
    StrategyRegistry.register("by_object", "core.strategies.ddp:DDPStrategy", checkpoint_io=MyIO())
    StrategyRegistry.register("by_text", "core.strategies.ddp:DDPStrategy", bucket_cap_mb=3)
    choices = {name: plan_of(strategy=name).strategy for name in ("by_class", "by_object", "by_text")}
    assert [(choices[name].target, choices[name].init_args) for name in ("by_class", "by_object")] == [(None, {})] * 2
    assert choices["by_text"] == Choice(
        name="by_text",
        reason="requested by strategy='by_text'",
        origin="this process",
        target="core.strategies.ddp:DDPStrategy",
        init_args={"bucket_cap_mb": 3},
    )


class _LongErrorAccelerator(AbsentAccelerator):
    def is_available(self) -> bool:
        raise OSError(150_000 * "x")


def test_reasons_are_short() -> None:
    """An error of any length takes at most 300 characters of a Plan, and the reason names where the whole error is."""
    AcceleratorRegistry.register("long", _LongErrorAccelerator)
    plan = plan_of()
    (reason,) = [candidate.reason for candidate in plan.accelerator.rejected if candidate.name == "long"]
    assert len(reason) == 300
    assert reason.startswith("OSError: xxx")
    assert "python -m core.list --probe --verbose" in reason
    assert len(plan.to_json()) < 10_000


def test_started_processes_receive_no_explanation() -> None:
    """They receive what to run; long constructor arguments are looked up by name there."""
    StrategyRegistry.register("short", "core.strategies.ddp:DDPStrategy", bucket_cap_mb=3)
    plan = plan_of(strategy="short", devices=2)
    sent = Plan.from_json(plan.for_ranks().to_json())
    assert [(choice.reason, choice.rejected) for choice in sent.choices().values()] == [("", ())] * 5
    assert sent.strategy.init_args == {"bucket_cap_mb": 3}
    assert (sent.request, sent.devices, sent.world_size, sent.launcher, sent.process_group_backend) == (
        plan.request,
        plan.devices,
        plan.world_size,
        plan.launcher,
        plan.process_group_backend,
    )
    assert "requested by" in str(plan)
    assert "requested by" not in str(sent)
    assert "python -m core.explain" in str(sent)
    choice = Choice(name="long", reason="", target="a:B", init_args={"config": 9000 * "x"})
    assert (choice.for_ranks().target, choice.for_ranks().init_args) == (None, {})
