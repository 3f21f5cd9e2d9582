"""What the document on Accelerate's class says, in its order, of the Runtime.

``save`` writes one file in the run, as machines mostly share a file system, and one on each machine with
``ProjectConfiguration(save_on_each_node=True)``: see ``tests/runtime/test_each_node.py``. Not as the document: iterable
data that asks for the rank, or holds other values in another process, is read by each: of what is already divided, only
one part would be used; see ``tests/data/test_processes.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from python_processes import run_python
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import DistributedDataParallelKwargs, Runtime, StrategyRegistry
from core.errors import ConfigurationError
from core.strategies import SingleDeviceStrategy

SCRIPT = Path(__file__).parent / "scripts" / "accelerate_two.py"


def step(runtime: Runtime, scale: float = 1.0) -> tuple[Any, Any]:
    """A linear layer after a backward pass, and its optimizer, which has not stepped."""
    torch.manual_seed(0)
    layer = nn.Linear(2, 1)
    model, optimizer = runtime.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    runtime.backward((model(torch.ones(4, 2)) * scale).sum())
    return model, optimizer


# -- the constructor, and one process --------------------------------------------------------------------------------


def test_the_five_steps_of_a_script() -> None:
    """prepare, no device in the loop, backward, gather: and the model learns."""
    runtime = Runtime(cpu=True)
    torch.manual_seed(0)
    layer = nn.Linear(2, 1)
    inputs = torch.randn(16, 2)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    optimizer: Any = torch.optim.SGD(layer.parameters(), lr=0.5)
    model, optimizer, loader = runtime.prepare(layer, optimizer, DataLoader(data, batch_size=4))
    losses = []
    for _ in range(20):
        for given, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(given), target)
            runtime.backward(loss)
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 1e-3 < losses[0]
    assert len(runtime.gather(model(inputs))) == 16


@pytest.mark.parametrize(("fp16", "name"), [(True, "16-mixed"), (False, "32-true"), (None, "32-true")])
def test_fp16(fp16: bool | None, name: str) -> None:
    """It is mixed precision; without it, what the variable says, or none."""
    assert Runtime(cpu=True, fp16=fp16).plan.precision.name == name


def test_fp16_by_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """``USE_FP16`` is its default, and the argument goes before."""
    monkeypatch.setenv("USE_FP16", "yes")
    assert Runtime(cpu=True).plan.precision.name == "16-mixed"
    assert Runtime(cpu=True, fp16=False).plan.precision.name == "32-true"
    monkeypatch.setenv("USE_FP16", "maybe")
    with pytest.raises(ConfigurationError, match=r"USE_FP16='maybe': must be 0 or 1"):
        Runtime(cpu=True)


def test_cpu_is_one_process() -> None:
    """Whatever hardware there is; several processes are asked for by ``devices``."""
    runtime = Runtime(cpu=True)
    assert (runtime.device, runtime.num_processes) == (torch.device("cpu"), 1)
    assert Runtime(cpu=True, devices=2).num_processes == 2


def test_an_object_for_deepspeed() -> None:
    """It becomes the strategy of that name, with the accumulation that it names; one of the two is enough."""

    class Engine(SingleDeviceStrategy):
        stage = 0

        @classmethod
        def of_script(cls, plugin: Any) -> Engine:
            made = cls()
            made.stage = plugin.zero_stage
            return made

    StrategyRegistry.register("deepspeed", Engine, override=True)
    plugin = SimpleNamespace(zero_stage=3, gradient_accumulation_steps=4)
    runtime = Runtime(cpu=True, deepspeed_plugin=plugin)
    assert type(runtime.strategy) is Engine
    assert (runtime.strategy.stage, runtime.gradient_accumulation_steps) == (3, 4)
    with pytest.raises(ConfigurationError, match="gradient_accumulation_steps=2 contradicts 4 in deepspeed_plugin"):
        Runtime(cpu=True, deepspeed_plugin=plugin, gradient_accumulation_steps=2)
    with pytest.raises(ConfigurationError, match=r"deepspeed_plugin=.* and strategy='ddp': both were given"):
        Runtime(cpu=True, deepspeed_plugin=plugin, strategy="ddp")


def test_generators_that_are_not_there() -> None:
    """The generator of a device is named as the device; the error has those that the run has."""
    for name in ("cuda", "xla", "numpy"):
        with pytest.raises(ConfigurationError, match=rf"rng_types=.*'{name}'.*Valid: 'torch', 'generator'"):
            Runtime(cpu=True, rng_types=["torch", name])


def test_handlers() -> None:
    """An object sets how the wrapped model is created."""
    handler = DistributedDataParallelKwargs(find_unused_parameters=True)
    runtime = Runtime(cpu=True, devices=2, kwargs_handlers=[handler])
    assert runtime.strategy.ddp_kwargs["find_unused_parameters"] is True  # type: ignore[attr-defined]


def test_the_state() -> None:
    """It has the facts of the processes; the device is the Runtime's too."""
    runtime = Runtime(cpu=True)
    assert (runtime.state.device, runtime.state.num_processes, runtime.state.process_index) == (runtime.device, 1, 0)


def test_autocast() -> None:
    """Within the context it is on exactly if the precision is mixed."""
    for precision, dtype in (("bf16", torch.bfloat16), ("no", torch.float32)):
        runtime = Runtime(cpu=True, mixed_precision=precision)
        runtime.launch()
        with runtime.autocast():
            assert (torch.ones(1, 1) @ torch.ones(1, 1)).dtype is dtype
        runtime.teardown()


