"""T2 and T3: the algebra of collectives and steps on drawn values, and what a run leaves of the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch

from torch_hal_devkit import drawn
from torch_hal_devkit.contract_observations import (
    MILLION,
    OBJECTS,
    drawn_object,
    drawn_tensor,
    late_by_hand,
    normed_by_hand,
    scheduled_by_hand,
)
from torch_hal_devkit.marks import not_run, skip_by_declaration
from torch_hal_devkit.problem import largest_difference
from torch_hal_devkit.processes import Outcome
from torch_hal_devkit.suites.distributed_training import allow_differences, check_training
from torch_hal_devkit.suites.modules import check_states
from torch_hal_devkit.suites.multi_process import MULTI_DEVICE, MultiProcessTests, Runs, refused

__all__ = ["ContractOfRunsTests"]


class ContractOfRunsTests(MultiProcessTests):
    """Tests of tier T3, and of T2 for suites with runs on one device."""

    kind: ClassVar[str]

    # -- collectives ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("seed", OBJECTS)
    def test_drawn_objects(self, runs: Runs, seed: int) -> None:
        """Objects are gathered and broadcast by rank, whatever their sizes, their values and who arrives last."""
        _check_objects(runs.full_run, seed)

    @pytest.mark.parametrize("seed", drawn.SEEDS)
    def test_drawn_tensors(self, eager: Runs, seed: int) -> None:
        """Tensors of any shape and layout with whole numbers of any sign are reduced and gathered exactly."""
        _check_tensors(eager.full_run, seed)

    def test_a_million_elements(self, eager: Runs) -> None:
        """A tensor that is larger than what an engine sends at once is reduced completely."""
        _check_a_million(eager.full_run)

    @MULTI_DEVICE
    def test_an_odd_number_of_processes(self, multi_device: Runs, devices: int | None) -> None:
        """Three processes exchange values as two do, for engines that pair processes or halve them."""
        if multi_device.world_size == 1:
            skip_by_declaration("one_process_per_node is True: one process drives all devices")
        if devices is not None and devices < 3:
            not_run(f"{devices} devices found; the test needs 3")
        if "start_command" in multi_device.start:
            skip_by_declaration("start_command: the suite starts two processes")
        outcome = multi_device.three_processes
        if refusal := refused(outcome):
            skip_by_declaration(refusal)
        for seed in OBJECTS:
            _check_objects(outcome, seed)
        for seed in drawn.SEEDS if multi_device.eager else ():
            _check_tensors(outcome, seed)
        if multi_device.eager:
            _check_a_million(outcome)
        if "started_here" in multi_device.start:
            assert outcome.code == 0, f"{outcome.end}. Expected: exit code 0\n{outcome.output[-4000:]}"

    def test_what_differs_is_told(self, runs: Runs) -> None:
        """``differing`` returns ``None`` for equal facts, and those of each rank for others."""
        size = runs.world_size
        expected = {"equal": None, "unequal": [f"of rank {rank}" for rank in range(size)] if size > 1 else None}
        for rank, found in enumerate(runs.full_run.values("differing")):
            assert found == expected, f"differing() returned {found} in rank {rank}. Expected: {expected}"

    # -- steps ---------------------------------------------------------------------------------------------------

    def test_rates_are_followed(
        self, request: pytest.FixtureRequest, custom_loop: Runs, tolerances: Mapping[str, float]
    ) -> None:
        """Steps use the rates that a scheduler, or the user, has set in the meantime; or these are refused by name."""
        self._check_steps(request, custom_loop, "scheduled", scheduled_by_hand, tolerances["32-true"])

    def test_a_group_that_is_added_is_stepped(
        self, request: pytest.FixtureRequest, custom_loop: Runs, tolerances: Mapping[str, float]
    ) -> None:
        """Parameters that ``add_param_group`` adds after ``prepare`` are trained; or it is refused by name."""
        self._check_steps(request, custom_loop, "added group", late_by_hand, tolerances["32-true"])

    def test_batch_norm_over_processes(
        self, request: pytest.FixtureRequest, custom_loop: Runs, tolerances: Mapping[str, float]
    ) -> None:
        """If ``syncs_batch_norm`` is True, ``sync_batch_norm`` normalizes over the batches of all processes."""
        first = custom_loop.full_run.observed("batch norm")[0]
        if first.value is None and not first.raised:
            skip_by_declaration("syncs_batch_norm is False")
        self._check_steps(request, custom_loop, "batch norm", normed_by_hand, 10 * tolerances["32-true"])

    def test_a_scheduler_of_the_trainer(
        self, request: pytest.FixtureRequest, runs: Runs, tolerances: Mapping[str, float]
    ) -> None:
        """A Trainer's scheduler lowers the rates of the steps that the strategy takes."""
        check_training(request, runs, "fit, decaying", runs.by_hand(decays=True), tolerances["32-true"])

    def test_an_inner_no_sync_ends_only_itself(
        self, request: pytest.FixtureRequest, custom_loop: Runs, tolerances: Mapping[str, float]
    ) -> None:
        """After an inner ``no_sync`` the outer one still holds; after the outer one gradients are reduced again."""
        observed = _gradients(custom_loop, "nested without sync")
        for rank, found in enumerate(observed):
            assert len(found["within"]) == len(found["alone"]), f"rank {rank} has no gradients under no_sync"
            error = largest_difference(found["within"], found["alone"])
            assert error <= tolerances["32-true"], (
                f"after an inner no_sync, gradients of rank {rank} in the outer one are {error:.3g} off its own"
            )
        expected = torch.tensor([found["alone"] for found in observed]).mean(0).tolist()
        allow_differences(request, custom_loop)
        for rank, found in enumerate(observed):
            error = largest_difference(found["after"], expected)
            assert error <= tolerances["32-true"], (
                f"after two no_sync, gradients of rank {rank} are {error:.3g} off the mean of all processes"
            )

    def test_no_sync_is_of_one_module(
        self, request: pytest.FixtureRequest, custom_loop: Runs, tolerances: Mapping[str, float]
    ) -> None:
        """``no_sync`` of one module keeps its gradients from being reduced, and leaves those of another module."""
        observed = _gradients(custom_loop, "one of two")
        allow_differences(request, custom_loop)
        mean = torch.tensor([found["alone"] for found in observed]).mean(0).tolist()
        for rank, found in enumerate(observed):
            for which, expected in (("within", found["alone"]), ("without", mean)):
                assert len(found[which]) == len(expected), f"rank {rank} has no gradients {which} no_sync"
                error = largest_difference(found[which], expected)
                assert error <= tolerances["32-true"], (
                    f"of two modules, gradients in rank {rank} of the one {which} no_sync are {error:.3g} off. "
                    f"Expected: {'its own' if which == 'within' else 'the mean of all processes'}"
                )

    def test_nothing_is_held(self, custom_loop: Runs) -> None:
        """After a run has ended, neither the module nor the optimizer that it prepared is kept in memory."""
        custom_loop.full_run.values("scheduled")
        for rank, found in enumerate(custom_loop.full_run.values("held")):
            assert not found, f"after teardown the {' and the '.join(found)} of a run is in memory in rank {rank}"

    def _check_steps(
        self, request: pytest.FixtureRequest, runs: Runs, name: str, by_hand: Any, tolerance: float
    ) -> None:
        _skip_if_refused(runs, name)
        values = runs.full_run.values(name)
        expected = by_hand(runs.shards, runs.arguments["optimizer"])
        allow_differences(request, runs)
        check_states(values, expected, tolerance)

    # -- the process ---------------------------------------------------------------------------------------------

    def test_calls_change_nothing_else(self, runs: Runs) -> None:
        """No call changes generators, settings of torch and Python, variables, signals, warnings or logging."""
        for rank, found in enumerate(runs.full_run.values("changed by calls")):
            assert not found[self.kind], f"in rank {rank} {'; '.join(found[self.kind])}. Expected: no change"

    @pytest.mark.parametrize("when", ["after teardown", "after all"])
    def test_the_process_is_as_it_was(self, runs: Runs, when: str) -> None:
        """After teardown the process has its settings of before the run."""
        for rank, found in enumerate(runs.full_run.values(when)):
            assert not found["left"], f"{when}, rank {rank} differs in {found['left']}. Expected: no change"

    def test_unusual_settings_are_kept(self, runs: Runs) -> None:
        """A run keeps what a user's program has set, whatever that is, and what it has drawn."""
        for rank, found in enumerate(runs.full_run.values("unusual life")):
            assert not found, f"a run changes {found} in rank {rank}. Expected: no change"


