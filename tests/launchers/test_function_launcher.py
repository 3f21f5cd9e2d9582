"""A function called in separate processes, spawned and forked."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from marked_runs import running
from torch.utils.data import DataLoader, TensorDataset

from core.errors import LaunchError
from core.strategies.launchers import FunctionLauncher
from core.strategies.launchers.exit_codes import EndedBySignal
from core.strategies.process_group import join
from core.strategies.store.tcp_store import connect_store, host_store

pytestmark = pytest.mark.usefixtures("started_not_forked")

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")

StartMethod = Literal["spawn", "fork"]


def launch(function: Any, *args: Any, start_method: StartMethod = "fork", processes: int = 2, **options: Any) -> Any:
    store = host_store("127.0.0.1")
    launcher = FunctionLauncher(
        processes,
        lambda rank: {"RANK": str(rank), "WORLD_SIZE": str(processes), "MASTER_PORT": str(store.port)},
        strategy="ddp",
        start_method=start_method,
        **options,
    )
    return launcher.launch(function, *args)


def join_group(environ: dict[str, str]) -> Any:
    store = connect_store("127.0.0.1", int(environ["MASTER_PORT"]))
    return join(store, backend="gloo", rank=int(environ["RANK"]), world_size=int(environ["WORLD_SIZE"]))


def children_of(process: int) -> int:
    """How many children a process has, whichever of its threads started them."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            count += path.read_text().rpartition(")")[2].split()[1] == str(process)
    return count


def count_siblings(environ: dict[str, str]) -> int:
    """How many children the parent has when rank 0 begins; the others stay for a second."""
    if environ["RANK"] != "0":
        time.sleep(1)
    return children_of(os.getppid())


@needs_proc
def test_no_process_begins_before_all_are_forked() -> None:
    """A process that connects to the parent's store makes a thread there hold locks, which a later fork would keep."""
    others = children_of(os.getpid())
    assert launch(count_siblings, processes=6) == others + 6


def change_and_reduce(environ: dict[str, str], module: torch.nn.Linear, view: torch.Tensor) -> Any:
    group = join_group(environ)
    rank = int(environ["RANK"])
    with torch.no_grad():
        module.weight.fill_(rank + 1.0)
    own = module.weight.detach().clone()
    total = own.clone()
    dist.all_reduce(total)
    view += 1
    group.leave()
    # What is returned must not be rank 1's, and a view still shares memory with its base after pickling.
    base = torch.zeros(4)
    return {"rank": rank, "own": own, "total": total, "view": view, "environ": environ, "shared": (base, base[1:3])}


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_rank_0s_result_comes_back(start_method: StartMethod) -> None:
    """Every rank works on its own copy of the tensors; the caller's are unchanged; what shares memory still does."""
    module, view = torch.nn.Linear(2, 2), torch.zeros(4)
    before = module.weight.clone()
    result = launch(change_and_reduce, module, view[1:3], start_method=start_method)
    assert result["rank"] == 0
    assert torch.equal(result["own"], torch.ones(2, 2))
    assert torch.equal(result["total"], torch.full((2, 2), 3.0))
    assert torch.equal(result["view"], torch.ones(2))
    assert torch.equal(view, torch.zeros(4))
    assert torch.equal(module.weight, before)
    assert result["environ"]["WORLD_SIZE"] == "2"
    assert result["environ"]["PATH"] == os.environ["PATH"]
    assert "WORLD_SIZE" not in os.environ or os.environ["WORLD_SIZE"] != "2"
    base, part = result["shared"]
    part += 1
    assert base.tolist() == [0.0, 1.0, 1.0, 0.0]


def use_all_threads(environ: dict[str, str], matrix: torch.Tensor) -> int:
    matrix.requires_grad_()
    torch.autograd.backward((matrix @ matrix).exp().sum())
    torch.nn.functional.conv2d(torch.randn(4, 16, 64, 64), torch.randn(32, 16, 3, 3))
    return torch.get_num_threads()


@pytest.mark.slow
def test_forked_workers_compute_with_threads_after_their_parent_has() -> None:
    """A pool of OpenMP threads in the parent, which does not survive the fork, does not make a worker wait for ever."""
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        matrix = torch.randn(600, 600)
        use_all_threads({}, matrix.clone())
        assert launch(use_all_threads, matrix) == 4
    finally:
        torch.set_num_threads(threads)


def collect(environ: dict[str, str]) -> bool:
    for _ in range(8):  # one of them takes the place in memory of the thread that is not here
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    gc.collect()
    return True


