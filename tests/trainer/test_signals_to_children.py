"""Signals to processes that a fit has started: workers of its loaders, and forks that a callback makes."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from python_processes import run_python

from core.checkpoints import is_committed

SCRIPT = """
import os, signal, sys
import torch
from torch.utils.data import DataLoader, Dataset
from core import Callback, Module, Trainer
from core.callbacks import ModelCheckpoint


def signal_once():
    if MOMENT == "start":
        try:
            os.mkdir("sent")
        except FileExistsError:
            return
        os.killpg(0, getattr(signal, sys.argv[1]))


class Items(Dataset):
    def __len__(self):
        return 62

    def __getitem__(self, index):
        return torch.full((4,), index / 100)

    def __reduce__(self):
        return received, ()


def received():  # in a process that is spawned, before it is a worker
    signal_once()
    if MOMENT == "end":
        sys.ends = Ends()
    return Items()


class Ends:  # with the interpreter, after its functions at exit, when Python has given up its handlers
    def __del__(self, make=os.mkdir, send=os.killpg, number=getattr(signal, sys.argv[1])):
        try:
            make("sent")
        except FileExistsError:
            return
        send(0, number)


class Small(Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class SignalToAll(Callback):
    def on_train_batch_end(self, trainer, module, *_):
        if MOMENT == "step" and trainer.global_step == 2 and trainer.is_global_zero:
            os.killpg(0, getattr(signal, sys.argv[1]))


MOMENT = sys.argv[4]
if __name__ == "__main__":
    os.register_at_fork(after_in_child=signal_once)
    loader = DataLoader(Items(), batch_size=2, num_workers=2, prefetch_factor=1, multiprocessing_context=sys.argv[2])
    devices = int(sys.argv[3])
    trainer = Trainer(
        accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto", max_epochs=3, logger=False,
        enable_progress_bar=False, callbacks=[ModelCheckpoint("run"), SignalToAll()],
    )
    trainer.fit(Small(), loader)
    print("steps", trainer.global_step)
"""


@pytest.mark.parametrize(
    ("name", "context", "devices", "moment"),
    [
        ("SIGTERM", "fork", 1, "start"),
        pytest.param("SIGTERM", "spawn", 1, "start", marks=pytest.mark.slow),
        pytest.param("SIGTERM", "fork", 3, "step", marks=pytest.mark.slow),
        pytest.param("SIGINT", "fork", 1, "step", marks=pytest.mark.slow),
        pytest.param("SIGINT", "spawn", 1, "step", marks=pytest.mark.exhaustive),
        pytest.param("SIGUSR1", "spawn", 1, "start", marks=pytest.mark.exhaustive),
        pytest.param("SIGTERM", "spawn", 1, "end", marks=pytest.mark.exhaustive),
        pytest.param("SIGUSR1", "spawn", 1, "end", marks=pytest.mark.slow),
        pytest.param("SIGTERM", "forkserver", 1, "start", marks=pytest.mark.exhaustive),
        pytest.param("SIGUSR1", "forkserver", 1, "start", marks=pytest.mark.exhaustive),
        pytest.param("SIGUSR1", "forkserver", 1, "step", marks=pytest.mark.slow),
        pytest.param("SIGINT", "forkserver", 2, "step", marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_all_processes_of_a_run(name: str, context: str, devices: int, moment: str, tmp_path: Path) -> None:
    """As schedulers and terminals send it: the workers of loaders, also those that start or end, stay until the run has
    saved, and none is left."""
    (tmp_path / "train.py").write_text(SCRIPT)
    code = 0 if name == "SIGUSR1" else 128 + signal.Signals[name]
    ended = run_python(
        "train.py", name, context, devices, moment, cwd=tmp_path, expect=code, leaves_nothing=context == "fork"
    )
    assert is_committed(tmp_path / "run" / "signal.ckpt"), ended.stderr
    if name == "SIGUSR1":
        assert ended.stdout.split() == ["steps", "93"]
    else:
        assert "Traceback" not in ended.stderr


HUNG = """
import os, signal, sys, time
from multiprocessing import active_children
from torch.utils.data import DataLoader, Dataset
from core.data.workers import Handled
from core.data.workers import Workers


class Hangs(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        print("hangs", os.getpid(), flush=True)
        if sys.argv[1] == "loop":
            while True:
                time.sleep(1)
        import threading  # a wait that no handler in Python interrupts
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, Handled(signal.SIG_DFL))
    batches = Workers().iterate(DataLoader(Hangs(), num_workers=1))
    (worker,) = active_children()
    worker.join(2)
    for _ in range(3):
        os.kill(worker.pid, signal.SIGTERM)
        worker.join(0.7)
    print("lives", worker.is_alive())
    if sys.argv[2] == "iterator":
        del batches
        print("code", worker.exitcode)
"""


@pytest.mark.parametrize("where", ["loop", pytest.param("lock", marks=pytest.mark.slow)])
@pytest.mark.parametrize("end", ["iterator", "exit"])
def test_a_worker_that_hangs_is_ended(end: str, where: str, tmp_path: Path) -> None:
    """Wherever its main thread is: not by signals from outside, however many, but by its loader or with its process."""
    (tmp_path / "hung.py").write_text(HUNG)
    ended = run_python("hung.py", where, end, cwd=tmp_path, leaves_nothing=True, timeout=100)
    assert ended.stdout.splitlines()[1:] == ["lives True"] + ["code -9"] * (end == "iterator")
    assert not ended.stderr


POOL = """
import multiprocessing, os, signal
import torch
from torch.utils.data import DataLoader, TensorDataset
from core import Callback, Module, Trainer


class Small(Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def handlers(number):
    names = ("SIGTERM", "SIGINT", "SIGUSR1")
    return [signal.getsignal(getattr(signal, name)) in (signal.SIG_DFL, signal.default_int_handler) for name in names]


class Forks(Callback):
    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step == 2:
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(pool.map(handlers, range(1)))
            child = os.fork()
            if child == 0:
                signal.pause()
            os.kill(child, signal.SIGTERM)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


trainer = Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False, callbacks=Forks())
trainer.fit(Small(), DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=4))
print(trainer.global_step)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forks_during_a_fit_end_by_their_signals(tmp_path: Path) -> None:
    """A pool ends its processes by SIGTERM: it must not wait for them, nor the run take the signal for its own."""
    (tmp_path / "train.py").write_text(POOL)
    ended = run_python("train.py", cwd=tmp_path, leaves_nothing=True, timeout=100)
    assert ended.stdout.splitlines() == ["[[True, True, True]]", str(-signal.SIGTERM), "10"]
