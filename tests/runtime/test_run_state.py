"""save_state and load_state in one process: names, hooks, registered objects, what is refused."""

from __future__ import annotations

import copy
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import core
from core import ProjectConfiguration, Runtime, set_seed
from core.checkpoints import TorchCheckpointIO, is_committed
from core.checkpoints.safetensors_io import write_safetensors
from core.errors import CheckpointError, ConfigurationError, WrongTypeError
from core.runtime.checkpoint import saving

from .problem import runtime


class Loop:
    """A script's objects."""

    def __init__(self, seed: int = 0, models: int = 1, **arguments: Any) -> None:
        self.runtime = runtime(**arguments)
        self.iterator: Any = None
        torch.manual_seed(seed)
        self.models = [self.runtime.prepare(nn.Linear(2, 2)) for _ in range(models)]
        own = torch.optim.Adam(self.models[0].parameters(), 0.1)
        data = TensorDataset(torch.randn(10, 2, generator=torch.Generator().manual_seed(1)))
        schedule = torch.optim.lr_scheduler.StepLR(own, 1, 0.5)
        self.loader: Any
        self.optimizer, self.schedule, self.loader = self.runtime.prepare(
            own, schedule, DataLoader(data, 3, shuffle=True)
        )

    def train(self, batches: int) -> None:
        if self.iterator is None:
            self.iterator = iter(self.loader)
        for (batch,) in islice(self.iterator, batches):
            self.runtime.backward(self.models[0](batch).square().mean())
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.schedule.step()

    def weights(self) -> list[Any]:
        return [model.weight.tolist() for model in self.models]


def project(path: Path, **options: Any) -> ProjectConfiguration:
    return ProjectConfiguration(path, automatic_checkpoint_naming=True, **options)


def test_what_is_in_the_state(tmp_path: Path) -> None:
    """Model, optimizer, scheduler, position in the data, generators; the loop goes on as if it had not stopped."""
    first, second = Loop(), Loop(seed=5)
    first.train(2)
    written = first.runtime.save_state(tmp_path / "c")
    assert written == str(tmp_path / "c")
    drawn = random.random(), float(torch.rand(()))
    first.train(9)
    second.runtime.load_state(tmp_path / "c")
    assert (random.random(), float(torch.rand(()))) == drawn
    assert second.loader.batches_taken == 2
    second.train(9)
    assert second.weights() == first.weights()
    assert second.schedule.get_last_lr() == first.schedule.get_last_lr()
    assert list(second.optimizer.state_dict()["state"]) == [0, 1]


def schedule() -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), 1)


class Epochs:
    def state_dict(self) -> dict[str, int]:
        return {"epoch": 0}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


