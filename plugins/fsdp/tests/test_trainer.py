"""The Trainer under FSDP, and checkpoints that any number of processes reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from torch_hal.checkpoints import is_committed

from .conftest import run_script


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``trainers.py`` left what it trained on two processes."""
    out = tmp_path_factory.mktemp("saved")
    run_script(out, "trainers.py", 2, "first")
    return out


@pytest.fixture(scope="module")
def first(saved: Path) -> dict[str, Any]:
    """What it said."""
    said: dict[str, Any] = json.loads((saved / "said.json").read_text())
    return said


@pytest.fixture(scope="module")
def later(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, Any]]:
    """By their number, what new processes say that go on with it and read it; they are started once."""
    return cache(
        lambda processes: run_script(tmp_path_factory.mktemp("later"), "trainers.py", processes, "later", saved)
    )


@pytest.fixture(params=[1, 2, 4])
def loaded(request: pytest.FixtureRequest, later: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """What as many processes read of it."""
    said = later(request.param)
    return {name: value for name, value in said.items() if not name.startswith("resumed")}


def assert_alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name] == pytest.approx(other[name], rel=1e-5, abs=1e-5), name


def test_fit_is_that_of_ddp(first: dict[str, Any]) -> None:
    """Losses, parameters, and validation over all processes, where one has a batch more than the other."""
    assert_alike(first["fsdp"], first["ddp"])
    assert first["fsdp"]["metrics"]["items"] == 18
    assert_alike(first["full"], first["ddp accumulated"])


def test_a_fitted_module_is_evaluated_and_fitted_again(first: dict[str, Any]) -> None:
    """The module stays divided after a run, and later runs take it up: same metrics, predictions in order."""
    assert_alike(first["fsdp afterwards"], first["ddp afterwards"])
    assert first["fsdp afterwards"]["metrics"].items() <= first["fsdp"]["metrics"].items()


def test_processes_that_share_a_batch_count_once(first: dict[str, Any]) -> None:
    """Under tensor parallelism sums and predictions have each item once."""
    assert_alike(first["tensor"], first["fsdp afterwards"])


def test_resumed_fit_is_bit_for_bit_the_uninterrupted_one(
    first: dict[str, Any], later: Callable[[int], dict[str, Any]]
) -> None:
    """New processes that resume at an epoch's end give the same numbers, dropout and schedule included."""
    resumed = later(2)["resumed"]
    whole = first["fsdp"]
    assert resumed["parameters"] == whole["parameters"]
    assert resumed["losses"] == whole["losses"][3:]
    assert resumed["metrics"] == whole["metrics"]
    assert resumed["step"] == whole["step"]


@pytest.mark.parametrize("form", ["full", "each", "mixed"])
def test_resumed_within_an_accumulation(first: dict[str, Any], form: str) -> None:
    """Saved after the first batch of two, gradients go on bit for bit: whole or shards, offloaded, in two dtypes."""
    whole, resumed = first[form], first[f"{form} within"]
    assert resumed["losses"] == whole["losses"][4:]
    assert {**resumed, "losses": whole["losses"]} == whole


@pytest.mark.parametrize("processes", [1, 4])
def test_a_fit_goes_on_with_another_number_of_processes(later: Callable[[int], dict[str, Any]], processes: int) -> None:
    """What two processes fitted in an epoch, others fit in the second, as DDP does that is resumed alike."""
    resumed = later(processes)
    assert_alike(resumed["resumed"], resumed["resumed ddp"])


def test_saved_on_two_is_read_by_any_number(first: dict[str, Any], loaded: dict[str, Any]) -> None:
    """Evaluation is equal on 1, 2 and 4 processes, by FSDP in all its forms, by DDP, and in one process without it."""
    forms = loaded.keys() & {"fsdp", "made on meta", "hybrid", "tensor", "unsharded", "consolidated"}
    assert len(forms) >= 2
    for form in forms:
        assert_alike(loaded[form], first["fsdp afterwards"])
    assert_alike(loaded["of ddp"], first["ddp afterwards"])
    if "full" in loaded:
        metrics = {name: first["full"]["metrics"][name] for name in ("loss", "items")}
        assert loaded["full"]["metrics"] == pytest.approx(metrics, rel=1e-5)


def test_a_loop_goes_on_on_any_number(first: dict[str, Any], loaded: dict[str, Any]) -> None:
    """Model and optimizer of a loop, saved on two processes, train on alike on 1, 2 and 4, from and to DDP as well."""
    assert_alike(first["reloaded"], first["loop"] | {"rest": {"note": 7}})
    loops = [name for name in loaded if name.startswith("loop")]
    assert len(loops) >= 3
    for name in loops:
        assert_alike(loaded[name], first["loop"])


def test_checkpoints_are_committed(saved: Path) -> None:
    """Each is whole, by its manifest, and has a file of each process; a full one has one file."""
    sharded, full = saved / "fsdp/checkpoints/epoch=1-step=6.ckpt", saved / "full/checkpoints/epoch=1-step=4.ckpt"
    assert is_committed(sharded)
    assert is_committed(full)
    assert len(list(sharded.glob("__*_0.distcp"))) == 2
    assert not list(full.glob("*.distcp"))
    assert not list(saved.rglob(".core-tmp-*"))


def test_started_for_a_function_it_hands_the_whole_module_back(tmp_path: Path) -> None:
    """Where processes are spawned, the asking one's module holds whole parameters afterwards, those of DDP."""
    said = run_script(tmp_path, "spawned.py")
    assert said["fsdp"]["types"] == ["Parameter"]
    for name, (device, total) in said["ddp"]["state"].items():
        assert said["fsdp"]["state"][name] == [device, pytest.approx(total, abs=1e-4)]
