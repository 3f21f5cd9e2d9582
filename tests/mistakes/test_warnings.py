"""What is no error and yet not meant: said once, and only where it is true."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from core.data import repeated
from core.loggers import Logger
from core.plan import Request, resolve

from .cases import Net, runtime, trainer

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def warnings_of(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


@pytest.mark.parametrize(("more", "count"), [(1, 1), (0, 0)])
def test_more_processes_than_cores(more: int, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """One warning if there are more processes than cores; none otherwise."""
    resolve(Request.read(accelerator="cpu", devices=CORES + more, environ={}))
    assert len(warnings_of(caplog, "core(s)")) == count


class Numbers(IterableDataset[Any]):
    """Twelve rows."""

    def __init__(self, divides: bool) -> None:
        self.divides = divides

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if self.divides and worker is not None else (0, 1)
        for number in range(first, 12, step):
            yield torch.tensor([number, number + 1.0])


@pytest.mark.parametrize(("divides", "workers", "count"), [(False, 2, 1), (True, 2, 0), (False, 0, 0), (False, 1, 0)])
def test_every_worker_gives_every_sample(
    divides: bool, workers: int, count: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning where the workers of an iterable data set repeat each other, over all passes; no batch changes."""
    monkeypatch.setattr(repeated.logger, "_warned", set())
    own = DataLoader(Numbers(divides), batch_size=3, num_workers=workers)
    run = runtime()
    loader = run.prepare(own)
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(list(loader), list(own), strict=True))
    run.teardown()
    assert len(warnings_of(caplog, "every sample")) == count


CONTEXTS: dict[str, Any] = {
    "split_between_processes": lambda run, model: run.split_between_processes([1, 2]),
    "main_process_first": lambda run, model: run.main_process_first(),
    "local_main_process_first": lambda run, model: run.local_main_process_first(),
    "no_sync": lambda run, model: run.no_sync(model),
    "trigger_sync_in_backward": lambda run, model: run.trigger_sync_in_backward(model),
    "join_uneven_inputs": lambda run, model: run.join_uneven_inputs([model]),
    "profile": lambda run, model: run.profile(activities=["cpu"]),
    "autocast": lambda run, model: run.autocast(),
}


@pytest.mark.parametrize("method", CONTEXTS)
def test_context_without_with(method: str, caplog: pytest.LogCaptureFixture) -> None:
    """One warning, with the line and what to write; none with ``with``."""
    with runtime() as run:
        model = run.prepare(torch.nn.Linear(3, 1))
        with CONTEXTS[method](run, model):
            pass
        assert warnings_of(caplog, "without with") == []
        CONTEXTS[method](run, model)
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    (said,) = warnings_of(caplog, "without with")
    assert said.startswith(f"{__file__}:{line}: runtime.{method}: ")
    assert f"Write: with runtime.{method}(" in said


class Toggles(Net):
    """Optimizes by itself, without ``with``."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        self.toggled_optimizer(optimizer)
        optimizer.toggle_model()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        optimizer.step()


def test_toggles_without_with(caplog: pytest.LogCaptureFixture) -> None:
    """A module's contexts are named too."""
    trainer().fit(Toggles(), [(torch.ones(2, 3), torch.ones(2, 1))])
    first, second = warnings_of(caplog, "without with")
    assert "Write: with self.toggled_optimizer(optimizer): ..." in first
    assert "Write: with optimizer.toggle_model(): ..." in second


def test_context_as_a_decorator(caplog: pytest.LogCaptureFixture) -> None:
    """``@runtime.main_process_first()`` above a function is a use."""
    with runtime() as run:

        @run.main_process_first()
        def numbers() -> list[int]:
            return [1, 2]

        assert [numbers(), numbers()] == [[1, 2], [1, 2]]
    assert warnings_of(caplog, "without with") == []


@pytest.mark.parametrize(("precision", "dtype"), [("32-true", torch.float32), ("bf16-mixed", torch.bfloat16)])
def test_autocast_as_a_decorator(precision: str, dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    """``@runtime.autocast()`` above a function works with every precision, at each call."""
    ones = torch.ones(2, 2)
    with runtime(precision=precision) as run:
        product = cast("Any", run.autocast())(lambda: ones @ ones)
        assert [product().dtype, product().dtype] == [dtype, dtype]
    assert warnings_of(caplog, "without with") == []


class Recorded(Logger):
    """Notes what happens to it."""

    name = "recorded"

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def open(self) -> Any:
        self.events.append("open")
        return self

    def write_metrics(self, values: Mapping[str, Any], step: int | None, **options: Any) -> None:
        self.events.append("metrics")

    def write_hyperparams(self, values: Mapping[str, Any]) -> None:
        self.events.append("hyperparams")

    def close(self, status: str) -> None:
        self.events.append("close")


@pytest.mark.parametrize(("rank", "expected"), [("0", {"open", "hyperparams", "metrics", "close"}), ("1", set())])
def test_logger_before_there_is_a_run(rank: str, expected: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A logger that a script uses before its Trainer exists is opened, fed and closed in rank 0 only."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**ranks, "MASTER_PORT": "29599"}.items():
        monkeypatch.setenv(name, value)
    events: list[str] = []
    logger = Recorded(events)
    logger.log_hyperparams({"lr": 0.1})
    logger.experiment  # noqa: B018
    logger.log_metrics({"loss": 1.0})
    logger.finish()
    assert set(events) == expected
    assert len(events) == len(expected)


def test_logger_of_a_run(caplog: pytest.LogCaptureFixture) -> None:
    """In a fit on one process it is opened once, fed and closed by the end of the script."""
    events: list[str] = []
    caplog.set_level(logging.INFO)
    fitting = trainer(logger=Recorded(events), log_every_n_steps=1)
    module = Net()
    fitting.fit(module, [(torch.ones(2, 3), torch.ones(2, 1))], [(torch.ones(2, 3), torch.ones(2, 1))])
    assert events[0] == "open"
    assert events.count("open") == 1
    assert "metrics" in events
