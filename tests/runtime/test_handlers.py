"""``kwargs_handlers``: what scripts pass to Accelerate reaches the strategy, or is refused by name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from python_processes import run_python

from core import (
    AutocastKwargs,
    DDPCommunicationHookType,
    DistributedDataParallelKwargs,
    InitProcessGroupKwargs,
    ProfileKwargs,
    Runtime,
)
from core.errors import ConfigurationError, WrongTypeError
from core.strategies import DDPStrategy, SingleDeviceStrategy


def runtime(*handlers: Any, strategy: Any = "ddp", devices: int = 2, **others: Any) -> Runtime:
    return Runtime(accelerator="cpu", strategy=strategy, devices=devices, kwargs_handlers=list(handlers), **others)


def test_settings_reach_the_strategy() -> None:
    """Only values that are not the defaults are set; the timeout is that of the process group."""
    handlers = (
        DistributedDataParallelKwargs(find_unused_parameters=True, bucket_cap_mb=1),
        InitProcessGroupKwargs(timeout=timedelta(seconds=7), backend="gloo", init_method="env://"),
    )
    strategy = runtime(*handlers).strategy
    assert isinstance(strategy, DDPStrategy)
    assert strategy.ddp_kwargs == {"find_unused_parameters": True, "bucket_cap_mb": 1}
    assert strategy.timeout == timedelta(seconds=7)


def test_one_process_needs_none() -> None:
    """A script passes them for any number of processes."""
    run = runtime(DistributedDataParallelKwargs(static_graph=True), strategy="auto", devices=1)
    assert run.plan.strategy.name == "single_device"


def test_objects_of_accelerates_own_classes() -> None:
    """They are recognized by their names; a wrapper is for hooks that have options."""

    @dataclass
    class Handler:
        find_unused_parameters: bool = True
        comm_hook: str = "no"
        comm_wrapper: str = "no"

    Handler.__name__ = "DistributedDataParallelKwargs"
    strategy = runtime(Handler()).strategy
    assert isinstance(strategy, DDPStrategy)
    assert strategy.ddp_kwargs == {"find_unused_parameters": True}
    with pytest.raises(ConfigurationError, match=r"'wrapper': 'bf16_compress'.*takes no options"):
        runtime(Handler(comm_hook="fp16", comm_wrapper="bf16"))
    strategy = runtime(Handler(comm_hook="power_sgd", comm_wrapper="fp16")).strategy
    assert isinstance(strategy, DDPStrategy)
    assert strategy.communication_hook == "power_sgd"
    assert strategy.communication_options == {"wrapper": "fp16_compress"}


@pytest.mark.parametrize(
    ("hook", "name"),
    [(DDPCommunicationHookType.FP16, "fp16_compress"), ("bf16", "bf16_compress"), ("power_sgd", "power_sgd")],
)
def test_communication_hooks(hook: Any, name: str) -> None:
    """They become the strategy's, with their options."""
    options = {"matrix_approximation_rank": 2} if name == "power_sgd" else {}
    strategy = runtime(DistributedDataParallelKwargs(comm_hook=hook, comm_state_option=options)).strategy
    assert isinstance(strategy, DDPStrategy)
    assert (strategy.communication_hook, strategy.communication_options) == (name, options)
    assert not strategy.ddp_kwargs


class GradScalerKwargs:
    pass


