"""Models and Runtimes that come and go, on one and on two processes; what a prepared module shows of the user's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from python_processes import run_python

SCRIPT = Path(__file__).parent / "scripts" / "lifetimes.py"

Facts = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.slow), 2])
def facts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """What each process of a run found."""
    processes: int = request.param
    out = tmp_path_factory.mktemp("lifetimes")
    run_python(SCRIPT, processes, "ddp", cwd=out, env={"OUT": str(out), "OMP_NUM_THREADS": None})
    found = [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]
    assert len(found) == processes
    return found


def test_twenty_models_take_the_memory_of_one(facts: Facts) -> None:
    """Each has 16 MB with its gradients, momentum and buckets, and is freed when the user deletes it."""
    for found in facts:
        assert found["models"]["alive"] == 0
        after_five, after_twenty = found["models"]["memory"]
        assert after_twenty - after_five < 60


def test_two_runtimes_live_at_a_time(facts: Facts) -> None:
    """Each averages the gradients of its own model; tearing one down leaves the other working."""
    mean = {1: 1.0, 2: 1.5}[len(facts)]
    for found in facts:
        two = found["two"]
        assert (two["both"], two["after"], two["again"]) == ([mean, mean], mean, mean)
        assert two["gathered"] == list(range(len(facts)))


def test_the_number_of_threads_is_restored_by_the_last(facts: Facts) -> None:
    """Processes that share a machine have one thread each while any run is live."""
    during, after_first, after_both = facts[0]["two"]["threads"]
    assert during == after_first
    assert during == 1 or len(facts) == 1
    assert after_both >= during


def test_a_run_that_differs_from_the_live_one_is_refused(facts: Facts) -> None:
    """By the argument, both values and the remedy."""
    for found in facts:
        refused = found["two"]["refused"]
        for text in ("process_group_backend='cpu:gloo'", "has process_group_backend='gloo'", "teardown()"):
            assert text in refused


def test_a_prepared_module_is_the_users_in_every_configuration(facts: Facts) -> None:
    """Keys, names, attributes and class; copies and a compiled one compute the same."""
    for found in facts:
        own = found["own"]
        assert own["keys"] == own["names"] == ["layer.weight", "layer.bias"]
        assert own["modules"] == ["", "layer"]
        assert own["attributes"] == ["net", 3.0, 3.0]
        assert own["is"] == [True, True, False]
        assert own["equal"] == [True] * 5


def test_a_method_that_calls_the_module_reduces_gradients(facts: Facts) -> None:
    """``model.loss(inputs)`` calls ``self(inputs)``: the prepared forward pass, with its all-reduce."""
    for found in facts:
        assert found["own"]["gradients"] == {1: [0.75], 2: [1.125, 1.125]}[len(facts)]
