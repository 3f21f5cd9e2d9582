"""A script of two ranks for the tests: ``ranks.py <scenario>``; what each rank does is in its scenario."""

import json
import os
import signal
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist

from core.errors import LaunchError
from core.strategies.launchers import FunctionLauncher, ScriptLauncher
from core.strategies.process_group import JoinedGroup, join
from core.strategies.store.tcp_store import connect_store, host_store


def say(**facts: Any) -> None:
    """Print a line, in one piece: the ranks share the output."""
    os.write(1, (json.dumps({"rank": rank, "pid": os.getpid(), **facts}) + "\n").encode())


def join_group() -> JoinedGroup:
    return join(store, backend="gloo", rank=rank, world_size=2, check=launcher.check if launcher else None)


def block_in_all_reduce() -> None:
    say(ready=True)
    dist.all_reduce(torch.ones(4))


def both_finish() -> None:
    """Say how this process was started, and exit without further output."""
    say(argv=sys.argv[1:], optimize=sys.flags.optimize, xoptions=sys._xoptions, main=__name__, spec=bool(__spec__))
    join_group()
    gathered = [torch.zeros(1), torch.zeros(1)]
    dist.all_gather(gathered, torch.full((1,), float(rank)))
    say(gathered=torch.cat(gathered).tolist())


def elsewhere() -> None:
    say(began=began, directory=os.getcwd())
    join_group().leave()


def runs_one_after_another() -> None:
    for run in range(3):
        group = join_group()
        value = torch.tensor([float(rank + run)])
        dist.all_reduce(value)
        say(run=run, value=value.item())
        group.leave()
    if launcher:
        launcher.finish()


def exit_code() -> None:
    join_group().leave()
    sys.exit(7 if rank else 0)


def both_block() -> None:
    join_group()
    if rank == 0:
        block_in_all_reduce()
    say(ready=True)
    time.sleep(400)


def rank_1_raises() -> None:
    join_group()
    if rank == 1:
        raise ValueError("rank 1 has no idea")
    block_in_all_reduce()


def rank_1_raises_with_work_under_way() -> None:
    """Rank 0 joins no collective at all; rank 1 has begun one."""
    join_group()
    if rank == 0:
        time.sleep(400)
    dist.all_reduce(torch.ones(4), async_op=True)
    raise ValueError("rank 1 has no idea")


def rank_0_is_stuck() -> None:
    """As a collective of a backend that does not notice a lost peer."""
    join_group()
    if rank == 0:
        threading.Event().wait(400)
    os.kill(os.getpid(), signal.SIGKILL)


def rank_0_asks() -> None:
    join_group()
    if rank == 1:
        say(ready=True)
        time.sleep(400)
    assert launcher is not None
    try:
        block_in_all_reduce()
    except RuntimeError:
        try:
            launcher.check(settle=5)
        except LaunchError as error:
            say(error=str(error))


def rank_1_lingers() -> None:
    join_group().leave()
    if launcher is None:
        time.sleep(400)
    else:
        launcher.finish()


def work(environ: dict[str, str], seconds: float) -> None:
    global rank
    rank = int(environ["RANK"])
    say(ready=True)
    time.sleep(seconds)


if __name__ == "__main__":
    scenario, began = sys.argv[1], os.getcwd()
    if scenario == "elsewhere":
        os.chdir(sys.argv[2])
    rank = int(os.environ.get("RANK", 0))
    if scenario in ("spawn", "fork"):
        method: Any = scenario
        FunctionLauncher(2, lambda rank: {"RANK": str(rank)}, strategy="ddp", start_method=method).launch(work, 400)
        sys.exit()
    launcher: ScriptLauncher | None = None
    if rank == 0:
        store = host_store("127.0.0.1")
        launcher = ScriptLauncher(
            2,
            lambda rank: {"RANK": str(rank), "MASTER_PORT": str(store.port)},
            strategy="ddp",
            grace=3,
            exit_timeout=1 if scenario == "rank_1_lingers" else 60,
        )
        launcher.start()
    else:
        store = connect_store("127.0.0.1", int(os.environ["MASTER_PORT"]))
    globals()[scenario]()
