"""What a process needs of a Ray cluster: Ray's names of resources for accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_hal.errors import ConfigurationError, LaunchError, quoted

__all__ = ["check_resources", "resources_for"]

RAY_NAMES = {"cuda": "GPU", "xpu": "GPU", "xla": "TPU", "tpu": "TPU", "hpu": "HPU", "npu": "NPU"}
"""Ray's own resources, by torch-hal's names of accelerators. Any other accelerator has a resource of its own name."""


def resources_for(
    accelerator: str, given: Mapping[str, float] | None, cluster: Mapping[str, float] | None
) -> dict[str, float]:
    """The resources of one process.

    Args:
        accelerator: The accelerator's name.
        given: The resources that the user asked for; ``None`` for one CPU and one device.
        cluster: All resources of the cluster; ``None`` if it is not known.

    Raises:
        LaunchError: The cluster has no resource for the accelerator.
    """
    if given is not None:
        return dict(given)
    if accelerator == "cpu":
        return {"CPU": 1.0}
    name = RAY_NAMES.get(accelerator, accelerator)
    if cluster is not None and name not in cluster:
        kinds = sorted(kind for kind in cluster if not kind.startswith(("node:", "accelerator_type:")))
        raise LaunchError(
            f"accelerator={accelerator!r} needs the resource {name!r}, which this Ray cluster lacks: it has "
            f"{quoted(kinds)}. Start each node with devices by: ray start --resources='{{\"{name}\": COUNT}}'; or "
            "pass resources_per_process to RayEnvironment."
        )
    return {"CPU": 1.0, name: 1.0}


def check_resources(given: Mapping[str, float] | None) -> dict[str, float] | None:
    """A copy of ``given``.

    Raises:
        ConfigurationError: An amount is not a number of at least 0.
    """
    for name, amount in dict[str, Any](given or {}).items():
        if not isinstance(amount, int | float) or isinstance(amount, bool) or amount < 0:
            raise ConfigurationError(f"resources_per_process[{name!r}]={amount!r}: must be a number of at least 0.")
    return None if given is None else dict(given)
