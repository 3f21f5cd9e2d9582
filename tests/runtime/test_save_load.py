"""Saving and loading the parts of your own loop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, Adamax
from torch.optim.lr_scheduler import StepLR

from core.checkpoints import TorchCheckpointIO, read_manifest
from core.errors import CheckpointError, ConfigurationError, WrongTypeError

from .problem import PRECISIONS, batch, mse, network, runtime


class Loop:
    """A loop's objects, prepared."""

    def __init__(self, name: str) -> None:
        self.module = network()
        self.runtime = runtime(precision=name)
        own = SGD(self.module.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = StepLR(own, 1, 0.5)
        self.model, self.optimizer = self.runtime.prepare(self.module, own)

    def train(self, steps: int) -> None:
        inputs, targets = batch()
        for _ in range(steps):
            self.runtime.backward(mse(self.model(inputs), targets))
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()

    def parts(self) -> dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return {**parts, "precision": self.runtime.strategy.precision}


@pytest.mark.parametrize("name", PRECISIONS)
def test_what_was_saved_goes_on_as_if_nothing_had_been(name: str, tmp_path: Path) -> None:
    """Five steps at once are three and two, with modules, optimizers, schedulers and the precision's scale restored."""
    whole, first, second = Loop(name), Loop(name), Loop(name)
    whole.train(5)
    first.train(3)
    first.runtime.save({**first.parts(), "step": 3, "seen": [1, "a", None], "tensor": torch.ones(2)}, tmp_path / "c")
    second.train(1)
    rest = second.runtime.load(tmp_path / "c", second.parts())
    assert rest.keys() == {"step", "seen", "tensor"}
    assert (rest["step"], rest["seen"]) == (3, [1, "a", None])
    assert torch.equal(rest["tensor"], torch.ones(2))
    second.train(2)
    for parameter, expected in zip(second.module.parameters(), whole.module.parameters(), strict=True):
        assert torch.equal(parameter, expected)
    assert second.scheduler.get_last_lr() == whole.scheduler.get_last_lr()


@pytest.mark.parametrize("saves_all", [False, True])
def test_an_optimizer_of_another_kind(saves_all: bool, tmp_path: Path) -> None:
    """Adamax takes what Adam has saved, and would fail in its first step."""

    def loop(kind: Any) -> tuple[Any, Any]:
        own = runtime()
        return own, own.prepare_optimizer(kind(own.prepare_model(network()).parameters(), lr=0.1))

    def load(kind: Any) -> None:
        own, optimizer = loop(kind)
        own.load_state(tmp_path / "c") if saves_all else own.load(tmp_path / "c", {"optimizer": optimizer})

    own, optimizer = loop(Adam)
    own.save_state(tmp_path / "c") if saves_all else own.save({"optimizer": optimizer}, tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"Adamax is not the optimizer that was saved, which is Adam: .*alone"):
        load(Adamax)
    load(Adam)


@pytest.mark.parametrize(("name", "dtype"), [("32-true", torch.float64), ("bf16-true", torch.bfloat16)])
@pytest.mark.parametrize("saves_all", [False, True])
def test_state_keeps_its_dtype_unless_the_precision_is_another(
    name: str, dtype: torch.dtype, saves_all: bool, tmp_path: Path
) -> None:
    """An optimizer may keep its state in another dtype than its parameters; what a precision has made follows it."""
    first, second = Loop("32-true"), Loop(name)
    first.train(1)
    (state, *_) = first.optimizer.state.values()
    state["momentum_buffer"] = state["momentum_buffer"].double()
    if saves_all:
        first.runtime.save_state(tmp_path / "c")
        second.runtime.load_state(tmp_path / "c")
    else:
        first.runtime.save(first.parts(), tmp_path / "c")
        second.runtime.load(tmp_path / "c", second.parts())
    (loaded, *_) = second.optimizer.state.values()
    assert loaded["momentum_buffer"].dtype is dtype
    assert torch.equal(loaded["momentum_buffer"], state["momentum_buffer"].to(dtype))


def test_without_objects_everything_is_handed_back(tmp_path: Path) -> None:
    """State dicts with the user's own keys, on the CPU; what the checkpoint says of itself is in its manifest."""
    loop = Loop("bf16-mixed")
    loop.runtime.save({"model": loop.model, "step": 1}, tmp_path / "c")
    content = loop.runtime.load(tmp_path / "c")
    assert content.keys() == {"model", "step"}
    assert list(content["model"]) == list(network().state_dict())
    manifest = read_manifest(tmp_path / "c")
    assert (manifest.world_size, manifest.strategy) == (1, "single_device")


def test_a_part_that_is_missing(tmp_path: Path) -> None:
    """Named, with what is there; nothing else is loaded."""
    loop, other = Loop("32-true"), Loop("32-true")
    loop.train(1)
    loop.runtime.save({"model": loop.model, "step": 1}, tmp_path / "c")
    before = [parameter.clone() for parameter in other.module.parameters()]
    with pytest.raises(CheckpointError, match=r"state: checkpoint .*c' has no part 'optimizer'.*'model', 'step'"):
        other.runtime.load(tmp_path / "c", {"model": other.model, "optimizer": other.optimizer})
    assert all(torch.equal(now, then) for now, then in zip(other.module.parameters(), before, strict=True))


def test_a_part_of_another_form(tmp_path: Path) -> None:
    """Named, with the checkpoint and what its object says."""
    loop = Loop("32-true")
    loop.runtime.save({"model": loop.model, "step": 1}, tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"(?s)c': its part 'model' could not be loaded.*size mismatch"):
        loop.runtime.load(tmp_path / "c", {"model": nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 2))})
    with pytest.raises(CheckpointError, match="its part 'step' could not be loaded"):
        loop.runtime.load(tmp_path / "c", {"step": loop.optimizer})


