"""How start and teardown grow with the number of ranks: threads, each a rank, on a real TCPStore.

    python benchmarks/scale.py                 # the table of docs/scale.md
    python benchmarks/scale.py --ranks 64,128  # other sizes

Counted are the requests that core sends to the store. Collectives do not pass through it. What threads cannot show is
how fast a network is; the seconds here are those of one machine that runs all ranks and the store.
"""

from __future__ import annotations

import argparse
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore, Store

from core import Request, resolve
from core.plan import Plan
from core.strategies.meeting_point import meet
from core.strategies.store import tcp_store
from core.strategies.store.notes import Board, Peers

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
    board = Board(run, LIMIT, None, Peers(run, rank))
    if rank == 0:
        board.set("note", b"1")
    assert board.wait("note", LIMIT.total_seconds(), 0)
    mark("notes")
    assert meet(run, "leaving", size, rank, LIMIT, None)
    if rank:
        run.add("left", 1)
    else:
        while run.add("left", 0) < size - 1:
            time.sleep(0.001)
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


def plan_bytes(size: int) -> int:
    """The length of the Plan that a launched process gets in an environment variable: 8 processes on each machine."""
    ranks = {"RANK": "0", "WORLD_SIZE": str(size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(min(8, size))}
    environ = {**ranks, "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    plan: Plan = resolve(Request.read(environ=environ, accelerator="cpu"))
    return len(plan.for_ranks().to_json())


def exponent(results: Sequence[dict[str, Any]], phase: str, key: str) -> float:
    """The exponent with which a number grows with the ranks, between the smallest and the largest run."""
    first, last = results[0], results[-1]
    return math.log(last[phase][key] / first[phase][key]) / math.log(last["ranks"] / first["ranks"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Requests to the store, by the number of ranks.")
    parser.add_argument("--ranks", default="16,64,256,1024", help="sizes, separated by commas")
    parser.add_argument("--late", type=float, default=0.0, help="seconds that one rank comes later than the others")
    options = parser.parse_args()
    results = [simulate(int(size), options.late) | {"plan": plan_bytes(int(size))} for size in options.ranks.split(",")]
    print("| ranks | phase | requests of rank 0 | of another rank | in all | polls in all | keys in all | s |")
    print("|---|---|---|---|---|---|---|---|")
    for result in results:
        for phase in PHASES:
            row = result[phase]
            print(
                f"| {result['ranks']} | {phase} | {row['of_rank_0']} | {row['of_another']} | {row['in_all']} | "
                f"{row['polls_in_all']} | {row['keys_in_all']} | {row['seconds']:.2f} |"
            )
    print("\nPlan, bytes: " + ", ".join(f"{result['plan']} at {result['ranks']}" for result in results))
    if len(results) > 1:
        grown = ", ".join(f"{phase} {exponent(results, phase, 'in_all'):.2f}" for phase in PHASES if phase != "notes")
        print(f"Requests in all grow with the ranks to the power of: {grown}")


if __name__ == "__main__":
    main()