def test_clipping() -> None:
    """As torch's own functions: by norm and by value."""
    runtime = Runtime(cpu=True)
    model, _ = step(runtime)
    before = runtime.clip_grad_norm_(model.parameters(), 1.0, norm_type=2)
    assert before is not None
    assert float(before) == pytest.approx(48**0.5)
    assert torch.nn.utils.get_total_norm([each.grad for each in model.parameters()]) == pytest.approx(1.0)
    model, _ = step(runtime)
    runtime.clip_grad_value_(model.parameters(), 0.25)
    assert max(each.grad.abs().max().item() for each in model.parameters()) == 0.25


def test_free_memory() -> None:
    """What was prepared is forgotten, and other models can be prepared."""
    runtime = Runtime(cpu=True)
    step(runtime)
    runtime.free_memory()
    _, optimizer = step(runtime)
    optimizer.step()


@pytest.mark.parametrize("scale", [0.01, float("inf")])
def test_an_update_that_was_skipped(scale: float) -> None:
    """Where gradients overflow in mixed precision, and only there."""
    runtime = Runtime(cpu=True, fp16=True)
    _, optimizer = step(runtime, scale)
    optimizer.step()
    assert runtime.optimizer_step_was_skipped == (scale == float("inf"))


def test_unscaling() -> None:
    """Gradients are then those of the loss, of one optimizer or of all; without mixed precision nothing changes."""
    plain = step(Runtime(cpu=True), 0.01)[0].weight.grad
    for pick in (lambda optimizer: optimizer, lambda optimizer: [optimizer], lambda optimizer: None):
        for fp16 in (True, False):
            runtime = Runtime(cpu=True, fp16=fp16)
            model, optimizer = step(runtime, 0.01)
            runtime.unscale_gradients(pick(optimizer))
            assert torch.allclose(model.weight.grad, plain, rtol=1e-3)


# -- several processes -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two processes say, by rank; and what both printed."""
    out = tmp_path_factory.mktemp("two")
    done = run_python(SCRIPT, cwd=out, timeout=180, warnings="ignore", env={"OUT": str(out)})
    ranks = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]
    return {"ranks": ranks, "printed": done.stdout, "saved": torch.load(out / "saved.pt", weights_only=True)}


@pytest.mark.slow
def test_the_batch_size_is_that_of_each_process(two: dict[str, Any]) -> None:
    """So the actual one is the script's times the number of processes."""
    assert [each["batches"] for each in two["ranks"]] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@pytest.mark.slow
def test_generators_in_step(two: dict[str, Any]) -> None:
    """They draw the same numbers in a pass, though the processes have seeded them differently."""
    first, second = (each["drawn"] for each in two["ranks"])
    assert first == second
    assert len({*first}) == 2
    torch.manual_seed(0)
    expected = [torch.rand(1).item(), torch.rand(1, generator=torch.Generator().manual_seed(0)).item()]
    assert [each["in step"] for each in two["ranks"]] == [expected] * 2


@pytest.mark.slow
def test_iterable_data(two: dict[str, Any]) -> None:
    """By default only the main process reads it; without ``dispatch_batches`` each does and takes the same batches."""
    assert [each["dispatched_here"] for each in two["ranks"]] == [True, False]
    assert [each["read_by_each_here"] for each in two["ranks"]] == [True, True]
    for name in ("dispatched", "read_by_each"):
        assert [each[name] for each in two["ranks"]] == [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]]


@pytest.mark.slow
def test_gathering_and_padding(two: dict[str, Any]) -> None:
    """The first dimension is multiplied by the number of processes; what is shorter is padded where it is asked."""
    for each in two["ranks"]:
        assert each["gathered"] == [0, 0, 1, 1]
    assert two["ranks"][0]["padded"] == [[0, 0], [-1, -1]]
    assert two["ranks"][0]["padded_first"] == [[-1, -1], [0, 0]]
    assert two["ranks"][1]["padded"] == [[1, 1], [1, 1]]


@pytest.mark.slow
def test_which_process_is_which(two: dict[str, Any]) -> None:
    """One of the run and one of the machine is the main one."""
    assert [each["main"] for each in two["ranks"]] == [[True, True], [False, False]]


@pytest.mark.slow
def test_the_main_process_goes_first(two: dict[str, Any]) -> None:
    """The other enters when it has left."""
    first, second = two["ranks"]
    assert second["first"] >= first["first_left"]
    assert second["local_first"] >= first["local_first"]


@pytest.mark.slow
def test_waiting_for_everyone(two: dict[str, Any]) -> None:
    """No process goes on before the last has come."""
    assert two["ranks"][1]["passed"] >= two["ranks"][0]["reached"]


@pytest.mark.slow
def test_gradients_are_averaged(two: dict[str, Any]) -> None:
    """And the user's own model has them: it is what ``unwrap_model`` returns."""
    for each in two["ranks"]:
        assert each["is_own"]
        assert (each["gradient"], each["weight"]) == (1.5, -1.5)


@pytest.mark.slow
def test_print_and_save(two: dict[str, Any]) -> None:
    """Each is done once on this machine, by the main process."""
    assert two["printed"] == "printed by 0\n"
    assert two["saved"]["rank"] == 0


def test_each_machine_prints(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process of the second machine prints, and not what only the main process does."""
    ranks = {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}
    more = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "GROUP_WORLD_SIZE": "2"}
    for name, value in (ranks | more).items():
        monkeypatch.setenv(name, value)
    runtime = Runtime(cpu=True, devices=2, num_nodes=2)
    runtime.print("of the machine")
    runtime.on_main_process(print)("of the run")
    assert capsys.readouterr().out == "of the machine\n"
    for name in ranks | more:
        monkeypatch.delenv(name)
