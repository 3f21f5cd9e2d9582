"""What is no error and yet not meant: said once, and only where it is true."""

from __future__ import annotations

import inspect
import logging
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from core.callbacks import ModelCheckpoint
from core.data import streams
from core.loggers import CSVLogger, Logger
from core.plan import Request, resolve

from .cases import Net, loader, runtime, trainer

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
    monkeypatch.setattr(streams.logger, "_warned", set())
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


class Exploding(Net):
    """Its loss is no number from batch 3 on, of 8 in an epoch."""

    def __init__(self, value: float, manual: bool = False) -> None:
        super().__init__()
        self.value, self.automatic_optimization = value, not manual

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch) + (self.value if self.global_step >= 3 else 0)
        self.log("train_loss", loss)
        if self.automatic_optimization:
            return loss
        self.manual_backward(loss)
        self.optimizers().step()
        return None


def finite_batches() -> DataLoader[Any]:
    return DataLoader([(torch.ones(3), torch.ones(1)) for _ in range(8)], batch_size=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0])
def test_a_loss_that_is_no_number(value: float, manual: bool, caplog: pytest.LogCaptureFixture) -> None:
    """One warning a run, at the end of the epoch without a logger, with what to do; none for a finite loss."""
    trainer(max_epochs=2).fit(Exploding(value, manual), finite_batches())
    found = warnings_of(caplog, "training_step:")
    assert len(found) == (value != 0.0)
    assert all(
        text in found[0] for text in (f"is {'nan' if math.isnan(value) else 'inf'} in step 8", "epoch 0") if found
    )
    assert all("detect_anomaly=True" in text for text in found)


def test_a_loss_that_is_no_number_is_seen_where_it_is_logged(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """With a logger, in the first step whose values are sent."""
    logger = CSVLogger(tmp_path)
    trainer(max_epochs=1, logger=logger, log_every_n_steps=2).fit(Exploding(math.nan), finite_batches())
    (found,) = warnings_of(caplog, "training_step:")
    assert "in step 4 (epoch 0" in found


def test_a_logged_loss_that_is_no_number(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A Runtime says so once, of what its trackers read anyway."""
    run = runtime(log_with="csv", project_dir=tmp_path)
    run.init_trackers("project")
    for step, loss in enumerate((1.0, torch.tensor(math.inf), math.nan)):
        run.log({"train_loss": loss, "accuracy": math.nan}, step=step)
    run.end_training()
    assert [text.partition(",")[0] for text in warnings_of(caplog, "log: ")] == ["log: 'train_loss' is inf in step 1"]


@pytest.mark.parametrize(("opens", "count"), [(False, 1), (True, 0)])
def test_logging_without_trackers(opens: bool, count: int, caplog: pytest.LogCaptureFixture) -> None:
    """One warning; none where the script opens its trackers, of which it may have chosen none."""
    run = runtime()
    if opens:
        run.init_trackers("project")
    for _ in range(2):
        run.log({"loss": 1.0})
    assert len(warnings_of(caplog, "log_with=")) == count


@pytest.mark.parametrize(("name", "count"), [("val_los", 1), ("val_loss", 0)])
def test_a_metric_in_a_file_name_that_is_not_logged(
    name: str, count: int, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """One warning, which names it and what is logged."""
    saving = ModelCheckpoint(tmp_path, filename=f"{{epoch}}-{{{name}:.2f}}", save_top_k=-1)
    trainer(max_epochs=2, enable_checkpointing=True, callbacks=saving).fit(Net(), loader(), loader())
    found = warnings_of(caplog, "ModelCheckpoint: filename=")
    assert len(found) == count
    assert all(f"{name!r} has not been logged" in text for text in found)
    assert all("'val_loss'" in text for text in found)


@pytest.mark.parametrize("front_end", ["Trainer", "Runtime"])
@pytest.mark.parametrize(("is_attribute", "count"), [(False, 1), (True, 0)])
def test_an_optimizer_of_parameters_that_are_not_the_modules(
    front_end: str, is_attribute: bool, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A list registers no layers, so no checkpoint has them; on several processes it is an error."""
    net, head = Net(), torch.nn.Linear(2, 1)
    heads = [head] if not is_attribute else torch.nn.ModuleList([head])
    net.heads = heads  # type: ignore[assignment]
    optimizer = torch.optim.SGD([*net.parameters(), *([] if is_attribute else head.parameters())], lr=0.1)
    if front_end == "Trainer":
        net.configure_optimizers = lambda: optimizer  # type: ignore[method-assign]
        trainer().fit(net, loader())
    else:
        run = runtime()
        run.prepare(net, optimizer)
        run.teardown()
    assert len(warnings_of(caplog, "of shape (1, 2), (1,). Unless you save them, no checkpoint has them")) == count
