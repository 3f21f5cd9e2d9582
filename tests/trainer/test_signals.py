"""Signals to any process of a fit: all save after the same batch, and end or go on; a resumed run is bit-equal."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Callback, Module, Trainer
from core.callbacks import ModelCheckpoint
from core.checkpoints import TorchCheckpointIO
from core.errors import CoreError
from core.strategies.store.notes import Board
from core.trainer.loop import signals
from core.trainer.loop.signals import DEFAULT_SIGNALS, Signals, _OnceMore

EXAMPLES, BATCH, EPOCHS = 46, 3, 2


class Small(Module):
    """Its batches differ, its layer drops out: what a resumed run does depends on all of its state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        # Several parameters: gloo's sums over three processes depend on where in a bucket a gradient is.
        self.layers = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Dropout(0.2), nn.Linear(7, 1))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layers(batch[0]).square().mean()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("loss", self.layers(batch[0]).square().mean())

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)


class SendSignal(Callback):
    """Sends a signal to ``target`` at ``moment``, from one of the processes, once."""

    def __init__(self, number: int, target: str, moment: str, marker: Path) -> None:
        self.number, self.target, self.moment, self.marker = number, target, moment, marker

    def send(self, trainer: Any, moment: str) -> None:
        sender = 1 if self.target == "rank 1" else 0
        if moment != self.moment or trainer.global_rank != sender or self.marker.exists():
            return
        self.marker.touch()
        os.kill(os.getppid() if self.target == "launcher" else os.getpid(), self.number)
        time.sleep(0.3)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.send(trainer, "before the first step")

    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        if trainer.progress.step == 2:
            self.send(trainer, "in a step")

    def on_validation_batch_start(self, trainer: Any, module: Any, *_: Any) -> None:
        self.send(trainer, "in validation")

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
        self.send(trainer, "in a save")

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        self.send(trainer, "in setup")


def train(folder: Path, processes: int, sender: Callback | None, resume: bool = False, **options: Any) -> Any:
    module = Small()
    torch.manual_seed(5)
    data = TensorDataset(torch.randn(EXAMPLES, 4, generator=torch.Generator().manual_seed(1)))
    trainer = Trainer(
        **{"accelerator": "cpu", "max_epochs": EPOCHS, "val_check_interval": 3, "num_sanity_val_steps": 0, **options},
        strategy="ddp_fork" if processes > 1 else "single_device",
        devices=processes,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(dirpath=folder, every_n_train_steps=4), *([] if sender is None else [sender])],
    )
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    trainer.fit(module, loader, DataLoader(data, batch_size=20), ckpt_path="last" if resume else None)
    return {name: value.clone() for name, value in module.state_dict().items()}, trainer.progress.step


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    return {count: train(tmp_path_factory.mktemp("whole"), count, None) for count in (1, 3)}


MOMENTS = ("before the first step", "in a step", "in validation", "in a save")
NAMES, TARGETS = ("SIGUSR1", "SIGINT", "SIGTERM"), ("rank 0", "rank 1", "launcher")
ALL = [(name, target, moment) for name in NAMES for target in TARGETS for moment in MOMENTS]
# Any two of the three meet in these, for CI.
PAIRS = [(NAMES[(i + j) % 3], one, moment) for i, one in enumerate(TARGETS) for j, moment in enumerate(MOMENTS)]
QUICK = ("SIGTERM", "rank 1", "in a step")
CASES = [
    pytest.param(*case, marks=() if case == QUICK else pytest.mark.slow if case in PAIRS else pytest.mark.exhaustive)
    for case in ALL
]
CASES.append(pytest.param("SIGUSR1", "rank 1", "in setup", marks=pytest.mark.slow))


@pytest.mark.parametrize(("name", "target", "moment"), CASES)
def test_three_processes(
    name: str, target: str, moment: str, tmp_path: Path, uninterrupted: dict[int, Any], capfd: Any
) -> None:
    """Whoever receives it, whenever: one whole checkpoint, the exit code, and a resumed run as if nothing happened."""
    number = signal.Signals[name]
    sender = SendSignal(number, target, moment, tmp_path / "sent")
    expected, steps = uninterrupted[3]
    if name == "SIGUSR1":
        values, last = train(tmp_path / "run", 3, sender)
        assert last == steps
        assert all(torch.equal(values[key], expected[key]) for key in expected)
    else:
        with pytest.raises(SystemExit) as ended:
            train(tmp_path / "run", 3, sender)
        assert ended.value.code == 128 + number
    assert (tmp_path / "run" / "signal.ckpt").exists(), capfd.readouterr().err
    values, last = train(tmp_path / "run", 3, None, resume=True)
    assert last == steps
    assert all(torch.equal(values[key], expected[key]) for key in expected)