@pytest.mark.slow
def test_forked_workers_leave_their_parents_objects_alone() -> None:
    """To collect a store that the parent serves with a thread would be to wait for a thread that is not there."""
    gc.disable()
    try:
        cycle: list[Any] = [host_store("127.0.0.1")]
        cycle.append(cycle)
        del cycle
        assert launch(collect)
    finally:
        gc.enable()


def load(environ: dict[str, str]) -> list[float]:
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=2)
    return [batch.sum().item() for (batch,) in loader]


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_workers_may_have_data_loader_workers(start_method: StartMethod) -> None:
    """Daemonic processes could not start any."""
    assert launch(load, start_method=start_method, processes=1) == [1.0, 5.0, 9.0, 13.0]


def raise_in_rank_1(environ: dict[str, str]) -> None:
    group = join_group(environ)
    try:
        if environ["RANK"] == "1":
            raise KeyError("the 7th batch")
        dist.all_reduce(torch.ones(1))
    except BaseException:
        group.leave(failed=True)
        if environ["RANK"] == "1":
            time.sleep(0.3)  # tidying up, while rank 0 has failed for want of rank 1 and is through
        raise


@pytest.mark.slow
def test_the_first_failure_is_the_one_that_is_raised() -> None:
    """Rank 0 fails in a collective because rank 1 is gone: the error is rank 1's, with its traceback."""
    start = time.monotonic()
    with pytest.raises(LaunchError, match=r"rank 1 failed: KeyError: 'the 7th batch'") as raised:
        launch(raise_in_rank_1)
    assert time.monotonic() - start < 20
    assert isinstance(raised.value.__cause__, KeyError)
    assert "in raise_in_rank_1" in str(raised.value)
    assert re.search(r"rank 1 failed: KeyError.*\n  at \S*test_function_launcher.py:\d+ in \w+$", str(raised.value))
    assert "rank 0" not in str(raised.value)


def end_in_rank_1(environ: dict[str, str], how: str) -> None:
    group = join_group(environ)
    if environ["RANK"] == "1":
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(3)
    dist.all_reduce(torch.ones(1))
    group.leave()


@pytest.mark.parametrize(("how", "says"), [("killed", "was killed by SIGKILL"), ("exits", "exited with code 3")])
def test_a_worker_that_dies_is_named(how: str, says: str) -> None:
    """Rank 0's error from the collective is not taken for the cause."""
    with pytest.raises(LaunchError, match=rf"rank 1 \(process \d+\) {says}"):
        launch(end_in_rank_1, how)


def signal_the_launcher(environ: dict[str, str], name: str, handles: bool) -> None:
    number = signal.Signals[name]
    if handles:
        join_group(environ).leave()  # as Ctrl-C while another process starts ends the run in another way
    if environ["RANK"] == "0":
        if handles:
            signal.signal(number, fail_to_save)
        while not handled_by(os.getppid()) >> (signal.SIGUSR2 - 1) & 1:
            time.sleep(0.01)  # the launcher does not supervise its workers yet
        os.kill(os.getppid(), number)
    time.sleep(60)


def handled_by(process: int) -> int:
    """The signals that a process has handlers for, as the system's mask."""
    lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(lines["SigCgt"], 16)


def fail_to_save(number: int, frame: Any) -> None:
    raise OSError("No space left on device")


@needs_proc
@pytest.mark.parametrize(
    ("name", "start_method"),
    [
        ("SIGTERM", "fork"),
        pytest.param("SIGTERM", "spawn", marks=pytest.mark.slow),
        pytest.param("SIGUSR1", "fork", marks=pytest.mark.slow),
    ],
)
def test_a_signal_that_no_worker_handles_yet(name: str, start_method: StartMethod, capfd: Any) -> None:
    """As while they import: one line, and the exit code of a process that it ended; no traceback of the launcher."""
    with pytest.raises(SystemExit) as ended:
        launch(signal_the_launcher, name, False, start_method=start_method)
    assert ended.value.code == 128 + signal.Signals[name]
    assert capfd.readouterr().err == f"The run was ended by {name}, which rank 0 did not handle.\n"


@needs_proc
def test_an_interrupt_that_no_worker_handles() -> None:
    """It is raised here, as if this process did the work."""
    with pytest.raises(KeyboardInterrupt):
        launch(signal_the_launcher, "SIGINT", False)


@needs_proc
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_failure_after_a_signal_is_shown(name: str) -> None:
    """What goes wrong in a worker that acts on a signal is not hidden behind it."""
    with pytest.raises(LaunchError, match="rank 0 failed: OSError: No space left on device"):
        launch(signal_the_launcher, name, True)


