"""Objects that compute metrics: torchmetrics' and others, in ``log`` and ``log_dict``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from core import Callback
from core.errors import ConfigurationError
from core.trainer.metrics.metric import combine_objects, forms_of

from .regression import Regression, loader, quiet


class Largest:
    """Any object with these methods will do."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def update(self, value: float) -> None:
        self.seen.append(value)

    def compute(self) -> float:
        return max(self.seen)

    def reset(self) -> None:
        self.seen = []

    def state_dict(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = list(state["seen"])


class Logs(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.largest = Largest()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.largest.update(float(100 * self.current_epoch - batch_idx))
        self.log("largest", self.largest, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)


def test_the_value_of_the_epoch_is_computed_and_the_object_reset() -> None:
    module = Logs()
    trainer = quiet(max_epochs=2)
    trainer.fit(module, loader())
    assert float(trainer.callback_metrics["largest"]) == 100
    assert module.largest.seen == []


def test_its_state_is_in_a_checkpoint(tmp_path: Path) -> None:
    """Saved in mid-epoch, after the largest value was seen."""

    class Save(Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == 3:
                trainer.save_checkpoint(tmp_path / "saved")

    quiet(max_epochs=1, callbacks=Save()).fit(Logs(), loader())
    trainer = quiet(max_epochs=1)
    trainer.fit(Logs(), loader(), ckpt_path=tmp_path / "saved")
    assert float(trainer.callback_metrics["largest"]) == 0


class Sum(nn.Module):
    """Keeps what it has seen as torchmetrics does: in attributes that its ``state_dict`` leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self._update_count = 0
        self._computed: Any = None
        self.reset()

    @property
    def metric_state(self) -> dict[str, Any]:
        return {"total": self.total, "seen": self.seen}

    def update(self, values: torch.Tensor) -> None:
        self.total += values.detach().sum()
        self.seen.append(values.detach())

    def compute(self) -> torch.Tensor:
        assert len(self.seen) or not self.total
        return self.total

    def reset(self) -> None:
        self.total, self.seen = torch.tensor(0.0), list[torch.Tensor]()


class Collects(Regression):
    """Updates its metrics in the steps, and logs them at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: Any = nn.ModuleDict({"fitted": Sum(), "validated": Sum()})
        self.found: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.sums["fitted"].update(batch[0])
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.sums["validated"].update(batch[1])

    def on_validation_epoch_end(self) -> None:
        self._log("validated")

    def on_train_epoch_end(self) -> None:
        self._log("fitted")

    def _log(self, name: str) -> None:
        self.log(name, self.sums[name].compute())
        self.sums[name].reset()


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_validation_batch_end", "on_validation_end"])
def test_the_state_of_metrics_that_a_hook_will_log_is_in_a_checkpoint(hook: str, tmp_path: Path) -> None:
    """In training what was seen so far; a validation begins again, and so does its metric."""

    class Save(Callback):
        pass

    def save(self: Any, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 3:
            trainer.save_checkpoint(tmp_path / "saved")

    setattr(Save, hook, save)
    options: dict[str, Any] = {"max_epochs": 1, "val_check_interval": 3}
    whole = quiet(callbacks=Save(), **options)
    whole.fit(Collects(), loader(), loader())
    trainer = quiet(**options)
    trainer.fit(Collects(), loader(), loader(), ckpt_path=tmp_path / "saved")
    assert dict(trainer.callback_metrics) == dict(whole.callback_metrics)


def test_what_is_refused() -> None:
    class ByStep(Logs):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("largest", self.largest)

    with pytest.raises(ConfigurationError, match=r"no value of this step.*on_step=False"):
        quiet(max_epochs=1).fit(ByStep(), loader())

    class NoAttribute(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("largest", Largest(), on_step=False, on_epoch=True)

    with pytest.raises(ConfigurationError, match=r"Largest is not an attribute of the module"):
        quiet(max_epochs=1).fit(NoAttribute(), loader())


class Formed(nn.Module):
    """States that get their dimensions with the first update, as some torchmetrics have."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        self.total, self.rows, self._update_count = torch.tensor(0.0), list[torch.Tensor](), 0

    @property
    def metric_state(self) -> dict[str, Any]:
        return {"total": self.total, "rows": self.rows}

    def update(self, rows: torch.Tensor) -> None:
        self.total = self.total + rows.sum(0)
        self.rows.append(rows)
        self._update_count += 1

    def compute(self) -> torch.Tensor:
        """As torchmetrics gathers them, all processes need states of as many dimensions."""
        assert self.total.shape == (2,)
        assert {(row.shape[1:], row.dtype) for row in self.rows} == {((2,), torch.float16)}
        return self.total.sum() + torch.cat(self.rows).sum()


@pytest.mark.parametrize("logs", [False, True])
def test_a_process_without_updates_has_states_of_the_same_form(logs: bool) -> None:
    """Else the exchange of torchmetrics would end the processes; it may have logged the object all the same."""
    owner, other = nn.Module(), Formed()
    owner.metric = Formed()
    other.update(torch.ones(3, 2, dtype=torch.float16))
    own = {"value": ("metric", forms_of(owner.metric))} if logs else {}
    facts = [own, {"value": ("metric", forms_of(other))}]
    assert combine_objects(facts, owner) == {"value": 0.0}
    assert not owner.metric.rows, "it was reset"
    owner.metric.update(torch.ones(3, 2, dtype=torch.float16))
    assert combine_objects(facts, owner) == {"value": 12.0}


def test_torchmetrics() -> None:
    """The value of a step is its forward value; a collection's items share state."""
    torchmetrics = pytest.importorskip("torchmetrics")
    seen: list[float] = []

    class Measured(Regression):
        def __init__(self) -> None:
            super().__init__()
            self.error = torchmetrics.MeanAbsoluteError()
            self.both = torchmetrics.MetricCollection(
                [torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()], prefix="val_"
            )

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.error(batch[0][:, :1], torch.zeros(len(batch[0]), 1))
            self.log("error", self.error, on_epoch=True)
            seen.append(float(self.trainer.callback_metrics["error_step"]) - float(batch[0][:, :1].abs().mean()))
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.both.update(batch[0], torch.zeros_like(batch[0]))
            self.log_dict(self.both)

    trainer = quiet(max_epochs=2)
    trainer.fit(Measured(), loader(), loader())
    inputs = loader().dataset.tensors[0]  # type: ignore[attr-defined]
    metrics = trainer.callback_metrics
    assert float(metrics["error_epoch"]) == pytest.approx(float(inputs[:, :1].abs().mean()), rel=1e-6)
    assert float(metrics["val_MeanSquaredError"]) == pytest.approx(float((inputs**2).mean()), rel=1e-6)
    assert float(metrics["val_MeanAbsoluteError"]) == pytest.approx(float(inputs.abs().mean()), rel=1e-6)
    assert seen == pytest.approx([0.0] * len(seen), abs=1e-6)


def test_options_of_a_name_do_not_change() -> None:
    class Changes(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("value", 1.0, prog_bar=batch_idx > 0)

    with pytest.raises(ConfigurationError, match=r"log\('value'\): called with prog_bar=True \(before: False\)"):
        quiet(max_epochs=1).fit(Changes(), loader())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enable_graph": True}, "enable_graph=True"),
        ({"sync_dist_group": object()}, "sync_dist_group"),
        ({"rank_zero_only": True, "sync_dist": True}, "rank_zero_only=True, sync_dist=True"),
        ({"metric_attribute": "x"}, "is not a metric object"),
        ({"reduce_fx": torch.median}, "unknown reduce_fx"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    class Wrong(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("value", 1.0, **options)

    with pytest.raises(ConfigurationError, match=message):
        quiet(max_epochs=1).fit(Wrong(), loader())


def test_torch_functions_reduce() -> None:
    class Reduced(Regression):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("max", float(batch_idx), reduce_fx=torch.max)
            self.log("min", float(batch_idx), reduce_fx=min)
            self.log("sum", float(batch_idx), reduce_fx=torch.sum)

    assert quiet().validate(Reduced(), [torch.ones(1)] * 4) == [{"max": 3.0, "min": 0.0, "sum": 6.0}]


def test_a_callback_logs() -> None:
    """With self.log, as a module does, while a Trainer runs it; also after another Trainer has run it within."""

    class Own(Callback):
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            assert quiet(callbacks=self).validate(Regression(), loader())[0]["within"] == 3
            self.log("mine", 5.0, True)

        def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
            self.log("within", 3.0)

    callback = Own()
    trainer = quiet(max_epochs=1, callbacks=callback)
    trainer.fit(Regression(), loader())
    assert float(trainer.callback_metrics["mine"]) == trainer.progress_bar_metrics["mine"] == 5
    with pytest.raises(ConfigurationError, match="no Trainer is running this callback"):
        callback.log("mine", 1.0)


def test_an_object_of_two_stages_or_loaders_is_refused() -> None:
    """Its value would be of the batches of both; by one name, the value of several loaders is what was asked for."""

    class OfBoth(Logs):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            self.largest.update(1.0)
            self.log("validated", self.largest)

    message = r"log\('validated'\): self.largest has been logged as 'largest' in this epoch.*for each stage"
    with pytest.raises(ConfigurationError, match=message):
        quiet(max_epochs=1, num_sanity_val_steps=1).fit(OfBoth(), loader(), loader())
    assert quiet().validate(OfBoth(), loader()) == [{"validated": 1.0}]
    message = r"idx_1'\): self.largest .* 'validated/dataloader_idx_0'.* each loader"
    with pytest.raises(ConfigurationError, match=message):
        quiet().validate(OfBoth(), [loader(), loader()])

    class Together(Logs):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            self.largest.update(float(dataloader_idx))
            self.log("both", self.largest, add_dataloader_idx=False)

    assert quiet().validate(Together(), [loader(), loader()]) == [{"both": 1.0}] * 2