@pytest.mark.parametrize(
    ("handlers", "error", "text"),
    [
        ([GradScalerKwargs()], WrongTypeError, "MixedPrecision"),
        ([DistributedDataParallelKwargs(comm_hook="fp61")], ConfigurationError, "Did you mean 'fp16'"),
        (
            [DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.BATCHED_POWER_SGD)],
            ConfigurationError,
            "Set comm_hook='power_sgd'",
        ),
        ([DistributedDataParallelKwargs(comm_state_option={"rank": 1})], ConfigurationError, "without comm_hook"),
        ([3], WrongTypeError, "'InitProcessGroupKwargs'"),
        ([InitProcessGroupKwargs(), InitProcessGroupKwargs()], ConfigurationError, "has 2 objects"),
        ([InitProcessGroupKwargs(backend="other")], ConfigurationError, "'gloo'"),
        (
            [InitProcessGroupKwargs(init_method="tcp://a:1")],
            ConfigurationError,
            "Leave it out, and pass the address to",
        ),
        ([InitProcessGroupKwargs(timeout=3)], WrongTypeError, "timedelta"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_used(handlers: list[Any], error: type[Exception], text: str) -> None:
    """The error names the handler, and what to do."""
    with pytest.raises(error, match=text):
        runtime(*handlers)


def test_the_strategy_has_another_value() -> None:
    """Two values of one setting contradict each other."""
    handler = DistributedDataParallelKwargs(find_unused_parameters=True)
    with pytest.raises(ConfigurationError, match="find_unused_parameters=False"):
        runtime(handler, strategy=DDPStrategy(find_unused_parameters=False))


def dtype_of_products(run: Runtime) -> torch.dtype:
    """In which a prepared module computes."""
    found = []

    class Product(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            found.append((inputs @ inputs).dtype)
            return inputs

    run.prepare(Product())(torch.ones(1, 1))
    return found[0]


def test_autocast_can_be_turned_off() -> None:
    """As scripts do on a Mac, at any time, and on again; or by the handler."""
    with runtime(strategy="auto", devices=1, precision="bf16-mixed") as run:
        assert run.native_amp
        assert dtype_of_products(run) == torch.bfloat16
        run.native_amp = False
        assert not run.native_amp
        assert dtype_of_products(run) == torch.float32
        with run.autocast(), run.autocast(None):
            assert (torch.ones(1, 1) @ torch.ones(1, 1)).dtype == torch.float32
        run.native_amp = True
        assert dtype_of_products(run) == torch.bfloat16
        with run.autocast(AutocastKwargs(enabled=False)):
            assert (torch.ones(1, 1) @ torch.ones(1, 1)).dtype == torch.float32
    handler = AutocastKwargs(enabled=False, cache_enabled=False)
    with runtime(handler, strategy="auto", devices=1, precision="bf16-mixed") as run:
        assert dtype_of_products(run) == torch.float32
        with run.autocast(AutocastKwargs(cache_enabled=False)):
            assert not torch.is_autocast_cache_enabled()
        with pytest.raises(WrongTypeError, match=r"must be a core.AutocastKwargs. It is a class: create an object"):
            run.autocast(AutocastKwargs)  # type: ignore[arg-type]


class EngineStrategy(SingleDeviceStrategy):
    """Computes in the precision by itself."""

    applies_precision = False


def test_autocast_that_there_is_not() -> None:
    """In 32 bits there is none to turn off, and turning it on says how; an engine that has its own is named."""
    run = runtime(AutocastKwargs(enabled=False), strategy="auto", devices=1)
    run.native_amp = False
    with pytest.raises(ConfigurationError, match=r"native_amp = True: precision='32-true' has no autocast. Set prec"):
        run.native_amp = True
    run = runtime(strategy=EngineStrategy(), devices=1, precision="bf16-mixed")
    assert not run.native_amp
    with pytest.raises(ConfigurationError, match=r"native_amp = True: strategy=.* computes in precision='bf16-mixed'"):
        run.native_amp = True
    with pytest.raises(ConfigurationError, match=r"AutocastKwargs\(enabled=False\): strategy="):
        runtime(AutocastKwargs(enabled=False), strategy=EngineStrategy(), devices=1, precision="bf16-mixed")


def test_settings_of_profiling(tmp_path: Path) -> None:
    """Those among the handlers hold if profile is given nothing; others are given as an object or as arguments."""
    handler = ProfileKwargs(activities=["cpu"], record_shapes=True, output_trace_dir=tmp_path / "one")
    with runtime(handler, strategy="auto", devices=1) as run:
        with run.profile() as profiler:
            torch.ones(2, 3) @ torch.ones(3, 2)
        assert any([2, 3] in event.input_shapes for event in cast(Any, profiler).events())
        with run.profile(ProfileKwargs(output_trace_dir=tmp_path / "two")):
            torch.ones(1)
        with pytest.raises(ConfigurationError, match="one of the two"), run.profile(handler, with_flops=True):
            pass
    assert [path.name for path in sorted(tmp_path.glob("*/*.json"))] == ["profile_0.json"] * 2


SCRIPT = """
import torch
from core import DistributedDataParallelKwargs, Runtime

class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

    def forward(self, inputs):
        return self.used(inputs)

runtime = Runtime(
    accelerator="cpu", devices=2, kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)]
)
model = runtime.prepare(Half())
for _ in range(3):
    runtime.backward(model(torch.ones(1, 1)).sum())
runtime.print("trained")
"""


def test_two_processes(tmp_path: Path) -> None:
    """A model that does not use all parameters trains; without the setting torch raises in the second step."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert "trained" in run_python(script, cwd=tmp_path, warnings="ignore").stdout
