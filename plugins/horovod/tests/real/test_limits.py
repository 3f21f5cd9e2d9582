"""What is refused, and what becomes of processes that fail or end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from .conftest import EXAMPLES, HOROVODRUN, horovodrun, run_alone

REFUSED = {
    "adasum": r"op='adasum': Horovod has it over MPI only",
    "bf16-true": r"does not support precision 'bf16-true'",
    "devices": r"devices asks for 3 process\(es\).*started 2 \(HOROVOD_LOCAL_SIZE\)",
    "ddp": r"environment variable MASTER_ADDR is not set",
    "accumulating": r"backward_passes_per_step=3, but accumulate_grad_batches=2",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The errors of two processes."""
    path = tmp_path_factory.mktemp("refused") / "said.pt"
    horovodrun("refused.py", path)
    result: dict[str, Any] = torch.load(path)
    return result


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(said: dict[str, str], name: str) -> None:
    """What Horovod does not support, or contradicts itself, is an error that says so."""
    assert re.search(REFUSED[name], said[name])


def test_one_process_needs_no_launcher(tmp_path: Path) -> None:
    """A script without horovodrun trains alone."""
    script = tmp_path / "alone.py"
    script.write_text(
        "import torch\nfrom core import Runtime\n"
        "with Runtime(accelerator='cpu', strategy='horovod', devices=1) as runtime:\n"
        "    model = torch.nn.Linear(2, 1)\n"
        "    model, optimizer = runtime.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "    before = model.weight.detach().clone()\n"
        "    runtime.backward(model(torch.ones(1, 2)).sum())\n"
        "    optimizer.step()\n"
        "    assert torch.allclose(model.weight, before - 0.1)\n"
        "    assert runtime.reduce(torch.ones(1)).tolist() == [1.0]\n"
        "    print('trained', runtime.num_processes)\n"
    )
    assert "trained 1" in run_alone(script, warnings="error")


def test_a_failure_ends_all() -> None:
    """Where one process fails the other does not wait for it, and the error is shown."""
    said = horovodrun("failing.py", expect=1, timeout=60)
    assert "ValueError: enough" in said


def test_elastic_example_survives_a_killed_worker(tmp_path: Path) -> None:
    """Rank 0 is killed between two epochs; the other becomes rank 0, and goes on from the last commit to the end."""
    hosts = tmp_path / "hosts.sh"
    hosts.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n")
    hosts.chmod(0o755)
    script = tmp_path / "elastic.py"
    killer = "import os\nif os.environ['HOROVOD_RANK'] == '0': print('PID', os.getpid(), flush=True)\n"
    source = (EXAMPLES / "elastic.py").read_text()
    script.write_text(source.replace("import argparse\n", f"import argparse\n{killer}"))
    launch = ["-np", "2", "--min-np", "1", "--max-np", "2", "--gloo", "--network-interfaces", "lo"]
    arguments = ["--epochs", "10", "--pause", "0.7"]
    with subprocess.Popen(
        [sys.executable, *HOROVODRUN, *launch, "--host-discovery-script", hosts, sys.executable, script, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        limit = threading.Timer(120, os.killpg, (process.pid, signal.SIGTERM))
        limit.start()
        try:
            said: list[str] = []
            worker = 0
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line)
                if found := re.search(r"PID (\d+)", line):
                    worker = int(found[1])
                if "epoch 3" in line and worker:
                    time.sleep(0.2)
                    os.kill(worker, signal.SIGKILL)
                    worker = 0
            process.wait()
        finally:
            limit.cancel()
    text = "".join(said)
    assert process.returncode == 0, text
    epochs = re.findall(r"epoch (\d+): loss ([\d.]+) on (\d) process", text)
    assert [int(epoch) for epoch, _, _ in epochs if int(epoch) > 4] == list(range(5, 11)), text
    assert epochs[0][2] == "2"
    assert epochs[-1][2] == "1"
    assert float(epochs[-1][1]) < float(epochs[0][1])
