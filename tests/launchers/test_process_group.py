"""Joining and leaving a process group."""

from __future__ import annotations

import io
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from python_processes import run_python
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

from core.environments.local import LocalEnvironment
from core.errors import BackendError, ConfigurationError, LaunchError, WrongTypeError
from core.strategies import DDPStrategy, time_limits
from core.strategies.ddp import release_from_group
from core.strategies.launchers import FunctionLauncher
from core.strategies.process_group import JoinedGroup, adopt, join
from core.strategies.store.tcp_store import RunStore, another_connection, connect_store, host_store

LOOPBACK = "127.0.0.1"


def gloo_threads() -> int:
    count = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended since it was listed
            count += "gloo" in (task / "comm").read_text()
    return count


def launch(function: Any, **options: Any) -> Any:
    store = host_store(LOOPBACK)
    environ = {"WORLD_SIZE": "2", "MASTER_PORT": str(store.port)}
    launcher = FunctionLauncher(
        2, lambda rank: {"RANK": str(rank), **environ}, strategy="ddp", start_method="fork", **options
    )
    return launcher.launch(function)


def join_as(environ: dict[str, str], **options: Any) -> JoinedGroup:
    store = connect_store(LOOPBACK, int(environ["MASTER_PORT"]))
    return join(store, backend="gloo", rank=int(environ["RANK"]), world_size=2, **options)


def train_and_leave(environ: dict[str, str]) -> int:
    group = join_as(environ)
    model = DistributedDataParallel(torch.nn.BatchNorm1d(4))
    group.release_at_leave(partial(release_from_group, model))
    model(torch.randn(8, 4)).square().sum().backward()
    dist.all_gather([torch.zeros(1), torch.zeros(1)], torch.ones(1))
    subgroup = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=subgroup)
    del subgroup
    assert gloo_threads() > 0
    group.leave()
    group.leave()
    assert not dist.is_initialized()
    with torch.no_grad():  # the wrapped module still evaluates
        assert torch.isfinite(model(torch.randn(8, 4))).all()
    assert set(model.module.state_dict()) == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    return gloo_threads()


def join_three_times(environ: dict[str, str]) -> str:
    for _ in range(3):
        join_as(environ).leave()
    shown = io.StringIO()
    with redirect_stderr(shown):
        sys.excepthook(ValueError, ValueError("planted"), None)
    return shown.getvalue()


def test_an_error_names_its_rank_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many runs came before: torch puts the rank before each line of a traceback, once for each group."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)  # without those of groups that other tests have made
    assert launch(join_three_times) == "[rank0]: ValueError: planted\n"


SEVERAL_RUNS = """
from core import Runtime

for _ in range(3):
    runtime = Runtime(accelerator="cpu", devices=2)
    runtime.barrier()
    if _ < 2:
        runtime.teardown()
if runtime.is_main_process:
    raise ValueError("planted")
runtime.barrier()
"""


@pytest.mark.slow
def test_an_error_of_a_later_run_of_a_script_names_its_rank_once(tmp_path: Path) -> None:
    """Also where each run watches how its process ends."""
    (tmp_path / "train.py").write_text(SEVERAL_RUNS, "utf-8")
    ended = run_python("train.py", cwd=tmp_path, expect=1)
    assert "[rank0]: ValueError: planted" in ended.stderr.splitlines()
    assert "[rank0]: [rank0]" not in ended.stderr


@pytest.mark.slow
def test_leaving_ends_the_groups_threads() -> None:
    """No thread of the group is left to touch a Python object while the interpreter exits, which would abort it.

    Not even with a wrapped module that the user holds on to.
    """
    assert launch(train_and_leave) == 0


def leave_late(environ: dict[str, str]) -> None:
    group = join_as(environ)
    dist.all_reduce(torch.ones(1))
    if environ["RANK"] == "0":
        time.sleep(1.5)
    start = time.monotonic()
    group.leave()
    waited = time.monotonic() - start
    assert environ["RANK"] == "0" or waited > 1, waited


@pytest.mark.slow
def test_no_process_leaves_before_all_are_ready() -> None:
    """Rank 1 keeps its connections open while rank 0 still has something to do."""
    launch(leave_late)


