"""Modules made on meta, optimizers made before, several runs, overflow, compiling."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import run_script


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``other.py`` says."""
    return run_script(tmp_path_factory.mktemp("other"), "other.py")


@pytest.mark.parametrize(
    "form", ["transformer", "tied", "mixed", "double", "half", "offloaded", "tensor", "own function"]
)
def test_deferred_numbers_are_those_made_at_once(said: dict[str, Any], form: str) -> None:
    """A module made on meta has bit for bit the tensors of one made at once, and what is drawn next is the same."""
    alike, draws_alike, count = said[f"deferred {form}"]
    assert alike
    assert draws_alike
    assert count > 3


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("nothing fills", "(Angles)' on 'meta' cannot be initialized"),
        ("not all filled", "'inner.weight', 'inner.bias' on 'meta' was not initialized"),
        ("no plan", "tensor_parallel_plan is missing"),
        ("plan of nothing", "no module is named 'layers.*.q'"),
        ("no list", "wrap_policy='model'"),
        ("class", "wrap_policy: the model has no 'Block'. Valid: 'Linear'"),
        ("tied class", "Embedding shares its parameters 'weight'"),
    ],
)
def test_models_that_do_not_fit_are_refused(said: dict[str, Any], case: str, says: str) -> None:
    """The message names the argument and the part of the model."""
    assert says in said[f"refused {case}"]


@pytest.mark.parametrize(
    ("case", "says"),
    [("within", "True"), ("blocks", "create_graph=True: gradients"), ("outside", "create_graph=True: gr")],
)
def test_gradients_of_gradients(said: dict[str, Any], case: str, says: str) -> None:
    """They are right within the forward pass of a whole module; elsewhere a part of them would be left out."""
    assert says in said[f"second order {case}"]


@pytest.mark.parametrize("reshards", [None, False])
def test_an_evaluation_before_a_step_hides_nothing_of_it(said: dict[str, Any], reshards: bool | None) -> None:
    """After it, parameters are shards, which hooks may change; the next one has the weights after the step."""
    are_shards, change, error = said[f"between {reshards}"]
    assert are_shards
    assert abs(change) > 1e-4
    assert error < 1e-6


def test_all_processes_leave_a_step_out_together(said: dict[str, Any]) -> None:
    """Under 16-mixed an infinite gradient that one process holds stops the step, and shrinks the scale, in all."""
    for culprit, (unchanged, scales) in said["overflow"].items():
        assert unchanged, culprit
        assert scales == 1, culprit


def test_a_module_and_its_optimizer_go_on_in_another_run(said: dict[str, Any]) -> None:
    """Two runs one after another train as one; a run whose processes are arranged otherwise refuses the module."""
    assert said["again"]
    assert "divided already" in said["again in another form"]


def test_an_optimizer_made_before_follows(said: dict[str, Any]) -> None:
    """Its groups and their options stay, naming the divided parameters; nothing keeps the whole ones alive."""
    assert said["groups"] == [[[True, True], [True, True, True, True]], [0.001, 3.0]]
    assert "it has stepped before" in said["stepped optimizer"]
    assert said["whole parameters are gone"]


def test_optimizers_that_cannot_step_shards_are_refused(said: dict[str, Any]) -> None:
    """Before the first step, with what to use instead; LBFGS would step wrongly without an error."""
    others = said["other optimizers"]
    assert list(others) == ["Adafactor", "LBFGS", "Rprop", "SGD"]
    assert all("strategy='ddp'" in others[kind] for kind in ("Adafactor", "LBFGS", "Rprop"))
    assert "Leave out fused=True" in others["SGD"]


def test_an_optimizer_whose_constructor_makes_its_state(said: dict[str, Any]) -> None:
    """It has not stepped: its state is divided with the parameters."""
    whole, *divided = said["constructed"]
    for found in divided:
        assert found == pytest.approx(whole, rel=1e-6)


def test_all_start_with_the_numbers_of_process_0(said: dict[str, Any]) -> None:
    """Processes whose generators differ train one model."""
    assert said["of process 0"]


def test_accumulation_reduces_once(said: dict[str, Any]) -> None:
    """Gradients of three batches are exchanged as often as those of one, unless each batch is asked for."""
    assert said["reductions three"] == said["reductions one"] == 3  # two blocks, and what is left
    assert said["reductions each"] == 9


def test_compiled_blocks_train_alike(said: dict[str, Any]) -> None:
    """Compiled, the losses are those of blocks that are not."""
    plain, compiled = said["compiled"]
    assert compiled == pytest.approx(plain, rel=1e-5)


def test_batch_norm_in_mixed_precision(said: dict[str, Any]) -> None:
    """Normalisation with statistics in float32 trains as under DDP, up to rounding."""
    losses = said["batch norm"]
    assert losses[3:] == pytest.approx(losses[:3], rel=1e-2)


def test_weights_are_averaged_in_place_of_a_copy(said: dict[str, Any]) -> None:
    """AveragedModel is refused with what to do instead, which gives the averages that DDP has."""
    assert "mean.lerp_(p.detach(), 0.01)" in said["copied"]
    plain, sharded = said["averaged"]
    assert sharded == pytest.approx(plain, rel=1e-5)
