"""Starting processes from a notebook or a console."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from ..errors import ConfigurationError, LaunchError, WrongTypeError
from ..hints.argument_checks import check_call, check_count
from ..plan import Request, assemble, resolve
from ..strategies.launchers import FunctionLauncher
from ..utilities.live_runtimes import last_run

logger = logging.getLogger(__name__)

PRECISIONS = {"no": None, "fp16": "16-mixed", "bf16": "bf16-mixed"}


def notebook_launcher(
    function: Callable[..., Any],
    args: Iterable[Any] = (),
    num_processes: int | None = None,
    mixed_precision: str | None = None,
    use_port: int | str | None = None,
    master_addr: str = "127.0.0.1",
    node_rank: int = 0,
    num_nodes: int = 1,
    *,
    start_method: Literal["fork", "spawn"] = "fork",
    max_restarts: int = 0,
    rdzv_backend: str = "static",
) -> Any:
    """Call ``function(*args)`` in new processes. A Runtime created in it uses these processes, as under torchrun.

    Args:
        function: The whole training; it makes its own Runtime.
        args: Its arguments.
        num_processes: Processes on this machine; by default one for each device. With one in all, the function is
            called in this process.
        mixed_precision: ``"fp16"`` or ``"bf16"``: the precision of a Runtime that sets none; ``"no"`` for 32-bit.
        use_port: The port at which the processes meet; a free one by default, which needs one machine.
        master_addr: The address of the machine with ``node_rank=0``.
        node_rank: The number of this machine.
        num_nodes: The number of machines, on each of which this is called.
        start_method: ``"fork"``, with which the function may be defined in the notebook, or ``"spawn"``.
        max_restarts: How often all processes are started again after one has failed; the function continues from its
            own checkpoint. On one machine only; with it, one process is a new one too.
        rdzv_backend: ``"static"`` or ``"c10d"``, which are the same here: the processes meet at ``use_port``.

    Returns:
        What the function returned in rank 0 of this machine.

    Raises:
        ConfigurationError: An argument is not valid.
        LaunchError: The processes cannot be forked, a Runtime is live in this process, or a process failed.
    """
    args = tuple(args)
    if not callable(function):
        raise WrongTypeError(
            f"notebook_launcher: function is {function!r}, which cannot be called. Pass the function: "
            "notebook_launcher(train, (args, ...))."
        )
    check_call("notebook_launcher", function, args, {}, "Pass its arguments: notebook_launcher(train, (first, ...)).")
    if mixed_precision not in (None, *PRECISIONS):
        raise ConfigurationError(f"mixed_precision={mixed_precision!r}: unknown. Valid: 'no', 'fp16', 'bf16'.")
    if num_nodes > 1 and use_port is None:
        raise ConfigurationError(f"num_nodes={num_nodes}: the machines meet at use_port. Set use_port and master_addr.")
    if rdzv_backend not in ("static", "c10d"):
        raise ConfigurationError(f"rdzv_backend={rdzv_backend!r}: must be 'static' or 'c10d'. Leave it out.")
    check_count("max_restarts", max_restarts, 0)
    if max_restarts and num_nodes > 1:
        raise ConfigurationError(
            f"max_restarts={max_restarts} with num_nodes={num_nodes}: no machine knows when the others restart. Run "
            "'torch-hal run --max-restarts N train.py' on each."
        )
    plan = resolve(Request.read(devices="auto" if num_processes is None else num_processes))
    count = len(plan.devices)
    precision = PRECISIONS[mixed_precision or "no"]
    if count * num_nodes == 1 and precision is None and not max_restarts:
        return function(*args)
    run = last_run()
    if run is not None and run._life.is_live:
        raise LaunchError(
            "notebook_launcher: a Runtime is live in this process, and its devices are in use. Make the Runtime inside "
            "the function only, and restart the session."
        )

    def environ_for(local_rank: int) -> Mapping[str, str]:
        return {
            "RANK": str(node_rank * count + local_rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(count * num_nodes),
            "LOCAL_WORLD_SIZE": str(count),
            "GROUP_RANK": str(node_rank),
            "MASTER_ADDR": master_addr,
            "MASTER_PORT": port,
            **({} if precision is None else {"CORE_PRECISION": precision}),
        }

    reason = assemble(plan).accelerator.fork_unsafe_reason() if start_method == "fork" else None
    for restart in range(max_restarts + 1):
        port = str(use_port or _free_port())
        launcher = FunctionLauncher(
            count, environ_for, strategy="notebook_launcher", start_method=start_method, fork_unsafe_reason=reason
        )
        try:
            return launcher.launch(_call, function, args)
        except LaunchError as error:
            if restart == max_restarts:
                raise
            logger.warning("notebook_launcher: restart %d of %d, as %s", restart + 1, max_restarts, error)
    raise AssertionError("not reached")


def _call(environ: Mapping[str, str], function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    return function(*args)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