@pytest.mark.parametrize(
    ("registers", "is_told"), [(None, True), ("averages", True), ("schedule", True), ("epoch", False)]
)
def test_a_checkpoint_after_the_last_batch_of_an_epoch(
    registers: str | None, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A loop that computes its epoch from the steps is told how to begin with the next one, which is then exact.

    It is such a loop also where it registers objects that do not have the epoch, such as averages of the weights.
    """
    first, second = Loop(), Loop(seed=5)
    first.train(4)
    kinds: dict[str | None, Callable[[], Any]] = {"averages": Counter, "schedule": schedule, "epoch": Epochs}
    objects = [kinds[registers](), kinds[registers]()] if registers else []
    for loop, count in zip((first, second), objects, strict=False):
        loop.runtime.register_for_checkpointing(count)
    first.runtime.save_state(tmp_path / "c")
    first.train(1)
    first.iterator = None
    first.train(4)
    second.runtime.load_state(tmp_path / "c")
    said = [
        record.getMessage() for record in caplog.records if "after the last batch of epoch 0" in record.getMessage()
    ]
    assert ["If your loop begins with epoch 1" in text for text in said] == [True] * is_told
    second.loader.set_epoch(1)
    second.train(4)
    assert second.weights() == first.weights()


@pytest.mark.parametrize(("steps", "skips", "said"), [(2, 0, 0), (2, 1, 1), (1, 2, 2), (2, 2, 2), (4, 0, 0)])
def test_a_loop_that_skips_by_itself(
    steps: int, skips: int, said: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A script for Accelerate skips the batches before the checkpoint, which the loader has already done: it is told.

    Also where it has skipped all that was left of the epoch.
    """
    first, second = Loop(), Loop(seed=5)
    first.train(steps)
    first.runtime.save_state(tmp_path / "c")
    second.runtime.load_state(tmp_path / "c")
    for step, (batch,) in enumerate(second.loader):
        if step >= skips:
            second.runtime.backward(second.models[0](batch).square().mean())
    second.train(1)
    warned = [record.getMessage() for record in caplog.records if "before its first backward" in record.getMessage()]
    assert len(warned) == bool(said)
    assert all(f"read {said} batch(es) of epoch 0" in text for text in warned)


def test_a_checkpoint_after_the_last_batch_of_a_stream(tmp_path: Path) -> None:
    """It has no length, so only the next pass tells that nothing was left; the loop goes on with the pass after it."""

    class Stream(IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            return iter(torch.eye(4))

    for path in (None, tmp_path / "c"):
        runtime = Runtime(accelerator="cpu", devices=1)
        model, loader = runtime.prepare(torch.nn.Linear(4, 1), DataLoader(Stream(), 2))
        if path is not None:
            runtime.load_state(path)
            assert not list(loader)
        for number, batch in enumerate(loader, 1):
            runtime.backward(model(batch).sum())
            if number == 2:
                runtime.save_state(tmp_path / "c")


def test_automatic_names_and_the_limit(tmp_path: Path) -> None:
    """Numbers go up, also in a run that begins again; old ones go after the new one is there; the newest is loaded."""
    loop = Loop(project_config=project(tmp_path, total_limit=2))
    for _ in range(4):
        loop.train(1)
        loop.runtime.save_state()
    saved, weights = tmp_path / "checkpoints", loop.weights()
    assert sorted(os.listdir(saved)) == ["checkpoint_2", "checkpoint_3"]
    loop.train(1)
    again = Loop(seed=3, project_config=project(tmp_path, total_limit=2))
    (saved / "checkpoint_7").mkdir()  # as a program that was killed may leave it
    (saved / "checkpoint_7" / "half").write_text("")
    again.runtime.load_state()
    assert again.weights() == weights
    assert Path(again.runtime.save_state()).name == "checkpoint_8"
    assert sorted(name for name in os.listdir(saved) if is_committed(saved / name)) == ["checkpoint_3", "checkpoint_8"]
    assert again.runtime.project_configuration.iteration == 9


def test_nothing_is_removed_if_the_new_one_fails(tmp_path: Path) -> None:
    """A hook that raises leaves neither a new checkpoint nor a temporary one, and keeps the old ones."""
    loop = Loop(project_config=project(tmp_path, total_limit=1))
    loop.runtime.save_state()

    def fail(models: Any, weights: Any, output_dir: str) -> None:
        Path(output_dir, "half").write_text("")
        raise ValueError("no space")

    handle = loop.runtime.register_save_state_pre_hook(fail)
    with pytest.raises(CheckpointError, match="rank 0 could not do its part of the checkpoint: ValueError: no space"):
        loop.runtime.save_state()
    assert os.listdir(tmp_path / "checkpoints") == ["checkpoint_0"]
    handle.remove()
    loop.runtime.save_state()
    assert os.listdir(tmp_path / "checkpoints") == ["checkpoint_1"]


def test_hooks_that_write_their_own_format(tmp_path: Path) -> None:
    """As diffusers' examples: what is popped is left to the hooks, whose files are committed with the rest."""
    loop, again = Loop(models=2), Loop(seed=9, models=2)
    events = []

    def save(models: list[nn.Module], weights: list[Any], output_dir: str) -> None:
        events.append(("save", Path(output_dir).parent.name.startswith(".core-tmp"), len(weights)))
        for model in models:
            if model is loop.models[1]:
                Path(output_dir, "adapter").mkdir()
                torch.save(model.state_dict(), Path(output_dir, "adapter", "weights.pt"))
        weights.pop()

    def load(models: list[nn.Module], input_dir: str) -> None:
        model = models.pop()
        assert model is again.models[1]
        model.load_state_dict(torch.load(Path(input_dir, "adapter", "weights.pt")))

    loop.runtime.register_save_state_pre_hook(save)
    handle = again.runtime.register_load_state_pre_hook(load)
    loop.runtime.save_state(tmp_path / "c")
    assert events == [("save", True, 2)]
    again.runtime.load_state(tmp_path / "c")
    assert again.weights() == loop.weights()
    handle.remove()
    with pytest.raises(CheckpointError, match=r"1 model\(s\) instead of 2.*same objects in the same order"):
        again.runtime.load_state(tmp_path / "c")
    weights = tmp_path / "c" / "adapter" / "weights.pt"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match=r"weights\.pt is damaged"):
        again.runtime.load_state(tmp_path / "c")


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def test_a_hook_that_draws_random_numbers(tmp_path: Path) -> None:
    """As one does that makes a model to write averages of the weights: the resumed run draws what comes after."""
    first, second = Loop(), Loop(seed=5)
    first.runtime.register_save_state_pre_hook(lambda models, weights, output_dir: torch.rand(3).tolist())
    first.train(2)
    first.runtime.save_state(tmp_path / "c")
    drawn = torch.rand(3)
    second.runtime.load_state(tmp_path / "c")
    assert torch.equal(torch.rand(3), drawn)


def test_registered_objects(tmp_path: Path) -> None:
    """Are saved and loaded; an error lists every object that has no state."""
    loop, again, counters = Loop(), Loop(), (Counter(), Counter(), Counter())
    loop.runtime.register_for_checkpointing(*counters[:2], counters[0])
    again.runtime.register_for_checkpointing(counters[2], Counter())
    counters[0].count = 4
    loop.runtime.save_state(tmp_path / "c")
    again.runtime.load_state(tmp_path / "c")
    assert counters[2].count == 4
    with pytest.raises(WrongTypeError, match=r"load_state_dict in int \(argument 0\), list \(argument 2\)"):
        loop.runtime.register_for_checkpointing(1, Counter(), [])
    with pytest.raises(CheckpointError, match=r"2 object\(s\) instead of 0"):
        Loop().runtime.load_state(tmp_path / "c")


def test_what_is_refused(tmp_path: Path) -> None:
    """Each error names the argument and what to do."""
    loop = Loop()
    with pytest.raises(ConfigurationError, match=r"output_dir was not given.*ProjectConfiguration"):
        loop.runtime.save_state()
    with pytest.raises(ConfigurationError, match="safe_serialization=False"):
        loop.runtime.save_state(tmp_path / "c", safe_serialization=False)
    with pytest.raises(ConfigurationError, match=r"input_dir was not given.*project_dir"):
        loop.runtime.load_state()
    with pytest.raises(CheckpointError, match="there is no committed checkpoint"):
        Loop(project_dir=tmp_path).runtime.load_state()
    loop.runtime.save({"model": loop.models[0]}, tmp_path / "parts")
    with pytest.raises(CheckpointError, match=r"holds no state of a run. Use load"):
        loop.runtime.load_state(tmp_path / "parts")
    (tmp_path / "half").mkdir()
    with pytest.raises(CheckpointError, match=r"not a committed checkpoint"):
        loop.runtime.load_state(tmp_path / "half")
    for options in ({"total_limit": 0}, {"total_limit": True}, {"iteration": -1}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(options))}=.*integer ≥"):
            ProjectConfiguration(**options)
    with pytest.raises(WrongTypeError, match=r"project_config='run': must be a core.ProjectConfiguration"):
        Runtime(project_config="run")  # type: ignore[arg-type]


