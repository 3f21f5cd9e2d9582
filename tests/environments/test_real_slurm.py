"""SLURM itself, with two nodes on this machine: its tasks have the right ranks and train together."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from python_processes import SETTINGS

pytestmark = pytest.mark.slow

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "munged")
NODES = ("node1", "node2")

TRAIN = """
import os, torch
from core import Runtime
runtime = Runtime(accelerator="cpu")
runtime.launch()
torch.manual_seed(7)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = runtime.prepare(model, optimizer)
rank, size = runtime.process_index, runtime.num_processes
data = torch.linspace(-1, 1, 12 * 5 * 3).reshape(5, 12, 3)
for batch in data:
    loss = model(batch[rank * 12 // size : (rank + 1) * 12 // size]).pow(2).mean()
    runtime.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
weights = [round(value, 4) for parameter in model.parameters() for value in parameter.flatten().tolist()]
name = runtime.plan.cluster_environment.name
os.write(1, f"{rank}/{size} {runtime.local_process_index} {name} {os.environ['SLURMD_NODENAME']} {weights}\\n".encode())
runtime.teardown()
"""

CONF = """
ClusterName=hal
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
KillWait=5
ReturnToService=2
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """The environment variables with which ``srun`` finds the cluster."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"SLURM cannot run here: {', '.join(missing) or 'needs root'}")
    folder = Path(tempfile.mkdtemp(prefix="hal-slurm-", dir="/tmp"))  # a socket's path is short
    folder.chmod(0o755)
    for name in ("munge", "state", *NODES):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    (folder / "slurm.conf").write_text(
        CONF.format(host=socket.gethostname().partition(".")[0], ports=free_ports(3), folder=folder)
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    environ = {**kept, "SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}
    munge = [f"--{name}={folder}/munge/{name.partition('-')[0]}" for name in ("key-file", "pid-file", "log-file")]
    commands = [
        ["munged", "--force", "--foreground", f"--socket={folder}/munge/socket", f"--seed-file={folder}/seed", *munge],
        ["slurmctld", "-D"],
        *(["slurmd", "-D", "-N", node] for node in NODES),
    ]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            started.append(
                subprocess.Popen(
                    command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
                )
            )
            time.sleep(0.5)
        end = time.monotonic() + 60
        while "idle" not in (
            said := subprocess.run(["sinfo", "-h"], env=environ, capture_output=True, text=True).stdout
        ):
            assert time.monotonic() < end, said
            time.sleep(0.2)
        yield environ
    finally:
        for process in reversed(started):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def srun(slurm: dict[str, str], folder: Path, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(TRAIN)
    command = ["srun", *options, sys.executable, "train.py"]
    return subprocess.run(
        command, cwd=folder, env=slurm | environ, capture_output=True, text=True, timeout=150, check=False
    )


def test_three_tasks_on_each_of_two_nodes(slurm: dict[str, str], tmp_path: Path) -> None:
    """Six ranks, three on each node, which end with the parameters of one process with all the data."""
    done = srun(slurm, tmp_path, "--nodes=2", "--ntasks-per-node=3", MASTER_ADDR="127.0.0.1")
    assert done.returncode == 0, done.stderr
    alone = srun(slurm, tmp_path, "--nodes=1", "--ntasks=1")
    assert alone.returncode == 0, alone.stderr
    rank, local, name, node, weights = alone.stdout.split(maxsplit=4)
    assert (rank, local, name, node) == ("0/1", "0", "local", "node1")
    expected = [f"{rank}/6 {rank % 3} slurm node{1 + rank // 3} {weights.strip()}" for rank in range(6)]
    assert sorted(done.stdout.splitlines()) == expected


def test_nodes_with_different_numbers_of_tasks_are_refused(slurm: dict[str, str], tmp_path: Path) -> None:
    """Three tasks on two nodes: the error says what must be equal, and which command makes it so."""
    done = srun(slurm, tmp_path, "--nodes=2", "--ntasks=3", MASTER_ADDR="127.0.0.1")
    assert done.returncode != 0
    assert "every machine must have the same number of processes" in done.stderr
    assert "--ntasks-per-node" in done.stderr


REQUEUED = """
import os, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
from core import Callback, Module, Trainer
from core.callbacks import ModelCheckpoint
from core.checkpoints import latest

class Net(Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Slowly(Callback):
    def on_train_start(self, trainer, module):
        self.first = trainer.progress.step
        if trainer.global_rank == 0:
            open(f"began.{os.environ.get('SLURM_RESTART_COUNT', '0')}", "w").write(str(self.first))

    def on_train_batch_end(self, trainer, *_):
        time.sleep(0.0 if self.first else 0.5)

found = latest("saved")
trainer = Trainer(
    accelerator="cpu",
    max_epochs=1,
    signals={"SIGUSR1": "requeue", "SIGTERM": "stop"},
    callbacks=[ModelCheckpoint("saved"), Slowly()],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
net = Net()
data = TensorDataset(torch.arange(320.0).reshape(80, 4) / 320)
trainer.fit(net, DataLoader(data, batch_size=1), ckpt_path=found and "last")
weight = net.layer.weight.flatten().tolist()
open(f"end.{trainer.global_rank}", "w").write(f"{trainer.progress.step} {weight}")
"""


def wait_until(condition: Callable[[], bool], seconds: float, folder: Path) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "".join(path.read_text() for path in folder.glob("slurm*"))
        time.sleep(0.2)


@pytest.mark.exhaustive
def test_save_and_requeue(slurm: dict[str, str], tmp_path: Path) -> None:
    """SIGUSR1 to the tasks: one checkpoint, the job starts again once, and ends as one that was not disturbed."""
    (tmp_path / "train.py").write_text(REQUEUED)
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\nexec srun {sys.executable} train.py\n")
    environ = slurm | {"MASTER_ADDR": "127.0.0.1"}

    def control(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    options = ["--requeue", "--open-mode=append", "--nodes=2", "--ntasks-per-node=1", "--signal=USR1@20"]
    job = control("sbatch", "--parsable", *options, "job.sh")
    wait_until(lambda: (tmp_path / "began.0").exists(), 120, tmp_path)
    time.sleep(1.5)
    control("scancel", "-s", "USR1", job)
    wait_until(lambda: (tmp_path / "end.1").exists(), 180, tmp_path)
    wait_until(lambda: not control("squeue", "-h", "-j", job), 60, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("began.*")) == ["began.0", "began.1"]
    assert 0 < int((tmp_path / "began.1").read_text()) < 40
    ended = [(tmp_path / f"end.{rank}").read_text() for rank in range(2)]
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "train.py").write_text(
        REQUEUED.replace("0.5)", "0.0)").replace('{"SIGUSR1": "requeue", "SIGTERM": "stop"}', "{}")
    )
    command = ["srun", "--nodes=2", "--ntasks-per-node=1", sys.executable, "train.py"]
    subprocess.run(command, cwd=whole, env=environ, check=True, capture_output=True, timeout=150)
    assert ended == [(whole / f"end.{rank}").read_text() for rank in range(2)]
