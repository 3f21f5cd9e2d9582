"""Collectives and process control on three processes, each against its formula."""

import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # load_state_dict imports it: once here, rather than in each process
from torch import nn

from core import Runtime
from core.errors import ConfigurationError, LaunchError, WrongTypeError
from core.strategies import DDPStrategy, ParallelStrategy


def own(rank: int, *given: Any) -> Any:
    return given[rank]


def check_agreement(runtime: Runtime, rank: int) -> None:
    """What differs is refused in every process, in gather as in reduce, and names the ranks and the place."""
    f32, i32 = torch.ones(1), torch.ones(1, dtype=torch.int32)
    cases = [
        (own(rank, f32, i32, f32), r"at tensor: ranks 0, 2: \(1,\) float32; rank 1: \(1,\) int32"),
        (torch.ones(2 + (rank == 2)), r"at tensor: ranks 0, 1: \(2,\) float32; rank 2: \(3,\) float32"),
        ({"a": f32, "b": [torch.ones(rank)]}, r"at tensor\['b'\]\[0\]: rank 0: \(0,\).*; rank 1: \(1,\).*; rank 2"),
        (own(rank, [f32], [f32], [f32, f32]), r"ranks 0, 1: nothing more; rank 2: tensor\[1\] \(1,\) float32"),
        (own(rank, {"a": f32}, {"b": f32}, {"a": f32}), r"ranks 0, 2: tensor\['a'\].*; rank 1: tensor\['b'\]"),
        (own(rank, f32, "text", f32), r"ranks 0, 2: \(1,\) float32; rank 1: str"),
    ]
    for data, facts in cases:
        for method in (runtime.gather, runtime.reduce):
            with pytest.raises(ConfigurationError, match=facts):
                method(data)
    for data, facts in cases[:5]:
        with pytest.raises(ConfigurationError, match=facts.replace("tensor", "input_data")):
            runtime.gather_for_metrics(data)
    for data in (own(rank, f32, i32, f32), own(rank, f32, torch.ones(1, 1), f32)):
        with pytest.raises(ConfigurationError, match=r"ranks 0, 2: \(\*,\) float32; rank 1: \("):
            runtime.pad_across_processes(data)
    with pytest.raises(WrongTypeError, match=r"must be a list.*ranks 0, 2: an object of type Tensor; rank 1"):
        runtime.gather_for_metrics(own(rank, f32, "text", f32))
    for refused in ("text", {"a": [f32, "text"]}, f32.to_sparse()):
        for name in ("gather", "reduce", "pad_across_processes"):
            with pytest.raises(WrongTypeError, match=name):
                getattr(runtime, name)(refused)
    with pytest.raises(ConfigurationError, match=r"rank 0: reduce\('sum'\) .*; ranks 1, 2: reduce\('bogus'\)"):
        runtime.reduce(f32, own(rank, "sum", "bogus", "bogus"))
    for data in (own(rank, f32, i32, f32), torch.ones(2 + (rank == 2))):
        for method in (runtime.strategy.reduce, runtime.strategy.all_gather):
            with pytest.raises(ConfigurationError, match=r"shapes or dtypes differ between processes: ranks? 0"):
                method(data)


