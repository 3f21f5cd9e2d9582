"""Probes of a ClusterEnvironment that run in a separate process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from torch_hal.discovery.loading import import_target

__all__ = ["PROPERTIES", "describe", "imported", "used"]

Reference = Mapping[str, Any]
"""See :mod:`torch_hal_devkit.probes`."""

PROPERTIES = (
    "creates_processes_externally",
    "main_address",
    "main_port",
    "world_size",
    "local_world_size",
    "global_rank",
    "local_rank",
    "node_rank",
    "num_nodes",
    "hosts_store",
)


def describe(environment: Any) -> dict[str, Any]:
    """Every property of a cluster environment."""
    return {name: getattr(environment, name) for name in PROPERTIES}


def imported(reference: Reference) -> bool:
    """Whether importing the class imports torch."""
    import_target(reference["target"])
    return "torch" in sys.modules


def used(reference: Reference, variables: Mapping[str, str], processes: int, nodes: int) -> dict[str, Any]:
    """What using an environment changes in ``os.environ``, and its properties after ``os.environ`` has changed."""
    os.environ.update(variables)
    before = dict(os.environ)
    cls = import_target(reference["target"])
    cls.detect()
    environment = cls(**reference["init_args"])
    environment.connect(processes, nodes)
    first = describe(environment)
    environment.validate_settings(processes, nodes)
    changed = sorted(name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name))
    for name in variables:
        os.environ[name] = "no number"
    second = describe(environment)
    environment.teardown()
    return {"changed": changed, "first": first, "second": second}
