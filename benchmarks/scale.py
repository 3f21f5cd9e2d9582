"""How start, saves and teardown grow with the number of ranks: threads on a real TCPStore, and forked processes.

    python benchmarks/scale.py            # prints the tables
    python benchmarks/scale.py --write    # writes them to docs/scale.md

As threads, each rank has its own connection, and the requests that core sends to the store are counted. Collectives do
not pass through it. As processes, ranks form a real group with gloo, save, and die. What one machine cannot show is how
fast a network is: the seconds here are those of one machine that runs all ranks and the store.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a line for each connection whose address has no name
import torch
from pages import write_between
from torch.distributed.distributed_c10d import PrefixStore, Store

from core import Request, Runtime, resolve
from core.checkpoints.manifest import FileRecord, Manifest
from core.strategies.meeting_point import meet
from core.strategies.store import tcp_store
from core.strategies.store.notes import Board, Peers
from core.strategies.time_limits import BEAT_SECONDS, QUESTION_POLL_SECONDS, SIGNAL_POLL_SECONDS, wait_until

LIMIT = timedelta(minutes=10)
PHASES = ("start", "notes", "teardown")


class CountingStore(Store):
    """Passes requests on and counts them, and the keys in them."""

    def __init__(self, store: Any) -> None:
        super().__init__()
        self.inner = store
        self.requests: Counter[str] = Counter()
        self.keys = 0

    def has_extended_api(self) -> bool:
        return bool(self.inner.has_extended_api())


def _counted(name: str) -> Callable[..., Any]:
    def request(self: CountingStore, *arguments: Any) -> Any:
        self.requests[name] += 1
        self.keys += len(arguments[0]) if isinstance(arguments[0], list) else 1
        return getattr(self.inner, name)(*arguments)

    return request


for _name in ("set", "get", "add", "check", "wait", "delete_key", "multi_get", "multi_set", "compare_set"):
    setattr(CountingStore, _name, _counted(_name))


def one_rank(store: CountingStore, rank: int, size: int, late: float, mark: Callable[[str], None]) -> None:
    """What a rank asks of the store from its start to its end."""
    if late and rank == size - 1:
        time.sleep(late)
    run = PrefixStore(f"core/run/{store.add(f'core/runs/{rank}', 1)}", store)
    assert meet(run, "joining", size, rank, LIMIT, None)
    mark("start")
    board = Board(run, LIMIT, None, Peers(run, rank), world_size=size)
    if rank == 0:
        board.set("note", b"1")
    assert board.wait("note", LIMIT.total_seconds(), 0)
    mark("notes")
    assert meet(run, "leaving", size, rank, LIMIT, None)
    if rank:
        run.add("left", 1)
    else:
        wait_until(lambda: run.add("left", 0) >= size - 1, LIMIT.total_seconds())
    mark("teardown")


def simulate(size: int, late: float = 0.0) -> dict[str, Any]:
    """All ranks of a run with ``size`` of them: requests and seconds by phase.

    Args:
        size: Number of ranks.
        late: Seconds that the last rank comes later than the others.
    """
    server = tcp_store.host_store("127.0.0.1", timeout=LIMIT)
    counts: list[dict[str, tuple[Counter[str], int, float]]] = [{} for _ in range(size)]
    failures: list[BaseException] = []
    start = threading.Barrier(size)

    def run(rank: int) -> None:
        try:
            store = CountingStore(tcp_store.connect_store("127.0.0.1", server.port, timeout=LIMIT))
            start.wait(LIMIT.total_seconds())
            began = time.monotonic()

            def mark(phase: str) -> None:
                counts[rank][phase] = (store.requests.copy(), store.keys, time.monotonic() - began)
                store.requests.clear()
                store.keys = 0

            one_rank(store, rank, size, late, mark)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT.total_seconds())
    if failures or any(len(count) != len(PHASES) for count in counts):
        raise RuntimeError(f"{len(failures)} of {size} ranks failed: {failures[:1]}")
    result: dict[str, Any] = {"ranks": size, "late": late}
    for phase in PHASES:
        by_rank = [count[phase] for count in counts]
        # A poll asks again for one key. How many there are depends on how long a rank waits, not on how many ranks are.
        fixed = [sum(number for name, number in made.items() if name != "check") for made, _, _ in by_rank]
        result[phase] = {
            "of_rank_0": fixed[0],
            "of_another": max(fixed[1:], default=0),
            "in_all": sum(fixed),
            "polls_in_all": sum(made["check"] for made, _, _ in by_rank),
            "keys_in_all": sum(keys for _, keys, _ in by_rank),
            "seconds": max(seconds for _, _, seconds in by_rank),
        }
    return result


def requests(sizes: Sequence[int], late: float) -> str:
    """The table of requests by phase, as Markdown; and the exponents with which they grow."""
    results = [simulate(size, late) for size in sizes]
    lines = [
        "| n | phase | requests of rank 0 | of another rank | of all ranks | polls of all ranks | s |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for phase in PHASES:
            row = result[phase]
            lines.append(
                f"| {result['ranks']:,} | {phase} | {row['of_rank_0']} | {row['of_another']} | {row['in_all']:,} | "
                f"{row['polls_in_all']:,} | {row['seconds']:.2f} |"
            )
    if len(results) > 1:
        grown = ", ".join(f"{phase} {exponent(results, phase, 'in_all'):.2f}" for phase in PHASES)
        lines += ["", f"The requests of all ranks grow with n to the power of: {grown}."]
    return "\n".join(lines)


def exponent(results: Sequence[dict[str, Any]], phase: str, key: str) -> float:
    """The exponent with which a number grows with the ranks, between the smallest and the largest run."""
    first, last = results[0], results[-1]
    return math.log(last[phase][key] / first[phase][key]) / math.log(last["ranks"] / first["ranks"])


# -- processes -------------------------------------------------------------------------------------------------------

VICTIM = 5


def work(runtime: Runtime, began: float, dies: str, folder: str) -> None:
    """What a rank of a real group does."""
    rank = runtime.process_index

    def tell(name: str, value: float) -> None:
        if rank == 0:
            print(json.dumps({name: value}), flush=True)

    def die(where: str) -> None:
        if rank == VICTIM and dies == where:
            print(json.dumps({"died": time.time()}), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    tell("started", time.time() - began)
    die("after the start")
    model = runtime.prepare(torch.nn.Linear(8, 1))
    for name, in_all in (("torch", False), ("state", True)):
        runtime.barrier()
        begin = time.time()
        if not in_all:
            die("before a save")
            runtime.save({"model": model}, Path(folder, name))
        else:
            runtime.save_state(Path(folder, name))
        tell(f"saved {name}", time.time() - begin)
    tell("sockets", len([each for each in os.listdir("/proc/self/fd") if _is_socket(each)]))
    if rank == 1:
        rollup = Path("/proc/self/smaps_rollup").read_text()
        print(json.dumps({"private": int(rollup.partition("Private_Dirty:")[2].split()[0]) / 1000}), flush=True)
    die("at the end")


def _is_socket(descriptor: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    except OSError:
        return False


def run_work(size: int, dies: str) -> None:
    """Fork a group of ``size`` ranks. The calling process has imported torch, so the ranks do not have to."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # so that no rank imports it
    torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    with tempfile.TemporaryDirectory() as folder:
        runtime = Runtime(accelerator="cpu", devices=size, strategy="ddp_fork")
        runtime.launch(work, time.time(), dies, folder)