def check_different_calls(runtime: Runtime, rank: int) -> None:
    """Any two different methods are refused in every process, with the lines, and the processes can go on."""

    def first() -> None:
        with runtime.main_process_first():
            pass

    one = torch.ones(1)
    calls: dict[str, Callable[[], Any]] = {
        "wait_for_everyone": runtime.wait_for_everyone,
        "barrier": runtime.barrier,
        "gather": lambda: runtime.gather(one),
        "gather_object": lambda: runtime.gather_object([1]),
        "gather_for_metrics": lambda: runtime.gather_for_metrics([1]),
        "reduce('sum')": lambda: runtime.reduce(1.0),
        "broadcast(from_process=0)": lambda: runtime.broadcast(one),
        "broadcast(from_process=2)": lambda: runtime.broadcast_object_list([1], from_process=2),
        "pad_across_processes(dim=0)": lambda: runtime.pad_across_processes(one),
        "check_trigger": runtime.check_trigger,
        "prepare": lambda: runtime.prepare(nn.Linear(1, 1)),
        "load_state": lambda: runtime.load_state("nowhere"),
        "main_process_first": first,
        "strategy.reduce('mean')": lambda: runtime.strategy.reduce(one),
        "strategy.all_gather": lambda: runtime.strategy.all_gather(one),
    }
    names = list(calls)
    for number, name in enumerate(names):
        other = names[number - 1 - number % 3]
        told = (
            rf"different collectives: ranks 0, 2: {re.escape(name)} \(.*:\d+\); rank 1: {re.escape(other)} \(.*:\d+\)\."
        )
        with pytest.raises(ConfigurationError, match=told):
            calls[other if rank == 1 else name]()
    assert runtime.gather_object([rank]) == [0, 1, 2]


