"""What the Trainer is run with: by name, the algorithm and its options."""

from __future__ import annotations

from typing import Any

EPOCHS = 4
RESUMED_FROM = 1
"""The epoch, from 0, after whose checkpoint the resumed runs go on."""

ALGORITHMS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("ddp", {}),
    "gradient_allreduce": ("gradient_allreduce", {}),
    "bytegrad": ("bytegrad", {"hierarchical": False}),
    "bytegrad in buckets": ("bytegrad", {"hierarchical": False, "bucket_cap_mb": 0.001}),
    "bytegrad with unused": ("bytegrad", {"hierarchical": False, "find_unused_parameters": True}),
    "decentralized": ("decentralized", {"hierarchical": False, "communication_interval": 4}),
    "decentralized_shift_one": ("decentralized", {"hierarchical": False, "peer_selection_mode": "shift_one"}),
    "low_precision_decentralized": ("low_precision_decentralized", {"hierarchical": False}),
    "async": ("async", {"sync_interval_ms": 1, "warmup_steps": 2}),
    "qadam": ("qadam", {"hierarchical": False}),
}
PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true", "16-true", "16-mixed")
EXACT = [name for name in ALGORITHMS if name not in ("ddp", "async")]
"""Those that give the same bits whenever they are run."""
EQUAL_RANKS = ("gradient_allreduce", "bytegrad", "bytegrad in buckets", "bytegrad with unused", "qadam")
"""Those after which all processes have the same weights."""