def test_strict(tmp_path: Path) -> None:
    """strict=False loads the parameters that both have."""
    one, other = runtime(), runtime()
    first, second = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)
    first, second = one.prepare(first), other.prepare(second)
    one.save_state(tmp_path / "c")
    with pytest.raises(CheckpointError, match="Unexpected key"):
        other.load_state(tmp_path / "c")
    other.load_state(tmp_path / "c", strict=False)
    assert torch.equal(first.weight, second.weight)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.b.weight = self.a.weight


class Delayed(TorchCheckpointIO):
    """Returns before the checkpoint is written, by a thread that begins late; ``fails`` makes it fail."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.writing, self.thread = fails, Future[None](), ThreadPoolExecutor(1)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        self.writing = self.thread.submit(self.write, super().save_checkpoint, copy.deepcopy(checkpoint), path)

    def write(self, save: Any, checkpoint: dict[str, Any], path: Any) -> None:
        time.sleep(0.2)
        if self.fails:
            raise CheckpointError("the disk is full")
        save(checkpoint, path)

    def wait(self) -> None:
        self.writing.result()


def test_a_checkpoint_io_that_writes_later(tmp_path: Path) -> None:
    """The state is committed once all of it is written; if that fails, save_state raises, and nothing is left."""
    first, second = (Loop(seed=seed, checkpoint_io=Delayed()) for seed in (0, 1))
    first.runtime.save_state(tmp_path / "state")
    second.runtime.load_state(tmp_path / "state")
    assert first.weights() == second.weights()
    with pytest.raises(CheckpointError, match="the disk is full"):
        Loop(checkpoint_io=Delayed(fails=True)).runtime.save_state(tmp_path / "other")
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize("safe", [True, False])
def test_weights_for_other_programs(safe: bool, tmp_path: Path) -> None:
    """One file, or several with an index; tied weights once; what an earlier save left is replaced."""
    from safetensors.torch import load_file, load_model

    one, model = runtime(precision="bf16-mixed"), Tied()
    prepared = one.prepare(model)
    (tmp_path / "config.json").write_text("{}")
    one.save_model(prepared, tmp_path, max_shard_size=400, safe_serialization=safe)
    stem, suffix = ("model", "safetensors") if safe else ("pytorch_model", "bin")
    index = json.loads((tmp_path / f"{stem}.{suffix}.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert files == [f"{stem}-0000{n}-of-00002.{suffix}" for n in (1, 2)]
    read: dict[str, Any] = {}
    for file in files:
        read |= load_file(tmp_path / file) if safe else torch.load(tmp_path / file)
    assert index["metadata"] == {"total_size": 2 * 256 + 3 * 32}
    state = one.get_state_dict(prepared)
    assert list(state) == list(model.state_dict())
    for name in set(index["weight_map"]):
        assert torch.equal(read[name], state[name])
    one.save_model(prepared, tmp_path, safe_serialization=safe)
    assert sorted(os.listdir(tmp_path)) == sorted(["config.json", f"{stem}.{suffix}"])
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1, "whoever may read other files of this user may read the weights"
    other = Tied()
    if safe:
        assert not any(load_model(other, tmp_path / f"{stem}.{suffix}"))
    else:
        other.load_state_dict(torch.load(tmp_path / f"{stem}.{suffix}"))
    for name, value in other.state_dict().items():
        assert torch.equal(value, state[name])


def test_parts_of_two_saves_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that replaces a part and then fails leaves no index: what reads by it finds no model, not a mixed one."""
    index = tmp_path / "model.safetensors.index.json"
    runtime().save_model(Tied(), tmp_path, max_shard_size=400)
    assert index.exists()

    def fail_at_the_second(*given: Any) -> Any:
        if (tmp_path / "new").exists():
            raise CheckpointError("the disk is full")
        (tmp_path / "new").touch()
        return write_safetensors(*given)

    monkeypatch.setattr(saving, "write_safetensors", fail_at_the_second)
    with pytest.raises(CheckpointError, match="the disk is full"):
        runtime().save_model(Tied(), tmp_path, max_shard_size=400)
    assert not index.exists()