def check_values(runtime: Runtime, rank: int) -> None:
    reduced = runtime.reduce({"t": torch.tensor([rank, 1.0]), "n": rank + 1, "f": [rank / 2, None]}, "mean")
    assert reduced["t"].tolist() == [1.0, 1.0]
    assert (reduced["n"], reduced["f"]) == (2.0, [0.5, None])
    for reduction, value in {"sum": 6, "min": 1, "max": 3, "product": 6}.items():
        assert runtime.reduce(rank + 1, reduction) == value
        assert type(runtime.reduce(rank + 1, reduction)) is int
    assert runtime.reduce(2**70 + rank, "max") == 2**70 + 2, "numbers of any size"
    assert runtime.reduce(torch.tensor(1.0)).item() == 3, "a sum, as in Accelerate"
    assert runtime.reduce((torch.tensor(1.0), 2), "sum", scale=0.5) == (torch.tensor(1.5), 3.0)

    for dtype in (torch.int16, torch.uint16, torch.uint32):  # gloo sends none of them
        own_numbers = torch.tensor([300 * rank, 1], dtype=dtype)
        gathered = runtime.gather(own_numbers)
        assert (gathered.dtype, gathered.tolist()) == (dtype, [0, 1, 300, 1, 600, 1])
        summed = runtime.reduce(own_numbers, "sum")
        assert (summed.dtype, summed.tolist()) == (dtype, [900, 3])
        assert runtime.reduce(own_numbers, "mean").tolist() == [300.0, 1.0]
        assert runtime.broadcast({"t": own_numbers}, from_process=2)["t"].tolist() == [600, 1]
        strided = own_numbers[::2]  # torch calls one element contiguous whatever its stride
        assert runtime.gather(strided).tolist() == [0, 300, 600]
        assert runtime.reduce(strided, "sum").tolist() == [900]
        assert isinstance(runtime.strategy, ParallelStrategy)
        runtime.strategy.broadcast_tensor(strided, 1)
        assert own_numbers.tolist() == [300, 1]

    # torch conjugates and negates such views only when they are read.
    lazy = torch.tensor([rank + 1j]).conj()
    assert runtime.gather(lazy).tolist() == [-1j, 1 - 1j, 2 - 1j]
    assert runtime.gather(lazy.imag).tolist() == [-1.0] * 3
    assert runtime.reduce(lazy, "mean").item() == 1 - 1j

    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):  # torch computes nothing in them
        own_numbers = torch.tensor([2.0 * rank, 1.0]).to(dtype)
        for reduction, values in {"mean": [2.0, 1.0], "sum": [6.0, 3.0], "max": [4.0, 1.0]}.items():
            reduced = runtime.reduce(own_numbers, reduction)
            assert (reduced.dtype, reduced.float().tolist()) == (dtype, values)
        objects = [item["t"].float().tolist() for item in runtime.gather_object([{"t": own_numbers}])]
        assert objects == [[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]]
        assert runtime.strategy.broadcast([own_numbers], 1)[0].float().tolist() == [2.0, 1.0]
        assert runtime.strategy.all_gather_object(own_numbers)[2].dtype is dtype
    hits = torch.tensor([rank != 1, rank == 2, True])
    counted = {"sum": [2, 1, 3], "product": [0, 0, 1], "max": [True] * 3, "min": [False, False, True]}
    for reduction, result in counted.items():
        reduced = runtime.reduce(hits, reduction)
        assert (reduced.dtype, reduced.tolist()) == (torch.bool if reduction[0] == "m" else torch.int64, result)
    with pytest.raises(ConfigurationError, match=r"torch.uint64, in which torch does not compute. Convert it"):
        runtime.reduce(torch.tensor(1, dtype=torch.uint64), "sum")
    with pytest.raises(ConfigurationError, match=r"torch.complex64, which supports only the mean and the sum"):
        runtime.reduce(torch.tensor(1j), "max")

    assert runtime.gather_object([rank] * rank) == [1, 2, 2]
    assert runtime.gather_object(("t", torch.tensor(rank)))[1::2] == [torch.tensor(i) for i in range(3)]
    with pytest.raises(WrongTypeError, match="ranks 0, 2: a list; rank 1: an object of type int"):
        runtime.gather_object([1] if rank != 1 else 1)
    with pytest.raises(ConfigurationError, match="rank 1 gave an object that cannot be pickled"):
        runtime.gather_object([(lambda: 0) if rank == 1 else 0])
    with pytest.raises(ConfigurationError, match="rank 2 gave an object that cannot be pickled"):
        runtime.broadcast((lambda: 0) if rank == 2 else None, from_process=2)

    assert runtime.broadcast({"r": rank, "t": torch.tensor([rank])}, from_process=2) == {"r": 2, "t": torch.tensor([2])}
    mine = [rank, "x"] if rank == 1 else [None] * rank
    assert runtime.broadcast_object_list(mine, from_process=1) is mine
    assert mine == [1, "x"]
    with pytest.raises(WrongTypeError, match=r"object_list.* must be a list"):
        runtime.broadcast_object_list((1,))  # type: ignore[type-var]

    tensor = torch.full((rank + 1, 2), float(rank))
    padded = runtime.pad_across_processes({"a": tensor, "scalar": torch.tensor(1), "b": tensor.T}, pad_index=-1)
    assert padded["a"].tolist() == [[rank] * 2] * (rank + 1) + [[-1.0] * 2] * (2 - rank)
    assert padded["scalar"].item() == 1
    first = runtime.pad_across_processes(tensor.T, dim=-1, pad_first=True)
    assert first.tolist() == [[0.0] * (2 - rank) + [float(rank)] * (rank + 1)] * 2
    assert runtime.gather(runtime.pad_across_processes(tensor)).shape == (9, 2)


def check_splitting(runtime: Runtime, rank: int) -> None:
    for size in range(8):
        inputs = list(range(size))
        for given in (inputs, tuple(inputs), torch.tensor(inputs), {"a": inputs, "b": torch.tensor(inputs)}):
            with runtime.split_between_processes(given) as part:
                assert type(part) is type(given)
                part = part["a"] if isinstance(part, dict) else list(part)
                assert runtime.gather_object([int(item) for item in part]) == inputs
            with runtime.split_between_processes(given, apply_padding=True) as part:
                part = part["b"] if isinstance(part, dict) else part
                assert runtime.gather(torch.as_tensor(part, dtype=torch.int64))[:size].tolist() == inputs
        assert inputs == list(range(size)), "the input is left as it was"
    with runtime.split_between_processes(["A", "B", "C", "D"]) as part:
        assert part == own(rank, ["A", "B"], ["C"], ["D"])


