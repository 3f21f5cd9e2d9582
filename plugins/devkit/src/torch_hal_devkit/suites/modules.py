"""T2 and T3: modules with shared, frozen and unsaved parts, and two modules, in the processes of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from torch_hal_devkit import distributed_problem as problem
from torch_hal_devkit.marks import skip_by_declaration
from torch_hal_devkit.module_observations import NORMS, Parts, parts_by_hand, two_by_hand
from torch_hal_devkit.problem import largest_difference
from torch_hal_devkit.suites.distributed_training import allow_differences
from torch_hal_devkit.suites.multi_process import MultiProcessTests, Runs

__all__ = ["ModuleTests", "check_states"]


class ModuleTests(MultiProcessTests):
    """Tests of tier T3, and of T2 for suites with runs on one device."""

    @pytest.fixture
    def parts(self, custom_loop: Runs) -> list[dict[str, Any]]:
        """What each process observes of :class:`Parts`, unless the strategy refuses this module by name."""
        observed = custom_loop.full_run.observed("parts")
        if all("ConfigurationError" in found.kinds for found in observed):
            skip_by_declaration(observed[0].text)
        return custom_loop.full_run.values("parts")

    def test_frozen_parameters_stay_as_they_are(self, parts: list[dict[str, Any]]) -> None:
        """A parameter with ``requires_grad=False`` keeps its value in training."""
        frozen = Parts().frozen
        for rank, found in enumerate(parts):
            for name, value in frozen.named_parameters():
                assert found["state"][f"frozen.{name}"] == value.tolist(), (
                    f"training changes the frozen parameter 'frozen.{name}' in rank {rank}"
                )

    def test_shared_parameters_are_trained_as_one(
        self,
        request: pytest.FixtureRequest,
        custom_loop: Runs,
        parts: list[dict[str, Any]],
        tolerances: Mapping[str, float],
    ) -> None:
        """A parameter of two layers gets the gradients of both, and stays one parameter."""
        for rank, one in enumerate(parts):
            first, second = one["state"]["encode.weight"], one["state"]["decode.weight"]
            assert first == second, f"a parameter that two layers share has two values in rank {rank} after training"
        expected = parts_by_hand(custom_loop.shards, custom_loop.arguments["optimizer"])
        allow_differences(request, custom_loop)
        check_states([one["state"] for one in parts], expected, tolerances["32-true"])

    def test_each_layer_keeps_its_mode(self, parts: list[dict[str, Any]]) -> None:
        """A layer in evaluation mode stays in it when the module is prepared, and the others in training mode."""
        expected = {"encode": True, "frozen": False, "decode": True}
        for rank, found in enumerate(parts):
            assert found["modes"] == expected, (
                f"after prepare(), layers are in training mode in rank {rank}: {found['modes']}. Expected: {expected}"
            )

    def test_buffers_outside_of_checkpoints_keep_their_values(self, parts: list[dict[str, Any]]) -> None:
        """A buffer with ``persistent=False`` has its value after ``prepare``."""
        expected = Parts().offset.tolist()
        for rank, found in enumerate(parts):
            assert found["offset"] == expected, f"after prepare() such a buffer is {found['offset']} in rank {rank}"

    def test_training_draws_no_random_numbers(self, parts: list[dict[str, Any]]) -> None:
        """``prepare``, backward passes and steps leave torch's random state to the user's own draws."""
        for rank, found in enumerate(parts):
            assert not found["draws"], (
                f"prepare() and training change torch's random state in rank {rank}. Expected: no change"
            )

    def test_two_modules_in_turn(
        self, request: pytest.FixtureRequest, custom_loop: Runs, tolerances: Mapping[str, float]
    ) -> None:
        """Two modules, each with its optimizer, train as in a plain loop; or are refused by name."""
        observed = custom_loop.full_run.observed("two modules")
        if all("ConfigurationError" in found.kinds for found in observed):
            skip_by_declaration(observed[0].text)
        values = custom_loop.full_run.values("two modules")
        expected = two_by_hand(custom_loop.shards, custom_loop.arguments["optimizer"])
        allow_differences(request, custom_loop)
        for which, state in enumerate(expected):
            check_states([found[which] for found in values], state, tolerances["32-true"])

    @pytest.mark.parametrize("norm", NORMS)
    def test_the_norm_of_gradients(self, custom_loop: Runs, tolerances: Mapping[str, float], norm: str) -> None:
        """``clip_grad_norm_`` returns the norm of the whole batch's gradients before clipping, of any order."""
        if "norm" not in custom_loop.who["clip_algorithms"]:
            skip_by_declaration(f"clip_algorithms is {custom_loop.who['clip_algorithms']}")
        observed = custom_loop.full_run.observed(norm)
        if all("ConfigurationError" in found.kinds and "norm_type" in found.text for found in observed):
            skip_by_declaration(observed[0].text)
        if not custom_loop.who["keeps_replicas_equal"]:
            skip_by_declaration("keeps_replicas_equal is False: each process has its own gradients")
        net = problem.network()
        inputs, targets = problem.items(problem.SHARE * custom_loop.shards).tensors
        problem.loss_of(net(inputs), targets).backward()  # type: ignore[no-untyped-call]
        gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
        expected = _norm(gradients, NORMS[norm])
        for rank, found in enumerate(custom_loop.full_run.values(norm)):
            assert found == pytest.approx(expected, rel=10 * tolerances["32-true"]), (
                f"clip_grad_norm_(..., norm_type={NORMS[norm]}) returned {found} in rank {rank}. Expected: {expected}"
            )


def _norm(gradients: list[Tensor], norm_type: float) -> float:
    return float(torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients]), norm_type))


def check_states(states: list[Mapping[str, Any]], expected: Mapping[str, Tensor], tolerance: float) -> None:
    """Check the modules' states after steps in a custom loop."""
    for rank, state in enumerate(states):
        assert state.keys() == expected.keys(), f"the module of rank {rank} has {[*state]}. Expected: {[*expected]}"
        for name, value in expected.items():
            found = torch.tensor(state[name]).flatten().tolist()
            error = largest_difference(found, value.flatten().tolist())
            assert error <= tolerance, (
                f"after steps in a custom loop, {name!r} of rank {rank} is off by {error:.3g}. "
                f"Expected: at most {tolerance:g}"
            )
