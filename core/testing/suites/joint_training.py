"""T2 and T3: training on several devices is training on one with the joined batch; every item counts once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

from core import Runtime
from core.testing import joint, observations
from core.testing.problem import largest_difference
from core.testing.suites.several import Runs, RunTests
from core.testing.suites.training import TOLERANCES
from core.testing.tiers import LACKED, skip_by_declaration

__all__ = ["JointTrainingTests"]


class JointTrainingTests(RunTests):
    """Tests of tier T3, and of T2 where one process is a run too."""

    @pytest.fixture
    def tolerances(self) -> Mapping[str, float]:
        """By precision, how far losses may be from the CPU's; an override says why in its docstring."""
        return TOLERANCES

    # -- training ------------------------------------------------------------------------------------------------

    def test_training_equals_the_joined_batch(
        self, request: pytest.FixtureRequest, runs: Runs, tolerances: Mapping[str, float]
    ) -> None:
        """The losses of each step, and the trained module, are those of a plain loop on the CPU over joined batches."""
        _check_training(request, runs, "fit", runs.by_hand(), tolerances["32-true"])

    def test_an_own_loop_equals_the_joined_batch(
        self, request: pytest.FixtureRequest, own_loop: Runs, tolerances: Mapping[str, float]
    ) -> None:
        """A hand-written loop over what a Runtime prepared trains as a plain loop on the CPU over joined batches."""
        _check_training(request, own_loop, "own loop", own_loop.by_hand(), tolerances["32-true"])

    @pytest.mark.parametrize("loop", ["fit", "own loop"])
    def test_accumulation_equals_the_big_batch(
        self, request: pytest.FixtureRequest, runs: Runs, tolerances: Mapping[str, float], loop: str
    ) -> None:
        """Two batches accumulated for a step, the first without sync, are one of twice the size."""
        _check_loop(request, loop)
        expected = runs.by_hand(accumulate=2)
        _check_training(request, runs, f"{loop}, accumulating", expected, tolerances["32-true"])

    @pytest.mark.parametrize("algorithm", observations.CLIPS)
    @pytest.mark.parametrize("loop", ["fit", "own loop"])
    def test_clipping_equals_torch(
        self, request: pytest.FixtureRequest, runs: Runs, tolerances: Mapping[str, float], loop: str, algorithm: str
    ) -> None:
        """Gradients are clipped after they are reduced, as torch clips those of the joined batch."""
        _check_loop(request, loop)
        name = f"{loop}, clipping by {algorithm}"
        if algorithm not in runs.who["clip_algorithms"]:
            _leave_refused(runs, name, algorithm)
        expected = runs.by_hand(clip_value=observations.CLIPS[algorithm], algorithm=algorithm)
        _check_training(request, runs, name, expected, tolerances["32-true"])

    def test_every_process_has_the_same_module(self, request: pytest.FixtureRequest, runs: Runs) -> None:
        """After training, the module is the same in each process, bit for bit."""
        if runs.who["infers_together"]:
            skip_by_declaration("infers_together is True: each process has a part of the module")
        first, *others = runs.everything.values("fit")
        _expect_one(request, runs)
        for rank, other in enumerate(others, start=1):
            for name, value in first["state"].items():
                assert other["state"][name] == value, f"after training, {name!r} of rank {rank} is not that of rank 0"

    def test_a_second_run_in_the_same_processes(self, runs: Runs) -> None:
        """The same run again, in the same processes, gives the same, bit for bit."""
        again = runs.everything.values("fit again")
        for rank, first in enumerate(runs.everything.values("fit")):
            assert again[rank] == first, (
                f"in rank {rank} a second run trains to {again[rank]['losses']}. Expected: {first['losses']}"
            )

    def test_no_sync_leaves_gradients_unreduced(self, own_loop: Runs, tolerances: Mapping[str, float]) -> None:
        """After a backward pass under ``no_sync`` a process has the gradients of its own items alone."""
        without_sync = own_loop.everything.values("without sync")
        if own_loop.who["infers_together"]:
            skip_by_declaration("infers_together is True: each process has a part of the module, and of its gradients")
        for rank, found in enumerate(without_sync):
            assert len(found["found"]) == len(found["alone"]), f"rank {rank} has no gradients under no_sync"
            error = largest_difference(found["found"], found["alone"])
            assert error <= tolerances["32-true"], (
                f"gradients of rank {rank} under no_sync are {error:.3g} off those of its own items. "
                f"Expected: {tolerances['32-true']:g}"
            )

    @pytest.mark.parametrize("precision", [name for name in TOLERANCES if name != "32-true"])
    def test_training_in(
        self,
        request: pytest.FixtureRequest,
        runs: Runs,
        run_precisions: list[str],
        lacks: Mapping[str, str],
        tolerances: Mapping[str, float],
        precision: str,
    ) -> None:
        """In each precision that is served, the losses are near those of a plain loop on the CPU."""
        if precision not in run_precisions:
            lacked = "; ".join(f"lacks {word}: {reason}" for word, reason in lacks.items())
            skip_by_declaration(f"it serves {', '.join(['32-true', *run_precisions])}. {lacked}")
        taken = f"{precision} is taken"
        if any(found.raised for found in runs.everything.observed(taken)):
            _leave_refused(runs, taken, precision)
        losses = _joined(runs.everything.values(f"fit in {precision}"))
        _expect_one(request, runs)
        error = largest_difference(losses, runs.by_hand()[0])
        allowed = max(tolerances[precision] / 20, tolerances["32-true"])  # these losses are smaller
        assert error <= allowed, f"losses with precision={precision!r} are off by {error:.3g}. Expected: {allowed:g}"

    # -- items ---------------------------------------------------------------------------------------------------

    def test_prediction_gives_each_item_once(self, runs: Runs, tolerances: Mapping[str, float]) -> None:
        """``predict`` gives the outputs of all items in each process, once and in order, also if they do not divide."""
        (inputs, _), net = joint.items(observations.ITEMS).tensors, joint.network()
        expected = torch.cat([inputs[:, :1], net(inputs)], 1).tolist()
        for rank, found in enumerate(runs.everything.values("predict")):
            order = [round(row[0] * observations.ITEMS) for row in found]
            assert order == [*range(observations.ITEMS)], (
                f"predict() gives rank {rank} the items {order}, of {observations.ITEMS}"
            )
            error = max(largest_difference(row, other) for row, other in zip(found, expected, strict=True))
            assert error <= tolerances["32-true"], f"predict() is off by {error:.3g} in rank {rank}"

    def test_evaluation_counts_each_item_once(self, eager: Runs, tolerances: Mapping[str, float]) -> None:
        """A logged mean is that of all items, in each process, also if they do not divide."""
        inputs, targets = joint.items(observations.ITEMS).tensors
        expected = joint.loss_of(joint.network()(inputs), targets).item()
        for rank, found in enumerate(eager.everything.values("validate")):
            assert abs(found - expected) <= tolerances["32-true"], (
                f"validate() gives {found:.7g} in rank {rank}. Expected: {expected:.7g}, the mean of all items"
            )

    @pytest.mark.parametrize("items", ["uneven", "a stream"])
    def test_items_that_do_not_divide(self, request: pytest.FixtureRequest, runs: Runs, items: str) -> None:
        """Training on items whose number processes do not divide ends, with as many steps in each process."""
        found = runs.everything.values(f"fit {items}")
        steps = {one["steps"] for one in found}
        share = -(-observations.ITEMS // runs.shards)
        expected = joint.EPOCHS * -(-share // 2)
        assert steps == {expected}, (
            f"{observations.ITEMS} items in batches of 2 give {steps} steps. Expected: {expected}"
        )
        _expect_one(request, runs)
        states = [one["state"] for one in found]
        assert all(state == states[0] for state in states), "after uneven items, modules differ between processes"

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def test_its_checkpoint_is_read_by_one_process(self, own_loop: Runs, counts: Mapping[str, int | str]) -> None:
        """What the processes saved together, one process reads, bit for bit.

        That is a single one on the CPU; where the strategy brings a CheckpointIO of its own, one of that strategy's.
        """
        expected = own_loop.everything.values("own loop")[0]["state"]
        path = own_loop.everything.directory / "from the loop"
        if own_loop.who["brings_checkpoint_io"]:
            one = counts["one"]
            alone = {"devices": one} if isinstance(one, int) else {}
            start = {} if alone else own_loop.start
            reading = own_loop.run("read", {**own_loop.words, **alone}, str(path), **start).values("read")[0]
            rest, found = reading["rest"], reading["state"]
        else:
            net = joint.network()
            with Runtime(accelerator="cpu", strategy="single_device", devices=1) as runtime:
                optimizer = joint.optimizer_of(net, own_loop.words["optimizer"])
                rest = runtime.load(path, {"net": net, "optimizer": optimizer})
            found = {name: value.tolist() for name, value in net.state_dict().items()}
        assert rest == {"step": joint.STEPS * joint.EPOCHS}, f"the checkpoint has {rest} besides"
        for name, value in expected.items():
            assert found[name] == value, f"{name!r}, read from its checkpoint, is not what it was, bit for bit"

    def test_a_checkpoint_that_cannot_be_written(self, runs: Runs) -> None:
        """Where a checkpoint cannot be written, it is a CheckpointError in every process."""
        for rank, found in enumerate(runs.everything.observed("saving refused")):
            given = found.raised or "no exception"
            assert "CheckpointError" in found.kinds, (
                f"saving below a file gives {given} in rank {rank}. Expected: core.errors.CheckpointError"
            )

    def test_resuming_is_exact(self, runs: Runs) -> None:
        """A run that goes on from an epoch's checkpoint in new processes ends as the uninterrupted one, bit for bit."""
        uninterrupted = runs.everything.values("uninterrupted")
        path = Path(runs.everything.directory, "resumable", "epoch-0")
        resumed = runs.run("resumed", dict(runs.words), str(path), **runs.start).values("resumed")
        for rank, (whole, rest) in enumerate(zip(uninterrupted, resumed, strict=True)):
            expected = whole["losses"][len(whole["losses"]) // 2 :]
            assert rest["losses"] == expected, f"rank {rank} goes on with losses {rest['losses']}. Expected: {expected}"
            assert rest["state"] == whole["state"], f"rank {rank} ends with another module than the uninterrupted run"


def _check_loop(request: pytest.FixtureRequest, loop: str) -> None:
    if loop == "own loop":
        request.getfixturevalue("own_loop")


def _leave_refused(runs: Runs, name: str, word: str) -> NoReturn:
    """Leave the test of what every process refuses by ``word``."""
    for rank, found in enumerate(runs.everything.observed(name)):
        is_refused = "ConfigurationError" in found.kinds and word in found.text
        assert is_refused, (
            f"{name}: rank {rank} {f'raises {found.raised}' if found.raised else 'takes it'}. Expected: a "
            f"ConfigurationError that names {word!r}, as in other processes or as is declared"
        )
    skip_by_declaration(runs.everything.observed(name)[0].text)


def _expect_one(request: pytest.FixtureRequest, runs: Runs) -> None:
    """From here on a difference is declared where the strategy does not train as one process does."""
    if runs.world_size > 1 and not runs.who["trains_as_one"]:
        request.node.stash[LACKED] = "trains_as_one is False: each process has weights of its own"


def _check_training(
    request: pytest.FixtureRequest,
    runs: Runs,
    name: str,
    expected: tuple[list[float], Mapping[str, Tensor]],
    tolerance: float,
) -> None:
    found = runs.everything.values(name)
    losses = _joined(found)
    assert len(losses) == len(expected[0]), f"{name}: {len(losses)} losses. Expected: {len(expected[0])}"
    _expect_one(request, runs)
    for step, (loss, other) in enumerate(zip(losses, expected[0], strict=True)):
        assert abs(loss - other) <= tolerance, (
            f"{name}: the loss of batch {step} is {loss:.7g}, the mean of {len(found)} process(es). Expected: "
            f"{other:.7g}, that of the joined batch on the CPU, to {tolerance:g}"
        )
    for rank, one in enumerate(found):
        for key, value in expected[1].items():
            error = (torch.tensor(one["state"][key]) - value).abs().max().item()
            assert error <= 10 * tolerance, (
                f"{name}: {key!r} of rank {rank} is off by {error:.3g}. Expected: {10 * tolerance:g}"
            )


def _joined(found: list[Any]) -> list[float]:
    """The mean of the processes' losses, by batch."""
    return [sum(losses) / len(losses) for losses in zip(*(one["losses"] for one in found), strict=True)]
