"""``save_on_each_node``: two machines with two processes each, which share no file system."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from python_processes import run_python

SCRIPT = Path(__file__).parent / "scripts" / "each_node.py"


def run_on_two_machines(out: Path, mode: str) -> list[list[dict[str, Any]]]:
    """What the processes of each machine found; each machine has its own working directory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folders = [out / f"machine{number}" for number in range(2)]

    def run(number: int) -> None:
        folders[number].mkdir()
        launcher = ["-m", "torch.distributed.run", "--nnodes", 2, "--node_rank", number, "--nproc_per_node", 2]
        address = ["--master_addr", "127.0.0.1", "--master_port", port]
        run_python(*launcher, *address, SCRIPT, mode, cwd=folders[number], timeout=120)

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(run, range(2)):
            pass
    return [[json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))] for folder in folders]


@pytest.mark.slow
def test_each_machine_has_the_checkpoint(tmp_path: Path) -> None:
    """Both write and keep the newest, and all processes continue bit for bit from their machine's."""
    found = run_on_two_machines(tmp_path, "each")
    assert [len(processes) for processes in found] == [2, 2]
    for process in [*found[0], *found[1]]:
        first, second = process["ends"]
        assert first == second == found[0][0]["ends"][0]
    for machine in range(2):
        folder = tmp_path / f"machine{machine}" / "project" / "checkpoints"
        assert [path.name for path in folder.iterdir()] == ["checkpoint_1"]
        assert (folder / "checkpoint_1" / "manifest.json").is_file()
        saved = torch.load(tmp_path / f"machine{machine}" / "saved.pt", weights_only=True)
        assert saved["rank"] == 2 * machine  # each machine's first process wrote its own


@pytest.mark.slow
def test_without_it_the_first_machine_alone_has_the_checkpoint(tmp_path: Path) -> None:
    """Loading it is an error in the processes that do not find it, and in the others."""
    found = run_on_two_machines(tmp_path, "first")
    assert not (tmp_path / "machine1" / "project").exists()
    assert [(tmp_path / f"machine{number}" / "saved.pt").exists() for number in range(2)] == [True, False]
    for process in [*found[0], *found[1]]:
        assert len(process["ends"]) == 1
        assert "rank(s) 2, 3" in process["error"]
        assert "save_on_each_node" in process["error"]
