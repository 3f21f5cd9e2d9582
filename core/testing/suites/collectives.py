"""T2 and T3: who the processes of a run are, and each of their collectives against its formula."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch

from core.strategies.base import REDUCTIONS
from core.testing import observations
from core.testing.processes import Observed
from core.testing.suites.several import Runs, RunTests
from core.testing.tiers import skip_by_declaration

__all__ = ["CollectiveTests"]

_TOLERANCES = {"float32": 1e-6, "bfloat16": 2e-2}
"""Relative, of reductions."""


class CollectiveTests(RunTests):
    """Tests of tier T3, and of T2 where one process is a run too."""

    def test_each_process_knows_who_it_is(self, runs: Runs) -> None:
        """Ranks count up from 0, one main process among them, each with a device of the run for its own."""
        said = runs.everything.values("who")
        size = len(said)
        for rank, who in enumerate(said):
            found = {name: who[name] for name in ("rank", "world_size", "local_rank", "node_rank", "is_main")}
            expected = {"rank": rank, "world_size": size, "local_rank": rank, "node_rank": 0, "is_main": rank == 0}
            assert found == expected, f"the process of rank {rank} says that it is {found}. Expected: {expected}"
        assert size in (1, runs.devices), (
            f"{runs.devices} devices give {size} processes. Expected: one for each, or one"
        )
        of_all = said[0]["devices"]
        assert len(of_all) == runs.devices, f"devices={runs.devices} gives the run {of_all}"
        for who in said:
            expected_device = of_all[who["local_rank"]]
            assert who["device"] == expected_device, (
                f"rank {who['rank']} works on {who['device']}. Expected: {expected_device}, its part of {of_all}"
            )

    def test_each_process_has_a_part_of_the_data(self, runs: Runs) -> None:
        """The parts that processes take are those that there are, from 0 up."""
        said = runs.everything.values("who")
        shards, taken = {who["shards"] for who in said}, {who["shard"] for who in said}
        assert len(shards) == 1, f"processes split the data into {sorted(shards)} parts. Expected: the same in each"
        assert taken == set(range(*shards)), f"of {min(shards)} parts of the data, {sorted(taken)} are taken"

    # -- reduce --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("dtype", observations.REDUCED)
    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_reduce(self, eager: Runs, lacks: Mapping[str, str], reduction: str, dtype: str) -> None:
        """``reduce`` gives in each process what the formula gives; a mean of whole numbers is in float32."""
        if dtype in lacks:
            skip_by_declaration(f"lacks {dtype}: {lacks[dtype]}")
        size = eager.world_size
        parts = torch.stack([observations.reduced(rank) for rank in range(size)]).double()
        expected = {
            "mean": parts.mean(0),
            "sum": parts.sum(0),
            "min": parts.amin(0),
            "max": parts.amax(0),
            "product": parts.prod(0),
        }[reduction].tolist()
        kind = "torch.float32" if (reduction, dtype) == ("mean", "int64") else f"torch.{dtype}"
        for rank, found in enumerate(eager.everything.values(f"reduce {reduction} {dtype}")):
            _check_close(f"reduce(..., {reduction!r}) of {dtype} in rank {rank}", found["values"], expected, dtype)
            assert found["dtype"] == kind, (
                f"reduce(..., {reduction!r}) of {dtype} gives {found['dtype']}. Expected: {kind}"
            )

    def test_reduce_of_a_scalar(self, eager: Runs) -> None:
        """A scalar is reduced to a scalar."""
        expected = float(sum(range(1, eager.world_size + 1)))
        for rank, found in enumerate(eager.everything.values("reduce scalar")):
            got = found["values"], found["shape"]
            assert got == (expected, []), (
                f"reduce of a scalar in rank {rank} gives (value, shape) {got}. Expected: {(expected, [])}"
            )

    def test_reduce_leaves_its_input(self, eager: Runs) -> None:
        """``reduce`` leaves the tensor that it is given as it was, and gives another on the same device."""
        devices = [who["device"] for who in eager.everything.values("who")]
        for reduction in REDUCTIONS:
            for rank, found in enumerate(eager.everything.values(f"reduce {reduction} float32")):
                assert found["untouched"], (
                    f"reduce(tensor, {reduction!r}) changes `tensor` in rank {rank}. Expected: a copy"
                )
                assert torch.device(found["device"]).type == torch.device(devices[rank]).type, (
                    f"reduce gives a tensor on {found['device']} in rank {rank}. Expected: {devices[rank]}"
                )

    def test_an_unknown_reduction_is_refused(self, eager: Runs) -> None:
        """Another word than the five is a ConfigurationError that names them, in each process."""
        for rank, found in enumerate(eager.everything.observed("reduce average")):
            _check_refused(f"reduce(tensor, 'average') in rank {rank}", found, "ConfigurationError")
            for word in ("average", *REDUCTIONS):
                assert word in found.text, f"reduce(tensor, 'average'): the error does not name {word!r}: {found.text}"

    # -- gather --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("tensor", observations.GATHERED)
    def test_all_gather(self, eager: Runs, tensor: str) -> None:
        """``all_gather`` stacks the tensors of all processes by rank, of any shape and dtype, in each of them."""
        parts = torch.stack([observations.GATHERED[tensor](rank) for rank in range(eager.world_size)])
        expected = parts.tolist(), str(parts.dtype), list(parts.shape)
        for rank, found in enumerate(eager.everything.values(f"all_gather {tensor}")):
            got = found["values"], found["dtype"], found["shape"]
            assert got == expected, f"all_gather ({tensor}) in rank {rank} gives {got}. Expected: {expected}"

    @pytest.mark.parametrize("difference", observations.REFUSED)
    def test_all_gather_refuses_what_differs(self, eager: Runs, difference: str) -> None:
        """Tensors whose shapes or dtypes differ between processes are a ConfigurationError in every process."""
        if eager.world_size == 1:
            skip_by_declaration("one process: there is nothing to differ from")
        for rank, found in enumerate(eager.everything.observed(f"all_gather {difference}")):
            what = f"all_gather of tensors whose {difference} differ, in rank {rank},"
            _check_refused(what, found, "ConfigurationError")

    def test_collectives_go_on_after_a_refusal(self, eager: Runs) -> None:
        """What was refused leaves the processes in step: the next collective is right."""
        expected = [[rank] for rank in range(eager.world_size)]
        for rank, found in enumerate(eager.everything.values("all_gather afterwards")):
            assert found["values"] == expected, (
                f"the all_gather after a refused one gives {found['values']} in rank {rank}. Expected: {expected}"
            )

    def test_all_gather_object(self, runs: Runs) -> None:
        """``all_gather_object`` gives in each process the objects of all, by rank, whatever their size."""
        expected = [observations.own(rank) for rank in range(runs.world_size)]
        for rank, found in enumerate(runs.everything.values("all_gather_object")):
            assert found == expected, f"all_gather_object gives {found} in rank {rank}. Expected: {expected}"

    def test_gather_joins_nested_tensors(self, eager: Runs) -> None:
        """A Runtime's ``gather`` joins each tensor of a structure along its first dimension, scalars to a vector."""
        ranks = range(eager.world_size)
        expected = {"rows": [[float(rank)] for rank in ranks for _ in range(2)], "scalars": [*ranks], "word": "w"}
        for rank, found in enumerate(eager.everything.values("gather")):
            assert found == expected, f"Runtime.gather gives {found} in rank {rank}. Expected: {expected}"

    # -- broadcast and barrier -----------------------------------------------------------------------------------

    def test_broadcast(self, runs: Runs) -> None:
        """``broadcast`` gives in each process the object that the source has, whichever that is."""
        for source in range(runs.world_size):
            for rank, found in enumerate(runs.everything.values(f"broadcast from {source}")):
                assert found == observations.own(source), (
                    f"broadcast(obj, src={source}) gives {found} in rank {rank}. Expected: {observations.own(source)}"
                )

    def test_a_barrier_waits_for_all(self, runs: Runs) -> None:
        """Nobody leaves ``barrier`` before everyone has come to it."""
        times = runs.everything.values("barrier")
        last = max(before for before, _ in times)
        for rank, (_, after) in enumerate(times):
            assert after >= last, (
                f"rank {rank} leaves the barrier {last - after:.2f} s before the last process comes to it"
            )

    def test_the_main_process_goes_first(self, runs: Runs) -> None:
        """Within ``main_process_first`` nobody is before the main process has left it."""
        (_, left), *others = runs.everything.values("main process first")
        for rank, (entered, _) in enumerate(others, start=1):
            assert entered >= left, f"rank {rank} enters {left - entered:.2f} s before the main process has left"

    # -- life ----------------------------------------------------------------------------------------------------

    def test_the_process_group_is_there(self, runs: Runs) -> None:
        """Where the strategy says that its processes meet in a process group, they do."""
        for who in runs.everything.values("who"):
            assert who["is_initialized"] or not who["uses_process_group"], (
                f"uses_process_group is True, but rank {who['rank']} is in none while the run lives"
            )

    @pytest.mark.parametrize("when", ["after teardown", "after all"])
    def test_the_process_group_is_gone(self, runs: Runs, when: str) -> None:
        """After a run's teardown a process is in no process group, and torch's settings are as before."""
        expected = {"process group": False, "default dtype": "torch.float32", "gradients": True}
        for rank, found in enumerate(runs.everything.values(when)):
            assert found == expected, f"{when}, rank {rank} is left with {found}. Expected: {expected}"

    def test_teardown_can_be_called_twice(self, runs: Runs) -> None:
        """A second ``teardown`` changes nothing."""
        runs.everything.values("after another teardown")

    def test_the_processes_end_well(self, runs: Runs) -> None:
        """When all is done each process ends with exit code 0, and none is left."""
        outcome = runs.everything
        assert outcome.code == 0, f"{outcome.end}. Expected: exit code 0\n{outcome.output[-4000:]}"
        assert not outcome.left, f"still there {outcome.left}. Expected: no process of the run"


def _check_close(what: str, found: list[float], expected: list[float], dtype: str) -> None:
    tolerance = _TOLERANCES.get(dtype, 0.0 if not what.startswith("reduce(..., 'mean')") else 1e-6)
    close = len(found) == len(expected) and all(
        math.isclose(value, other, rel_tol=tolerance, abs_tol=tolerance)
        for value, other in zip(found, expected, strict=True)
    )
    assert close, f"{what} gives {found}. Expected: {expected}, to {tolerance:g}"


def _check_refused(what: str, found: Observed, kind: str) -> None:
    assert found.raised, f"{what} gives {found.value}. Expected: core.errors.{kind}"
    assert kind in found.kinds, f"{what} raises {found.raised}. Expected: core.errors.{kind}"
