"""Accumulation on 1, 2 and 3 processes against plain torch on one big batch, and uneven numbers of batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from python_processes import run_python

SCRIPT = Path(__file__).parent / "scripts" / "accumulating.py"

Facts = list[dict[str, Any]]


@pytest.fixture(
    scope="module", params=[pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 3]
)
def facts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """What each process of a run found."""
    processes: int = request.param
    out = tmp_path_factory.mktemp("accumulating")
    run_python(SCRIPT, processes, cwd=out, env={"OUT": str(out)})
    found = [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]
    assert len(found) == processes
    return found


@pytest.mark.parametrize("name", ["sized", "stream", "each", "sized, tokens", "stream, tokens", "each, tokens"])
def test_a_window_is_one_big_batch(facts: Facts, name: str) -> None:
    """Of all processes: eight micro-batches in windows of 3, 3 and 2, also with numbers of tokens that differ."""
    for found in facts:
        assert found[name]["moved"] > 0.1
        assert found[name]["distance"] < 1e-6


def test_only_the_last_micro_batch_communicates(facts: Facts) -> None:
    """Once for each of two epochs' three windows; with ``sync_each_batch`` once for each of 16 micro-batches."""
    for found in facts:
        if len(facts) > 1:
            assert {found[name]["reductions"] for name in ("sized", "stream", "sized, tokens", "stream, tokens")} == {6}
        assert found["each"]["reductions"] == 16


def test_uneven_numbers_of_batches(facts: Facts) -> None:
    """In each precision, processes without further batches add gradients of zero; afterwards the loader pads again."""
    for found in facts:
        for uneven, error in zip(found["uneven"], (1e-6, 1e-12, 1e-3), strict=True):
            assert uneven["batches"] == [4, *[3] * (len(facts) - 1)]
            assert uneven["steps"]
            assert uneven["distance"] < error
            assert (uneven["padded"], uneven["after"]) == (4, 4)


def test_a_reduction_after_no_sync(facts: Facts) -> None:
    """The backward pass in ``trigger_sync_in_backward`` reduces what both forward passes in ``no_sync`` gave."""
    assert all(found["later"] < 1e-5 and found["later, unused"] < 1e-5 for found in facts)


@pytest.mark.parametrize(
    "name",
    [
        *("losses", "passes", "passes, evaluation", "losses, accumulated", "passes, accumulated"),
        *("losses, unused", "passes, unused", "passes, static", "losses, views"),
    ],
)
def test_each_backward_pass_is_reduced(facts: Facts, name: str) -> None:
    """Of several losses of one forward pass, and of several forward passes before the first of their losses.

    DistributedDataParallel reduces the first one only: the processes would train different models.
    """
    assert all(found["repeated"][name] < 1e-6 for found in facts)


def test_losses_of_different_parameters(facts: Facts) -> None:
    """DistributedDataParallel has to look for the parameters of each loss; else its error says what to do.

    Also on one process, which wraps the model as well.
    """
    said = ("call backward on their sum", "", "leave out static_graph=True")
    for found in facts:
        for name, text in zip(("heads", "heads, unused", "heads, static"), said, strict=True):
            difference, note = found[name]
            assert difference < 1e-6
            assert text in note
            assert bool(note) == bool(text)


def test_models_that_share_a_layer(facts: Facts) -> None:
    """Backward passes by turns: its gradient is averaged with those of the model that had the forward pass."""
    assert all(distance < 1e-6 for found in facts for distance in found["shared layer"])


def test_a_step_with_gradients_of_no_sync_alone(facts: Facts) -> None:
    """The processes would train different models: a warning, but where the loop averages parameters."""
    for found in facts:
        texts = found["after no_sync"]
        assert not texts["reduced"]
        assert not texts["LocalSGD"]
        for name in ("after", "within"):
            assert len(texts[name]) == (2 if len(facts) > 1 else 0), texts
            assert all("the last backward pass of Linear was in no_sync" in text for text in texts[name])


def test_what_needs_every_process_is_refused_with_uneven_numbers(facts: Facts) -> None:
    """Accumulation, and ``num_items``, at once in every process; on one process both work."""
    for found in facts:
        accumulation, weighting = found["refused"]
        assert ("gradient_accumulation_steps=3" in accumulation) == (len(facts) > 1)
        assert ("backward(num_items=...)" in weighting) == (len(facts) > 1)


def test_parameters_that_a_model_got_after_prepare_are_refused(facts: Facts) -> None:
    """By the optimizer that holds them; on one process nothing has to be reduced."""
    for found in facts:
        *errors, held = found["changed"]
        if len(facts) == 1:
            assert (errors, held) == ([], "8")
            continue
        assert held == "4"
        for error, text in zip(
            errors, ("after it was prepared: '3.weight', '3.bias'", "(2, 2), (2,)", "(1, 3), (1,)"), strict=True
        ):
            assert text in error


def test_a_schedule_that_was_made_for_accelerate(facts: Facts) -> None:
    """At the end of the run a warning names both numbers of steps, in process 0."""
    processes = len(facts)
    for rank, found in enumerate(facts):
        schedules = found["schedules"]
        assert len(schedules) == (2 if rank == 0 and processes > 1 else 0), schedules
        for text, name in zip(schedules, ("OneCycleLR: total_steps", "LambdaLR: num_training_steps"), strict=False):
            assert f"{name}={4 * processes}, but the run took 4 steps" in text
            assert f"{processes} times a step" in text
            assert f"={4}, the number of steps" in text


def test_a_schedule_that_was_made_for_accelerate_with_uneven_batches(facts: Facts) -> None:
    """An epoch of 19 batches, in windows of 2, is 10 steps on one process and 4 on three."""
    processes = len(facts)
    for rank, found in enumerate(facts):
        schedules = found["uneven schedule"]
        assert len(schedules) == (rank == 0 and processes > 1), schedules
        for text in schedules:
            assert f"T_max=30, but the run took {3 * -(-19 // processes // 2)} steps" in text
