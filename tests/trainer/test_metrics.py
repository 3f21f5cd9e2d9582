"""What a module logs, against means, sums and extremes by numpy."""

from __future__ import annotations

import logging
import re
from collections import UserDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from core import Callback, Trainer
from core.errors import ConfigurationError

from .regression import Regression, loader, quiet

SIZES = (8, 8, 3, 5)
VALUES = (0.5, -2.0, 7.0, 0.25)


def batches() -> list[Tensor]:
    return [torch.ones(size, 2) for size in SIZES]


class Opaque:
    """A batch of a class in which no tensors are looked for, as graph libraries have."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows


class Logs(Regression):
    """Calls ``log`` with each step's value of VALUES, and what is given here."""

    def __init__(self, kind: Any = float, **options: Any) -> None:
        super().__init__()
        self.kind, self.options = kind, options

    def record(self, batch_idx: int) -> None:
        self.log("value", self.kind(VALUES[batch_idx]), **self.options)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.record(batch_idx)
        return self.network(torch.ones(2, 6)).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.record(batch_idx)

    test_step = validation_step


class Sent:
    """A logger that keeps what it is sent."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.calls.append((step, metrics))


REDUCED = {
    "mean": float(np.average(VALUES, weights=SIZES)),
    "sum": float(np.sum(VALUES)),
    "min": float(np.min(VALUES)),
    "max": float(np.max(VALUES)),
    "MAX": float(np.max(VALUES)),
}

KINDS: dict[str, Any] = {
    "float": float,
    "tensor": torch.tensor,
    "tensor of one element": lambda value: torch.tensor([[value]]),
    "half": lambda value: torch.tensor(value, dtype=torch.bfloat16),
    "numpy": np.float32,
    "with gradient": lambda value: torch.tensor(value, requires_grad=True) * 1,
}


@pytest.mark.parametrize("reduce_fx", REDUCED)
@pytest.mark.parametrize("kind", KINDS)
def test_epoch_values(kind: str, reduce_fx: str) -> None:
    """Numbers and scalar tensors of any kind are combined over the epoch as asked, in training as in validation."""
    module = Logs(KINDS[kind], on_step=False, on_epoch=True, reduce_fx=reduce_fx)
    trainer = quiet(max_epochs=2)
    trainer.fit(module, batches())
    in_training = trainer.callback_metrics
    assert set(in_training) == {"value"}
    assert in_training["value"].shape == ()
    assert not in_training["value"].requires_grad
    assert float(in_training["value"]) == pytest.approx(REDUCED[reduce_fx], rel=1e-6)
    assert quiet().validate(module, batches()) == [{"value": pytest.approx(REDUCED[reduce_fx], rel=1e-6)}]


BOTH = {"value_epoch": REDUCED["mean"], "value": REDUCED["mean"]}
"""What is published next to the value of the last step if both kinds are recorded."""


@pytest.mark.parametrize(
    ("options", "training", "evaluation"),
    [
        ({}, {"value": 0.25}, {"value": REDUCED["mean"]}),
        ({"on_step": True, "on_epoch": False}, {"value": 0.25}, {}),
        ({"on_epoch": True}, {"value_step": 0.25, **BOTH}, {"value": REDUCED["mean"]}),
        ({"on_step": True}, {"value": 0.25}, {"value_epoch": REDUCED["mean"]}),
        (
            {"on_epoch": True, "batch_size": 1},
            {"value_step": 0.25, "value_epoch": 1.4375, "value": 1.4375},
            {"value": 1.4375},
        ),
        ({"sync_dist": True}, {"value": 0.25}, {"value": REDUCED["mean"]}),
        ({"logger": False}, {"value": 0.25}, {}),
    ],
)
def test_names(options: dict[str, Any], training: dict[str, float], evaluation: dict[str, float]) -> None:
    """By step in training and by epoch in evaluation unless told otherwise; ``_step`` and ``_epoch`` where both.

    An evaluation returns what loggers get at the end of its epoch, as Lightning's does.
    """
    module, trainer = Logs(**options), quiet(max_epochs=1)
    trainer.fit(module, batches())
    assert {name: float(value) for name, value in trainer.callback_metrics.items()} == pytest.approx(training)
    assert trainer.test(module, batches())[0] == pytest.approx(evaluation)


def test_loggers_are_called_every_n_steps_and_at_an_epochs_end() -> None:
    """Step values after every second step, epoch values when they are known; each logger has its own copy."""
    first, second = Sent(), Sent()
    trainer = quiet(max_epochs=2, log_every_n_steps=2, logger=[first, second])
    trainer.fit(Logs(on_epoch=True), batches(), batches())
    mean = pytest.approx(REDUCED["mean"])
    assert first.calls == [
        (1, {"value_step": -2.0, "epoch": 0}),
        (3, {"value_step": 0.25, "epoch": 0}),
        (3, {"value": mean, "epoch": 0}),
        (3, {"value_epoch": mean, "epoch": 0}),
        (5, {"value_step": -2.0, "epoch": 1}),
        (7, {"value_step": 0.25, "epoch": 1}),
        (7, {"value": mean, "epoch": 1}),
        (7, {"value_epoch": mean, "epoch": 1}),
    ]
    assert second.calls == first.calls
    assert second.calls[0][1] is not first.calls[0][1]
    assert all(type(value) in (float, int) for _, metrics in first.calls for value in metrics.values())


def test_loggers_count_optimizer_steps() -> None:
    """With two batches a step there are two steps, and the value is the last batch's."""
    sent = Sent()
    quiet(max_epochs=1, log_every_n_steps=1, logger=sent, accumulate_grad_batches=2).fit(Logs(), batches())
    assert sent.calls == [(0, {"value": -2.0, "epoch": 0}), (1, {"value": 0.25, "epoch": 0})]


