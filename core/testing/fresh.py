"""Asking in a process of its own: what an import does shows only where nothing is imported, and may end a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

__all__ = ["Answer", "NoAnswer", "ask"]

START = 60.0
"""Seconds that the process may need before it comes to its question: on a busy machine it imports torch."""

_BOOT = """\
import importlib, json, os, sys, time, traceback
with open(sys.argv[1], encoding="utf-8") as file:
    task = json.load(file)
sys.path[:] = task["path"]
module, _, function = task["question"].partition(":")
question = getattr(importlib.import_module(module), function)
before = time.monotonic()
try:
    answer = {"value": question(*task["arguments"])}
except BaseException as error:
    answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
answer["seconds"] = time.monotonic() - before
with open(sys.argv[1] + ".answer", "w", encoding="utf-8") as file:
    json.dump(answer, file)
sys.stdout.flush()
os._exit(0)
"""


class NoAnswer(AssertionError):
    """The process was killed, hung, or raised; the message says which, and has what it printed."""


@attrs.frozen
class Answer:
    """What a question was answered."""

    value: Any
    output: str
    """What the process printed, be it Python or a library."""
    seconds: float
    """That the question itself took."""


def ask(question: str, *arguments: Any, limit: float = 30.0, environ: Mapping[str, str] | None = None) -> Answer:
    """Call a function in a new process, which imports nothing else before.

    Args:
        question: ``"module:function"``.
        *arguments: Of the function, as plain data; so is what it returns.
        limit: Seconds that it may take.
        environ: Environment variables that the process has beside this one's.

    Raises:
        NoAnswer: It gave none.
    """
    asked = f"{question.partition(':')[2]}{_shown(arguments)}"
    with tempfile.TemporaryDirectory(prefix="core-testing-") as directory:
        task, output = Path(directory, "task"), Path(directory, "output")
        path = [str(entry) or os.getcwd() for entry in sys.path]
        task.write_text(json.dumps({"path": path, "question": question, "arguments": arguments}), "utf-8")
        end = _run([sys.executable, "-P", "-u", "-c", _BOOT, str(task)], output, START + limit, environ)
        printed = output.read_text("utf-8", errors="replace")
        answer = Path(f"{task}.answer")
        if not answer.exists():
            raise NoAnswer(f"{end} when it was asked {asked}\n{printed[-4000:]}")
        data = json.loads(answer.read_text("utf-8"))
    if "error" in data:
        raise NoAnswer(f"{data['error']}, raised when it was asked {asked}\n{data['trace']}")
    if data["seconds"] > limit:
        raise NoAnswer(f"{asked} took {data['seconds']:.1f} s. Valid: at most {limit:g} s")
    return Answer(data["value"], printed, data["seconds"])


def _run(command: list[str], output: Path, limit: float, environ: Mapping[str, str] | None) -> str:
    """How the process ended, which nothing it started outlives."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=None if environ is None else {**os.environ, **environ},
            start_new_session=True,
        )
    deadline = time.monotonic() + limit
    try:
        code = process.wait(deadline - time.monotonic())
    except subprocess.TimeoutExpired:
        return f"the process hung: it was killed after {limit:g} s"
    finally:
        end_group(process)
    return ended(code)


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a session of its own, and whatever it started."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except ProcessLookupError:
        pass
    process.wait()


def ended(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"the process ended with exit code {code}"
    names = {int(number): number.name for number in signal.Signals}
    return f"the process was killed by {names.get(-code, f'signal {-code}')}"


def _shown(arguments: tuple[Any, ...]) -> str:
    return f"({', '.join(repr(argument)[:200] for argument in arguments)})"