@pytest.mark.parametrize(
    ("name", "moment"), [("SIGTERM", "in a step"), ("SIGUSR1", "in a step"), ("SIGUSR1", "in setup")]
)
def test_one_process(name: str, moment: str, tmp_path: Path, uninterrupted: dict[int, Any]) -> None:
    """Handlers are as before after the fit."""
    number = signal.Signals[name]
    before = signal.getsignal(number)
    sender = SendSignal(number, "rank 0", moment, tmp_path / "sent")
    expected, steps = uninterrupted[1]
    if name == "SIGUSR1":
        assert train(tmp_path / "run", 1, sender)[1] == steps
    else:
        with pytest.raises(SystemExit) as ended:
            train(tmp_path / "run", 1, sender)
        assert ended.value.code == 128 + number
    assert signal.getsignal(number) is before
    values, last = train(tmp_path / "run", 1, None, resume=True)
    assert last == steps
    assert all(torch.equal(values[key], expected[key]) for key in expected)


class SentOnceMore(TorchCheckpointIO):
    """Process 0 receives the signal again while it ends, as if the launcher passed it on late."""

    is_sent = False

    def teardown(self) -> None:
        if os.environ.get("RANK") == "0" and not self.is_sent:
            self.is_sent = True
            os.kill(os.getpid(), signal.SIGINT)
        super().teardown()


@pytest.mark.slow
def test_the_signal_comes_again_at_the_end(tmp_path: Path) -> None:
    """A terminal sends it to each process, and the launcher passes it on: what is being written is not interrupted."""
    sender = SendSignal(signal.SIGINT, "rank 1", "in a step", tmp_path / "sent")
    with pytest.raises(SystemExit) as ended:
        train(tmp_path / "run", 3, sender, checkpoint_io=SentOnceMore())
    assert ended.value.code == 130


SCONTROL = """#!/bin/sh
ls "$SAVED/signal.ckpt" > /dev/null && echo "$@" >> "$ASKED"
echo 'said no' >&2
exit "$CODE"
"""
"""In place of SLURM's: notes what it is asked, if the checkpoint is committed by then."""


@pytest.mark.parametrize(
    ("known", "received", "agreed", "left"),
    [
        (signal.SIGUSR1, [signal.SIGTERM], signal.SIGUSR1, [signal.SIGTERM]),
        (signal.SIGTERM, [signal.SIGTERM], signal.SIGTERM, []),
        (None, [signal.SIGUSR1, signal.SIGTERM], signal.SIGTERM, [signal.SIGUSR1]),
    ],
    ids=["another process has another", "another process has the same", "two"],
)
def test_signals_at_the_same_moment(known: int | None, received: list[int], agreed: int, left: list[int]) -> None:
    """The processes agree on one; what another process received is acted on after it, and the end comes first."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    board = Board(store, timedelta(seconds=5), None)
    signals = Signals(DEFAULT_SIGNALS, board, 1, 2, lambda: "")
    if known is not None:
        board.set("/0/signal", str(int(known)).encode())
    board.set("/0/target", b"7")
    signals._received = list(received)
    signals._look(board)
    assert (signals._signal, signals._received) == (agreed, left)
    assert int(board.get("/0/signal")) == agreed


@pytest.fixture
def slurm_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In a job of SLURM; returns the file in which ``scontrol`` notes what it is asked."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "scontrol").write_text(SCONTROL)
    (tmp_path / "bin" / "scontrol").chmod(0o755)
    for name, value in {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": "4711",
        "SAVED": str(tmp_path / "run"),
        "ASKED": str(tmp_path / "asked"),
        "CODE": "0",
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "asked"


@pytest.mark.parametrize(
    ("processes", "io"), [(1, "async"), pytest.param(3, "torch", marks=pytest.mark.slow)], ids=["one", "three"]
)
def test_save_and_requeue(
    processes: int, io: str, slurm_job: Path, tmp_path: Path, uninterrupted: dict[int, Any]
) -> None:
    """The job is requeued once, when its checkpoint is committed; then it ends, and resumes to the same bits."""
    sender = SendSignal(signal.SIGUSR1, "rank 0", "in a step", tmp_path / "sent")
    with pytest.raises(SystemExit) as ended:
        train(tmp_path / "run", processes, sender, signals={"SIGUSR1": "requeue"}, checkpoint_io=io)
    assert ended.value.code == 128 + signal.SIGUSR1
    assert slurm_job.read_text() == "requeue 4711\n"
    expected, steps = uninterrupted[processes]
    values, last = train(tmp_path / "run", processes, None, resume=True)
    assert last == steps
    assert all(torch.equal(values[key], expected[key]) for key in expected)
    assert slurm_job.read_text() == "requeue 4711\n"


def test_a_requeue_that_slurm_refuses(
    slurm_job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so; the run ends all the same, with its checkpoint. Of an array, one task is asked for."""
    monkeypatch.setenv("CODE", "1")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "4700")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "11")
    sender = SendSignal(signal.SIGUSR1, "rank 0", "in a step", tmp_path / "sent")
    with pytest.raises(SystemExit) as ended:
        train(tmp_path / "run", 1, sender, signals={"SIGUSR1": "requeue"})
    assert ended.value.code == 128 + signal.SIGUSR1
    assert slurm_job.read_text() == "requeue 4700_11\n"
    assert "scontrol requeue 4700_11: the job is not started again: said no" in caplog.text