def test_the_newest_value_is_there_at_once() -> None:
    """A callback sees in callback_metrics what the running step has logged."""
    seen: list[float] = []

    class Look(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(float(trainer.callback_metrics["value"]))

    quiet(max_epochs=1, callbacks=Look()).fit(Logs(), batches())
    assert seen == list(VALUES)


def test_a_value_is_taken_as_it_is() -> None:
    """What is done to a tensor in place after it was logged does not change what was logged."""

    class Counter(Regression):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 0:
                self.count = torch.zeros(())
            self.count += 1
            self.log("sum", self.count, reduce_fx="sum")
            self.log("min", self.count, reduce_fx="min")
            self.log("mean", self.count)

    (result,) = quiet().validate(Counter(), [torch.ones(1)] * 4)
    assert result == {"sum": 10.0, "min": 1.0, "mean": 2.5}


@pytest.mark.parametrize(
    ("value", "reduce_fx", "expected"),
    [
        (torch.tensor(1.0, dtype=torch.bfloat16), "mean", 1.0),
        (torch.tensor(1.0, dtype=torch.float16), "sum", 3000.0),
        (torch.tensor(200, dtype=torch.uint8), "sum", 600_000.0),
        (torch.tensor(True), "sum", 3000.0),
        (torch.tensor(True), "mean", 1.0),
        (torch.tensor(20_000_001), "sum", 60_000_003_000.0),
        (20_000_001, "sum", 60_000_003_000.0),
    ],
)
def test_many_values_of_a_narrow_dtype(value: Any, reduce_fx: str, expected: float) -> None:
    """3,000 of them are added up without saturation, overflow or rounding."""

    class Many(Regression):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("value", value, reduce_fx=reduce_fx)

    assert quiet().validate(Many(), [torch.ones(3)] * 3000) == [{"value": expected}]


@dataclass
class Graph:
    name: str
    nodes: Tensor


@pytest.mark.parametrize(
    "wrap",
    [
        lambda rows: rows,
        lambda rows: [rows, torch.ones(99)],
        lambda rows: {"x": rows},
        lambda rows: UserDict(x=rows),
        lambda rows: {"names": ["a", "b"], "nested": {"empty": []}, "scalar": torch.tensor(1), "x": (rows,)},
        lambda rows: Graph("g", rows),
    ],
)
def test_the_weight_is_the_batchs_first_dimension(wrap: Any) -> None:
    """Of the first tensor that has one, wherever it stands in the batch."""
    assert quiet().validate(Logs(), [wrap(batch) for batch in batches()]) == [{"value": pytest.approx(REDUCED["mean"])}]


def test_batches_without_tensors_weigh_the_same() -> None:
    """Where nothing tells a batch's size, the mean is over batches."""
    assert quiet().validate(Logs(), ["a", "b", 3, None]) == [{"value": pytest.approx(float(np.mean(VALUES)))}]


@pytest.mark.parametrize(
    ("wrap", "says"),
    [
        (lambda rows: rows, None),
        (lambda rows: {"x": rows, "labels": rows[:, 0], "scale": torch.tensor(2.0)}, None),
        (lambda rows: Opaque(rows), "a batch of type Opaque does not say how many items it has"),
        (lambda rows: [rows.T, rows], "the tensors of a batch have"),
    ],
)
def test_a_size_that_is_not_certain_is_said_once(wrap: Any, says: str | None, caplog: pytest.LogCaptureFixture) -> None:
    """The mean would be one over batches, or over rows of something else; batch_size= makes it right."""
    with caplog.at_level(logging.WARNING):
        quiet().validate(Logs(), [wrap(batch) for batch in batches()])
    found = [record.getMessage() for record in caplog.records if "batch_size=" in record.getMessage()]
    assert len(found) == (says is not None)
    assert all(str(says) in message for message in found)


class LogsInHooks(Regression):
    """Computes its metrics at the end, as one does that need all items."""

    def on_train_epoch_start(self) -> None:
        self.log("started", float(self.current_epoch), on_step=False, on_epoch=True)

    def on_train_epoch_end(self) -> None:
        self.log("train_end", 10.0 + self.current_epoch, on_step=False, on_epoch=True)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return None

    def on_validation_epoch_end(self) -> None:
        self.log_dict({"validate_a": 20.0, "validate_b": 21}, prog_bar=True)

    def on_test_epoch_end(self) -> None:
        self.log_dict({"test_a": 20.0, "test_b": 21}, prog_bar=True)


def test_what_hooks_log_counts_for_the_epoch_that_they_end() -> None:
    """And reaches loggers, results and the callbacks' hooks of the same name."""
    sent = Sent()
    seen: list[tuple[str, dict[str, float]]] = []

    class Look(Callback):
        def on_validation_epoch_end(self, trainer: Trainer, module: Any) -> None:
            seen.append(("validate", {name: float(value) for name, value in trainer.callback_metrics.items()}))

        def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
            seen.append(("train", {name: float(value) for name, value in trainer.callback_metrics.items()}))

    rows = [(torch.ones(2, 6), torch.ones(2, 1))]
    trainer = quiet(max_epochs=2, logger=sent, callbacks=Look())
    trainer.fit(LogsInHooks(), rows, rows)
    evaluated = {"validate_a": 20.0, "validate_b": 21.0}
    ends = [{"started": float(epoch), "train_end": 10.0 + epoch} for epoch in range(2)]
    assert seen == [
        ("validate", evaluated),
        ("train", {**evaluated, **ends[0]}),
        ("validate", {**evaluated, **ends[0]}),
        ("train", {**evaluated, **ends[1]}),
    ]
    assert sent.calls == [
        (epoch, {**values, "epoch": epoch}) for epoch in range(2) for values in (evaluated, ends[epoch])
    ]
    assert trainer.prog_bar_metrics == set(evaluated)
    assert quiet().validate(LogsInHooks(), rows) == [evaluated]


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (torch.ones(2), {}, r"log\('x'\): the value is a tensor of shape \(2,\)"),
        ("1.0", {}, r"log\('x'\): the value '1.0' has type str"),
        (None, {}, "the value None has type NoneType"),
        (1.0, {"reduce_fx": "median"}, r"reduce_fx='median'.*'mean', 'sum', 'min', 'max'"),
        (1.0, {"on_step": False, "on_epoch": False}, "on_step and on_epoch are both False"),
        (torch.tensor(1j), {}, r"log\('x'\): the value is complex.*value\.abs\(\)"),
        (1.0, {"batch_size": -1}, r"log\('x', batch_size=-1\): must be the number of items"),
        (1.0, {"batch_size": "4"}, r"log\('x', batch_size='4'\): must be the number of items"),
        (1.0, {"name": " "}, r"log\(' '\): the name of a metric is empty"),
    ],
)
def test_values_and_arguments_that_cannot_be_logged(value: Any, options: dict[str, Any], message: str) -> None:
    """The error names the metric, what was given and what is valid."""

    class Wrong(Regression):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.log(**{"name": "x", "value": value, **options})

    with pytest.raises(ConfigurationError, match=message):
        quiet().validate(Wrong(), [torch.ones(1)])


