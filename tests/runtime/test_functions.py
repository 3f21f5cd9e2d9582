"""Functions next to the Runtime: the batch size that fits, local SGD, processes from a notebook, profiles, PEFT."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from python_processes import run_python
from torch import nn

from core import (
    DistributedType,
    LocalSGD,
    Runtime,
    broadcast,
    broadcast_object_list,
    extract_model_from_parallel,
    find_executable_batch_size,
    gather,
    gather_object,
    init_empty_weights,
    init_on_device,
    is_peft_model,
    notebook_launcher,
    synchronize_rng_states,
    tqdm,
)
from core.errors import ConfigurationError, WrongTypeError

# -- find_executable_batch_size ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("device 0"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes. Buy new RAM!"),
        RuntimeError("HIP out of memory. Tried to allocate 2 GiB"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        MemoryError(),
    ],
)
def test_batch_sizes_shrink_until_the_memory_suffices(error: Exception) -> None:
    """The default is nine tenths, rounded down; a later call begins with the size that was found."""
    tried: list[int] = []

    @find_executable_batch_size(starting_batch_size=128)
    def train(batch_size: int, factor: int, *, plus: int = 0) -> int:
        tried.append(batch_size)
        if batch_size > 100:
            raise error
        return batch_size * factor + plus

    assert train(2, plus=1) == 2 * 92 + 1
    assert tried == [128, 115, 103, 92]
    train(2)
    assert tried[4:] == [92]


def test_memory_is_really_exhausted_and_freed() -> None:
    """An allocation of exabytes is too large, and what the failed call held is gone before the next one."""
    import weakref

    held: list[Any] = []

    def train(batch_size: int) -> int:
        assert all(reference() is None for reference in held)
        kept = torch.zeros(8)
        held.append(weakref.ref(kept))
        torch.empty(1 << (batch_size // 4), dtype=torch.uint8)
        return batch_size

    assert find_executable_batch_size(train, 200, lambda size: size // 2)() == 100


def test_other_ends_of_the_search() -> None:
    """Other errors pass; no fitting size, a size that does not shrink and a passed batch size are errors."""

    def fails(batch_size: int, value: int = 0) -> None:
        raise torch.OutOfMemoryError if value == 0 else KeyError("mine")

    with pytest.raises(ConfigurationError, match="batch_size=1, and there is no smaller"):
        find_executable_batch_size(fails, 8)()
    with pytest.raises(KeyError, match="mine"):
        find_executable_batch_size(fails)(1)
    with pytest.raises(ConfigurationError, match="returned 8 for batch_size=8"):
        find_executable_batch_size(fails, 8, lambda: 8)()
    with pytest.raises(WrongTypeError, match="Do not pass a batch size"):
        find_executable_batch_size(fails)(128, 3)
    with pytest.raises(ConfigurationError, match="starting_batch_size=0"):
        find_executable_batch_size(fails, 0)


# -- profile -------------------------------------------------------------------------------------------------------


def test_profile(tmp_path: Path) -> None:
    """A scheduled profile has the operators of the steps it recorded, and a trace of this process."""
    runtime = Runtime(accelerator="cpu", devices=1)
    options: dict[str, Any] = {"schedule_option": {"wait": 1, "warmup": 1, "active": 2, "repeat": 1}}
    with runtime.profile(activities=["cpu"], record_shapes=True, output_trace_dir=tmp_path, **options) as profiler:
        for _ in range(5):
            torch.ones(3, 4) @ torch.ones(4, 5)
            profiler.step()
    events = {event.key: event.count for event in profiler.key_averages()}
    assert events["aten::mm"] == 2
    assert json.loads((tmp_path / "profile_0.json").read_text())["traceEvents"]
    with (
        pytest.raises(ConfigurationError, match="'quantum' cannot be profiled"),
        runtime.profile(activities=["quantum"]),
    ):
        pass


# -- is_peft_model -------------------------------------------------------------------------------------------------


def test_is_peft_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library no model is one; with it, its models are, prepared or wrapped by torch."""

    class PeftModel(nn.Linear):
        pass

    library = ModuleType("peft")
    library.PeftModel = PeftModel  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "peft", raising=False)
    model = PeftModel(1, 1)
    assert not is_peft_model(model)
    monkeypatch.setitem(sys.modules, "peft", library)
    assert is_peft_model(model)
    assert is_peft_model(Runtime(accelerator="cpu", devices=1, precision="bf16-mixed").prepare(model))
    assert is_peft_model(nn.DataParallel(model))
    assert not is_peft_model(nn.DataParallel(nn.Linear(1, 1)))


# -- functions of the last Runtime ---------------------------------------------------------------------------------


