"""Trains with every strategy on two processes, and compares the results with a plain loop and with DDP.

    python benchmarks/compare.py --check

Each strategy trains an MLP on scikit-learn's digits and a transformer of four layers on *Paradise Lost* (see
`tasks.py`), on its real engine: with the Runtime on the global batches of the plain loop, and then with the Trainer for
two epochs, which new processes also resume after the first. `compare_roster.py` has the expected results.

Needs scikit-learn and the packages of the chosen strategies; the text comes from the package index.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from compare_figures import Figures, broken, figures_of
from compare_roster import DDP, PLAIN, PLAIN_ADAM, ROSTER, Entry
from compare_table import table
from pages import write_between
from tasks import TASKS
from torch.distributed import TCPStore  # type: ignore[attr-defined]

WORKER = Path(__file__).with_name("compare_worker.py")
OF_LAUNCHERS = (
    "CORE_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "GROUP_",
    "MASTER_",
    "TORCHELASTIC_",
    "HOROVOD_",
    "CROSS_",
    "DS_",
)


def main() -> int:
    """Train, print the table, and say whether every bar holds."""
    arguments = read_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and with it all processes
    chosen = choose(arguments.only)
    for name in arguments.tasks:
        TASKS[name].items()  # what must be downloaded is, before processes need it
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for entry in chosen:
            began = time.monotonic()
            folder = Path(scratch) / f"{ROSTER.index(entry)}"
            folder.mkdir()
            refusal, failure = train(entry, folder, arguments)
            found[entry.name] = figures_of(entry, folder, found) if not refusal and not failure else Figures()
            found[entry.name].refusal, found[entry.name].failure = refusal, failure
            if (folder / "first").exists():
                shutil.rmtree(folder / "first")
            print(f"{entry.name}: {time.monotonic() - began:.0f} s", *broken(entry, found), sep="\n  ", file=sys.stderr)
    text = table(chosen, found)
    print(text)
    if arguments.write is not None:
        write_between(arguments.write, "training", text)
    if arguments.json is not None:
        rows = {name: figures.as_json() for name, figures in found.items()}
        arguments.json.write_text(json.dumps({**conditions(arguments), "strategies": rows}, indent=1) + "\n")
    faulty = [entry.name for entry in chosen if broken(entry, found)]
    print(f"unexpected results: {', '.join(faulty) or 'none'}", file=sys.stderr)
    return 1 if faulty and arguments.check else 0


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="TEXT", default=[""], help="strategies with TEXT in their name")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="tasks to train (all)")
    parser.add_argument("--steps", type=int, help="steps of the loops (280 for digits, 200 for the text)")
    parser.add_argument("--seconds", type=float, default=400, help="time limit for the processes of one strategy (400)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table between its markers in PAGE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a result is unexpected")
    return parser.parse_args()


def choose(texts: list[str]) -> list[Entry]:
    """The chosen entries, preceded by those that they are compared with."""
    chosen = [entry for entry in ROSTER if any(text in entry.name for text in texts)]
    compared = {PLAIN, DDP} | ({PLAIN_ADAM} if any(entry.adam for entry in chosen) else set())
    return [entry for entry in ROSTER if entry in chosen or entry.name in compared]


def train(entry: Entry, folder: Path, arguments: argparse.Namespace) -> tuple[str | None, str | None]:
    """Let its processes run; returns why the strategy was refused, or what its processes said where they failed."""
    tasks = [f"{name}={arguments.steps or TASKS[name].steps}" for name in arguments.tasks]
    for phase in ("first", "resumed") if entry.strategy else ("first",):
        faulty = start(entry, [entry.name, phase, str(folder), *tasks], folder, arguments.seconds)
        refused = folder / "refused.json"
        if faulty and refused.exists():
            return str(json.loads(refused.read_text())), None
        if faulty:
            said = "\n".join(path.read_text(errors="replace")[-6000:] for path in sorted(folder.glob("*.out")))
            return None, f"{phase}: processes failed, or took over {arguments.seconds} s; they said\n{said}"
    return None, None


def start(entry: Entry, options: list[str], folder: Path, seconds: float) -> bool:
    """Run the worker to its end, as the strategy wants it to be started; returns whether it failed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(OF_LAUNCHERS)}
    environ["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, str(WORKER), *options]
    if entry.horovodrun:
        command = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "--gloo", *command]
    # Machines are simulated: processes of each are started for it, and told so as torchrun tells them.
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False) if entry.machines > 1 else None
    with ExitStack() as files:
        processes = [
            subprocess.Popen(
                command,
                env=environ if store is None else environ | on_machine(number, entry.machines, store.port),
                cwd=folder,
                stdout=files.enter_context((folder / f"{number}.out").open("w")),
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for number in range(entry.machines)
        ]
        until = time.monotonic() + seconds
        try:
            codes = [process.wait(max(0.0, until - time.monotonic())) for process in processes]
            return any(codes)
        except subprocess.TimeoutExpired:
            return True
        finally:
            end(processes)


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """See that none of them, and of what they started, is left."""
    for sent in (signal.SIGTERM, signal.SIGKILL):  # a launcher that is asked ends its workers
        for process in processes:
            try:
                os.killpg(process.pid, sent)
                process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def on_machine(number: int, machines: int, port: int) -> dict[str, str]:
    """What torchrun would tell the one process of a machine."""
    told = {"RANK": number, "WORLD_SIZE": machines, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": number}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
    return {name: str(value) for name, value in {**told, **meeting}.items()}


def conditions(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the figures hold for."""
    wanted = ("torch", "deepspeed", "horovod", "scikit-learn")
    installed = {dist.name: dist.version for dist in importlib.metadata.distributions()}
    return {
        "python": platform.python_version(),
        "versions": {name: installed[name] for name in wanted if name in installed},
        "steps": {name: arguments.steps or TASKS[name].steps for name in arguments.tasks},
    }


if __name__ == "__main__":
    sys.exit(main())
