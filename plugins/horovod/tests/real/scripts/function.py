"""``python function.py FILE``: horovod.run calls a function in two processes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch

SCRIPTS = str(Path(__file__).parent)


def work(path: str) -> Any:
    """What each process does."""
    sys.path.insert(0, path)
    from problem import custom_loop

    from torch_hal import Runtime

    with Runtime(accelerator="cpu", strategy="horovod") as runtime:
        result = custom_loop(runtime)
        return runtime.process_index, runtime.num_processes, runtime.plan.cluster_environment.name, result["parameters"]


if __name__ == "__main__":
    horovod: Any = importlib.import_module("horovod")
    torch.save(horovod.run(work, (SCRIPTS,), num_proc=2, use_gloo=True), sys.argv[1])