def test_functions_of_the_last_runtime() -> None:
    """They are methods of the last Runtime; without one they say what to do."""
    runtime = Runtime(accelerator="cpu", devices=1)
    assert gather_object(["a"]) == ["a"]
    assert broadcast_object_list([1, "b"]) == [1, "b"]
    assert broadcast({"a": torch.tensor(3)})["a"].item() == 3
    assert gather(torch.tensor(1)).tolist() == [1]
    assert runtime.distributed_type == DistributedType.NO
    assert runtime.distributed_type != DistributedType.MULTI_CPU
    with pytest.raises(AttributeError, match="No"):
        DistributedType.No  # noqa: B018


def test_without_a_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the function and the remedy."""
    monkeypatch.setattr("core.runtime.partial_state.last_run", lambda: None)
    with pytest.raises(ConfigurationError, match=r"gather_object.*Create one"):
        gather_object([1])


# -- LocalSGD ------------------------------------------------------------------------------------------------------


def test_local_sgd_on_one_process() -> None:
    """One process has no one to average with; a wrong number of steps is refused."""
    runtime = Runtime(accelerator="cpu", devices=1)
    model = runtime.prepare(nn.Linear(2, 1))
    before = model.weight.detach().clone()
    with LocalSGD(accelerator=runtime, model=model, local_sgd_steps=2, enabled=True) as local_sgd:
        for _ in range(3):
            local_sgd.step()
    assert (local_sgd.num_steps, local_sgd.enabled) == (3, False)
    assert torch.equal(model.weight, before)
    with pytest.raises(ConfigurationError, match="local_sgd_steps=0"):
        LocalSGD(runtime, model, 0)


# -- notebook_launcher ---------------------------------------------------------------------------------------------


def test_notebook_launcher_on_one_process() -> None:
    """The function is called here; unknown precisions and several machines without a port are refused."""
    assert notebook_launcher(lambda a, b: a + b, (1, 2), num_processes=1) == 3
    with pytest.raises(ConfigurationError, match="mixed_precision='fp8'"):
        notebook_launcher(print, mixed_precision="fp8")
    with pytest.raises(ConfigurationError, match="use_port"):
        notebook_launcher(print, num_nodes=2)
    assert notebook_launcher(lambda a: a, (1,), num_processes=1, max_restarts=0, rdzv_backend="c10d") == 1
    with pytest.raises(ConfigurationError, match="rdzv_backend='etcd': must be 'static' or 'c10d'"):
        notebook_launcher(print, rdzv_backend="etcd")
    with pytest.raises(ConfigurationError, match="max_restarts=-1"):
        notebook_launcher(print, max_restarts=-1)
    with pytest.raises(ConfigurationError, match=r"max_restarts=1 with num_nodes=2: .*torch-hal run"):
        notebook_launcher(print, num_nodes=2, use_port=29500, max_restarts=1)


RESTARTING = """
import os
from pathlib import Path
from core import Runtime, notebook_launcher
from core.errors import LaunchError

def train(fails):
    runtime = Runtime(accelerator="cpu", strategy="ddp")
    attempt = Path(f"attempt{runtime.process_index}")
    number = int(attempt.read_text()) if attempt.exists() else 0
    attempt.write_text(str(number + 1))
    runtime.wait_for_everyone()
    if runtime.process_index == 1 and number < fails:
        os._exit(3)
    runtime.wait_for_everyone()
    return number

if __name__ == "__main__":
    print(notebook_launcher(train, (2,), num_processes=2, max_restarts=2))
    try:
        notebook_launcher(train, (9,), num_processes=2, max_restarts=1)
    except LaunchError:
        print("gave up after", Path("attempt1").read_text())
"""


def test_processes_that_are_started_again(tmp_path: Path) -> None:
    """All of them after one has failed, as often as it says."""
    script = tmp_path / "script.py"
    script.write_text(RESTARTING)
    done = run_python(script, cwd=tmp_path, warnings="ignore")
    assert done.stdout.splitlines() == ["2", "gave up after 5"]
    assert "notebook_launcher: restart 2 of 2, as" in done.stderr


def test_a_bar_in_one_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Another process of the machine iterates without one, unless it is asked for."""
    ranks = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    more = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "GROUP_WORLD_SIZE": "1"}
    assert list(tqdm(range(3), desc="here")) == [0, 1, 2]
    assert "here" in capsys.readouterr().err
    for name, value in (ranks | more).items():
        monkeypatch.setenv(name, value)
    assert list(tqdm(range(3), desc="there")) == [0, 1, 2]
    assert "there" not in capsys.readouterr().err
    assert list(tqdm(range(3), desc="there", main_process_only=False)) == [0, 1, 2]
    assert "there" in capsys.readouterr().err
    for name in ranks | more:
        monkeypatch.delenv(name)


def test_generators_that_are_made_equal() -> None:
    """One process has nothing to take over; the generator and its name belong together."""
    runtime = Runtime(accelerator="cpu", devices=1)
    runtime.launch()
    generator, state = torch.Generator().manual_seed(3), torch.get_rng_state()
    synchronize_rng_states(["torch", "generator"], generator)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ConfigurationError, match="pass both 'generator' and the generator, or neither"):
        synchronize_rng_states(["generator"])
    with pytest.raises(ConfigurationError, match="no generator 'acme'"):
        synchronize_rng_states(["acme"])