def test_safetensors_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the line that installs it; wrong sizes are refused as well."""
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ConfigurationError, match="pip install safetensors"):
        runtime().save_model(nn.Linear(1, 1), tmp_path)
    for size in ("10 apples", "", 0, "-1GB", True):
        with pytest.raises(ConfigurationError, match="max_shard_size="):
            runtime().save_model(nn.Linear(1, 1), tmp_path, max_shard_size=size)


def test_save_one_safetensors_file(tmp_path: Path) -> None:
    """By its suffix or the argument; other values are refused."""
    from safetensors.torch import load_file

    one, state = runtime(), {"a": torch.ones(3), "b": torch.arange(6).reshape(2, 3).t()}
    one.save(state, tmp_path / "x.safetensors")
    one.save(state, tmp_path / "y", safe_serialization=True)
    for name in ("x.safetensors", "y"):
        assert {key: value.tolist() for key, value in load_file(tmp_path / name).items()} == {
            key: value.tolist() for key, value in state.items()
        }
    with pytest.raises(WrongTypeError, match="safetensors: holds tensors by name"):
        one.save({"a": 1}, tmp_path / "z", safe_serialization=True)


def test_skip_first_batches(tmp_path: Path) -> None:
    """As a method and as a function; a script that skips after load_state does not skip twice."""
    loop = Loop()
    assert len(list(loop.runtime.skip_first_batches(loop.loader, 1))) == 3
    assert len(list(core.skip_first_batches(loop.loader, 3))) == 1
    loop.train(2)
    loop.runtime.save_state(tmp_path / "c")
    again = Loop()
    again.runtime.load_state(tmp_path / "c")
    assert len(list(again.runtime.skip_first_batches(again.loader, 2))) == 2


def test_set_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same generators as seed_everything; device_specific adds the number of the process."""
    assert set_seed(3) == 3
    first = random.random(), float(torch.rand(()))
    core.seed_everything(3)
    assert (random.random(), float(torch.rand(()))) == first
    one = runtime()
    monkeypatch.setattr(type(one), "process_index", property(lambda self: 2))
    assert set_seed(3, device_specific=True) == 5
    before = torch.are_deterministic_algorithms_enabled()
    try:
        set_seed(3, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(before)
