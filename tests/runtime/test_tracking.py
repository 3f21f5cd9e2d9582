"""Trackers of a Runtime: what a loop logs, in one process and in several."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from python_processes import run_python

from core import ProjectConfiguration, Runtime
from core.errors import ConfigurationError, UnknownNameError, WrongTypeError
from core.loggers import CSVLogger, JSONLogger


@contextmanager
def runtime(**arguments: Any) -> Iterator[Runtime]:
    with Runtime(accelerator="cpu", devices=1, **arguments) as made:
        yield made


def test_names_become_trackers(tmp_path: Path) -> None:
    """Each name is a tracker, whose files are in project_dir/project_name; config and values reach all of them."""
    with runtime(log_with=["csv", "json"], project_dir=tmp_path) as run:
        assert list(tmp_path.iterdir()) == []
        run.init_trackers("digits", config={"lr": 0.5})
        run.log({"loss": torch.tensor(0.25)}, step=3)
        assert [tracker.name for tracker in run.trackers] == ["csv", "json"]
        assert run.get_tracker("csv") is run.trackers[0]
        assert run.get_tracker("json", unwrap=True).name.endswith("metrics.jsonl")
        run.get_tracker("json").log({"own": 1}, step=4)
        run.end_training()
    assert (tmp_path / "digits" / "metrics.csv").read_text() == "step,loss\n3,0.25\n"
    lines = (tmp_path / "digits" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": 3, "loss": 0.25}, {"step": 4, "own": 1}]
    assert json.loads((tmp_path / "digits" / "hparams.json").read_text()) == {"lr": 0.5}


def test_where_trackers_write(tmp_path: Path) -> None:
    """``logging_dir`` goes before ``project_dir``, and sets no folder for checkpoints; two values are an error."""
    logs, folder = tmp_path / "logs", tmp_path / "project"
    with runtime(log_with="json", logging_dir=logs) as run:
        run.init_trackers("digits", config={"lr": 0.5})
        assert (run.logging_dir, run.project_dir) == (logs, None)
    assert (logs / "digits" / "hparams.json").is_file()
    both = Runtime(cpu=True, project_dir=folder, logging_dir=logs, project_config=ProjectConfiguration(total_limit=1))
    assert (both.logging_dir, both.project_dir) == (logs, folder)
    for config in (ProjectConfiguration(folder), ProjectConfiguration(logging_dir=logs)):
        assert Runtime(cpu=True, project_config=config, logging_dir=logs).logging_dir == logs
    with pytest.raises(ConfigurationError, match=r"logging_dir=.* and ProjectConfiguration\(logging_dir=.*contradict"):
        Runtime(cpu=True, project_config=ProjectConfiguration(logging_dir=folder), logging_dir=logs)
    with pytest.raises(WrongTypeError, match="logging_dir=1"):
        Runtime(cpu=True, logging_dir=1)  # type: ignore[arg-type]


def test_arguments_of_the_libraries(tmp_path: Path) -> None:
    """init_kwargs and log_kwargs go to the tracker they name; those of a tracker that is not used are allowed."""
    kwargs = {"json": {"version": "second"}, "wandb": {"entity": "me"}}
    with runtime(log_with="json", project_dir=tmp_path) as run:
        run.init_trackers("p", init_kwargs=kwargs)
        run.log({"x": 1}, step=0, log_kwargs={"json": {"phase": "test"}, "wandb": {"commit": False}})
    line = json.loads((tmp_path / "p" / "second" / "metrics.jsonl").read_text())
    assert line == {"step": 0, "x": 1, "phase": "test"}


def test_a_tracker_that_no_one_knows(tmp_path: Path) -> None:
    """Names that belong to no tracker are refused where they are given."""
    with pytest.raises(UnknownNameError, match="Did you mean 'wandb'"):
        Runtime(accelerator="cpu", devices=1, log_with="wandbb")
    with pytest.raises(ConfigurationError, match="project_dir"):
        Runtime(accelerator="cpu", devices=1, log_with="csv")
    with runtime(log_with="csv", project_dir=tmp_path) as run:
        with pytest.raises(UnknownNameError, match=r"init_kwargs\['wandbb'\]"):
            run.init_trackers("p", init_kwargs={"wandbb": {}})
        with pytest.raises(UnknownNameError, match="get_tracker"):
            run.get_tracker("json")


def test_without_trackers_nothing_is_logged() -> None:
    """A script whose user asked for no tracker logs to none."""
    with runtime() as run:
        run.init_trackers("p", config={"lr": 1})
        run.log({"x": 1}, step=0)
        assert run.trackers == []
        run.end_training()


def test_the_order_of_calls(tmp_path: Path) -> None:
    """Logging before init_trackers is an error, and so is a second init_trackers; after end_training it is possible."""
    with runtime(log_with="csv", project_dir=tmp_path) as run:
        with pytest.raises(ConfigurationError, match="init_trackers"):
            run.log({"x": 1})
        run.init_trackers("a")
        with pytest.raises(ConfigurationError, match="end_training"):
            run.init_trackers("b")
        run.end_training()
        run.init_trackers("b")
        run.log({"x": 1})
    assert (tmp_path / "b" / "metrics.csv").exists()


class OwnTracker:
    """A tracker as Accelerate's documentation has it, without its base class."""

    name = "own"
    requires_logging_directory = False

    def __init__(self, title: str) -> None:
        self.calls: list[Any] = [title]

    def start(self) -> None:
        self.calls.append("start")

    @property
    def tracker(self) -> list[Any]:
        return self.calls

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.calls.append(("config", values))

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.calls.append(("log", values, step, kwargs))

    def finish(self) -> None:
        self.calls.append("finish")


