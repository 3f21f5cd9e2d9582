"""Arguments that only some meshes use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_hal.errors import ConfigurationError

__all__ = ["check_used"]

USERS = {
    "tensor_parallel_plan": "tensor",
    "pipeline_plan": "pipeline",
    "pipeline_split": "pipeline",
    "microbatches": "pipeline",
    "schedule": "pipeline",
    "sequence_dim": "context",
}
"""The dimension of the mesh that uses an argument."""
DEFAULTS = {"schedule": "1F1B", "sequence_dim": 1}
"""Of the arguments that are not ``None`` by default."""


def check_used(sizes: Mapping[str, int | str], **arguments: Any) -> None:
    """Refuse each argument that is not its default although its dimension has one process.

    Args:
        sizes: Of the dimensions of the mesh.
        **arguments: As they were given.

    Raises:
        ConfigurationError: An argument has no effect.
    """
    for name, value in arguments.items():
        user = USERS[name]
        if sizes[user] == 1 and value != DEFAULTS.get(name):
            raise ConfigurationError(f"{name}={value!r:.100}: has no effect with {user}=1. Leave it out.")