def end_by_signal_one_after_another(environ: dict[str, str], marker: Path) -> None:
    group = join_group(environ)
    group.leave()
    if environ["RANK"] == "0":
        time.sleep(1.5)  # longer than the processes of a failed one are left alone
        marker.touch()
    raise EndedBySignal(143)


def test_the_last_that_ends_because_of_a_signal_has_time(tmp_path: Path) -> None:
    """Its checkpoint may be the one that takes long; and the code is the signal's, however late it comes."""
    with pytest.raises(EndedBySignal) as ended:
        launch(end_by_signal_one_after_another, tmp_path / "saved")
    assert ended.value.code == 143
    assert (tmp_path / "saved").exists()


def test_one_that_stays_when_the_others_have_ended_because_of_a_signal(tmp_path: Path) -> None:
    """It is named, not the first that has ended as agreed."""
    with pytest.raises(LaunchError, match=r"rank\(s\) \[0\] did not exit within 0.2 s .* because of a signal"):
        launch(end_by_signal_one_after_another, tmp_path / "saved", exit_timeout=0.2)


def ignore_the_end(environ: dict[str, str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)
    if environ["RANK"] == "1":
        time.sleep(0.5)
        raise ValueError("enough")
    while True:
        time.sleep(1)


@pytest.mark.slow
def test_a_worker_that_does_not_end_is_killed() -> None:
    """A handler that only sets a flag does not keep the others alive for ever."""
    start = time.monotonic()
    with pytest.raises(LaunchError, match="rank 1 failed: ValueError: enough"):
        launch(ignore_the_end, grace=0.5)
    assert time.monotonic() - start < 15


class PickyError(Exception):
    """Cannot be unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raise_picky(environ: dict[str, str]) -> None:
    raise PickyError(1, 2)


@pytest.mark.slow
def test_an_exception_that_cannot_be_pickled_is_shown() -> None:
    """Its text and traceback come through without it."""
    with pytest.raises(LaunchError, match=r"in raise_picky[\s\S]*rank 0 failed: PickyError: 1 and 2") as raised:
        launch(raise_picky, processes=1)
    assert raised.value.__cause__ is None


def return_a_lock(environ: dict[str, str]) -> Any:
    return {"model": threading.Lock()}


@pytest.mark.slow
def test_a_result_that_cannot_be_pickled_is_named() -> None:
    """The error says where in the result it is."""
    with pytest.raises(LaunchError, match=r"result\['model'\], which rank 0 returned, cannot be pickled: a lock"):
        launch(return_a_lock, processes=1)


class Module:
    def __init__(self, criterion: Any) -> None:
        self.criterion = criterion


def train(environ: dict[str, str], module: Module, *, epochs: int = 1) -> None:
    del environ, module, epochs


def test_an_argument_that_cannot_be_pickled_is_named() -> None:
    """Under spawn the error gives the attribute path, by the argument's own name, and what serves instead."""
    with pytest.raises(LaunchError, match=r"module\.criterion cannot be pickled: a lambda.*'ddp_notebook'"):
        launch(train, Module(lambda x: x), start_method="spawn")
    assert launch(train, Module(lambda x: x), start_method="fork") is None


def test_spawning_what_a_notebook_defines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spawned process could not import it."""
    notebook = ModuleType("__main__")
    exec("def cell(environ): pass", notebook.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    with pytest.raises(LaunchError, match="ddp_notebook"):
        launch(notebook.cell, start_method="spawn")


def test_a_fork_that_is_unsafe_is_refused() -> None:
    """The reason is the message."""
    with pytest.raises(LaunchError, match=r"cannot fork this process: the hardware is in use.*'spawn'"):
        launch(load, fork_unsafe_reason="the hardware is in use")


def test_an_unknown_start_method_is_refused() -> None:
    """The message names the valid ones."""
    with pytest.raises(LaunchError, match=r"start_method='thread'.*'fork'.*'spawn'|start_method='thread'.*'spawn'"):
        FunctionLauncher(1, lambda rank: {}, strategy="ddp", start_method="thread")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_workers_do_not_outlive_the_process_that_launched_them(start_method: StartMethod) -> None:
    """KILL of it: all are gone within seconds."""
    with running("ranks.py", start_method) as run:
        run.until_ready()
        os.kill(run.process.pid, signal.SIGKILL)
        assert run.end(15) == -signal.SIGKILL
        assert run.gone_within(10)
