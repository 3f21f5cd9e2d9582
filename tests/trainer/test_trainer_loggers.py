"""The argument ``logger``, the folders of runs, and what loggers are told."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from core import Callback
from core.errors import ConfigurationError
from core.loggers import CSVLogger, JSONLogger, Logger, TensorBoardLogger

from .regression import Regression, loader, quiet


class Logged(Regression):
    """Logs a value of each step and one of each epoch, in training and validation."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("step_number", float(self.global_step), on_epoch=True)
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        self.log("epoch_number", float(self.current_epoch))

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("seen", float(batch_idx), on_step=True)


def rows(folder: str | Path) -> list[dict[str, str]]:
    """The rows of metrics.csv, without what is empty."""
    with open(Path(folder, "metrics.csv"), newline="") as file:
        return [{name: text for name, text in row.items() if text} for row in csv.DictReader(file)]


EXPECTED = [
    {"step": "1", "step_number_step": "1.0", "epoch": "0"},
    {"step": "3", "step_number_step": "3.0", "epoch": "0"},
    {"step": "0", "seen_step": "0.0"},
    {"step": "1", "seen_step": "1.0"},
    {"step": "4", "seen_epoch": "0.4", "epoch": "0"},
    {"step": "4", "step_number_epoch": "2.0", "epoch_number": "0.0", "epoch": "0"},
    {"step": "5", "step_number_step": "5.0", "epoch": "1"},
    {"step": "7", "step_number_step": "7.0", "epoch": "1"},
    {"step": "9", "step_number_step": "9.0", "epoch": "1"},
    {"step": "2", "seen_step": "0.0"},
    {"step": "3", "seen_step": "1.0"},
    {"step": "9", "seen_epoch": "0.4", "epoch": "1"},
    {"step": "9", "step_number_epoch": "7.0", "epoch_number": "1.0", "epoch": "1"},
]
"""What Lightning's CSVLogger writes in the same run: steps from 0, and the epoch with each set of the loop's own."""


def test_what_a_csv_file_holds(tmp_path: Path) -> None:
    """Each value once: of every second step, of the epoch at its end, of validation with each batch."""
    logger = CSVLogger(tmp_path, name="runs")
    trainer = quiet(max_epochs=2, log_every_n_steps=2, logger=logger)
    trainer.fit(Logged(), loader(10), loader(30))
    assert trainer.log_dir == str(tmp_path / "runs/version_0")
    assert rows(trainer.log_dir or "") == EXPECTED
    assert json.loads((tmp_path / "runs/version_0/hparams.json").read_text()) == {"width": 3}


def test_tensorboard_is_the_default(tmp_path: Path) -> None:
    """Its files can be read by TensorBoard itself, and each run has its own folder."""
    for version in range(2):
        trainer = quiet(max_epochs=2, log_every_n_steps=2, logger=True, default_root_dir=tmp_path)
        trainer.fit(Logged(), loader(10))
        assert isinstance(trainer.logger, TensorBoardLogger)
        assert trainer.log_dir == str(tmp_path / f"core_logs/version_{version}")
        events = EventAccumulator(trainer.log_dir)
        events.Reload()
        assert [(event.step, event.value) for event in events.Scalars("epoch_number")] == [(4, 0.0), (9, 1.0)]
        assert [event.step for event in events.Scalars("step_number_step")] == [1, 3, 5, 7, 9]
        assert (tmp_path / f"core_logs/version_{version}/hparams.json").exists()