def test_a_tracker_in_accelerates_shape() -> None:
    """An object with Accelerate's methods of a tracker is used as it is, among others."""
    own = OwnTracker("t")
    with runtime(log_with=[own]) as run:
        run.init_trackers("p", config={"lr": 1}, init_kwargs={"own": {}})
        run.log({"x": torch.tensor(2)}, step=5, log_kwargs={"own": {"a": 1}})
        assert run.get_tracker("own", unwrap=True) is own.calls
        assert run.get_tracker("own").calls is own.calls
        run.end_training()
    assert own.calls == ["t", "start", ("config", {"lr": 1}), ("log", {"x": 2}, 5, {"a": 1}), "finish"]


class LightningLogger:
    """A logger as Lightning has them, without its base class."""

    name = "light"

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.calls.append((metrics, step))

    def log_hyperparams(self, params: Any) -> None:
        self.calls.append(params)

    def finalize(self, status: str) -> None:
        self.calls.append(status)


def test_a_logger_in_lightnings_shape() -> None:
    """An object with Lightning's methods of a logger is used as well; the status of a failed run reaches it."""
    own = LightningLogger()

    def loop() -> None:
        with runtime(log_with=own) as run:
            run.init_trackers("p", config={"lr": 1})
            run.log({"x": 1.0}, step=5)
            1 / 0  # noqa: B018

    with pytest.raises(ZeroDivisionError):
        loop()
    assert own.calls == [{"lr": 1}, ({"x": 1.0}, 5), "failed"]


def test_one_that_fails_to_end_keeps_no_other_open(tmp_path: Path) -> None:
    """Every tracker is ended and the processes are left, then the error is raised."""
    own = OwnTracker("t")
    own.finish = lambda: 1 / 0  # type: ignore[method-assign, assignment]
    files = CSVLogger(tmp_path, version="")
    with runtime(log_with=[own, files]) as run:
        run.prepare(torch.nn.Linear(1, 1))
        run.init_trackers("p")
        run.log({"x": 1})
        with pytest.raises(ZeroDivisionError):
            run.end_training()
    with pytest.raises(ConfigurationError, match="ended"):
        files.log_metrics({"x": 1})


SCRIPT = """
import logging, sys
from pathlib import Path
import core
from core import Runtime, get_logger
from core.loggers import JSONLogger
from core.strategies import DDPStrategy

logging.basicConfig(stream=sys.stdout, format="%(funcName)s %(message)s", level="INFO")
logger = get_logger(__name__)
logger.info("before any runtime")

def main():
    own = JSONLogger("own", version="")
    runtime = Runtime(accelerator="cpu", devices=2, strategy="ddp", log_with=["csv", own], project_dir="files")
    own.log_metrics({"x": 7})
    logger.info("before the processes")
    runtime.prepare(core.runtime.prepare.preparing.nn.Linear(1, 1))
    if runtime.is_main_process:
        runtime.init_trackers("first", config={"a": 1})
    runtime.log({"x": runtime.process_index}, step=0)
    runtime.get_tracker("csv", unwrap=True).save()
    logger.info("alone")
    logger.warning_once("twice")
    logger.warning_once("twice")
    for turn in range(3):
        logger.info(f"turn {turn} of process {runtime.process_index}", main_process_only=False, in_order=True)
    runtime.end_training()
    Path(f"after-{runtime.process_index}").write_text(str(runtime.gather_object([runtime.process_index])))
    runtime.teardown()
    try:
        logger.info("late", main_process_only=False, in_order=True)
    except core.CoreError as error:
        Path(f"late-{runtime.process_index}").write_text(str(error))
    second = Runtime(accelerator="cpu", devices=2, strategy="ddp", log_with=["json"], project_dir="files")
    second.init_trackers("second")
    second.log({"x": second.process_index})
    second.end_training()
    third = Runtime(accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="cpu:gloo"))
    assert third.reduce(third.process_index) == 1

main()
"""


def test_two_processes(tmp_path: Path) -> None:
    """Process 0 alone writes, whichever processes call; so does get_logger, before and after there is a Runtime."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    out = run_python(script, cwd=tmp_path, warnings="error").stdout.splitlines()
    assert (tmp_path / "files/first/metrics.csv").read_text() == "step,x\n0,0\n"
    assert (tmp_path / "files/second/metrics.jsonl").read_text() == '{"step": null, "x": 0}\n'
    assert (tmp_path / "own/core_logs/metrics.jsonl").read_text() == '{"step": null, "x": 7}\n{"step": 0, "x": 0}\n'
    assert JSONLogger(tmp_path / "own", version="").log_dir == str(tmp_path / "own/core_logs")
    for line in ("<module> before any runtime", "main before the processes", "main alone", "main twice"):
        assert out.count(line) == 1, out
    turns = [line for line in out if "turn" in line]
    assert turns == [f"main turn {turn} of process {rank}" for turn in range(3) for rank in range(2)]
    assert (tmp_path / "after-0").read_text() == (tmp_path / "after-1").read_text() == "[0, 1]"
    assert "needs a Runtime" in (tmp_path / "late-0").read_text() == (tmp_path / "late-1").read_text()
