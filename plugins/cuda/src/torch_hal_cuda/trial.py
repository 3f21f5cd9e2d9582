"""Tries to use each GPU, in a separate process: ``python -m torch_hal_cuda.trial`` prints the results as JSON.

Only using a device shows whether it can be used: it may be in exclusive or prohibited compute mode, out of memory or
broken. The calling process must not start CUDA itself, and a process that has tried a device keeps it.
"""

from __future__ import annotations

import json
import sys

import torch

from torch_hal_cuda.management import uuid_of

__all__ = ["main"]


def main() -> None:
    """Print for each device by index: its UUID, if known, and the error if it cannot be used."""
    outcomes = [_outcome(torch.device("cuda", index)) for index in range(torch.cuda.device_count())]
    sys.stdout.write(json.dumps(outcomes) + "\n")


def _outcome(device: torch.device) -> dict[str, str | None]:
    uuid = None
    try:
        uuid = uuid_of(device)
        torch.ones(1, device=device).add_(1).cpu()
    except Exception as error:  # noqa: BLE001  any exception is the result
        return {"uuid": uuid, "error": str(error).strip().partition("\n")[0] or type(error).__name__}
    return {"uuid": uuid, "error": None}


if __name__ == "__main__":
    main()
