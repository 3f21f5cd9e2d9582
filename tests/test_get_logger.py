"""get_logger: messages of a script, in a separate process or with Runtimes that come and go."""

from __future__ import annotations

import gc
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import Runtime, get_logger, rank_zero_info, rank_zero_only, rank_zero_warn
from core.discovery.ranks import launched_ranks
from core.errors import ConfigurationError
from core.utilities.live_runtimes import Turn, note_run


class Run:
    """Process ``process_index`` of three."""

    num_processes = 3

    def __init__(self, process_index: int) -> None:
        self.process_index, self.turn = process_index, Turn()
        self.waited = 0

    def barrier(self) -> None:
        self.waited += 1


@pytest.fixture
def third() -> Iterator[Run]:
    run = Run(2)
    note_run(run, run.turn)
    yield run
    run.turn.give_up()


def test_without_a_runtime_every_message_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A script of one process needs no Runtime; the caller's line is reported, and arguments are formatted."""
    gc.collect()
    logger = get_logger("a.b")
    logger.warning("value %d", 3)
    logger.warning("in turn", main_process_only=False, in_order=True)
    assert [record.getMessage() for record in caplog.records] == ["value 3", "in turn"]
    assert {(record.name, record.funcName) for record in caplog.records} == {
        ("a.b", "test_without_a_runtime_every_message_is_logged")
    }


def test_other_processes_are_silent(third: Run, caplog: pytest.LogCaptureFixture) -> None:
    """In process 2 only messages for all processes are logged; its turn is the third."""
    logger = get_logger("a")
    logger.error("main")
    logger.error("all", main_process_only=False)
    assert third.waited == 0
    logger.error("turn", main_process_only=False, in_order=True)
    assert [record.getMessage() for record in caplog.records] == ["all", "turn"]
    assert third.waited == 3
    logger.debug("below the level", main_process_only=False, in_order=True)
    assert third.waited == 6, "levels may differ between processes, but all of them wait"


def test_a_runtime_that_is_gone_does_not_count(third: Run, caplog: pytest.LogCaptureFixture) -> None:
    """The last Runtime counts while it exists: it is not kept alive, and after it the one before counts again."""
    logger = get_logger("a")
    run = Runtime(accelerator="cpu", devices=1)
    logger.warning("one")
    del run
    gc.collect()
    logger.warning("none")
    assert [record.getMessage() for record in caplog.records] == ["one"]


def test_once(caplog: pytest.LogCaptureFixture) -> None:
    """warning_once logs each message once, from the caller's line; arguments tell messages apart."""
    logger = get_logger("a")
    for value in (1, 1, 2):
        logger.warning_once("value %d", value)
    assert [record.getMessage() for record in caplog.records] == ["value 1", "value 2"]
    assert caplog.records[0].funcName == "test_once"


@pytest.mark.parametrize("level", ["debug", "DEBUG", logging.DEBUG])
def test_levels(level: Any, caplog: pytest.LogCaptureFixture) -> None:
    """log_level sets the level of the logger and of the root; an unknown one is refused."""
    root = logging.getLogger()
    before = root.level
    try:
        logger = get_logger("levels", log_level=level)
        assert (logger.logger.level, root.level) == (logging.DEBUG, logging.DEBUG)
        logger.debug({"any": "object"})
        assert [record.getMessage() for record in caplog.records if record.name == "levels"] == ["{'any': 'object'}"]
    finally:
        root.setLevel(before)
    with pytest.raises(ConfigurationError, match="log_level='loud'"):
        get_logger("levels", log_level="loud")


def test_launched_ranks() -> None:
    """Ranks count only if a launcher set all of torchrun's variables, or ours started the process."""
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    assert launched_ranks(torchrun) == (3, 4)
    assert launched_ranks({"RANK": "3"}) == (0, 1)
    assert launched_ranks({"CORE_LAUNCHED_PLAN": "{}", "RANK": "1", "WORLD_SIZE": "2"}) == (1, 2)


def test_a_filter_may_ask_for_the_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for the messages that the search for plugins logs meanwhile, which would be endless otherwise."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # plugins are searched for again
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    messages: list[str] = []

    def is_shown(record: logging.LogRecord) -> bool:
        messages.append(record.getMessage())
        return launched_ranks()[0] == 0

    own, handler = logging.getLogger("torch_hal.discovery"), logging.StreamHandler(io.StringIO())
    handler.addFilter(is_shown)
    own.addHandler(handler)
    own.setLevel(logging.DEBUG)
    try:
        assert launched_ranks() == (2, 3)
    finally:
        own.removeHandler(handler)
        own.setLevel(logging.NOTSET)
    assert messages


def test_functions_of_process_0(third: Run) -> None:
    """Process 2 does not run the function, and gets the default; which process it is counts when it is called."""
    calls: list[str] = []

    @rank_zero_only
    def note(text: str) -> int:
        """Notes."""
        calls.append(text)
        return len(calls)

    assert note("in 2") is None
    assert rank_zero_only(calls.append, default=7)("in 2") == 7
    third.turn.give_up()
    assert note("in 0") == 1
    assert (calls, note.__name__, note.__doc__) == (["in 0"], "note", "Notes.")


def test_messages_of_process_0(third: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing in process 2; in process 0 a text, and a warning that names the caller's line."""
    rank_zero_info("in %d", 2)
    rank_zero_warn("in 2")
    third.turn.give_up()
    rank_zero_info("in %d", 0)
    with pytest.warns(DeprecationWarning, match="in 0") as caught:
        rank_zero_warn("in 0", category=DeprecationWarning)
    assert (capsys.readouterr().err, caught[0].filename) == ("in 0\n", __file__)