def group(size: int, dies: str = "") -> dict[str, Any]:
    """What :func:`work` has said in a group of ``size`` processes, and when all had ended."""
    done = subprocess.run(
        [sys.executable, __file__, "--work", str(size), dies], capture_output=True, text=True, check=False, timeout=600
    )
    found: dict[str, Any] = {"code": done.returncode}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    said = [line for line in done.stderr.splitlines() if f"rank {VICTIM}" in line]
    return found | {"noticed": time.time() - found.get("died", time.time()), "cause": said[-1] if said else ""}


def groups(sizes: Sequence[int]) -> str:
    """The tables of real processes, as Markdown."""
    lines = [
        "| processes | started, s | `save`, s | `save_state`, s | sockets of rank 0 | private memory of a rank, MB |",
        "|---|---|---|---|---|---|",
    ]
    for size in sizes:
        found = group(size)
        if found["code"]:
            raise SystemExit(f"{size} processes: {found}")
        lines.append(
            f"| {size} | {found['started']:.1f} | {found['saved torch']:.2f} | {found['saved state']:.2f} | "
            f"{found['sockets']} | {found['private']:.0f} |"
        )
    lines += [
        "",
        f"| rank {VICTIM} is killed | processes | exit code | all gone after, s | cause |",
        "|---|---|---|---|---|",
    ]
    for dies in ("after the start", "before a save", "at the end"):
        found = group(sizes[0], dies)
        cause = found["cause"].partition(" before ")[0]
        cause = cause[: cause.find("(")] + "… " + cause[cause.find(")") + 2 :] if "(" in cause else cause
        lines.append(f"| {dies} | {sizes[0]} | {found['code']} | {found['noticed']:.1f} | `{cause}` |")
    return "\n".join(lines)


# -- what grows without ranks ----------------------------------------------------------------------------------------


def _ask(port: int, count: int, results: Any) -> None:
    store = tcp_store.connect_store("127.0.0.1", port, timeout=LIMIT)
    store.set("key", "")
    begin = time.monotonic()
    for _ in range(count):
        store.check(["key"])
    results.put(count / (time.monotonic() - begin))