def test_objects_that_take_nothing_back(tmp_path: Path) -> None:
    """Refused by the name they are given under."""
    one = runtime()
    one.save({"step": 1}, tmp_path / "c")
    with pytest.raises(WrongTypeError, match=r"state\['step'\]: an object of type int has no load_state_dict"):
        one.load(tmp_path / "c", {"step": 0})


def test_the_name_that_is_taken(tmp_path: Path) -> None:
    """A part of the user's under the checkpoint's own name would be lost."""
    with pytest.raises(ConfigurationError, match="save: the name 'core' is reserved"):
        runtime().save({"core": 1}, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_module_by_itself_is_refused(tmp_path: Path) -> None:
    """By save and by load, which name the remedy."""
    with pytest.raises(WrongTypeError, match=r"save: a module of type Linear .*save\({'model': model}, path\)"):
        runtime().save(nn.Linear(1, 1), tmp_path / "c")
    assert not (tmp_path / "c").exists()
    one = runtime()
    one.save({"model": nn.Linear(1, 1)}, tmp_path / "c")
    with pytest.raises(WrongTypeError, match=r"state: must be a mapping.* type Linear.*{'model': model}"):
        one.load(tmp_path / "c", nn.Linear(1, 1))  # type: ignore[arg-type]


def test_one_file(tmp_path: Path) -> None:
    """What Accelerate's scripts save: any object, and a mapping whose path names a file, as torch.save writes them."""
    one, model = runtime(), nn.Linear(2, 1)
    one.save([1, torch.ones(2)], tmp_path / "list")
    one.save(model.state_dict(), tmp_path / "model.bin")
    number, ones = torch.load(tmp_path / "list")
    assert (number, ones.tolist()) == (1, [1.0, 1.0])
    assert torch.equal(torch.load(tmp_path / "model.bin")["weight"], model.weight)
    assert sorted(os.listdir(tmp_path)) == ["list", "model.bin"]


def test_what_cannot_be_read_back_is_not_written(tmp_path: Path) -> None:
    """An object that is neither plain nor has a state dict is named by its place."""
    with pytest.raises(CheckpointError, match=r"checkpoint\['path'\] is of type pathlib"):
        runtime().save({"path": tmp_path}, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_checkpoints_that_are_absent_or_damaged(tmp_path: Path) -> None:
    """Each is a CheckpointError."""
    one = runtime()
    with pytest.raises(CheckpointError, match="absent"):
        one.load(tmp_path / "absent")
    one.save({"step": 1}, tmp_path / "c")
    (tmp_path / "c").write_bytes((tmp_path / "c").read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match="damaged"):
        one.load(tmp_path / "c")


def test_a_format_of_the_users_own(tmp_path: Path) -> None:
    """The CheckpointIO that was given is the one that writes and reads."""
    used: list[str] = []

    class Watched(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            used.append("save")
            super().save_checkpoint(checkpoint, path, storage_options)

        def load_checkpoint(self, path: Any, map_location: Any = None) -> Any:
            used.append(f"load to {map_location}")
            return super().load_checkpoint(path, map_location)

    one = runtime(checkpoint_io=Watched())
    one.save({"step": 1}, tmp_path / "c")
    assert one.load(tmp_path / "c") == {"step": 1}
    assert used == ["save", "load to cpu"]


def pair(is_compiled: bool, whole: bool) -> Any:
    """A module that torch.compile wraps, as a whole or in part, if at all."""
    module: Any = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 1), nn.BatchNorm1d(1)))
    if is_compiled and not whole:
        module[1] = torch.compile(module[1], backend="eager")
    return torch.compile(module, backend="eager") if is_compiled and whole else module


@pytest.mark.parametrize("was_compiled", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_weights_of_a_compiled_module(was_compiled: bool, whole: bool, tmp_path: Path) -> None:
    """torch.compile adds to the names of what it wraps: they fit the same module without it, and vice versa."""
    one = runtime(gradient_accumulation_steps=2)
    saved = one.prepare(pair(was_compiled, whole))
    with one.accumulate(saved):
        one.backward(torch.stack([parameter.square().sum() for parameter in saved.parameters()]).sum())
    one.save_state(tmp_path / "state")
    one.save({"model": saved}, tmp_path / "parts")
    one.save_model(saved, tmp_path / "model")
    assert set(runtime().load(tmp_path / "model")["model"]) == set(pair(False, whole).state_dict())
    for strict in (True, False, None):
        other = runtime(gradient_accumulation_steps=2)
        model = other.prepare(pair(not was_compiled, whole))
        if strict is None:
            other.load(tmp_path / "parts", {"model": model})
        else:
            other.load_state(tmp_path / "state", strict=strict)
            for parameter, expected in zip(model.parameters(), saved.parameters(), strict=True):
                assert torch.equal(parameter.grad, expected.grad)
        for tensor, expected in zip(model.state_dict().values(), saved.state_dict().values(), strict=True):
            assert torch.equal(tensor, expected)