def check_processes(runtime: Runtime, rank: int, out: Path) -> None:
    for index, only in {
        0: runtime.on_main_process,
        2: runtime.on_last_process,
        1: runtime.on_process(process_index=1),
    }.items():
        assert only(lambda value: value)("ran") == ("ran" if rank == index else None)
    assert runtime.on_local_process(local_process_index=2)(lambda: "ran")() == ("ran" if rank == 2 else None)
    assert runtime.on_local_main_process()(lambda: "ran")() == ("ran" if rank == 0 else None)
    assert runtime.is_last_process == (rank == 2)
    with pytest.raises(ConfigurationError, match="process_index=3: must be the number of a process, 0 to 2"):
        runtime.on_process(process_index=3)(lambda: None)()
    assert (runtime.distributed_type, runtime.use_distributed, runtime.mixed_precision) == ("MULTI_CPU", True, "no")
    assert repr(runtime.state).startswith("Distributed environment: MULTI_CPU  Backend: gloo\nNum processes: 3\n")

    assert not runtime.check_trigger()
    if rank == 1:
        runtime.set_trigger()
    assert runtime.check_trigger()
    assert not runtime.check_trigger()

    for number, first in enumerate((runtime.main_process_first, runtime.local_main_process_first)):
        path = out / f"first{number}"
        with first():
            if rank == 0:
                time.sleep(0.2)
                path.write_text("done")
            assert path.read_text() == "done"
        with pytest.raises((OSError, LaunchError, LaunchError)[rank], match="no network"), first():
            fail(rank)
    runtime.wait_for_everyone()


def fail(rank: int) -> None:
    assert rank == 0
    raise OSError("no network")


def one_of_two_lines(runtime: Runtime, rank: int) -> None:
    if rank == 1:
        runtime.gather(torch.ones(1))
    else:
        runtime.gather(torch.ones(1))


def check_debug(runtime: Runtime, rank: int) -> None:
    """The switch names the rank at another line, and the rank that gives another shape, before the collective."""
    assert runtime.debug
    assert runtime.gather(torch.ones(1)).shape == (3,)
    with pytest.raises(ConfigurationError, match=r"gather: called from different lines.*ranks? .*three.py:\d+; rank"):
        one_of_two_lines(runtime, rank)
    with pytest.raises(
        ConfigurationError, match=r"different collectives: ranks 0, 2: wait_for_everyone \(.*; rank 1: gather_object \("
    ):
        runtime.gather_object([]) if rank == 1 else runtime.wait_for_everyone()
    with pytest.raises(ConfigurationError, match=r"ranks 0, 1: \(1,\) float32; rank 2: \(2,\) float32"):
        runtime.gather(torch.ones(1 + (rank == 2)))
    with pytest.raises(ConfigurationError, match=r"broadcast.*from_process=1"):
        runtime.broadcast(rank, from_process=int(rank == 1))
    with runtime.main_process_first():
        pass
    assert not runtime.check_trigger()
    assert runtime.broadcast(rank) == 0
    if rank == 1:  # goes on without the others' collective
        time.sleep(4)
    else:
        with pytest.raises(
            LaunchError, match=r"in gather at .*three.py:\d+ .*rank\(s\) 1 did not call a collective .* within 0:00:03"
        ):
            runtime.gather(torch.ones(1))


class TwoMachines(DDPStrategy):
    """Ranks 0 and 1 are on one machine, rank 2 on another."""

    @property
    def node_rank(self) -> int:
        return self.global_rank // 2

    @property
    def local_rank(self) -> int:
        return self.global_rank % 2


def check_machines(runtime: Runtime, rank: int) -> None:
    """The first of each machine goes first; where one fails, only its machine is told."""
    assert runtime.is_local_main_process == (rank != 1)
    with pytest.raises((OSError, LaunchError, KeyError)[rank], match=("disk", "rank 0, .* disk", "alone")[rank]):
        fail_on_machines(runtime, rank)
    with pytest.raises(KeyError, match="alone") if rank == 2 else nullcontext(), runtime.local_main_process_first():
        if rank == 2:
            raise KeyError("alone")


