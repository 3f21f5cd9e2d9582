"""Calling a function in a new process: for effects of imports, and for calls that may end the process."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import attrs

from torch_hal.utilities.child_process import ChildProcess, describe_end

__all__ = ["Answer", "NoAnswer", "ask"]

START = 60.0
"""Seconds that the process may take before it calls the function: on a busy machine it imports torch."""

_CODE = """\
import importlib, time, traceback
module, _, function = task["question"].partition(":")
question = getattr(importlib.import_module(module), function)
before = time.monotonic()
try:
    answer = {"value": question(*task["arguments"])}
except BaseException as error:
    answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
answer["seconds"] = time.monotonic() - before
with open(os.path.join(directory, "answer"), "w", encoding="utf-8") as file:
    json.dump(answer, file)
sys.stdout.flush()
os._exit(0)
"""


class NoAnswer(AssertionError):
    """The process was killed, hung, or raised an exception; the message says which, with what the process printed."""


@attrs.frozen
class Answer:
    """The result of a call."""

    value: Any
    output: str
    """What the process printed, from Python or from a library."""
    seconds: float
    """How long the function ran."""


def ask(question: str, *arguments: Any, limit: float = 30.0, environ: Mapping[str, str] | None = None) -> Answer:
    """Call a function in a new process that has imported nothing else.

    Args:
        question: ``"module:function"``.
        *arguments: The function's arguments, as plain data. The function also returns plain data.
        limit: The time limit of the function in seconds.
        environ: Environment variables of the process in addition to this one's.

    Raises:
        NoAnswer: The function did not return, or took longer than ``limit``.
    """
    asked = f"{question.partition(':')[2]}{_shown(arguments)}"
    task = {"question": question, "arguments": arguments}
    with ChildProcess(_CODE, task, environ=None if environ is None else {**os.environ, **environ}) as process:
        process.wait(START + limit)
        printed, text = process.output, process.read("answer")
        if not text:
            hung = f"hung: it was killed after {START + limit:g} s"
            end = hung if process.timed_out else describe_end(process.exit_code)
            raise NoAnswer(f"the process of {asked} {end}\n{printed[-4000:]}")
    data = json.loads(text)
    if "error" in data:
        raise NoAnswer(f"{data['error']}, raised by {asked}\n{data['trace']}")
    if data["seconds"] > limit:
        raise NoAnswer(f"{asked} took {data['seconds']:.1f} s. It must take at most {limit:g} s")
    return Answer(data["value"], printed, data["seconds"])


def _shown(arguments: tuple[Any, ...]) -> str:
    return f"({', '.join(repr(argument)[:200] for argument in arguments)})"
