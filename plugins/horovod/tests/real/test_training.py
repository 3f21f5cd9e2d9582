"""Training in two processes of Horovod, compared with DDP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from .conftest import SCRIPTS, horovodrun, run_alone

WAYS = ["runtime", "trainer", "runtime clipped", "trainer clipped"]
EXACT = ["seeds differ", "no_sync", "passes", "accumulated", "accumulated, given twice", "predivided", "sum"]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What both strategies gave, each in one pair of processes."""
    folder = tmp_path_factory.mktemp("loops")
    run_alone(SCRIPTS / "loops.py", "ddp", folder / "ddp.pt", warnings="error")
    horovodrun("loops.py", "horovod", folder / "horovod.pt")
    return {name: torch.load(folder / f"{name}.pt") for name in ("ddp", "horovod")}


def _furthest(said: dict[str, dict[str, Any]], name: str) -> float:
    ours, theirs = said["horovod"][name], said["ddp"][name]
    assert torch.equal(*ours["all parameters"]), "the processes differ"
    return max(float((ours[part] - theirs[part]).abs().max()) for part in ("losses", "parameters"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "16-mixed"])
def test_it_trains_as_ddp_does(said: dict[str, Any], way: str, precision: str) -> None:
    """Losses and parameters are DDP's, clipped or not, in both front ends and each precision."""
    assert _furthest(said, f"{way} {precision}") <= 1e-5


def test_half_precision(said: dict[str, Any]) -> None:
    """Gradients in float16 are averaged as DDP does."""
    assert _furthest(said, "runtime 16-true") <= 1e-3


@pytest.mark.parametrize("name", EXACT)
def test_options_with_the_same_result(said: dict[str, Any], name: str) -> None:
    """Unlike beginnings, accumulation however it is said (the last group short), and a sum with half the rate."""
    assert _furthest(said, name) <= 1e-5


def test_passes_reduced_before_count_once(said: dict[str, Any]) -> None:
    """A sum over processes of several backward passes is right where each of them was reduced."""
    assert _furthest(said, "sum of passes") <= 1e-5


def test_backward_passes_are_one_big_batch(said: dict[str, Any]) -> None:
    """Two passes of half the batch with ``backward_passes_per_step=2`` are one pass of the whole."""
    pieces, whole = said["horovod"]["in pieces"], said["horovod"]["runtime 32-true"]
    assert len(pieces["losses"]) == 2 * len(whole["losses"])
    assert float((pieces["parameters"] - whole["parameters"]).abs().max()) <= 1e-5


def test_clipping_sees_reduced_gradients(tmp_path: Path) -> None:
    """Under 16-mixed, after fewer passes than Horovod was told: norms, steps and the scale are a plain loop's.

    A step that is infinite in one process is left out by both.
    """
    horovodrun("clipping.py", tmp_path / "said.pt")
    said = torch.load(tmp_path / "said.pt")
    plain = said["plain"]
    assert plain["norms"].isfinite().tolist() == [True, True, False, True, True]
    for found in said["horovod"]:
        assert torch.allclose(found["norms"], plain["norms"], rtol=1e-3, equal_nan=True)
        assert found["scale"] == plain["scale"]
        for name in ("one", "two"):
            assert torch.allclose(found[name], plain[name], rtol=0, atol=1e-5)
            assert torch.equal(found[name], said["horovod"][0][name])


def test_compression(said: dict[str, Any]) -> None:
    """Gradients sent in float16 give nearly the same, and not the very same."""
    assert 0 < _furthest(said, "fp16") <= 5e-3


def test_scaled_learning_rate(said: dict[str, Any]) -> None:
    """Steps are as with twice the rate, also under a scheduler; the rate shown is that of one process."""
    assert _furthest(said, "scaled") <= 1e-5
    assert said["horovod"]["scaled"]["rate"] == pytest.approx(said["ddp"]["scaled"]["rate"] / 2)


def test_resume_is_bit_equal(tmp_path: Path) -> None:
    """Four epochs, and two that new processes carry on from: the same bits, of losses, parameters and data order."""
    for name in ("whole", "first", "rest"):
        (tmp_path / name).mkdir()
    horovodrun("resume.py", tmp_path / "whole", 4)
    horovodrun("resume.py", tmp_path / "first", 2)
    horovodrun("resume.py", tmp_path / "rest", 4, tmp_path / "first" / "epoch 1")
    whole, rest = (torch.load(tmp_path / name / "result.pt") for name in ("whole", "rest"))
    assert torch.equal(whole["parameters"], rest["parameters"])
    assert torch.equal(whole["losses"][len(whole["losses"]) // 2 :], rest["losses"])


def test_horovod_run(said: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that ``horovod.run`` calls trains as a script does."""
    # What it spawns begins a session, which a process that a fork server of the tests has forked leads already.
    monkeypatch.delenv("FORK_SERVERS", raising=False)
    run_alone(SCRIPTS / "function.py", tmp_path / "said.pt")
    results = torch.load(tmp_path / "said.pt")
    assert [result[:3] for result in results] == [(0, 2, "horovod"), (1, 2, "horovod")]
    assert all(torch.equal(result[3], said["horovod"]["runtime 32-true"]["parameters"]) for result in results)