def _gradients(custom_loop: Runs, case: str) -> Sequence[Mapping[str, Any]]:
    """The gradients that each process has observed in ``case``, by rank."""
    if custom_loop.who["inference_is_collective"]:
        skip_by_declaration("inference_is_collective is True: each process has a part of the gradients")
    _skip_if_refused(custom_loop, case)
    observed: Sequence[Mapping[str, Any]] = custom_loop.full_run.values(case)
    return observed


def _skip_if_refused(runs: Runs, name: str) -> None:
    """Skip if every process refused what is observed under ``name`` with a ConfigurationError, which says why."""
    observed = runs.full_run.observed(name)
    if all("ConfigurationError" in found.kinds for found in observed):
        skip_by_declaration(observed[0].text)


def _check_objects(outcome: Outcome, seed: int) -> None:
    said = outcome.values("who")
    objects = [repr(drawn_object(seed, rank)) for rank in range(len(said))]
    by_shard = {who["shard"]: objects[rank] for rank, who in reversed([*enumerate(said)])}
    for name, expected in (
        ("objects", objects),
        ("broadcast", objects[seed % len(said)]),
        ("shards", [by_shard[shard] for shard in sorted(by_shard)]),
    ):
        for rank, found in enumerate(outcome.values(f"drawn {name} {seed}")):
            assert found == expected, f"{name} of rank {rank}: {str(found)[:300]}. Expected: {str(expected)[:300]}"


def _check_tensors(outcome: Outcome, seed: int) -> None:
    parts = torch.stack([drawn_tensor(seed, rank) for rank in range(len(outcome.values("who")))])
    wide = parts.double()
    expected = {"mean": wide.mean(0), "sum": wide.sum(0), "product": wide.prod(0)}
    expected |= {"min": wide.amin(0), "max": wide.amax(0), "gathered": wide}
    for rank, found in enumerate(outcome.values(f"drawn tensors {seed}")):
        assert found["untouched"], f"a collective changes its argument in rank {rank}"
        for name, value in expected.items():
            got = torch.tensor(found[name]).double()
            assert got.numel() == value.numel(), f"{name} in rank {rank} has the shape {tuple(got.shape)}"
            close = torch.allclose(got.reshape(value.shape), value, rtol=1e-6, atol=1e-6)
            assert close, f"{name} in rank {rank}: {found[name]}. Expected: {value.tolist()}"


def _check_a_million(outcome: Outcome) -> None:
    size = len(outcome.values("who"))
    expected = [MILLION, *(size * (i % 97) + sum(range(size)) for i in (0, 1, MILLION // 3, MILLION - 1))]
    for rank, found in enumerate(outcome.values("a million")):
        assert found == expected, f"reduce of a large tensor: {found} in rank {rank}. Expected: {expected}"
