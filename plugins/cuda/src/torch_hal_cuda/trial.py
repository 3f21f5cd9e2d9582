"""Tries to use each GPU, in a process of its own: ``python -m torch_hal_cuda.trial`` prints the outcomes as JSON.

Whether a device can be had is known for certain only when it was: it may be in exclusive or prohibited compute mode,
out of memory or broken. The process that asks must not start CUDA itself, and one that tried would keep its devices.
"""

from __future__ import annotations

import json
import sys

import torch

from torch_hal_cuda.management import uuid_of

__all__ = ["main"]


def main() -> None:
    """Print for each device by index: its UUID, if it tells one, and why it cannot be used, if it cannot."""
    outcomes = [_outcome(torch.device("cuda", index)) for index in range(torch.cuda.device_count())]
    sys.stdout.write(json.dumps(outcomes) + "\n")


def _outcome(device: torch.device) -> dict[str, str | None]:
    uuid = None
    try:
        uuid = uuid_of(device)
        torch.ones(1, device=device).add_(1).cpu()
    except Exception as error:  # noqa: BLE001  whatever torch raises is the outcome
        return {"uuid": uuid, "error": str(error).strip().partition("\n")[0] or type(error).__name__}
    return {"uuid": uuid, "error": None}


if __name__ == "__main__":
    main()