def leave_with_work_under_way(environ: dict[str, str]) -> float:
    group = join_as(environ)
    if environ["RANK"] == "1":
        time.sleep(20)
        os._exit(0)
    dist.all_reduce(torch.ones(1), async_op=True)
    start = time.monotonic()
    try:
        raise ValueError
    except ValueError:
        group.leave(failed=True)
    took = time.monotonic() - start
    raise RuntimeError(f"took {took:.1f} s")


@pytest.mark.slow
def test_leaving_after_a_failure_does_not_wait_for_a_collective() -> None:
    """One that the other rank never joins does not hold back the exception for long."""
    with pytest.raises(LaunchError, match=r"took ([4-9]|1\d)\.\d s"):
        launch(leave_with_work_under_way)


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named() -> None:
    """The error says which rank was missed, after the time limit."""
    with pytest.raises(LaunchError, match=r"rank\(s\) \[1\] of 2 did not join the process group within 0:00:00.3"):
        join(host_store(LOOPBACK), backend="gloo", rank=0, world_size=2, timeout=timedelta(seconds=0.3))


def test_a_time_limit_is_a_timedelta() -> None:
    """A bare number, whose unit no one could tell, is refused when the strategy is made."""
    with pytest.raises(WrongTypeError, match=r"timeout=60: must be a datetime.timedelta"):
        DDPStrategy(timeout=60)  # type: ignore[arg-type]


@pytest.mark.slow
def test_waiting_ends_when_no_process_is_left() -> None:
    """What ``check`` raises ends the wait for ranks that will not come."""

    def check() -> None:
        raise LaunchError("rank 1 is dead")

    with pytest.raises(LaunchError, match="rank 1 is dead"):
        join(host_store(LOOPBACK), backend="gloo", rank=0, world_size=2, check=check)


def test_runs_that_are_live_at_a_time_share_one_group() -> None:
    """The last one that leaves destroys it; one that differs is refused, by the argument and both values."""
    store = host_store(LOOPBACK)
    join_alone = partial(join, store, backend="gloo", rank=0, world_size=1)
    first, second = join_alone(), join_alone()
    released: list[str] = []
    first.release_at_leave(lambda: released.append("first"))
    with pytest.raises(ConfigurationError, match=r"timeout='0:00:05'.*has timeout='0:30:00'.*teardown\(\)"):
        join_alone(timeout=timedelta(seconds=5))
    first.leave()
    first.leave()
    dist.all_reduce(torch.ones(1))
    assert not released
    second.leave()
    assert released == ["first"]
    assert not dist.is_initialized()
    join_alone().leave()


def test_a_group_that_the_user_made_must_fit() -> None:
    """One of another size is refused; the error says what to do."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        with pytest.raises(ConfigurationError, match=r"world_size=1.*world_size=2.*destroy_process_group\(\)"):
            adopt(LOOPBACK, backend="gloo", rank=0, world_size=2, device=torch.device("cpu"))
        adopt(LOOPBACK, backend="cpu:gloo", rank=0, world_size=1, device=torch.device("cpu")).leave()
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_a_backend_that_torch_does_not_have_is_refused() -> None:
    """The error names the backend and those that there are."""
    with pytest.raises(BackendError, match=r"process_group_backend='smoke'.*Valid: .*'gloo'"):
        join(host_store(LOOPBACK), backend="smoke", rank=0, world_size=1)
    assert not dist.is_initialized()


def test_a_store_that_is_not_there_is_named() -> None:
    """Connecting gives up after the time limit, naming host and port."""
    store = host_store(LOOPBACK)
    port = store.port
    del store
    with pytest.raises(LaunchError, match=rf"127.0.0.1:{port}"):
        connect_store(LOOPBACK, port, timeout=timedelta(seconds=0.5))


@contextmanager
def stranger(answer: bytes) -> Iterator[int]:
    """A process's port that is no store: it accepts connections, sends ``answer``, and nothing else."""
    held = []
    with socket.create_server((LOOPBACK, 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    held.append(server.accept()[0])
                    held[-1].sendall(answer)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in held:
        connection.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9], ids=["silent", "garbage"])
