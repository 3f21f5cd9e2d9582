"""The number of processes of a run, and a check of its request, made once before any process starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from ..environments.base import LAUNCHED
from ..environments.local import OWNER
from ..kinds import KINDS
from ..plan import Request, resolve
from ..plan.request import VARIABLES
from .options import Options

__all__ = ["PlannedRun", "plan_run"]


@frozen
class PlannedRun:
    """What ``torch-hal run`` starts."""

    processes: int
    """Number of processes on this machine."""
    variables: dict[str, str]
    """Environment variables by which the script's Trainer or Runtime gets what was requested."""
    removed: tuple[str, ...]
    """Environment variables that belong to another run."""
    text: str
    """The Plan of one process, for the reader."""


def plan_run(options: Options, environ: Mapping[str, str]) -> PlannedRun:
    """Resolve what was requested, as each started process does for a script that sets no argument itself.

    Args:
        options: The command line.
        environ: The environment variables of this process.

    Raises:
        CoreError: Something that was requested is not installed, not present, or contradicts something else.
    """
    removed = tuple(name for name in (LAUNCHED, OWNER) if name in environ)
    environ = {name: value for name, value in environ.items() if name not in removed}
    low, high = options.nodes
    requested: dict[str, Any] = dict(options.requested)
    if low == high:
        requested["num_nodes"] = str(high)
    processes = _processes(requested, environ)
    ranks = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": options.rdzv_id,
        "WORLD_SIZE": str(processes * high),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }
    plan = resolve(Request.read(environ={**environ, **ranks}, **requested))
    variables = {VARIABLES[name]: value for name, value in requested.items() if value != "auto"}
    return PlannedRun(processes, variables, removed, str(plan))


def _processes(requested: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    """One process for each device, as without any cluster; one in all where the strategy drives all devices by one."""
    others = {VARIABLES[name] for name in VARIABLES if name not in ("accelerator", "devices")}
    bare = {name: value for name, value in environ.items() if name not in others}
    asked = {name: requested[name] for name in ("accelerator", "devices") if name in requested}
    plan = resolve(Request.read(environ=bare, num_nodes=1, cluster_environment="local", **asked))
    strategy = requested.get("strategy", environ.get(KINDS["strategy"].variable, "auto"))
    if strategy != "auto":
        from ..discovery.registry import Registry

        registry = Registry.read(environ)
        if registry.load(registry.find("strategy", strategy)[0]).one_process_per_node:
            return 1
    elif plan.parts["strategy"].one_process_per_node:
        return 1
    return len(plan.devices)
