"""Where a name comes from: the argument, else the environment, else ``auto``."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pytest

from core import Request, Runtime, Trainer
from core.accelerators import CPUAccelerator
from core.errors import ConfigurationError, CoreError, WrongTypeError
from core.precisions import FullPrecision

from .backends import plan_of

ARGUMENTS = [
    ("accelerator", "CORE_ACCELERATOR", "cpu", "cpu"),
    ("strategy", "CORE_STRATEGY", "ddp_spawn", "ddp"),
    ("devices", "CORE_DEVICES", "3", 2),
    ("num_nodes", "CORE_NUM_NODES", "2", 1),
    ("precision", "CORE_PRECISION", "bf16", "64-true"),
]
"""The name, its variable, a value there, another one as the argument."""

MACHINES = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "NODE_RANK": "0"}


def _reason(name: str, environ: dict[str, str], **arguments: Any) -> str:
    plan = plan_of(environ, **arguments)
    return str(plan.choices()[name].reason if name in plan.choices() else getattr(plan, f"{name}_reason"))


@pytest.mark.parametrize(("name", "variable", "there", "argument"), ARGUMENTS)
def test_an_argument_goes_before_the_environment(name: str, variable: str, there: str, argument: Any) -> None:
    """What was passed is used, whatever the variable says, and the Plan says that it was the argument."""
    environ = {variable: there, **MACHINES}
    request = Request.read(environ=environ, **{name: argument})
    assert getattr(request, name) == argument
    assert request.sources[name] == "argument"
    assert _reason(name, environ, **{name: argument}) == f"requested by {name}={argument!r}"


@pytest.mark.parametrize("given", [{}, "auto"], ids=["left out", "auto"])
@pytest.mark.parametrize(("name", "variable", "there", "argument"), ARGUMENTS)
def test_the_environment_speaks_for_auto(name: str, variable: str, there: str, argument: Any, given: Any) -> None:
    """Where nothing or ``auto`` was passed, the variable's name is used, and the Plan names the variable."""
    arguments = {name: given} if given else {}
    environ = {variable: there, **MACHINES}
    request = Request.read(environ=environ, **arguments)
    assert str(getattr(request, name)) == there
    assert request.sources[name] == variable
    assert _reason(name, environ, **arguments) in (
        f"requested by the environment variable {variable}={there!r}",
        f"requested by the environment variable {variable}={there}",
    )


@pytest.mark.parametrize("environ", [{}, {variable: "auto" for _, variable, _, _ in ARGUMENTS}], ids=["unset", "auto"])
def test_nothing_is_requested(environ: dict[str, str]) -> None:
    """Without arguments, and with ``auto`` in the variables, everything is chosen; no reason names a source."""
    request = Request.read(environ=environ)
    assert set(request.sources.values()) == {"default"}
    assert all(request.argument(name).is_auto for name, *_ in ARGUMENTS)
    plan = plan_of(environ)
    reasons = [choice.reason for choice in plan.choices().values()] + [plan.devices_reason, plan.num_nodes_reason]
    assert not [reason for reason in reasons if "requested" in reason]


@pytest.mark.parametrize("front_end", [Runtime, Trainer])
def test_both_front_ends_read_the_environment(front_end: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runtime and Trainer take the process's own variables."""
    monkeypatch.setenv("CORE_PRECISION", "bf16-mixed")
    monkeypatch.setenv("CORE_DEVICES", "2")
    plan = front_end().plan
    assert (plan.precision.name, plan.world_size, plan.strategy.name) == ("bf16-mixed", 2, "ddp")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CORE_ACCELERATOR", "cup"),
        ("CORE_ACCELERATOR", ""),
        ("CORE_STRATEGY", "dpp"),
        ("CORE_DEVICES", "abc"),
        ("CORE_DEVICES", ""),
        ("CORE_NUM_NODES", "0"),
        ("CORE_NUM_NODES", "two"),
        ("CORE_PRECISION", "bf17"),
    ],
)
def test_a_bad_value_in_the_environment_is_refused_under_its_own_name(variable: str, value: str) -> None:
    """The error names the variable that holds the name, which the user may have forgotten, and the value."""
    with pytest.raises(CoreError) as caught:
        plan_of({variable: value})
    assert variable in str(caught.value)
    assert repr(value) in str(caught.value)
    assert "Valid" in str(caught.value) or "must be" in str(caught.value)


def test_variables_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that changes later changes no Request and no Runtime that was made before."""
    monkeypatch.setenv("CORE_PRECISION", "bf16-true")
    request = Request.read()
    runtime = Runtime()
    monkeypatch.setenv("CORE_PRECISION", "64-true")
    assert request.precision == request.environ["CORE_PRECISION"] == "bf16-true"
    assert runtime.strategy.precision.name == "bf16-true"
    runtime.teardown()


def test_settings_of_one_runtime_are_not_another_s() -> None:
    """Two Runtimes with different settings live in one process one after another, and the first stays what it was."""
    before = dict(os.environ)
    first = Runtime(precision="bf16-mixed")
    second = Runtime(precision="64-true", devices=1)
    assert first.strategy.precision.name == "bf16-mixed"
    assert second.strategy.precision.name == "64-true"
    first.teardown()
    second.teardown()
    assert dict(os.environ) == before


@pytest.mark.parametrize("given", ["1", 1, " 3 ", np.int64(2)])
def test_numbers_of_machines(given: Any) -> None:
    """A whole number from 1 on, in digits or as an integer, is a number of machines."""
    num_nodes = Request.read(environ={}, num_nodes=given).num_nodes
    assert num_nodes == int(given)
    assert type(num_nodes) is int


@pytest.mark.parametrize("given", [0, -1, "0", "", "-1", "1.0", "two", "1,", 1.0, True, None, [2], "9" * 5000, "٢"])
def test_what_is_no_number_of_machines(given: Any) -> None:
    """Anything else is refused in one way."""
    with pytest.raises(ConfigurationError, match=r"num_nodes .*must be 'auto' or an integer ≥ 1") as caught:
        Request.read(environ={}, num_nodes=given)
    assert repr(given)[:20] in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("given", "kept"), [(32, "32"), (16, "16"), ("bf16", "bf16")])
def test_precision_as_a_number(given: Any, kept: str) -> None:
    """``precision=16`` is ``precision="16"``."""
    assert Request.read(environ={}, precision=given).precision == kept


def test_an_unknown_argument() -> None:
    """A misspelt name is refused, not left out in silence; the nearest one is named."""
    with pytest.raises(ConfigurationError, match=r"unknown argument 'acelerator'\. Did you mean 'accelerator'"):
        Request.read(environ={}, acelerator="cpu")


def test_words_as_plain_data() -> None:
    """Arguments can be written as JSON, whatever object they are, and objects of other classes are other arguments."""
    request = Request.read(
        environ={}, accelerator=CPUAccelerator(), devices=(np.int64(0), 1), precision=FullPrecision()
    )
    described = request.describe()
    assert json.loads(json.dumps(described)) == described
    assert described["accelerator"] == "<torch_hal.accelerators.cpu:CPUAccelerator>"
    assert described["devices"] == [0, 1]
    assert described["strategy"] == "auto"


def test_the_kind_of_object_is_checked() -> None:
    """An object of another kind is refused when the arguments are read, before anything is looked up."""
    with pytest.raises(WrongTypeError, match=r"strategy has the wrong type: .*FullPrecision.*an instance of Strategy"):
        Request.read(environ={}, strategy=FullPrecision())
