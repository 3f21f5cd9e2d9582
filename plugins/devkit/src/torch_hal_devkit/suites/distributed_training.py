"""T2 and T3: training on several devices equals training on the global batch; every item counts once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

from torch_hal import Runtime
from torch_hal_devkit import distributed_problem as problem
from torch_hal_devkit import observations
from torch_hal_devkit.marks import UNSUPPORTED, skip_by_declaration
from torch_hal_devkit.problem import largest_difference
from torch_hal_devkit.suites.multi_process import MultiProcessTests, Runs
from torch_hal_devkit.suites.training import TOLERANCES

__all__ = ["DistributedTrainingTests", "allow_differences", "check_training"]


class DistributedTrainingTests(MultiProcessTests):
    """Tests of tier T3, and of T2 for suites with runs on one device."""

    @pytest.fixture
    def tolerances(self) -> Mapping[str, float]:
        """The tolerance of the losses by precision; an override explains itself in its docstring."""
        return TOLERANCES

    # -- training ------------------------------------------------------------------------------------------------

    def test_training_equals_the_global_batch(
        self, request: pytest.FixtureRequest, runs: Runs, tolerances: Mapping[str, float]
    ) -> None:
        """The losses of each step and the trained module equal those of a plain loop on the CPU over global batches."""
        check_training(request, runs, "fit", runs.by_hand(), tolerances["32-true"])

    def test_custom_loop_equals_the_global_batch(
        self, request: pytest.FixtureRequest, custom_loop: Runs, tolerances: Mapping[str, float]
    ) -> None:
        """A custom loop with a Runtime trains like a plain loop on the CPU over global batches."""
        check_training(request, custom_loop, "custom loop", custom_loop.by_hand(), tolerances["32-true"])

    @pytest.mark.parametrize("loop", ["fit", "custom loop"])
    def test_accumulation_equals_the_big_batch(
        self, request: pytest.FixtureRequest, runs: Runs, tolerances: Mapping[str, float], loop: str
    ) -> None:
        """Accumulated batches, all but the last without sync, equal one big batch; at an epoch's end fewer do."""
        _check_loop(request, loop)
        expected = runs.by_hand(accumulate=observations.ACCUMULATE)
        check_training(request, runs, f"{loop}, accumulating", expected, tolerances["32-true"])

    @pytest.mark.parametrize("algorithm", observations.CLIPS)
    @pytest.mark.parametrize("loop", ["fit", "custom loop"])
    def test_clipping_equals_torch(
        self, request: pytest.FixtureRequest, runs: Runs, tolerances: Mapping[str, float], loop: str, algorithm: str
    ) -> None:
        """Gradients are clipped after they are reduced, as torch clips those of the global batch."""
        _check_loop(request, loop)
        name = f"{loop}, clipping by {algorithm}"
        if algorithm not in runs.who["clip_algorithms"]:
            _skip_refused(runs, name, algorithm)
        expected = runs.by_hand(clip_value=observations.CLIPS[algorithm], algorithm=algorithm)
        check_training(request, runs, name, expected, tolerances["32-true"])

    def test_every_process_has_the_same_module(self, request: pytest.FixtureRequest, runs: Runs) -> None:
        """After training, the module is bit for bit the same in each process."""
        if runs.who["inference_is_collective"]:
            skip_by_declaration("inference_is_collective is True: each process has a part of the module")
        first, *others = runs.full_run.values("fit")
        allow_differences(request, runs)
        for rank, other in enumerate(others, start=1):
            for name, value in first["state"].items():
                assert other["state"][name] == value, f"after training, {name!r} of rank {rank} differs from rank 0"

    def test_a_second_run_in_the_same_processes(self, runs: Runs) -> None:
        """The same run again in the same processes has the same result, bit for bit."""
        again = runs.full_run.values("fit again")
        for rank, first in enumerate(runs.full_run.values("fit")):
            assert again[rank] == first, (
                f"in rank {rank} a second run has the losses {again[rank]['losses']}. Expected: {first['losses']}"
            )

    @pytest.mark.parametrize("precision", [name for name in TOLERANCES if name != "32-true"])
    def test_training_in(
        self,
        request: pytest.FixtureRequest,
        runs: Runs,
        run_precisions: list[str],
        unsupported: Mapping[str, str],
        tolerances: Mapping[str, float],
        precision: str,
    ) -> None:
        """In each supported precision, the losses are close to those of a plain loop on the CPU."""
        if precision not in run_precisions:
            reasons = "; ".join(f"{name} is not supported: {reason}" for name, reason in unsupported.items())
            skip_by_declaration(f"supported precisions: {', '.join(['32-true', *run_precisions])}. {reasons}")
        taken = f"{precision} is taken"
        if any(found.raised for found in runs.full_run.observed(taken)):
            _skip_refused(runs, taken, precision)
        losses = _mean_losses(runs.full_run.values(f"fit in {precision}"))
        allow_differences(request, runs)
        error = largest_difference(losses, runs.by_hand()[0])
        allowed = max(tolerances[precision] / 20, tolerances["32-true"])  # these losses are smaller
        assert error <= allowed, f"losses with precision={precision!r} are off by {error:.3g}. Expected: {allowed:g}"

    def test_evaluation_is_in_the_precision(self, runs: Runs, run_precisions: list[str]) -> None:
        """With ``bf16-mixed``, linear layers compute in 16 bits in ``predict`` as in training."""
        if "bf16-mixed" not in run_precisions:
            skip_by_declaration(f"supported precisions: {', '.join(['32-true', *run_precisions])}")
        taken = "bf16-mixed is taken"
        if any(found.raised for found in runs.full_run.observed(taken)):
            _skip_refused(runs, taken, "bf16-mixed")
        for rank, found in enumerate(runs.full_run.values("predict in bf16-mixed")):
            assert found == ["torch.bfloat16"], (
                f"with precision='bf16-mixed', a linear layer returns {found} in predict() in rank {rank}. "
                "Expected: torch.bfloat16"
            )

    # -- items ---------------------------------------------------------------------------------------------------

    def test_prediction_gives_each_item_once(self, runs: Runs, tolerances: Mapping[str, float]) -> None:
        """``predict`` returns the outputs of all items once and in order, for any number of items."""
        (inputs, _), net = problem.items(observations.ITEMS).tensors, problem.network()
        expected = torch.cat([inputs[:, :1], net(inputs)], 1).tolist()
        for rank, found in enumerate(runs.full_run.values("predict")):
            order = [round(row[0] * observations.ITEMS) for row in found]
            assert order == [*range(observations.ITEMS)], (
                f"predict() returned to rank {rank} the items {order}, of {observations.ITEMS}"
            )
            error = max(largest_difference(row, other) for row, other in zip(found, expected, strict=True))
            assert error <= tolerances["32-true"], f"predict() is off by {error:.3g} in rank {rank}"

    def test_evaluation_counts_each_item_once(self, eager: Runs, tolerances: Mapping[str, float]) -> None:
        """A logged mean is that of all items in each process, for any number of items."""
        inputs, targets = problem.items(observations.ITEMS).tensors
        expected = problem.loss_of(problem.network()(inputs), targets).item()
        for rank, found in enumerate(eager.full_run.values("validate")):
            assert abs(found - expected) <= tolerances["32-true"], (
                f"validate() returned {found:.7g} in rank {rank}. Expected: {expected:.7g}, the mean of all items"
            )

    @pytest.mark.parametrize("items", ["uneven", "a stream"])
    def test_items_that_do_not_divide(self, request: pytest.FixtureRequest, runs: Runs, items: str) -> None:
        """Training on items that do not divide evenly ends, after the same number of steps in each process."""
        found = runs.full_run.values(f"fit {items}")
        steps = {one["steps"] for one in found}
        share = -(-observations.ITEMS // runs.shards)
        expected = problem.EPOCHS * -(-share // 2)
        assert steps == {expected}, (
            f"{observations.ITEMS} items in batches of 2 took {steps} steps. Expected: {expected}"
        )
        allow_differences(request, runs)
        states = [one["state"] for one in found]
        assert all(state == states[0] for state in states), (
            "after training on uneven items, modules differ between processes"
        )

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def test_its_checkpoint_is_read_by_one_process(
        self, custom_loop: Runs, device_counts: Mapping[str, int | str]
    ) -> None:
        """A checkpoint that all processes saved is read by one process, bit for bit.

        It is read on the CPU; if the strategy brings its own CheckpointIO, by one process of that strategy.
        """
        expected = custom_loop.full_run.values("custom loop")[0]["state"]
        path = custom_loop.full_run.directory / "from the loop"
        if custom_loop.who["brings_checkpoint_io"]:
            one = device_counts["one_device"]
            alone = {"devices": one} if isinstance(one, int) else {}
            start = {} if alone else custom_loop.start
            reading = custom_loop.run("read", {**custom_loop.arguments, **alone}, str(path), **start).values("read")[0]
            rest, found = reading["rest"], reading["state"]
        else:
            net = problem.network()
            with Runtime(accelerator="cpu", strategy="single_device", devices=1) as runtime:
                optimizer = problem.optimizer_of(net, custom_loop.arguments["optimizer"])
                rest = runtime.load(path, {"net": net, "optimizer": optimizer})
            found = {name: value.tolist() for name, value in net.state_dict().items()}
        assert rest == {"step": problem.STEPS * problem.EPOCHS}, f"the checkpoint also has {rest}"
        for name, value in expected.items():
            assert found[name] == value, f"{name!r}, read from its checkpoint, is not bit for bit what was saved"

    def test_a_checkpoint_that_cannot_be_written(self, runs: Runs) -> None:
        """A checkpoint that cannot be written raises a CheckpointError in every process."""
        for rank, found in enumerate(runs.full_run.observed("saving refused")):
            raised = found.raised or "no exception"
            assert "CheckpointError" in found.kinds, (
                f"saving below a file gives {raised} in rank {rank}. Expected: core.errors.CheckpointError"
            )

    def test_resuming_is_exact(self, runs: Runs) -> None:
        """A run resumed from an epoch's checkpoint in new processes equals the uninterrupted one, bit for bit."""
        uninterrupted = runs.full_run.values("uninterrupted")
        path = Path(runs.full_run.directory, "resumable", "epoch=0.ckpt")
        resumed = runs.run("resumed", dict(runs.arguments), str(path), **runs.start).values("resumed")
        weights = runs.who["checkpointed_weights"]
        assert weights in ("each", "rank 0", "mean"), (
            f"checkpointed_weights={weights!r}. Expected: 'each', 'rank 0' or 'mean'"
        )
        if not runs.who["keeps_replicas_equal"] and weights != "each" and runs.world_size > 1:
            _check_resumed_weights(uninterrupted, resumed, weights)
            skip_by_declaration(f"checkpointed_weights={weights!r}: all processes resume with these weights")
        for rank, (whole, rest) in enumerate(zip(uninterrupted, resumed, strict=True)):
            expected = whole["losses"][len(whole["losses"]) // 2 :]
            assert rest["losses"] == expected, f"rank {rank} resumes with losses {rest['losses']}. Expected: {expected}"
            assert rest["state"] == whole["state"], (
                f"the module of rank {rank} differs from that of the uninterrupted run"
            )


def _check_resumed_weights(whole: list[Any], rest: list[Any], weights: str) -> None:
    """Each process resumes with the weights that the checkpoint has by declaration."""
    own = [one["states"]["first epoch"] for one in whole]
    for name, first in own[0].items():
        parts = torch.tensor([state[name] for state in own])
        expected = parts.mean(0) if weights == "mean" else torch.tensor(first)
        for rank, found in enumerate(rest):
            error = (torch.tensor(found["states"]["start"][name]) - expected).abs().max().item()
            assert error <= 1e-6, (
                f"checkpointed_weights={weights!r}, but {name!r} of rank {rank} is {error:.3g} off when it resumes"
            )


def _check_loop(request: pytest.FixtureRequest, loop: str) -> None:
    if loop == "custom loop":
        request.getfixturevalue("custom_loop")


def _skip_refused(runs: Runs, name: str, value: str) -> NoReturn:
    """Skip a test if every process refuses ``value`` by name; otherwise fail."""
    for rank, found in enumerate(runs.full_run.observed(name)):
        is_refused = "ConfigurationError" in found.kinds and value in found.text
        assert is_refused, (
            f"{name}: rank {rank} {f'raises {found.raised}' if found.raised else 'accepts it'}. Expected: a "
            f"ConfigurationError that names {value!r}, as declared or as in other processes"
        )
    skip_by_declaration(runs.full_run.observed(name)[0].text)


def allow_differences(request: pytest.FixtureRequest, runs: Runs) -> None:
    """From here on, differences count as declared if the strategy does not keep replicas equal."""
    if runs.world_size > 1 and not runs.who["keeps_replicas_equal"]:
        request.node.stash[UNSUPPORTED] = "keeps_replicas_equal is False: each process has its own weights"


def check_training(
    request: pytest.FixtureRequest,
    runs: Runs,
    name: str,
    expected: tuple[list[float], Mapping[str, Tensor]],
    tolerance: float,
) -> None:
    """Check the losses and the modules of a training against the expected ones, of the global batches."""
    found = runs.full_run.values(name)
    losses = _mean_losses(found)
    assert len(losses) == len(expected[0]), f"{name}: {len(losses)} losses. Expected: {len(expected[0])}"
    allow_differences(request, runs)
    for step, (loss, other) in enumerate(zip(losses, expected[0], strict=True)):
        assert abs(loss - other) <= tolerance, (
            f"{name}: the loss of batch {step} is {loss:.7g}, the mean of {len(found)} process(es). Expected: "
            f"{other:.7g} +- {tolerance:g}, that of the global batch on the CPU"
        )
    for rank, one in enumerate(found):
        for key, value in expected[1].items():
            error = (torch.tensor(one["state"][key]) - value).abs().max().item()
            assert error <= 10 * tolerance, (
                f"{name}: {key!r} of rank {rank} is off by {error:.3g}. Expected: {10 * tolerance:g}"
            )


def _mean_losses(found: list[Any]) -> list[float]:
    """The mean of the processes' losses, by batch."""
    return [sum(losses) / len(losses) for losses in zip(*(one["losses"] for one in found), strict=True)]
