"""What holds for every test: it sees no settings or ranks from outside, and leaves none, nor a process, behind."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import registration

RANKS = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "NODE_RANK", "MASTER_", "TORCHELASTIC_")
LASTING = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver", b"fork_server")
"""Processes that are started once and kept: by Python, or for all tests of a file."""


def settings_and_ranks() -> dict[str, str]:
    """The environment variables that configure a run."""
    return {name: value for name, value in os.environ.items() if name.startswith(("CORE_", *RANKS))}


REGISTRIES = list(registration.REGISTRIES.values())

if "TESTS_CACHE_OF_HAL" not in os.environ:  # one for all processes of the tests, and not the user's
    os.environ["TESTS_CACHE_OF_HAL"] = os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="torch-hal-cache-")
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # these tests are about the CPU and simulated devices
for variable in settings_and_ranks():
    del os.environ[variable]
os.environ.pop("PYTHONUNBUFFERED", None)  # with it, print writes in pieces, and those of several processes mix
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of a shell's background job; started processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave the thousands of collected tests out of garbage collections, which would take half a second each."""
    gc.collect()
    gc.freeze()


def children() -> dict[str, str]:
    """The command lines of this process's living children, by number; nothing where the system does not tell."""
    found = {}
    for task in Path("/proc/self/task").glob("*/children"):
        try:
            numbers = task.read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended since it was listed
            continue
        for number in numbers:
            try:
                command = Path("/proc", number, "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if command and not any(name in command for name in LASTING):  # a dead one has none
                found[number] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail a test that leaves settings, ranks or processes to those after it, and remove the settings."""
    before = children()
    yield
    os.environ.pop("CORE_RANKS_OF", None)  # the note of a process that used the ranks that a test gave it
    variables = settings_and_ranks()
    for variable in variables:
        del os.environ[variable]
    deadline = time.monotonic() + 2
    while (left := children().keys() - before.keys()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not variables, "environment variables left behind"
    assert not left, f"processes left behind: {[children().get(number) for number in left]}"


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """What a test sets for loggers, as examples of the documentation do, ends with it."""
    root = logging.getLogger()
    others = [logger for logger in logging.Logger.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    levels = {logger: logger.level for logger in (root, *others)}
    handlers = list(root.handlers)
    yield
    for logger, level in levels.items():
        if logger.level != level:
            logger.setLevel(level)
    for handler in root.handlers.copy():
        if handler not in handlers:
            root.removeHandler(handler)


@pytest.fixture
def started_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of how processes start and end: none is forked by a server of the session (``tests/starting``)."""
    monkeypatch.delenv("FORK_SERVERS", raising=False)


@pytest.fixture(autouse=True)
def clean_registries() -> Iterator[None]:
    """What a test registers in code is gone after it."""
    before = [registry.specs() for registry in REGISTRIES]
    yield
    for registry, specs in zip(REGISTRIES, before, strict=True):
        registry._specs = specs