def test_a_stranger_on_the_port_does_not_hold_a_process(answer: bytes) -> None:
    """Connecting keeps its time limit, and names host and port."""
    with stranger(answer) as port:
        begin = time.monotonic()
        with pytest.raises(LaunchError, match=rf"127.0.0.1:{port}"):
            connect_store(LOOPBACK, port, timeout=timedelta(seconds=1))
        assert time.monotonic() - begin < 20


def test_a_process_that_waits_says_for_whom(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning each: for the store, and for the ranks that have not come; where, and until when."""
    monkeypatch.setattr(time_limits, "TELL_SECONDS", 0.1)
    with stranger(b"") as port, pytest.raises(LaunchError):
        connect_store(LOOPBACK, port, timeout=timedelta(seconds=0.5))
    store = host_store(LOOPBACK)
    store.set("core/run/1/joining/1", "")
    store.add("core/run/1/joining", 1)
    with pytest.raises(LaunchError, match=r"rank\(s\) \[0, 3\] of 4 did not join"):
        join(store, backend="gloo", rank=2, world_size=4, timeout=timedelta(seconds=0.5))
    first, second = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    day = r"until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.search(rf"waits for rank 0, which serves the store at 127.0.0.1:{port} since 0 s, at most {day}", first)
    assert re.search(rf"rank 2 of 4 waits to join .* at 127.0.0.1:{store.port}, for rank\(s\) \[0, 3\],.*{day}", second)


def test_a_port_in_use_is_named() -> None:
    """Opening a store where something else listens is an error, not another port."""
    store = host_store(LOOPBACK)
    with pytest.raises(LaunchError, match=rf"127.0.0.1:{store.port}"):
        host_store(LOOPBACK, store.port)


def listening() -> set[str]:
    """The addresses at which this process listens, as the system shows them: hexadecimal, with the port."""
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            inodes.add(os.readlink(entry).removeprefix("socket:[").removesuffix("]"))
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path("/proc/net", name).read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in inodes}


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux shows a process's sockets as files")
@pytest.mark.parametrize("fixed", [False, True])
def test_only_this_machine_reaches_a_store_on_a_loopback_address(fixed: bool) -> None:
    """The store asks for no secret: on one machine, it does not listen on any other interface."""
    port = free_port() if fixed else 0
    before = listening()
    store = host_store(LOOPBACK, port)
    assert listening() - before == {f"0100007F:{store.port:04X}"}
    assert connect_store(LOOPBACK, store.port).add("key", 1) == 1


def free_port() -> int:
    free = host_store(LOOPBACK)
    return int(free.port)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux shows a process's sockets as files")
def test_no_process_of_a_machine_listens_on_its_network() -> None:
    """Neither the store nor gloo's connections, with the variables that the launcher sets."""
    store = host_store(LOOPBACK)
    environment = LocalEnvironment({})
    environment.connect(2, 1)
    environment.main_port = store.port
    launcher = FunctionLauncher(
        2, lambda rank: environment.launch_variables(rank, "{}"), strategy="ddp", start_method="fork"
    )
    addresses = launcher.launch(join_and_listen)
    assert addresses
    assert all(address.startswith("0100007F:") for address in addresses), addresses


def join_and_listen(environ: dict[str, str]) -> set[str]:
    own = listening()
    group = join_as(environ)
    addresses = listening() - own
    group.leave()
    return addresses


def test_a_given_port_stays_the_same_store() -> None:
    """A later run in the same process finds what an earlier one left there, so that runs are told apart."""
    free = host_store(LOOPBACK)
    port = free.port
    del free
    first = host_store(LOOPBACK, port)
    first.set("key", "value")
    del first
    assert host_store(LOOPBACK, port).get("key") == b"value"
    assert connect_store(LOOPBACK, port).get("key") == b"value"


def test_another_connection_where_torch_cannot_clone() -> None:
    """As in torch 2.6: it reaches the same keys, while the first connection waits in another thread."""

    class OldStore(TCPStore):
        clone = None

    class OldRunStore(RunStore):
        clone = None

    served = host_store(LOOPBACK)
    run = OldRunStore("run", OldStore(LOOPBACK, served.port, None, False, wait_for_workers=False))
    waiting = threading.Thread(target=run.wait, args=(["key"],), daemon=True)
    waiting.start()
    another_connection(run).set("key", "value")
    waiting.join(30)
    assert not waiting.is_alive()
    assert served.get("run/key") == b"value"