def rate(processes: int = 4, count: int = 20_000) -> float:
    """Requests that a store answers in a second, of some processes of this machine together."""
    context = multiprocessing.get_context("fork")
    server, results = tcp_store.host_store("127.0.0.1", timeout=LIMIT), context.SimpleQueue()
    asking = [context.Process(target=_ask, args=(server.port, count, results)) for _ in range(processes)]
    for process in asking:
        process.start()
    total: float = sum(results.get() for _ in asking)
    return total


def manifest(shards: int) -> tuple[float, float, float]:
    """Of a checkpoint with that many shards: the manifest's megabytes, milliseconds to write and to read it."""
    files = {f"__{rank}_0.distcp": FileRecord(123_456_789, "0123abcd") for rank in range(shards)}
    with tempfile.TemporaryDirectory() as folder:
        described = Manifest.describe({"world_size": shards, "strategy": "fsdp"}, files, "sharded")
        begin = time.perf_counter()
        described.write(Path(folder))
        written = time.perf_counter()
        Manifest.read(Path(folder))
        read = time.perf_counter()
        size = Path(folder, "manifest.json").stat().st_size
    return size / 1e6, 1000 * (written - begin), 1000 * (read - written)


def launched(size: int) -> dict[str, dict[str, str]]:
    """The variables by which each launcher tells a process who it is, with 8 processes on each machine."""
    local, nodes = min(8, size), max(1, size // 8)
    ranks = {"RANK": "0", "WORLD_SIZE": f"{size}", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": f"{local}", "GROUP_RANK": "0"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    slurm = {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": f"{size}"}
    slurm |= {"SLURM_NODEID": "0", "SLURM_NNODES": f"{nodes}", "SLURM_JOB_NODELIST": f"node[0001-{nodes:04d}]"}
    slurm |= {"SLURM_NTASKS_PER_NODE": f"{local}", "SLURM_STEP_NUM_TASKS": f"{size}", "SLURM_STEP_ID": "0"}
    slurm |= {"SLURM_STEP_NODELIST": slurm["SLURM_JOB_NODELIST"], "SLURM_TASKS_PER_NODE": f"{local}(x{nodes})"}
    return {"torchrun": ranks | meeting, "SLURM": slurm}


def plan_bytes(environ: dict[str, str]) -> int:
    """The length of the Plan as a started process gets it."""
    return len(resolve(Request.read(environ=environ, accelerator="cpu")).for_ranks().to_json())


def limits(sizes: Sequence[int]) -> str:
    """The tables of the manifest, the Plan and the steady requests, as Markdown."""
    lines = ["| shards | manifest, MB | written, ms | read, ms |", "|---|---|---|---|"]
    for size in sizes:
        megabytes, written, read = manifest(size)
        lines.append(f"| {size:,} | {megabytes:.2f} | {written:.0f} | {read:.0f} |")
    names = list(launched(8))
    lines += ["", f"| processes | {' | '.join(f'Plan under {name}, bytes' for name in names)} |", "|---|---|---|"]
    for size in sizes:
        found = [plan_bytes(environ) for environ in launched(size).values()]
        lines.append(f"| {size:,} | {' | '.join(f'{each:,}' for each in found)} |")
    steady = 1 / QUESTION_POLL_SECONDS + 1 / SIGNAL_POLL_SECONDS + 1 / BEAT_SECONDS
    lines += ["", "| ranks in a `fit` | requests a second | of what a store answers here |", "|---|---|---|"]
    answered = max(rate() for _ in range(3))
    lines += [f"| {size:,} | {size * steady:,.0f} | {size * steady / answered:.0%} |" for size in sizes]
    return "\n".join(
        [*lines, "", f"A store answers {answered:,.0f} requests a second here, of four processes together."]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[16, 64, 256, 1024], help="numbers of threads")
    parser.add_argument("--late", type=float, default=0.0, help="seconds that one thread comes later than the others")
    parser.add_argument("--processes", type=int, nargs="*", default=[64, 128, 256], help="numbers of processes")
    parser.add_argument("--write", action="store_true", help="write the tables to docs/scale.md")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        run_work(int(options.work[0]), options.work[1])
        return
    where = f"On {os.cpu_count()} cores, shared with other work, torch {torch.__version__}, {date.today().isoformat()}."
    made: dict[str, Callable[[], str]] = {
        "limits": lambda: limits([16, 128, 1024, 10_000]),
        "processes": lambda: groups(options.processes),
        "requests": lambda: requests(options.ranks, options.late),
    }
    for name, make in made.items():
        if not getattr(options, {"requests": "ranks"}.get(name, name), True):
            continue
        text = f"{where}\n\n{make()}"
        print(f"{text}\n", flush=True)
        if options.write:
            write_between(Path(__file__).parents[1] / "docs" / "scale.md", name, text)


if __name__ == "__main__":
    main()