def fail_on_machines(runtime: Runtime, rank: int) -> None:
    with runtime.local_main_process_first():
        raise OSError("disk") if rank == 0 else KeyError("alone")


class Objects(TwoMachines):
    """An engine that can broadcast objects only."""

    broadcast = ParallelStrategy.broadcast
    broadcast_tensor = ParallelStrategy.broadcast_tensor


def trained(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A module with parameters and buffers of several kinds, after as many steps of Adam as the seed says."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten())
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    module.register_buffer("none", torch.empty(0))
    module.register_buffer("short", torch.tensor(seed, dtype=torch.int16))
    module.register_parameter("unused", nn.Parameter(torch.randn(3).bfloat16()))
    optimizer = torch.optim.Adam(module.parameters(), lr=seed + 1)
    for _ in range(seed):
        module(torch.randn(2, 2, 3, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return module, optimizer


def check_same_start(runtime: Runtime, rank: int) -> None:
    """A module and its optimizer are broadcast from any rank, whether or not the others' optimizer has a state."""
    strategy = runtime.strategy
    assert isinstance(strategy, ParallelStrategy)
    for src in range(3):
        module, optimizer = trained(rank)
        strategy.broadcast_module(module, src)
        strategy.broadcast_optimizer(optimizer, src)
        expected, expected_optimizer = trained(src)
        torch.testing.assert_close(module.state_dict(), expected.state_dict(), rtol=0, atol=0)
        assert module.get_parameter("0.weight").is_contiguous(memory_format=torch.channels_last)
        state, wanted = optimizer.state_dict(), expected_optimizer.state_dict()
        torch.testing.assert_close(state["state"], wanted["state"], rtol=0, atol=0)
        assert state["param_groups"] == wanted["param_groups"]
        assert all(p is q for p, q in zip(module.parameters(), optimizer.param_groups[0]["params"], strict=True))


def check_dtypes_that_ddp_cannot_send(runtime: Runtime) -> None:
    """Refused by name, unless DistributedDataParallel does not send them."""
    for kind in ("buffers", "parameters"):
        module = nn.Linear(1, 1)
        if kind == "buffers":
            module.register_buffer("table", torch.zeros(2, dtype=torch.int16))
        else:
            module.table = nn.Parameter(torch.zeros(2, dtype=torch.int16), requires_grad=False)
        told = f"strategy='ddp_fork': the {kind} 'table' have dtype torch.int16, which .* 'gloo' cannot send"
        with pytest.raises(ConfigurationError, match=told):
            runtime.prepare(module)
        module._ddp_params_and_buffers_to_ignore = ["table"]  # type: ignore[assignment]
        runtime.prepare(module)(torch.zeros(1, 1)).sum().backward()


def check(runtime: Runtime, out: str) -> None:
    rank = runtime.process_index
    assert not runtime.debug
    check_agreement(runtime, rank)
    check_different_calls(runtime, rank)
    check_values(runtime, rank)
    check_splitting(runtime, rank)
    check_processes(runtime, rank, Path(out))
    check_same_start(runtime, rank)
    check_dtypes_that_ddp_cannot_send(runtime)
    runtime.print("through")


def check_on_machines(runtime: Runtime) -> None:
    check_machines(runtime, runtime.process_index)
    check_same_start(runtime, runtime.process_index)
    check_debug(runtime, runtime.process_index)


if __name__ == "__main__":
    Runtime(accelerator="cpu", strategy="ddp_fork", devices=3).launch(check, ".")
    short = Objects(start_method="fork", timeout=timedelta(seconds=3))
    Runtime(accelerator="cpu", strategy=short, devices=3, debug=True).launch(check_on_machines)
