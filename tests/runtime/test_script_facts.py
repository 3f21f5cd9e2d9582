"""What scripts written for Accelerate read of engines and settings."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from python_processes import run_python
from torch.utils.data import DataLoader

from core import PartialState, Runtime
from core.data import DataSettings
from core.errors import ConfigurationError, WrongTypeError
from core.strategies import SingleDeviceStrategy

from .problem import runtime


class DynamoBackend(StrEnum):
    """As Accelerate's enumeration: its members are text."""

    NO = "NO"
    INDUCTOR = "INDUCTOR"


def test_what_is_not_in_use_reads_as_in_accelerate() -> None:
    """The values of an ``Accelerator(cpu=True)`` of Accelerate 1.15 without any engine."""
    one = runtime()
    for facts in (one, one.state):
        names = "deepspeed_plugin fsdp_plugin megatron_lm_plugin torch_tp_plugin parallelism_config device_mesh scaler"
        assert [getattr(facts, name) for name in names.split()] == [None] * 7
        assert facts.is_fsdp2 is facts.multi_device is False
    assert one.torch_device_mesh is one.fp8_recipe_handler is None


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("wait_for_everyone", "Use runtime.wait_for_everyone."),
        ("split_between_processes", "Use runtime.split_between_processes."),
        ("mixed_precison", "Did you mean 'mixed_precision'?"),
    ],
)
def test_what_accelerates_state_can_do_is_the_runtimes(name: str, remedy: str) -> None:
    """The error for an attribute that the state does not have names the Runtime's member, or the nearest name."""
    state = runtime().state
    assert not hasattr(state, name)
    with pytest.raises(AttributeError, match=f"runtime.state: there is no attribute '{name}'. {re.escape(remedy)}$"):
        getattr(state, name)


def test_nothing_is_compiled() -> None:
    """Compared with Accelerate's enumeration or with text; setting another backend is refused."""
    plugin = runtime().state.dynamo_plugin
    assert plugin.backend == DynamoBackend.NO
    assert plugin.backend.lower() != "inductor"
    assert (plugin.mode, plugin.fullgraph, plugin.dynamic, plugin.options) == ("default", False, None, None)
    assert not plugin.disable
    assert not plugin.use_regional_compilation
    plugin.backend = DynamoBackend.NO
    with pytest.raises(ConfigurationError, match=r"dynamo_plugin.backend=.*INDUCTOR.*torch.compile\(model"):
        plugin.backend = DynamoBackend.INDUCTOR


def test_settings_of_data() -> None:
    """In one object and each by itself, with Accelerate's defaults; ``even_batches`` holds for loaders to come."""
    one = runtime()
    assert (one.split_batches, one.dispatch_batches, one.even_batches) == (False, None, True)
    assert (one.use_seedable_sampler, one.use_stateful_dataloader) == (False, False)
    settings = DataSettings(split_batches=True, even_batches=False, non_blocking=False)
    given = runtime(dataloader_config=settings)
    assert given.dataloader_config == settings
    assert (given.split_batches, given.even_batches, given.non_blocking) == (True, False, False)
    one.even_batches = False
    items: Any = range(4)
    assert one.prepare(DataLoader(items)).even_batches is False


def test_a_context_that_changes_nothing() -> None:
    """``maybe_context_parallel`` leaves its buffers whole."""
    batch = torch.arange(8)
    with runtime().maybe_context_parallel(buffers=[batch], buffer_seq_dims=[0], no_restore_buffers={batch}):
        assert len(batch) == 8


class AcmeStrategy(SingleDeviceStrategy):
    """With an engine that scripts know, and a mesh once it runs."""

    engine_settings = {"deepspeed_plugin": SimpleNamespace(zero_stage=3), "device_mesh": None}  # noqa: RUF012

    def setup_environment(self) -> None:
        super().setup_environment()
        self.engine_settings = {**self.engine_settings, "device_mesh": "mesh"}


def test_what_a_strategy_declares() -> None:
    """Its settings, and its mesh after the start; before, an error that says what to do."""
    one = Runtime(accelerator="cpu", strategy=AcmeStrategy(), devices=1)
    for facts in (one, one.state):
        assert facts.deepspeed_plugin.zero_stage == 3
        assert facts.fsdp_plugin is None
    with pytest.raises(ConfigurationError, match=r"device_mesh: .*runtime.launch\(\)"):
        assert one.torch_device_mesh
    with one:
        one.launch()
        assert one.torch_device_mesh == one.state.device_mesh == "mesh"


