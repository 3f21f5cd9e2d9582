"""The number of processes of a run, and a check of its request, made once before any process starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from ..environments.base import LAUNCHED
from ..environments.local import OWNER
from ..errors import ConfigurationError
from ..plan import VARIABLES, Request, resolve
from ..plan.request import CONFIG, config_path, with_config
from .options import Options


@frozen
class PlannedRun:
    """The processes that ``torch-hal run`` starts."""

    processes: int
    """Number of processes on this machine."""
    variables: dict[str, str]
    """Environment variables by which the script's Trainer or Runtime gets what was requested."""
    removed: tuple[str, ...]
    """Environment variables that belong to another run."""
    text: str
    """The Plan of one process, as text for the user."""


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
    environ = with_config(environ, options.config)
    low, high = options.nodes
    requested: dict[str, Any] = dict(options.requested)
    if low == high:
        requested["num_nodes"] = str(high)
    request = Request.read(environ=environ, **requested)
    nodes = request.argument("num_nodes")
    if low != high and not nodes.is_auto:
        raise ConfigurationError(f"--nnodes {options.nnodes} contradicts {nodes}. Leave out one of them.")
    processes = _processes(request)
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
    plan = resolve(evolve(request, environ={**environ, **ranks}))
    variables = {VARIABLES[name]: value for name, value in requested.items() if value != "auto"}
    if CONFIG in environ:
        variables[CONFIG] = config_path(environ)
    return PlannedRun(processes, variables, removed, str(plan))


def _processes(request: Request) -> int:
    """One process for each device, as without any cluster; one in all where the strategy drives all devices by one."""
    alone = evolve(request, strategy="auto", precision="auto", num_nodes=1, cluster_environment="local")
    plan = resolve(alone)
    strategy = request.argument("strategy")
    if not strategy.is_auto:
        from ..discovery.registry import Registry

        registry = Registry.read(request.environ)
        found = registry.find("strategy", strategy.value, argument=strategy.label)
        if registry.load(found[0]).one_process_per_node:
            return 1
    elif plan.parts["strategy"].one_process_per_node:
        return 1
    return len(plan.devices)