def test_csv_is_the_default_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No package is needed."""
    monkeypatch.setattr("core.trainer.metrics.run_loggers.importlib.util.find_spec", lambda name: None)
    assert isinstance(quiet(logger=None, default_root_dir=tmp_path).logger, CSVLogger)
    assert not list(tmp_path.iterdir())


def test_names_objects_and_lists(tmp_path: Path) -> None:
    """Names and objects mixed; the first is trainer.logger, and each gets the same."""
    trainer = quiet(max_epochs=1, logger=["csv", JSONLogger(tmp_path, name="j")], default_root_dir=tmp_path)
    trainer.fit(Logged(), loader(10))
    first = trainer.loggers[0]
    assert trainer.logger is first
    assert isinstance(first, CSVLogger)
    lines = [json.loads(line) for line in (tmp_path / "j/version_0/metrics.jsonl").read_text().splitlines()]
    assert [{name: str(value) for name, value in line.items()} for line in lines] == rows(str(first.log_dir))
    trainer.loggers = []
    assert (str(trainer.logger), trainer.log_dir) == ("None", str(tmp_path))


def test_a_module_reaches_its_loggers(tmp_path: Path) -> None:
    """Among others their libraries' own objects, in a step."""

    class Own(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            assert self.loggers == self.trainer.loggers
            assert self.logger is self.loggers[0]
            self.logger.experiment.add_scalar("own", 5.0, batch_idx)
            return super().training_step(batch, batch_idx)

    module = Own()
    assert module.logger is None
    assert module.loggers == []
    trainer = quiet(max_epochs=1, logger="tensorboard", default_root_dir=tmp_path)
    trainer.fit(module, loader(25))
    events = EventAccumulator(str(trainer.log_dir))
    events.Reload()
    assert [event.step for event in events.Scalars("own")] == [0, 1]


@pytest.mark.parametrize(("error", "status"), [(ValueError, "failed"), (KeyboardInterrupt, "interrupted")])
def test_loggers_are_told_how_the_run_ended(error: type[BaseException], status: str) -> None:
    """Objects with Lightning's methods of a logger: each method that they have is called."""
    calls: list[Any] = []

    class Other:
        version = "a"

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            calls.append((step, metrics))

        def log_hyperparams(self, params: dict[str, Any]) -> None:
            calls.append(params)

        def finalize(self, status: str) -> None:
            calls.append(status)

    class Ends(Logged):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                raise error

    trainer = quiet(max_epochs=1, log_every_n_steps=1, logger=Other())
    with pytest.raises(error):
        trainer.fit(Ends(), loader(25))
    assert calls == [{"width": 3}, (0, {"step_number_step": 0.0, "epoch": 0}), status]
    calls.clear()
    trainer.fit(Regression(), loader(25))
    assert calls == ["success"]


def test_all_loggers_are_ended_if_one_fails() -> None:
    """The others are told the same, and the error is raised."""
    calls: list[Any] = []

    class Fails:
        def __init__(self, name: str) -> None:
            self.name = name

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            pass

        def finalize(self, status: str) -> None:
            calls.append((self.name, status))
            if self.name != "c":
                raise OSError(self.name)

    with pytest.raises(OSError, match="b"):
        quiet(max_epochs=1, logger=[Fails(name) for name in "abc"]).fit(Regression(), loader(25))
    assert calls == [(name, "success") for name in "abc"]


def test_values_of_hooks_belong_to_their_step(tmp_path: Path) -> None:
    """What on_train_batch_start and on_train_batch_end log is sent with the step's own values."""

    class InHooks(Regression):
        def on_train_start(self) -> None:
            self.log("started", 1.0)

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.log("before", float(batch_idx))

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self.log("after", float(batch_idx))

    trainer = quiet(max_epochs=1, log_every_n_steps=2, logger=CSVLogger(tmp_path))
    trainer.fit(InHooks(), loader(10))
    assert rows(str(trainer.log_dir)) == [
        {"step": "1", "before": "1.0", "after": "1.0", "epoch": "0"},
        {"step": "3", "before": "3.0", "after": "3.0", "epoch": "0"},
        {"step": "4", "started": "1.0", "epoch": "0"},
    ]


def test_what_does_not_go_to_loggers(tmp_path: Path) -> None:
    """logger=False keeps a value for callbacks only; a value named step is the loggers' axis."""

    class Mine(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("hidden", 1.0, logger=False, prog_bar=True)
            self.log_dict({"shown": 2.0, "step": float(100 + batch_idx)})
            return super().training_step(batch, batch_idx)

    trainer = quiet(max_epochs=1, log_every_n_steps=1, logger=CSVLogger(tmp_path))
    trainer.fit(Mine(), loader(25))
    assert rows(str(trainer.log_dir)) == [{"step": "100", "shown": "2.0"}, {"step": "101", "shown": "2.0"}]
    assert {name: float(value) for name, value in trainer.logged_metrics.items()} == {"shown": 2.0, "step": 101.0}
    assert trainer.progress_bar_metrics == {"hidden": 1.0}
    assert set(trainer.callback_metrics) == {"hidden", "shown", "step"}


def test_evaluation_is_sent_once_with_the_steps_that_were_taken(tmp_path: Path) -> None:
    """After a fit of five steps, validate's values belong to step 5."""
    trainer = quiet(max_epochs=1, logger=CSVLogger(tmp_path))
    module = Regression()
    trainer.fit(module, loader(10))
    trainer.validate(module, loader(10))
    (row,) = rows(str(trainer.log_dir))
    assert (row["step"], row["epoch"]) == ("5", "1")
    trainer.predict(module, loader(10))
    assert len(rows(str(trainer.log_dir))) == 1


def test_callbacks_know_the_folder_when_they_are_set_up(tmp_path: Path) -> None:
    """It exists already, so that no other run takes it."""
    seen: list[bool] = []

    class Look(Callback):
        def setup(self, trainer: Any, module: Any, stage: str) -> None:
            seen.append(Path(trainer.log_dir).is_dir())

    quiet(max_epochs=0, logger=CSVLogger(tmp_path), callbacks=Look()).fit(Regression(), loader())
    assert seen == [True]


def test_a_resumed_run_writes_what_an_uninterrupted_one_does(tmp_path: Path) -> None:
    """In the same folder, whatever was written after the checkpoint; also where no metric was lost nor twice."""

    class Stops(Callback):
        """Saves in a hook of a step that is sent, goes on for some steps, and fails."""

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == 7:
                trainer.save_checkpoint(tmp_path / "saved")
            if trainer.global_step == 9:
                module.log("late", 1.0, on_step=True, on_epoch=True)
            if trainer.global_step == 10:
                raise ValueError("killed")

    def trainer(folder: str, loggers: Any = ("csv", "json", "tensorboard"), **settings: Any) -> Any:
        root = tmp_path / folder
        return quiet(max_epochs=3, log_every_n_steps=1, logger=loggers, default_root_dir=root, **settings)

    whole = trainer("whole")
    whole.fit(Logged(), loader(10), loader(30))
    with pytest.raises(ValueError, match="killed"):
        trainer("resumed", callbacks=Stops()).fit(Logged(), loader(10), loader(30))
    time.sleep(1)  # TensorBoard orders the event files of a run by the second in which they are made
    resumed = trainer("resumed", ["tensorboard", "csv", "json"])  # the order does not matter
    resumed.fit(Logged(), loader(10), loader(30), ckpt_path=tmp_path / "saved")
    of_resumed = [*resumed.loggers[1:], resumed.loggers[0]]
    for one, other in zip(whole.loggers, of_resumed, strict=True):
        first, second = Path(one.log_dir), Path(other.log_dir)
        assert first.name == second.name
        for name in ("metrics.csv", "metrics.jsonl", "hparams.json"):
            if (first / name).exists():
                assert (first / name).read_text() == (second / name).read_text()
    events = [EventAccumulator(str(one.log_dir)) for one in (whole.loggers[2], of_resumed[2])]
    for accumulator in events:
        accumulator.Reload()
    names = events[0].Tags()["scalars"]
    assert names == events[1].Tags()["scalars"]
    for name in names:
        first_values, second_values = ([(e.step, e.value) for e in events[run].Scalars(name)] for run in range(2))
        assert first_values == second_values, name


def test_a_version_that_is_given_stays(tmp_path: Path) -> None:
    """A resumed run with its own version leaves the earlier one's files alone."""
    first = quiet(max_epochs=1, log_every_n_steps=1, logger=CSVLogger(tmp_path), enable_checkpointing=False)

    class Save(Callback):
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            trainer.save_checkpoint(tmp_path / "saved")

    first.callbacks.append(Save())
    first.fit(Logged(), loader(10))
    before = (tmp_path / "core_logs/version_0/metrics.csv").read_text()
    second = quiet(max_epochs=2, log_every_n_steps=1, logger=CSVLogger(tmp_path, version="other"))
    second.fit(Logged(), loader(10), ckpt_path=tmp_path / "saved")
    assert (tmp_path / "core_logs/version_0/metrics.csv").read_text() == before
    assert rows(tmp_path / "core_logs/other")[0]["step"] == "5"


@pytest.mark.filterwarnings("ignore:.*jit.trace")
def test_log_graph_needs_an_example(tmp_path: Path) -> None:
    """The error says where to set it; with it, TensorBoard has the graph."""
    logger = TensorBoardLogger(tmp_path, log_graph=True)
    with pytest.raises(ConfigurationError, match=r"log_graph=True.*self.example_input_array"):
        quiet(max_epochs=1, logger=logger).fit(Regression(), loader())
    module = Regression()
    module.example_input_array = torch.ones(2, 6)
    quiet(max_epochs=1, logger=logger).fit(module, loader())
    events = EventAccumulator(str(logger.log_dir))
    events.Reload()
    assert events.Tags()["graph"]


def test_a_logger_written_for_lightning_with_our_base_class_is_told_what_to_do() -> None:
    """Only its import was changed; without the base class it works."""
    with pytest.raises(ConfigurationError, match=r"defines 'write_metrics' instead of 'log_metrics'.*remove it"):

        class Changed(Logger):
            def log_metrics(self, metrics: Any, step: Any = None, **options: Any) -> None:
                pass


@pytest.mark.parametrize(
    ("settings", "is_said"),
    [
        ({}, True),  # 50 is the default, an epoch has 7 steps
        ({"log_every_n_steps": 8}, True),
        ({"log_every_n_steps": 7}, False),
        ({"accumulate_grad_batches": 4, "log_every_n_steps": 3}, True),
        ({"logger": False}, False),
        ({"fast_dev_run": 2}, False),
        ({"max_steps": 3}, False),
    ],
    ids=str,
)
def test_steps_that_are_logged_less_than_once_in_an_epoch(
    settings: dict[str, Any], is_said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, with the number that logs them; not where there is no logger, or the run is cut short."""
    options = {"max_epochs": 3, "logger": CSVLogger(tmp_path), "default_root_dir": tmp_path, **settings}
    quiet(**options).fit(Logged(), loader(), loader())
    steps = 2 if "accumulate_grad_batches" in settings else 7
    text = (
        f"an epoch has {steps} step(s): the logger gets 'step_number_step' of less than one step in an epoch. Set "
        f"log_every_n_steps={steps} or less, or log with on_epoch=True"
    )
    assert caplog.text.count(text) == caplog.text.count("less than one step") == int(is_said)


def test_values_of_epochs_only_are_logged_at_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """So nothing is said of steps."""

    class OfEpochs(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.log("x", 1.0, on_step=False, on_epoch=True)
            return super().training_step(batch, batch_idx)

    quiet(max_epochs=1, logger=CSVLogger(tmp_path)).fit(OfEpochs(), loader(), loader())
    assert "log_every_n_steps" not in caplog.text
