"""Profilers: what is measured, where it is written, and that nothing is wrapped without one."""

from __future__ import annotations

import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest

from core import Callback
from core.errors import ConfigurationError, UnknownNameError, WrongTypeError
from core.profilers import AdvancedProfiler, PyTorchProfiler, SimpleProfiler

from .regression import Regression, loader, quiet


class Slow(Regression):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        with self.trainer.profiler.profile("sleeping"):
            time.sleep(0.01)
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        time.sleep(0.02)


class Counts(Callback):
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pass


def test_simple(tmp_path: Path) -> None:
    """Each action as often as it happens, with a time that is at least what it slept."""
    profiler = SimpleProfiler(tmp_path, "times")
    quiet(max_epochs=2, profiler=profiler, callbacks=Counts()).fit(Slow(), loader(10), loader(25))
    counts = {name: len(durations) for name, durations in profiler.recorded_durations.items()}
    assert counts["sleeping"] == counts["run_training_batch"] == counts["[Counts]on_train_batch_end"] == 10
    assert counts["[train]next"] >= 10
    assert counts["validation_step"] == 4
    assert min(profiler.recorded_durations["run_training_batch"]) >= 0.01
    assert min(profiler.recorded_durations["[Slow]on_train_epoch_end"]) >= 0.02
    report = (tmp_path / "times-fit-0.txt").read_text()
    assert "run_training_batch" in report
    assert "Profile of fit" in report
    with pytest.raises(ConfigurationError, match="was not started"):
        profiler.stop("mine")
    profiler.start("mine")
    with pytest.raises(ConfigurationError, match="being measured already"):
        profiler.start("mine")


def test_by_name_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """At level INFO."""
    with caplog.at_level(logging.INFO, "torch_hal.profilers"):
        quiet(max_epochs=1, profiler="simple").fit(Slow(), loader(25))
    assert "run_training_batch" in caplog.text


def test_advanced(tmp_path: Path) -> None:
    """The functions within an action, and files for pstats."""
    profiler = AdvancedProfiler(tmp_path, dump_stats=True)
    quiet(max_epochs=1, profiler=profiler).fit(Slow(), loader(25))
    report = (tmp_path / "profile-fit-0.txt").read_text()
    assert "Profile of run_training_batch" in report
    assert "sleep" in report
    assert (tmp_path / "profile-fit-0-run_training_batch.prof").exists()


def test_pytorch(tmp_path: Path) -> None:
    """Operators, and actions as ranges of the trace."""
    profiler = PyTorchProfiler(tmp_path, "torch")
    quiet(max_epochs=1, profiler=profiler).fit(Regression(), loader(25))
    assert "aten::addmm" in (tmp_path / "torch-fit-0.txt").read_text()
    events = json.loads((tmp_path / "torch-fit-0.json").read_text())["traceEvents"]
    assert sum(event.get("name") == "run_training_batch" for event in events) >= 2


def test_pytorch_by_the_shapes_of_inputs(tmp_path: Path) -> None:
    """The report has a row for each shape, and the columns that were asked for."""
    profiler = PyTorchProfiler(
        tmp_path, "shapes", group_by_input_shapes=True, sort_by_key=None, table_kwargs={"header": "by shape"}
    )
    quiet(max_epochs=1, profiler=profiler).fit(Regression(), loader(25))  # batches of 10, 10 and 5
    report = (tmp_path / "shapes-fit-0.txt").read_text()
    assert "Input Shapes" in report
    assert "by shape" in report


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("emit_nvtx", "call fit within torch.autograd.profiler.emit_nvtx()"),
        ("record_module_names", "trainer.profiler.profile('its name')"),
        ("record_shape", "Did you mean 'record_shapes'?"),
        ("zzz", "torch.profiler.profile has: ['activities'"),
    ],
)
def test_arguments_that_torchs_profiler_does_not_have(name: str, remedy: str) -> None:
    """Refused at once, and not when a run starts."""
    with pytest.raises(WrongTypeError, match=re.escape(f"PyTorchProfiler: unknown argument {name!r}. ")) as error:
        PyTorchProfiler(None, None, **{name: True})  # type: ignore[arg-type]
    assert remedy in str(error.value)


def test_what_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'simple'"):
        quiet(profiler="simpel")
    with pytest.raises(WrongTypeError, match="profiler=5"):
        quiet(profiler=5)
    with pytest.raises(ConfigurationError, match="dump_stats"):
        AdvancedProfiler(dump_stats=True)


def test_without_one_nothing_is_wrapped() -> None:
    """The module's hook itself is called, and its own contexts cost next to nothing."""

    class Look(Slow):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            context = self.trainer.run.context
            assert context is not None
            assert context.hooks.bind_module("on_train_batch_end") == (self.on_train_batch_end,)

    quiet(max_epochs=1).fit(Look(), loader(25))
