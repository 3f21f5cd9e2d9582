"""Checks in other processes, with time limits: importing torch, the hardware, the Plan, and a collective."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from ..utilities.child_process import ChildProcess, describe_end
from .report import Check

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"

_IMPORT = """\
import json, time
start = time.monotonic()
import torch
import torch.distributed as dist
answer = {"version": torch.__version__, "file": torch.__file__, "seconds": time.monotonic() - start,
          "distributed": dist.is_available(), "threads": torch.get_num_threads()}
with open(directory + "/answer", "w") as file:
    json.dump(answer, file)
"""

_PLAN = """\
from torch_hal.errors import CoreError
from torch_hal.plan import Request, resolve
try:
    plan = resolve(Request.read(environ=task["environ"]))
    text = ", ".join(choice.name for choice in plan.choices().values())
    text += f"; {plan.world_size} process(es), devices {', '.join(plan.devices)}"
except CoreError as error:
    text = f"refused: {type(error).__name__}: {error}"
with open(directory + "/answer", "w") as file:
    file.write(text)
"""

_COLLECTIVE = """\
import datetime, faulthandler
faulthandler.dump_traceback_later(task["limit"] - 1, exit=True)
import torch
import torch.distributed as dist
wait = datetime.timedelta(seconds=task["limit"])
store = dist.TCPStore("127.0.0.1", task["port"], 2, task["rank"] == 0, timeout=wait)
dist.init_process_group("gloo", store=store, rank=task["rank"], world_size=2, timeout=wait)
value = torch.full((1000,), task["rank"] + 1.0)
dist.all_reduce(value)
assert value.eq(3.0).all(), value
dist.barrier()
with open(directory + "/answer", "w") as file:
    file.write("ok")
"""


def check_torch(environ: Mapping[str, str], limit: float) -> list[Check]:
    """Whether ``import torch`` works; if not, whether the packages that it loads are the cause."""
    answer, failure = _ask(_IMPORT, {}, environ, limit)
    if answer:
        import json

        facts = json.loads(answer)
        found = f"works in {facts['seconds']:.1f} s: {facts['version']} from {facts['file']}"
        if facts["distributed"]:
            return [Check("import torch", "ok", found)]
        remedy = "Install a build of torch with torch.distributed."
        return [Check("import torch", "problem", f"{found}, built without torch.distributed", remedy)]
    if environ.get(_AUTOLOAD, "1") == "1" and _ask(_IMPORT, {}, {**environ, _AUTOLOAD: "0"}, limit)[0]:
        remedy = (
            "Repair or uninstall the package whose traceback is below, which torch loads through the entry-point group "
            f"torch.backends; or set {_AUTOLOAD}=0, with which it works."
        )
        return [Check("import torch", "problem", _last_line(failure), remedy, failure)]
    remedy = "Reinstall torch: python -m pip install --force-reinstall torch"
    return [Check("import torch", "problem", _last_line(failure), remedy, failure)]


def check_plan(environ: Mapping[str, str], limit: float) -> list[Check]:
    """Whether a script that sets no argument would run here."""
    answer, failure = _ask(_PLAN, {"environ": dict(environ)}, environ, limit)
    if not answer:
        return [Check("plan", "problem", f"choosing the backends fails: {_last_line(failure)}", detail=failure)]
    if answer.startswith("refused: "):
        remedy = "Correct what the error names. torch-hal explain shows the choices with their reasons."
        return [Check("plan", "problem", f"a script without arguments is {answer}", remedy)]
    return [Check("plan", "ok", f"a script without arguments runs: {answer}")]


def check_collective(environ: Mapping[str, str], limit: float) -> list[Check]:
    """Whether two processes on this machine can add their tensors."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tasks = [{"rank": rank, "port": port, "limit": limit} for rank in range(2)]
    with (
        ChildProcess(_COLLECTIVE, tasks[0], environ=environ) as first,
        ChildProcess(_COLLECTIVE, tasks[1], environ=environ) as second,
    ):
        first.wait(limit)
        second.wait(5.0 if not first.timed_out else 0.1)
        if first.read("answer") == second.read("answer") == "ok":
            return [Check("two processes", "ok", "all_reduce over the loopback address works")]
        output = first.output + second.output
        how = f"no answer within {limit:g} s" if first.timed_out else describe_end(first.exit_code)
    remedy = (
        "If the traceback is about connecting, name the network interface: GLOO_SOCKET_IFNAME=lo on one machine; and "
        "check proxies, firewalls and the host name."
    )
    return [Check("two processes", "problem", f"all_reduce over the loopback address fails: {how}", remedy, output)]


def _ask(code: str, task: Mapping[str, object], environ: Mapping[str, str], limit: float) -> tuple[str, str]:
    """The answer of a process, and what it printed if it has none."""
    with ChildProcess(code, task, environ=environ) as process:
        process.wait(limit)
        answer = process.read("answer")
        if answer:
            return answer, ""
        how = f"no answer within {limit:g} s" if process.timed_out else describe_end(process.exit_code)
        return "", process.output.rstrip() or how


def _last_line(text: str) -> str:
    return text.rstrip().rpartition("\n")[2]