def test_requeue_without_a_job_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it trains."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(CoreError, match=r"'requeue' needs a job of SLURM.*SLURM_JOB_ID.*sbatch"):
        train(tmp_path / "run", 1, None, signals={"SIGUSR1": "requeue"})


class CountedSignal(Exception):
    """Raised by a handler of the user's own."""


def test_the_users_own_handler_is_kept(tmp_path: Path) -> None:
    """What already handles a signal goes on doing so."""

    def handle(number: int, frame: Any) -> None:
        raise CountedSignal

    before = signal.signal(signal.SIGTERM, handle)
    try:
        with pytest.raises(CountedSignal):
            train(tmp_path, 1, SendSignal(signal.SIGTERM, "rank 0", "in a step", tmp_path / "sent"))
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"SIGTRM": "stop"}, "Did you mean 'SIGTERM'"),
        ({"SIGKILL": "stop"}, "'SIGKILL' cannot be handled"),
        ({"SIGTERM": "halt"}, "'halt' is no action. Valid: 'stop', 'save'"),
        (["SIGTERM"], "must be a dict"),
    ],
)
def test_signals_that_cannot_be_handled(given: Any, says: str) -> None:
    """Refused when the Trainer is made."""
    with pytest.raises(CoreError, match=says):
        Trainer(signals=given)


def test_a_fit_after_one_that_a_signal_has_ended() -> None:
    """It acts on the same signal again, which the first one would have ignored once."""
    number = signal.SIGUSR2
    saved: list[str] = []

    def save() -> str:
        saved.append("now")
        return ""

    before = signal.signal(number, _OnceMore(signal.SIG_DFL))
    try:
        with Signals({"SIGUSR2": "save"}, None, 0, 1, save) as signals:
            os.kill(os.getpid(), number)
            assert signals._agreed.wait(30)
            signals.after_batch()
        assert saved == ["now"]
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_batch_that_does_not_end_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Once: where the process is, and that a second signal ends it. If the batch ends, the first is acted on."""
    monkeypatch.setattr(signals, "SIGNAL_TOLD_SECONDS", 0.1)
    told = ""

    class Stuck(Small):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            nonlocal told
            if batch_idx == 1:
                os.kill(os.getpid(), signal.SIGTERM)
                while "without a checkpoint" not in told:  # stuck
                    time.sleep(0.01)
                    told += capfd.readouterr().err
                time.sleep(1.0)
                told += capfd.readouterr().err
            return super().training_step(batch, batch_idx)

    trainer = Trainer(max_epochs=1, logger=False, enable_progress_bar=False, default_root_dir=tmp_path)
    with pytest.raises(SystemExit) as ended:
        trainer.fit(Stuck(), DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2))
    assert ended.value.code == 128 + signal.SIGTERM
    assert told.count("SIGTERM waits for the end of a batch") == 1
    assert f"{Path(__file__).name}:" in told
    assert "in training_step" in told
    assert trainer.global_step == 2