@pytest.mark.parametrize(("first", "second"), [("a", "a_step"), ("a", "a_epoch"), ("a_step", "a")])
def test_two_names_that_are_published_as_one_are_refused(first: str, second: str) -> None:
    """What is logged by step and by epoch has the names ``a_step`` and ``a_epoch``: another value cannot have them."""

    class Shares(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            for name in (first, second):
                self.log(name, 1.0, on_step=True, on_epoch=name == "a")
            return super().training_step(batch, batch_idx)

    longer = max(first, second, key=len)
    told = f"log({second!r}): {longer!r} would have the values of both 'a' and {longer!r}"
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        quiet(max_epochs=1).fit(Shares(), batches())


def test_a_later_value_that_is_no_scalar_is_refused_as_well() -> None:
    """Not only the first value under a name is looked at."""

    class Later(Regression):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("x", torch.ones(1 + batch_idx))

    with pytest.raises(ConfigurationError, match=r"shape \(2,\)"):
        quiet().validate(Later(), [torch.ones(1)] * 2)


@pytest.mark.parametrize("hook", ["on_fit_start", "on_fit_end", "configure_optimizers"])
def test_logging_where_nothing_is_running(hook: str) -> None:
    """The error says where one can; nothing is lost in silence."""

    class Early(Regression):
        pass

    setattr(Early, hook, lambda self: self.log("x", 1.0))
    with pytest.raises(ConfigurationError, match=r"log\('x'\): no epoch or evaluation is running.*on_train_start"):
        quiet(max_epochs=1).fit(Early(), [(torch.ones(2, 6), torch.ones(2, 1))])
    with pytest.raises(ConfigurationError, match="no Trainer is running this module"):
        Early().log("x", 1.0)


def test_metrics_of_an_earlier_run_are_gone() -> None:
    """Each fit and each evaluation begins without any."""
    trainer = quiet(max_epochs=1)
    trainer.fit(Logs(), batches())

    class Silent(Regression):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            return nn.functional.relu(batch).mean()

    assert trainer.validate(Silent(), batches()) == [{}]
    trainer.fit(Logs(), batches())
    trainer.fit(Regression(), [(torch.ones(2, 6), torch.ones(2, 1))])
    assert trainer.callback_metrics == {}


def test_values_of_an_epochs_end_are_sent_once() -> None:
    """What on_train_epoch_end logs, in a module or a callback, goes to the loggers once, at the end of its epoch."""

    class EndOfEpoch(Regression):
        def on_train_epoch_end(self) -> None:
            self.log("epoch", self.current_epoch)

    class OfCallback(Callback):
        def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
            module.log("seen", trainer.callback_metrics["epoch"] + 10)

    sent = Sent()
    trainer = quiet(max_epochs=3, log_every_n_steps=2, logger=sent, callbacks=OfCallback())
    trainer.fit(EndOfEpoch(), loader(10))
    assert sent.calls == [
        (step, {name: float(value), "epoch": at})
        for step, at in ((4, 0), (9, 1), (14, 2))
        for name, value in (("epoch", at), ("seen", at + 10))
    ]
    assert float(trainer.callback_metrics["epoch"]) == 2


def test_an_epochs_end_is_no_step() -> None:
    """on_step=True in on_train_epoch_end is refused."""

    class EndOfEpoch(Regression):
        def on_train_epoch_end(self) -> None:
            self.log("epoch", 1, on_step=True)

    with pytest.raises(ConfigurationError, match=r"log\('epoch', on_step=True\): the epoch has no further step"):
        quiet(max_epochs=1).fit(EndOfEpoch(), loader())


def test_step_values_end_with_their_epoch() -> None:
    """A value that only the first epoch's steps log is not sent again in the second."""

    class Once(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.current_epoch == 0:
                self.log("value", batch_idx)
            return super().training_step(batch, batch_idx)

    sent = Sent()
    quiet(max_epochs=2, log_every_n_steps=1, logger=sent).fit(Once(), loader(25))
    assert sent.calls == [(0, {"value": 0.0, "epoch": 0}), (1, {"value": 1.0, "epoch": 0})]
