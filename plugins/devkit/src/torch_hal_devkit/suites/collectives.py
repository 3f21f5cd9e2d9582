"""T2 and T3: the ranks of a run's processes, and each of their collectives against its formula."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch

from torch_hal.strategies import REDUCTIONS
from torch_hal_devkit import collective_observations as observations
from torch_hal_devkit.marks import skip_by_declaration
from torch_hal_devkit.processes import Observed
from torch_hal_devkit.suites.multi_process import MultiProcessTests, Runs

__all__ = ["CollectiveTests"]

_TOLERANCES = {"float32": 1e-6, "bfloat16": 2e-2}
"""The relative tolerance of reductions."""


class CollectiveTests(MultiProcessTests):
    """Tests of tier T3, and of T2 for suites with runs on one device."""

    def test_ranks_and_devices(self, runs: Runs) -> None:
        """Ranks count up from 0, rank 0 is the main process, and each process has its own device."""
        said = runs.full_run.values("who")
        size = len(said)
        for rank, who in enumerate(said):
            found = {name: who[name] for name in ("rank", "world_size", "local_rank", "node_rank", "is_main")}
            expected = {"rank": rank, "world_size": size, "local_rank": rank, "node_rank": 0, "is_main": rank == 0}
            assert found == expected, f"the process of rank {rank} reports {found}. Expected: {expected}"
        planned = said[0]["planned_size"]
        assert size == planned, f"the Plan names {planned} processes, but {size} run"
        assert size in (1, runs.devices), (
            f"{runs.devices} devices start {size} processes. Expected: one per device, or one"
        )
        of_all = said[0]["devices"]
        assert len(of_all) == runs.devices, f"devices={runs.devices} gives the run {of_all}"
        for who in said:
            expected_device = of_all[who["local_rank"]]
            assert who["device"] == expected_device, (
                f"rank {who['rank']} uses {who['device']}. Expected: {expected_device} of {of_all}"
            )

    def test_each_process_has_a_part_of_the_data(self, runs: Runs) -> None:
        """The processes together take all parts of the data."""
        said = runs.full_run.values("who")
        shards, taken = {who["shards"] for who in said}, {who["shard"] for who in said}
        assert len(shards) == 1, f"processes split the data into {sorted(shards)} parts. Expected: the same in each"
        assert taken == set(range(*shards)), f"of {min(shards)} parts of the data, processes take only {sorted(taken)}"

    # -- reduce --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("dtype", observations.REDUCED)
    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_reduce(self, eager: Runs, unsupported: Mapping[str, str], reduction: str, dtype: str) -> None:
        """``reduce`` returns the right result in each process; the mean of integers is in float32."""
        if dtype in unsupported:
            skip_by_declaration(f"{dtype} is not supported: {unsupported[dtype]}")
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
        for rank, found in enumerate(eager.full_run.values(f"reduce {reduction} {dtype}")):
            _check_close(f"reduce(..., {reduction!r}) of {dtype} in rank {rank}", found["values"], expected, dtype)
            assert found["dtype"] == kind, (
                f"reduce(..., {reduction!r}) of {dtype} returned {found['dtype']}. Expected: {kind}"
            )

    @pytest.mark.parametrize("tensor", observations.SUMMED)
    def test_reduce_of_an_unusual_tensor(self, eager: Runs, tensor: str) -> None:
        """Tensors that are not contiguous, empty, or not finite are summed as all others are."""
        summed = torch.stack([observations.SUMMED[tensor](rank) for rank in range(eager.world_size)]).sum(0)
        expected = str(summed.tolist()), list(summed.shape)
        for rank, found in enumerate(eager.full_run.values(f"reduce {tensor}")):
            got = str(found["values"]), found["shape"]
            assert got == expected, f"reduce ({tensor}) in rank {rank} returned {got}. Expected: {expected}"

    def test_reduce_of_a_scalar(self, eager: Runs) -> None:
        """A scalar is reduced to a scalar."""
        expected = float(sum(range(1, eager.world_size + 1)))
        for rank, found in enumerate(eager.full_run.values("reduce scalar")):
            got = found["values"], found["shape"]
            assert got == (expected, []), (
                f"reduce of a scalar in rank {rank} returned (value, shape) {got}. Expected: {(expected, [])}"
            )

    def test_reduce_leaves_its_input(self, eager: Runs) -> None:
        """``reduce`` leaves its input unchanged and returns another tensor on the same device."""
        devices = [who["device"] for who in eager.full_run.values("who")]
        for reduction in REDUCTIONS:
            for rank, found in enumerate(eager.full_run.values(f"reduce {reduction} float32")):
                assert found["untouched"], (
                    f"reduce(tensor, {reduction!r}) changes `tensor` in rank {rank}. Expected: a copy"
                )
                assert torch.device(found["device"]).type == torch.device(devices[rank]).type, (
                    f"reduce returned a tensor on {found['device']} in rank {rank}. Expected: {devices[rank]}"
                )

    def test_an_unknown_reduction_is_refused(self, eager: Runs) -> None:
        """An unknown reduction raises a ConfigurationError that names the five valid ones, in each process."""
        for rank, found in enumerate(eager.full_run.observed("reduce average")):
            _check_refused(f"reduce(tensor, 'average') in rank {rank}", found, "ConfigurationError")
            for name in ("average", *REDUCTIONS):
                assert name in found.text, f"reduce(tensor, 'average'): the error does not name {name!r}: {found.text}"

    @pytest.mark.parametrize("difference", observations.REFUSED)
    def test_reduce_refuses_what_differs(self, eager: Runs, difference: str) -> None:
        """Shapes or dtypes that differ between processes raise a ConfigurationError in every process."""
        _check_difference_refused(eager, "reduce", difference)

    # -- gather --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("tensor", observations.GATHERED)
    def test_all_gather(self, eager: Runs, unsupported: Mapping[str, str], tensor: str) -> None:
        """``all_gather`` stacks the tensors of all processes by rank, of any shape and dtype, in each of them."""
        dtype = str(observations.GATHERED[tensor](0).dtype).removeprefix("torch.")
        if dtype in unsupported:
            skip_by_declaration(f"{dtype} is not supported: {unsupported[dtype]}")
        parts = torch.stack([observations.GATHERED[tensor](rank) for rank in range(eager.world_size)])
        expected = parts.tolist(), str(parts.dtype), list(parts.shape)
        for rank, found in enumerate(eager.full_run.values(f"all_gather {tensor}")):
            got = found["values"], found["dtype"], found["shape"]
            assert got == expected, f"all_gather ({tensor}) in rank {rank} returned {got}. Expected: {expected}"

    @pytest.mark.parametrize("difference", observations.REFUSED)
    def test_all_gather_refuses_what_differs(self, eager: Runs, difference: str) -> None:
        """Shapes or dtypes that differ between processes raise a ConfigurationError in every process."""
        _check_difference_refused(eager, "all_gather", difference)

    def test_collectives_go_on_after_a_refusal(self, eager: Runs) -> None:
        """After a refused collective the processes are still in step: the next one is right."""
        expected = [[rank] for rank in range(eager.world_size)]
        for rank, found in enumerate(eager.full_run.values("all_gather afterwards")):
            assert found["values"] == expected, (
                f"the all_gather after a refused one returned {found['values']} in rank {rank}. Expected: {expected}"
            )

    def test_all_gather_object(self, runs: Runs) -> None:
        """``all_gather_object`` returns the objects of all processes by rank, whatever their size and their types."""
        expected = [repr(observations.own(rank)) for rank in range(runs.world_size)]
        for rank, found in enumerate(runs.full_run.values("all_gather_object")):
            assert found == expected, f"all_gather_object returned {found} in rank {rank}. Expected: {expected}"

    def test_gather_joins_nested_tensors(self, eager: Runs) -> None:
        """A Runtime's ``gather`` joins each tensor of a structure along its first dimension, scalars to a vector."""
        ranks = range(eager.world_size)
        expected = {"rows": [[float(rank)] for rank in ranks for _ in range(2)], "scalars": [*ranks], "nothing": None}
        for rank, found in enumerate(eager.full_run.values("gather")):
            assert found == expected, f"Runtime.gather returned {found} in rank {rank}. Expected: {expected}"

    # -- broadcast and barrier -----------------------------------------------------------------------------------

    def test_broadcast(self, runs: Runs) -> None:
        """``broadcast`` returns the source's object in each process, for any source, with its types."""
        for source in range(runs.world_size):
            for rank, found in enumerate(runs.full_run.values(f"broadcast from {source}")):
                expected = repr(observations.own(source))
                assert found == expected, (
                    f"broadcast(obj, src={source}) returned {found} in rank {rank}. Expected: {expected}"
                )

    def test_a_barrier_waits_for_all(self, runs: Runs) -> None:
        """No process leaves ``barrier`` before all have reached it."""
        times = runs.full_run.values("barrier")
        last = max(before for before, _ in times)
        for rank, (_, after) in enumerate(times):
            assert after >= last, (
                f"rank {rank} leaves the barrier {last - after:.2f} s before the last process reaches it"
            )

    def test_the_main_process_goes_first(self, runs: Runs) -> None:
        """No process enters ``main_process_first`` before the main process has left it."""
        (_, left), *others = runs.full_run.values("main process first")
        for rank, (entered, _) in enumerate(others, start=1):
            assert entered >= left, f"rank {rank} enters {left - entered:.2f} s before the main process has left"

    # -- life ----------------------------------------------------------------------------------------------------

    def test_the_process_group_is_there(self, runs: Runs) -> None:
        """If the strategy declares that it uses a process group, there is one, with the backend that the Plan names."""
        for who in runs.full_run.values("who"):
            assert who["is_initialized"] or not who["uses_process_group"], (
                f"uses_process_group is True, but rank {who['rank']} has no process group during the run"
            )
            planned = who["planned_backend"]
            if planned is not None and who["is_initialized"]:
                pairs = planned if ":" in planned else f"{who['device'].partition(':')[0]}:{planned}"
                live = who["live_backends"]
                assert set(pairs.split(",")) <= set(live.split(",")), (
                    f"the Plan names the process group backend {planned!r}, but rank {who['rank']} has {live!r}"
                )

    @pytest.mark.parametrize("when", ["after teardown", "after all"])
    def test_the_process_group_is_gone(self, runs: Runs, when: str) -> None:
        """After teardown the process group is destroyed, and torch's settings are as before."""
        expected = {"process group": False, "default dtype": "torch.float32", "gradients": True}
        for rank, observed in enumerate(runs.full_run.values(when)):
            found = {name: observed[name] for name in expected}
            assert found == expected, f"{when}, rank {rank} has {found}. Expected: {expected}"

    @pytest.mark.parametrize("when", ["after teardown", "after all"])
    def test_no_thread_is_left(self, runs: Runs, when: str) -> None:
        """After teardown no thread that the run started is alive."""
        for rank, found in enumerate(runs.full_run.values(when)):
            assert not found["threads"], f"{when}, rank {rank} has the threads {found['threads']}. Expected: none"

    def test_teardown_can_be_called_twice(self, runs: Runs) -> None:
        """A second ``teardown`` changes nothing."""
        runs.full_run.values("after another teardown")

    def test_processes_exit_cleanly(self, runs: Runs) -> None:
        """At the end each process exits with code 0, and none is left."""
        outcome = runs.full_run
        assert outcome.code == 0, f"{outcome.end}. Expected: exit code 0\n{outcome.output[-4000:]}"
        assert not outcome.left, f"still running: {outcome.left}. Expected: no process of the run"


def _check_close(what: str, found: list[float], expected: list[float], dtype: str) -> None:
    tolerance = _TOLERANCES.get(dtype, 0.0 if not what.startswith("reduce(..., 'mean')") else 1e-6)
    close = len(found) == len(expected) and all(
        math.isclose(value, other, rel_tol=tolerance, abs_tol=tolerance)
        for value, other in zip(found, expected, strict=True)
    )
    assert close, f"{what} gives {found}. Expected: {expected}, to {tolerance:g}"


def _check_difference_refused(runs: Runs, collective: str, difference: str) -> None:
    if runs.world_size == 1:
        skip_by_declaration("there is only one process")
    for rank, found in enumerate(runs.full_run.observed(f"{collective} {difference}")):
        what = f"{collective} of tensors whose {difference} differ, in rank {rank},"
        _check_refused(what, found, "ConfigurationError")


def _check_refused(what: str, found: Observed, kind: str) -> None:
    assert found.raised, f"{what} gives {found.value}. Expected: core.errors.{kind}"
    assert kind in found.kinds, f"{what} raises {found.raised}. Expected: core.errors.{kind}"
