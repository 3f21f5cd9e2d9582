"""Loggers by name: core's own, and those of installed distributions."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from installing import files_of, lay_down

from core.discovery.selection import survey
from core.errors import BackendError, UnknownNameError, WrongTypeError
from core.loggers import CSVLogger, JSONLogger, Logger, find_loggers

GOOD = """
from core.loggers import Logger

class Acme(Logger):
    name = "acme"

    def open(self):
        return []

    def write_metrics(self, values, step, **options):
        self.experiment.append((step, values))
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that installs a distribution with entry points of loggers, and modules."""

    def install(distribution: str, entries: str, requires: tuple[str, ...] = (), **modules: str) -> None:
        folder = tmp_path / distribution
        files = files_of(distribution, "1.0", f"[core.loggers]\n{entries}\n", requires)
        lay_down(folder, {**files, **{f"{name}.py": text for name, text in modules.items()}})
        monkeypatch.syspath_prepend(folder)
        for name in modules:
            monkeypatch.delitem(sys.modules, name, raising=False)

    return install


def test_names_and_objects() -> None:
    """A name is a class, an object is itself, each once, in the order given."""
    own = JSONLogger(".", version="")
    assert find_loggers(None) == []
    assert find_loggers("csv") == [CSVLogger]
    assert find_loggers([own, "csv"]) == [own, CSVLogger]


def test_an_unknown_name() -> None:
    """The error has the nearest name."""
    with pytest.raises(UnknownNameError, match="Did you mean 'tensorboard'"):
        find_loggers("tensorbord")


@pytest.mark.parametrize("given", [3, object(), CSVLogger])
def test_what_is_no_logger(given: Any) -> None:
    """Neither a name nor an object with a logger's methods."""
    with pytest.raises(WrongTypeError, match="log_with"):
        find_loggers([given])


def test_a_logger_of_another_distribution(install: Any) -> None:
    """A name in an entry point is found, and is part of "all"."""
    install("acme-tracking", "acme = acme_logger:Acme", acme_logger=GOOD)
    (found,) = find_loggers("acme")
    assert isinstance(found, type)
    assert issubclass(found, Logger)
    logger = found()
    logger.log_metrics({"x": 1}, 2)
    assert logger.experiment == [(2, {"x": 1})]
    assert {"acme", "csv", "json"} <= {logger.name for logger in find_loggers("all")}


def test_a_broken_one_is_an_error_only_if_requested(install: Any) -> None:
    """Others work, "all" leaves it out, and its name raises the real cause."""
    install("acme-tracking", "acme = acme_logger:Acme", acme_logger=GOOD)
    install(
        "bad-tracking", "bad = bad_logger:Bad\nodd = acme_logger:Logger.\nno = acme_logger:Logger", bad_logger="1 / 0"
    )
    assert len(find_loggers(["acme", "csv"])) == 2
    assert not {"bad", "odd", "no"} & {logger.name for logger in find_loggers("all")}
    with pytest.raises(BackendError, match=r"bad-tracking 1.0.*ZeroDivisionError") as raised:
        find_loggers("bad")
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    with pytest.raises(BackendError, match="not a module name"):
        find_loggers("odd")
    with pytest.raises(BackendError, match="name=''"):
        find_loggers("no")


def test_two_distributions_of_one_name(install: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither gets it, unless CORE_PLUGINS selects one; a denied one is refused; core's names are core's."""
    install("acme-tracking", "acme = acme_logger:Acme\ncsv = acme_logger:Acme", acme_logger=GOOD)
    install("other-tracking", "acme = other_logger:Acme", other_logger=GOOD)
    with pytest.raises(BackendError, match=r"acme-tracking 1.0 and other-tracking 1.0.*acme@other-tracking"):
        find_loggers("acme")
    assert find_loggers("csv") == [CSVLogger]
    monkeypatch.setenv("CORE_PLUGINS", "acme@other-tracking")
    (found,) = find_loggers("acme")
    assert isinstance(found, type)
    assert found.__module__ == "other_logger"
    monkeypatch.setenv("CORE_PLUGINS", "-acme-tracking,-other-tracking")
    with pytest.raises(BackendError, match="denied"):
        find_loggers("acme")
    found_in_metadata = survey(os.environ)
    assert found_in_metadata.warnings == [], "CORE_PLUGINS has an effect, on loggers"
    assert not [row for row in found_in_metadata.rows if row.kind == "logger"], "a logger is not a backend"


def test_an_incompatible_one(install: Any) -> None:
    """Its requirement on torch-hal is compared before it is imported."""
    install("acme-tracking", "acme = acme_logger:Acme", ("torch-hal>=7",), acme_logger="raise SystemExit")
    with pytest.raises(BackendError, match="incompatible"):
        find_loggers("acme")