def test_the_scaler_and_the_number_of_the_next_checkpoint() -> None:
    """The scaler exists as soon as the run does."""
    with runtime(precision="16-mixed") as one:
        one.launch()
        assert isinstance(one.scaler, torch.amp.GradScaler)
        assert one.save_iteration == one.project_configuration.iteration == 0


def partial_state(out: Path, *, devices: int, torchrun: bool) -> tuple[list[dict[str, Any]], str]:
    """What the processes say, by rank, and what they print."""
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(devices), "--rdzv_backend", "c10d"]
    launcher += ["--rdzv_endpoint", "127.0.0.1:0"]
    command = [*(launcher if torchrun else []), Path(__file__).parent / "scripts" / "partial_state.py", str(devices)]
    done = run_python(*command, cwd=out, warnings="ignore", timeout=240, env={"OUT": str(out)})
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(devices)], done.stdout


def test_partial_state_of_one_process(tmp_path: Path) -> None:
    """Without a launcher it is the only process, which has no one to wait for; settings are a Runtime's."""
    (said,), printed = partial_state(tmp_path, devices=1, torchrun=False)
    assert said["before"] == said["made"] == said["after"] == [0, 1, 0, True, True, "NO", "cpu"]
    assert said["ended"] == said["after"]
    assert said["initialized"] == [False, True, False, False]
    assert said["shown"] == "<PartialState: process 0 of 1, on cpu>"
    assert said["part"] == said["part of the run"] == [0, 1, 2]
    assert said["settings"] == ["bf16", None]
    assert printed == "from the main process\nfrom the last process\n"
    for name, error in zip(("mixed_precision", "deepspeed_plugin"), said["errors"], strict=False):
        assert error.startswith(f"PartialState.{name}: there is no Runtime in this process")
    assert said["errors"][2] == "PartialState: there is no attribute 'gather'. Use runtime.gather."


@pytest.mark.slow
def test_partial_state_under_a_launcher(tmp_path: Path) -> None:
    """Ranks are the launcher's, the processes wait for each other, and then a Runtime starts as always."""
    said, printed = partial_state(tmp_path, devices=3, torchrun=True)
    for rank, one in enumerate(said):
        assert one["before"] == one["made"] == [rank, 3, rank, rank == 0, rank == 2, "MULTI_CPU", "cpu"]
        assert one["ended"] == one["after"] == one["before"]
        assert one["initialized"] == [False, True, False, False]
        assert one["broadcast"] == 2
        assert one["part"] == one["part of the run"] == [rank]
        assert one["sum"] == 3
        assert one["first"] >= (0 if rank == 0 else said[0]["first left"])
        assert one["passed"] >= said[0]["reached"]
    assert sorted(printed.splitlines()) == ["from the last process", "from the main process"]


@pytest.mark.slow
def test_partial_state_of_processes_that_a_strategy_starts(tmp_path: Path) -> None:
    """Process 0 has been everywhere before them: they do not wait, and what process 0 did not divide is refused."""
    said, _ = partial_state(tmp_path, devices=2, torchrun=False)
    assert said[0]["before"][:2] == [0, 1]
    assert said[1]["before"][:2] == [1, 2]
    assert said[0]["part"] == [0, 1, 2]
    assert "process 0 had none either" in said[1]["part"]
    for rank, one in enumerate(said):
        assert one["made"][:2] == one["after"][:2] == [rank, 2]
        assert one["initialized"] == [False, True, False, False]
        assert (one["sum"], one["part of the run"]) == (2, [[0, 1], [2]][rank])


def test_partial_state_and_its_arguments() -> None:
    """It takes no settings, and the CPU of another Runtime is refused."""
    with pytest.raises(WrongTypeError, match=r"PartialState: unknown argument 'timeout'"):
        PartialState(timeout=3)  # type: ignore[call-arg]
    with pytest.raises(WrongTypeError, match="cpu='yes': must be True or False"):
        PartialState(cpu="yes")  # type: ignore[arg-type]
    assert str(PartialState(cpu=True).device) == "cpu"
