"""T2 and T3: single passes and steps of a custom loop, in the processes of the run."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from torch_hal_devkit import distributed_problem as problem
from torch_hal_devkit.marks import skip_by_declaration
from torch_hal_devkit.problem import largest_difference
from torch_hal_devkit.step_observations import PASSES
from torch_hal_devkit.suites.distributed_training import allow_differences
from torch_hal_devkit.suites.multi_process import MultiProcessTests, Runs

__all__ = ["StepTests"]


class StepTests(MultiProcessTests):
    """Tests of tier T3, and of T2 for suites with runs on one device."""

    def test_a_prepared_module_is_that_of_rank_0(self, custom_loop: Runs) -> None:
        """Parameters and buffers that differ between processes are those of rank 0 once they are prepared."""
        expected = {name: value.tolist() for name, value in problem.network().state_dict().items()}
        for rank, found in enumerate(custom_loop.full_run.values("prepared")):
            assert found.keys() == expected.keys(), f"rank {rank} has {[*found]}. Expected: {[*expected]}"
            for name, value in expected.items():
                assert found[name] == value, f"{name!r} of rank {rank} differs from rank 0 after prepare()"

    def test_buffers_are_those_of_rank_0(self, custom_loop: Runs) -> None:
        """Each training pass begins with the buffers of rank 0, in every process."""
        first, *others = custom_loop.full_run.values("buffers")
        assert len(set(first)) == PASSES, f"a buffer that each pass changes begins with {first} in rank 0"
        if not custom_loop.who["keeps_buffers_equal"]:
            skip_by_declaration("keeps_buffers_equal is False: each process has its own buffers while it trains")
        for rank, found in enumerate(others, start=1):
            assert found == first, f"training passes of rank {rank} begin with the buffer {found}. Expected: {first}"

    def test_a_step_with_a_closure(
        self, request: pytest.FixtureRequest, custom_loop: Runs, tolerances: Mapping[str, float]
    ) -> None:
        """``optimizer.step(closure)`` calls the closure, returns its loss and steps; or is refused by name."""
        observed = custom_loop.full_run.observed("step with a closure")
        if all("ConfigurationError" in found.kinds and "closure" in found.text for found in observed):
            skip_by_declaration(observed[0].text)
        values = custom_loop.full_run.values("step with a closure")
        inputs, targets = problem.items(problem.SHARE * custom_loop.shards).tensors
        net = problem.network()
        optimizer = problem.optimizer_of(net, custom_loop.arguments["optimizer"])
        problem.loss_of(net(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        for rank, found in enumerate(values):
            assert found["calls"], f"optimizer.step(closure) does not call the closure in rank {rank}"
            assert found["returned"] == pytest.approx(found["loss"], rel=1e-5), (
                f"optimizer.step(closure) returned {found['returned']} in rank {rank}. "
                f"Expected: {found['loss']}, as the closure returns"
            )
        allow_differences(request, custom_loop)
        for rank, found in enumerate(values):
            for name, value in net.state_dict().items():
                error = (torch.tensor(found["state"][name]) - value).abs().max().item()
                assert error <= tolerances["32-true"], (
                    f"after a step with a closure, {name!r} of rank {rank} is off by {error:.3g}"
                )

    def test_outputs_of_a_prepared_module(self, custom_loop: Runs) -> None:
        """A prepared module takes keyword arguments; each of its outputs, however nested, can begin a backward pass."""
        expected = {
            "gradients": {"first": True, "second": True, "third": True},
            "others": {"nothing": None, "text": ["kept"]},
            "kinds": ["dict", "tuple", "list"],
        }
        for rank, found in enumerate(custom_loop.full_run.values("outputs")):
            assert found == expected, f"the outputs of rank {rank} are {found}. Expected: {expected}"

    # -- no_sync -------------------------------------------------------------------------------------------------

    def test_no_sync_leaves_gradients_unreduced(self, custom_loop: Runs, tolerances: Mapping[str, float]) -> None:
        """After a backward pass under ``no_sync`` a process has the gradients of its own items only."""
        _skip_divided(custom_loop)
        for rank, found in enumerate(custom_loop.full_run.values("without sync")):
            assert len(found["found"]) == len(found["alone"]), f"rank {rank} has no gradients under no_sync"
            error = largest_difference(found["found"], found["alone"])
            assert error <= tolerances["32-true"], (
                f"gradients of rank {rank} under no_sync are {error:.3g} off those of its own items. "
                f"Expected: {tolerances['32-true']:g}"
            )

    def test_no_sync_ends_with_an_exception(
        self, request: pytest.FixtureRequest, custom_loop: Runs, tolerances: Mapping[str, float]
    ) -> None:
        """After an exception under ``no_sync`` the next backward pass reduces gradients again."""
        _skip_divided(custom_loop)
        observed = custom_loop.full_run.values("after an exception")
        expected = torch.tensor([found["alone"] for found in observed]).mean(0).tolist()
        allow_differences(request, custom_loop)
        for rank, found in enumerate(observed):
            assert len(found["found"]) == len(expected), f"rank {rank} has no gradients after an exception in no_sync"
            error = largest_difference(found["found"], expected)
            assert error <= tolerances["32-true"], (
                f"after an exception under no_sync, gradients of rank {rank} are {error:.3g} off the mean of all "
                f"processes. Expected: {tolerances['32-true']:g}"
            )


def _skip_divided(runs: Runs) -> None:
    if runs.who["inference_is_collective"]:
        skip_by_declaration(
            "inference_is_collective is True: each process has a part of the module and of its gradients"
        )