SCRIPT = """
import torch
from torch import nn
from core import CoreError, LocalSGD, Runtime, find_executable_batch_size, notebook_launcher

def network():
    return nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1, affine=False), nn.Linear(1, 1))

def train(note, save):
    runtime = Runtime(accelerator="cpu", strategy="ddp")
    assert runtime.num_processes == 3, runtime.num_processes
    rank = runtime.process_index

    sizes = []
    @find_executable_batch_size(starting_batch_size=16, reduce_batch_size_fn=lambda size: size // 2)
    def search(batch_size):
        runtime.wait_for_everyone()
        sizes.append(batch_size)
        if rank == 2 and batch_size > 4:
            raise torch.OutOfMemoryError
        return batch_size
    found = search()

    torch.manual_seed(0)
    model = network()
    locals_ = [network() for _ in range(3)]
    for other in locals_:
        other.load_state_dict(model.state_dict())
    model = runtime.prepare(model)
    optimizer = runtime.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.randn(5, 3, 4, 2)
    with LocalSGD(runtime, model, local_sgd_steps=2) as local_sgd:
        for step in range(5):
            runtime.backward(model(data[step, rank]).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            local_sgd.step()
            if save == "every" or (save == "averaged" and step == 1):
                runtime.save_state(f"state-{step}")
    # the same by hand, all three in this process
    for step in range(5):
        for number, other in enumerate(locals_):
            other(data[step, number]).square().mean().backward()
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
        if step in (1, 3, 4):
            with torch.no_grad():
                for several in zip(*(other.parameters() for other in locals_)):
                    mean = sum(several) / 3
                    for parameter in several:
                        parameter.copy_(mean)
                for other in locals_:
                    for buffer, first in zip(other.buffers(), locals_[0].buffers()):
                        buffer.copy_(first)
    mine, expected = model.state_dict().values(), locals_[0].state_dict().values()
    difference = max(runtime.gather((a - b).abs().max()).max().item() for a, b in zip(mine, expected))
    everyone = runtime.gather(torch.tensor([found, *sizes])).tolist()
    return note, everyone, difference, runtime.plan.precision.name

if __name__ == "__main__":
    print(notebook_launcher(train, ("hello", "SAVE"), num_processes=3, mixed_precision="bf16"))
"""


@pytest.mark.parametrize(("save", "warnings"), [("averaged", 0), ("every", 1)])
def test_three_processes(save: str, warnings: int, tmp_path: Path) -> None:
    """A function that makes its own Runtime is in one of three processes; they agree on a batch size.

    Local SGD averages the parameters of all, and every process has the buffers of process 0 then. A checkpoint of what
    is not averaged is a warning.
    """
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace('mixed_precision="bf16"', 'mixed_precision="no"').replace("SAVE", save))
    ended = run_python(script, cwd=tmp_path, warnings="error")
    note, everyone, difference, precision = eval(ended.stdout)
    assert ended.stderr.count("LocalSGD has not averaged") == warnings
    assert (note, everyone, precision) == ("hello", [4, 16, 8, 4] * 3, "32-true")
    assert difference < 1e-6


# -- models ------------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.first.bias.requires_grad_(False)
        self.first.bias.note = "own"  # type: ignore[attr-defined]
        self.register_buffer("count", torch.ones(1))


def test_parameters_without_memory_are_filled_by_a_checkpoint() -> None:
    """Buffers are real; shared parameters stay one; after the block, and after an error in it, all is as before."""
    whole = Tied()
    with init_empty_weights():
        model = Tied()
    assert {each.device.type for each in model.parameters()} == {"meta"}
    assert model.second.weight is model.first.weight
    assert (model.first.bias.requires_grad, model.count.device.type) == (False, "cpu")
    model.load_state_dict(whole.state_dict(), assign=True)
    assert torch.equal(model.second.weight, whole.first.weight)
    with pytest.raises(ZeroDivisionError), init_empty_weights():
        raise ZeroDivisionError
    assert nn.Linear(1, 1).weight.device.type == "cpu"
    with init_empty_weights(include_buffers=True):
        assert nn.BatchNorm1d(1).running_mean.device.type == "meta"  # type: ignore[union-attr]
    with init_on_device("cpu"):
        assert nn.Linear(1, 1).weight.device.type == "cpu"


def test_the_own_module_of_one_that_is_wrapped() -> None:
    """Prepared, compiled, wrapped by torch, and none of these."""
    model = nn.Linear(1, 1)
    prepared = Runtime(accelerator="cpu", devices=1).prepare(model)
    compiled: Any = torch.compile(prepared, backend="eager")
    for wrapped in (model, prepared, compiled, nn.DataParallel(compiled)):
        assert extract_model_from_parallel(wrapped) is model
