"""The loggers that write files: every row stays, whatever comes later."""

from __future__ import annotations

import csv
import json
import math
import os
import pickle
import signal
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from python_processes import run_python

from core.errors import ConfigurationError, WrongTypeError
from core.loggers import CSVLogger, JSONLogger


def csv_rows(logger: CSVLogger) -> list[dict[str, str]]:
    with open(Path(logger.log_dir) / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def json_rows(logger: JSONLogger) -> list[dict[str, object]]:
    return [json.loads(line) for line in (Path(logger.log_dir) / "metrics.jsonl").read_text().splitlines()]


def test_csv_gains_columns_and_keeps_its_rows(tmp_path: Path) -> None:
    """A metric that comes later has its own column; what was written before is unchanged; steps may go back."""
    logger = CSVLogger(tmp_path, name="runs", version="")
    logger.log_metrics({"loss": 0.1}, step=1)
    logger.log_metrics({"loss": 1 / 3, "text": 'a "quoted", text\nof two lines'}, step=0)
    logger.log_metrics({"accuracy": torch.tensor([0.5])})
    assert csv_rows(logger) == [
        {"step": "1", "loss": "0.1", "text": "", "accuracy": ""},
        {"step": "0", "loss": repr(1 / 3), "text": 'a "quoted", text\nof two lines', "accuracy": ""},
        {"step": "", "loss": "", "text": "", "accuracy": "0.5"},
    ]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["metrics.csv"]


@pytest.mark.parametrize("kind", [CSVLogger, JSONLogger])
def test_a_run_is_continued_after_a_torn_line(kind: type[CSVLogger | JSONLogger], tmp_path: Path) -> None:
    """A second logger of the same version appends; what a crash left of a line does not swallow the next one."""
    first = kind(tmp_path, version="a")
    first.log_metrics({"x": 1}, step=0)
    first.finish()
    (file,) = Path(first.log_dir).glob("metrics.*")
    with open(file, "a") as torn:
        torn.write("7,")
    second = kind(tmp_path, version="a")
    second.log_metrics({"x": 2, "y": math.nan}, step=1)
    lines = file.read_text().splitlines()
    assert len(lines) == (4 if kind is CSVLogger else 3)
    assert lines[-1] in ("1,2,nan", '{"step": 1, "x": 2, "y": NaN}')
    assert lines[-2].startswith("7,")


@pytest.mark.parametrize("kind", ["CSVLogger", "JSONLogger"])
def test_rows_outlive_a_killed_process(kind: str, tmp_path: Path) -> None:
    """What was logged is in the file when the process is killed, without finish()."""
    code = (
        "import os, signal; from core.loggers import *\n"
        f"logger = {kind}('.', version='')\n"
        "for step in range(5): logger.log_metrics({'x': step, f'y{step}': 1.5}, step)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    run_python("-c", code, cwd=tmp_path, expect=-signal.SIGKILL)
    if kind == "CSVLogger":
        assert [row["x"] for row in csv_rows(CSVLogger(tmp_path, version=""))] == ["0", "1", "2", "3", "4"]
    else:
        assert [row["x"] for row in json_rows(JSONLogger(tmp_path, version=""))] == [0, 1, 2, 3, 4]


def test_values(tmp_path: Path) -> None:
    """Tensors and numpy scalars become numbers of full precision; nested mappings get joined names."""
    logger = JSONLogger(tmp_path, version="")
    third = torch.tensor(1 / 3, dtype=torch.float64, requires_grad=True)
    logger.log_metrics(
        {
            "a": third,
            "b": torch.tensor([[3]]),
            "c": np.float64(1 / 3),
            "d": torch.tensor(0.5, dtype=torch.bfloat16),
            "e": {"train": 1, "val": {"x": torch.tensor(True)}},
            "f": math.inf,
            "g": None,
        },
        step=3,
    )
    expected = {"step": 3, "a": 1 / 3, "b": 3, "c": 1 / 3, "d": 0.5, "e/train": 1, "e/val/x": True, "f": math.inf}
    assert json_rows(logger) == [{**expected, "g": None}]


@pytest.mark.parametrize("value", [torch.ones(2), [1, 2], object()])
def test_a_value_that_is_no_number_is_refused_by_name(value: object, tmp_path: Path) -> None:
    """The error names the metric and the type, and nothing is written."""
    logger = CSVLogger(tmp_path, version="")
    with pytest.raises(WrongTypeError, match=r"'outer/bad'.*type " + type(value).__name__):
        logger.log_metrics({"good": 1, "outer": {"bad": value}})
    assert not Path(logger.log_dir, "metrics.csv").exists()


def test_metrics_are_a_mapping(tmp_path: Path) -> None:
    """A bare number has no name."""
    with pytest.raises(WrongTypeError, match="metrics"):
        CSVLogger(tmp_path).log_metrics(0.5)  # type: ignore[arg-type]


@dataclass
class Options:
    lr: float
    path: Path


@pytest.mark.parametrize(
    "params",
    [{"lr": torch.tensor(0.5), "path": Path("a")}, Namespace(lr=0.5, path=Path("a")), Options(0.5, Path("a"))],
)
def test_hyperparameters(params: object, tmp_path: Path) -> None:
    """A mapping, an argparse namespace and a dataclass are stored as JSON."""
    logger = CSVLogger(tmp_path, name="p", version=2)
    logger.log_hyperparams(params)
    stored = json.loads((tmp_path / "p" / "version_2" / "hparams.json").read_text())
    assert stored == {"lr": 0.5, "path": "a"}


def test_versions_count_up(tmp_path: Path) -> None:
    """Each logger without a version gets the number after the highest; other folders do not count."""
    for name in ("version_1", "version_x", "other"):
        (tmp_path / "p" / name).mkdir(parents=True)
    first = CSVLogger(tmp_path, name="p")
    first.log_metrics({"x": 1})
    assert (first.version, CSVLogger(tmp_path, name="p").version) == (2, 3)
    assert first.log_dir == os.path.join(tmp_path, "p", "version_2")


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    """In process 1 every call is allowed, and no file or folder appears."""
    logger = CSVLogger(tmp_path)
    logger.process_index = 1
    logger.log_metrics({"x": 1}, step=0)
    logger.log_hyperparams({"lr": 1})
    logger.experiment.log_metrics({"x": 2})
    logger.log_table("t", ["a"], [[1]])
    logger.save()
    logger.finish()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError, match=r"process 1 does not know them yet. Read them in a hook"):
        logger.log_dir  # noqa: B018


def test_a_finished_run_takes_no_values(tmp_path: Path) -> None:
    """After finish() a value is refused, and finish() may be called again; finalize() ends nothing."""
    logger = CSVLogger(tmp_path, version="")
    logger.log_metrics({"x": 1})
    logger.finalize("success")
    logger.log_metrics({"x": 2})
    logger.finish()
    logger.finish()
    with pytest.raises(ConfigurationError, match="ended"):
        logger.log_metrics({"x": 3})
    assert [row["x"] for row in csv_rows(logger)] == ["1", "2"]


def test_a_logger_can_be_sent_to_another_process(tmp_path: Path) -> None:
    """An open logger is pickled without its file, which the copy opens itself."""
    logger = JSONLogger(tmp_path, version="")
    logger.log_metrics({"x": 1})
    pickle.loads(pickle.dumps(logger)).log_metrics({"x": 2})
    assert [row["x"] for row in json_rows(logger)] == [1, 2]


def test_tables(tmp_path: Path) -> None:
    """A table is a line of JSON; a logger without tables says so; half a table is refused."""
    logger = JSONLogger(tmp_path, version="")
    logger.log_table("answers", ["q", "a"], [["why", 42]], step=1)
    assert json_rows(logger) == [{"step": 1, "answers": {"columns": ["q", "a"], "data": [["why", 42]]}}]
    with pytest.raises(ConfigurationError, match="log_table: CSVLogger"):
        CSVLogger(tmp_path).log_table("t", ["q"], [[1]])
    with pytest.raises(ConfigurationError, match="columns and data"):
        logger.log_table("t", data=[[1]])
