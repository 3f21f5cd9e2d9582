"""Starting the processes of one run, which find each other in a store of this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from torch.distributed import TCPStore  # type: ignore[attr-defined]

SCRIPTS = Path(__file__).parent / "scripts"
TIMEOUT = 300
"""Seconds that a run may take: a machine may have much else to do."""


def run_group(
    out: Path, script: str, *arguments: str, processes: int, nodes: int = 1, expect: int | None = 0, **environ: str
) -> list[str]:
    """Run a script of ``scripts`` in so many processes, on so many simulated machines, to the end.

    Args:
        out: Their working directory.
        script: Its name.
        *arguments: Its arguments.
        processes: How many.
        nodes: How many machines they say they are on.
        expect: The exit status of each; ``None`` for any.
        **environ: Further environment variables.

    Returns:
        What each printed.
    """
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    local = processes // nodes
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CORE_")}
    common = {
        "WORLD_SIZE": processes,
        "LOCAL_WORLD_SIZE": local,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": store.port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "OMP_NUM_THREADS": 1,
        "PYTHONFAULTHANDLER": 1,
    }
    ranks = [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % local),
            **dict.fromkeys(("GROUP_RANK", "NODE_RANK"), str(rank // local)),
        }
        for rank in range(processes)
    ]
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    group: list[subprocess.Popen[bytes]] = []
    deadline = time.monotonic() + TIMEOUT
    try:
        for rank, own in enumerate(ranks):
            env = {**clean, **{name: str(value) for name, value in common.items()}, **own, **environ}
            with _output(out, script, rank).open("wb") as file:
                group.append(subprocess.Popen(command, env=env, cwd=out, stdout=file, stderr=file))
        codes = [process.wait(deadline - time.monotonic()) for process in group]
    except subprocess.TimeoutExpired:
        for process in group:
            process.send_signal(signal.SIGABRT)  # each shows where its threads are
            process.wait()
        said = "\n".join(_printed(out, script, processes))
        raise AssertionError(f"not over after {TIMEOUT} seconds\n{said}") from None
    finally:
        for process in group:
            process.kill()
            process.wait()
    printed = _printed(out, script, processes)
    if expect is not None:
        assert codes == [expect] * processes, f"exit codes {codes}\n" + "\n".join(printed)
    return printed


def _printed(out: Path, script: str, processes: int) -> list[str]:
    return [_output(out, script, rank).read_text()[-3000:] for rank in range(processes)]


def _output(out: Path, script: str, rank: int) -> Path:
    """Where it prints."""
    return out / f"{script}.{rank}.out"
