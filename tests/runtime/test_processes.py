"""What only some processes do, and what runs, on one process."""

from __future__ import annotations

import pytest
import torch

from core import Runtime
from core.errors import ConfigurationError, WrongTypeError

from .problem import runtime


def test_everything_runs_on_one_process() -> None:
    """The one process is every process; decorators work with and without a call, and keep the function's name."""
    one = runtime()

    def add(left: int, right: int = 1) -> int:
        """Add."""
        return left + right

    decorated = [one.on_main_process, one.on_local_main_process, one.on_last_process]
    for decorator in [*decorated, *(make() for make in decorated), one.on_process(process_index=5)]:
        assert decorator(add)(1, right=2) == 3
        assert (decorator(add).__name__, decorator(add).__doc__) == ("add", "Add.")
    assert one.on_local_process(add, local_process_index=1)(1) == 2


def test_triggers() -> None:
    """A trigger is seen once."""
    one = runtime()
    assert not one.check_trigger()
    one.set_trigger()
    assert one.check_trigger()
    assert not one.check_trigger()


def test_exceptions_pass_through() -> None:
    """What fails in a block that goes first fails as it is."""
    one = runtime()
    for first in (one.main_process_first, one.local_main_process_first):
        with first():
            pass
        with pytest.raises(KeyError), first():
            raise KeyError


@pytest.mark.parametrize(
    ("precision", "name"),
    [("32-true", "no"), ("16-mixed", "fp16"), ("bf16-mixed", "bf16"), ("64-true", "64-true"), ("16-true", "16-true")],
)
def test_what_runs(precision: str, name: str) -> None:
    """In Accelerate's names, before anything is started, and in ``state`` alike."""
    one = runtime(precision=precision)
    assert (one.distributed_type, one.use_distributed, one.is_last_process) == ("NO", False, True)
    assert (one.mixed_precision, one.use_fp16) == (name, name == "fp16")
    facts = (
        "num_processes process_index local_process_index device is_main_process is_local_main_process mixed_precision "
        "use_fp16"
    )
    for fact in [*facts.split(), "distributed_type", "use_distributed", "is_last_process"]:
        assert getattr(one.state, fact) == getattr(one, fact)
    assert str(one.state) == (
        "Distributed environment: NO\nNum processes: 1\nProcess index: 0\nLocal process index: 0\nDevice: cpu\n"
        f"Mixed precision: {name}"
    )


def test_the_type_of_several_processes() -> None:
    """By the kind of device, before they are started."""
    two = Runtime(accelerator="cpu", devices=2)
    assert (two.distributed_type, two.use_distributed) == ("MULTI_CPU", True)


def test_the_debug_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument, or else the environment variable."""
    assert not runtime().debug
    monkeypatch.setenv("CORE_DEBUG", "1")
    assert runtime().debug
    assert not runtime(debug=False).debug
    monkeypatch.setenv("CORE_DEBUG", "0")
    assert not runtime().debug
    assert runtime(debug=True).gather(torch.ones(1)).tolist() == [1.0]
    monkeypatch.setenv("CORE_DEBUG", "maybe")
    with pytest.raises(ConfigurationError, match="CORE_DEBUG='maybe': must be 0 or 1"):
        runtime()
    with pytest.raises(WrongTypeError, match="debug='yes': must be True or False"):
        runtime(debug="yes")
