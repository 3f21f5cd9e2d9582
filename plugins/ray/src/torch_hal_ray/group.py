"""The processes of a run on a Ray cluster: placed, started, watched, and started again after a failure."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from torch_hal.errors import LaunchError
from torch_hal_ray.payload import pack, unpack
from torch_hal_ray.resources import resources_for
from torch_hal_ray.worker import Outcome, Place, Worker

if TYPE_CHECKING:
    from torch_hal_ray.environment import RayEnvironment

__all__ = ["ProcessGroup"]

SETTLE_SECONDS = 3.0
"""How long to wait after a failure for others, so that the error names the process that failed first."""
START_SECONDS = 300.0
"""How long a placed process may take to start."""

logger = logging.getLogger(__name__)


class ProcessGroup:
    """The processes of one run.

    Args:
        environment: The settings.
        processes_per_node: Number of processes on each node.
        num_nodes: Number of nodes.
        accelerator: Name of the accelerator that each process needs one device of.
        strategy: Name of the strategy that the user asked for, for error messages.
    """

    def __init__(
        self, environment: RayEnvironment, processes_per_node: int, num_nodes: int, accelerator: str, strategy: str
    ) -> None:
        self.environment = environment
        self.processes_per_node = processes_per_node
        self.num_nodes = num_nodes
        self.accelerator = accelerator
        self.strategy = strategy
        self._placement: Any = None
        self._workers: list[Any] = []

    def run(self, task: object, variables: Callable[[int], Mapping[str, str]], max_restarts: int) -> Any:
        """Call the function of ``task`` in each process.

        Args:
            task: The function, its arguments and keyword arguments.
            variables: The environment variables of the processes, by the number of restarts.
            max_restarts: How often all start again after one has failed.

        Returns:
            What rank 0 returned.

        Raises:
            LaunchError: The cluster has no room, or a process failed once more often than ``max_restarts``.
        """
        if not ray.is_initialized():
            ray.init(address=self.environment.address, log_to_driver=True)
        payload = ray.put(self._packed(task))
        for attempt in range(max_restarts + 1):
            try:
                self._start()
                return self._call(payload, variables(attempt))
            except LaunchError as error:
                if attempt == max_restarts:
                    raise
                logger.warning("%s\nRestart %s of %s.", error, attempt + 1, max_restarts)
            finally:
                self.stop()
        raise AssertionError("unreachable")

    def _packed(self, task: object) -> bytes:
        try:
            return pack(task)
        except Exception as error:
            raise LaunchError(
                f"the run cannot be sent to Ray's processes: {type(error).__name__}: {error}. strategy="
                f"{self.strategy!r} with cluster_environment='ray' pickles the Trainer, the module and the loaders, or "
                "the function that was given to Runtime.launch. Create what cannot be pickled inside of them."
            ) from error

    # -- starting ------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Reserve the resources and start an actor for each process, by rank."""
        each = resources_for(self.accelerator, self.environment.resources_per_process, ray.cluster_resources())
        bundle = {name: amount * self.processes_per_node for name, amount in each.items() if amount}
        # At least something: Ray refuses an empty bundle.
        bundles = [bundle or {"CPU": 0.001} for _ in range(self.num_nodes)]
        self._placement = placement_group(bundles, strategy="STRICT_SPREAD" if self.num_nodes > 1 else "STRICT_PACK")
        limit = self.environment.placement_timeout
        if not self._placement.wait(limit.total_seconds()):
            raise LaunchError(
                f"this Ray cluster had no room for the run within {limit}: {self.num_nodes} node(s) with {bundle} "
                f"each. Its nodes have: {_nodes()}. Use fewer devices or num_nodes, or pass resources_per_process or "
                "placement_timeout to RayEnvironment."
            )
        actor = ray.remote(Worker)
        options: dict[str, Any] = {
            "num_cpus": each.pop("CPU", 0),
            "num_gpus": each.pop("GPU", 0),
            "resources": each,
            "max_restarts": 0,
            "runtime_env": self.environment.runtime_env or None,
        }
        for node in range(self.num_nodes):
            where = PlacementGroupSchedulingStrategy(placement_group=self._placement, placement_group_bundle_index=node)
            for _ in range(self.processes_per_node):
                self._workers.append(actor.options(scheduling_strategy=where, **options).remote())

    def _call(self, payload: Any, variables: Mapping[str, str]) -> Any:
        places: list[Place] = self._all("place", [()] * len(self._workers))
        ranks = [self._ranks(rank, places) for rank in range(len(places))]
        addresses = [places[0].address, *[None] * (len(places) - 1)]
        ports = self._all("prepare", [*zip(ranks, addresses, strict=True)])
        meeting = {"MASTER_ADDR": places[0].address, "MASTER_PORT": str(ports[0])}
        calls = {
            worker.run.remote({**variables, **meeting, **ranks[rank]}, payload): rank
            for rank, worker in enumerate(self._workers)
        }
        return self._watch(calls)

    def _ranks(self, rank: int, places: Sequence[Place]) -> dict[str, str]:
        """The environment variables that only process ``rank`` gets."""
        node, local_rank = divmod(rank, self.processes_per_node)
        own = places[node * self.processes_per_node :][: self.processes_per_node]
        visible: dict[str, list[str]] = defaultdict(list)
        # A process picks its device by its local rank among those that all processes of the node see.
        for place in own:
            for name, devices in place.visible.items():
                visible[name] += [device for device in devices if device not in visible[name]]
        return {
            **{name: ",".join(devices) for name, devices in visible.items()},
            "RANK": str(rank),
            "WORLD_SIZE": str(len(places)),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(self.processes_per_node),
            "NODE_RANK": str(node),
        }

    def _all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """What a method of each actor returns."""
        calls = [getattr(worker, method).remote(*given) for worker, given in zip(self._workers, arguments, strict=True)]
        try:
            found: list[Any] = ray.get(calls, timeout=START_SECONDS)
        except RayError as error:
            raise LaunchError(f"Ray could not start the processes of the run: {error}") from error
        return found

    # -- watching ------------------------------------------------------------------------------------------------

    def _watch(self, calls: dict[Any, int]) -> Any:
        """Wait for all calls; the result of rank 0."""
        waiting, outcomes = list(calls), {}
        deadline: float | None = None
        while waiting:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            ended, waiting = ray.wait(waiting, num_returns=1, timeout=left)
            if not ended:
                break
            for call in ended:
                outcomes[calls[call]] = outcome = _outcome(call)
                if outcome.failed_at is not None and deadline is None:
                    deadline = time.monotonic() + SETTLE_SECONDS
        failed = {rank: outcome for rank, outcome in outcomes.items() if outcome.failed_at is not None}
        if failed:
            raise _error(failed)
        result = outcomes[0].result
        return None if result is None else unpack(result)

    def stop(self) -> None:
        """End the processes and give their resources back."""
        for worker in self._workers:
            with suppress(RayError):
                ray.kill(worker, no_restart=True)
        self._workers.clear()
        if self._placement is not None:
            with suppress(RayError):
                remove_placement_group(self._placement)
            self._placement = None


def _outcome(call: Any) -> Outcome:
    try:
        outcome: Outcome = ray.get(call)
    except RayError as error:  # the process died, or its node
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return Outcome(failed_at=0.0, summary=f"its process has ended: {' '.join(lines)[:500]}")
    return outcome


def _error(failed: Mapping[int, Outcome]) -> LaunchError:
    """The error that names the process that failed first. One that died silently precedes those that raised."""
    ranks = sorted(failed, key=lambda rank: (failed[rank].is_consequence, failed[rank].failed_at, rank))
    first = failed[ranks[0]]
    after = "".join(f"\nAfter it: rank {rank} failed: {failed[rank].summary}" for rank in ranks[1:])
    trace = f"\n\n{first.traceback.rstrip()}" if first.traceback else ""
    error = LaunchError(f"rank {ranks[0]} failed: {first.summary}{trace}{after}")
    error.rank, error.exit_code = ranks[0], 1
    return error


def _nodes() -> str:
    """The resources of each node, for messages."""
    kinds = [
        {name: amount for name, amount in node["Resources"].items() if ":" not in name and "memory" not in name}
        for node in ray.nodes()
        if node["Alive"]
    ]
    return "; ".join(map(str, kinds)) or "no node is alive"
