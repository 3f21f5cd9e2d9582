"""What PartialState says before there is a Runtime, while one is live, and after it."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from core import AcceleratorState, PartialState, Runtime, broadcast, is_initialized
from core.errors import ConfigurationError

OUT = Path(os.environ["OUT"])


def facts(state: PartialState) -> list[Any]:
    names = "process_index num_processes local_process_index is_main_process is_last_process distributed_type"
    return [getattr(state, name) for name in names.split()] + [str(state.device)]


def main() -> None:
    state = PartialState()
    said: dict[str, Any] = {"before": facts(state), "shown": repr(state)}
    with state.main_process_first():
        said["first"] = time.monotonic()
        if state.is_main_process:
            time.sleep(0.3)
            said["first left"] = time.monotonic()
    with PartialState().local_main_process_first():
        pass
    if state.is_main_process:
        time.sleep(0.3)
        said["reached"] = time.monotonic()
    state.wait_for_everyone()
    said["passed"] = time.monotonic()
    state.on_main_process(print)("from the main process")
    state.on_last_process(print)("from the last process")
    said["errors"] = []
    for name in ("mixed_precision", "deepspeed_plugin", "gather"):
        try:
            getattr(AcceleratorState(), name)
        except (ConfigurationError, AttributeError) as error:
            said["errors"].append(str(error))
    try:
        with state.split_between_processes([0, 1, 2]) as part:
            said["part"] = part
    except ConfigurationError as error:
        said["part"] = str(error)

    said["initialized"] = [is_initialized()]
    runtime = Runtime(accelerator="cpu", devices=int(sys.argv[1]), mixed_precision="bf16")
    said["made"] = facts(state)
    state.wait_for_everyone()
    with PartialState().split_between_processes([0, 1, 2]) as part:
        said["part of the run"] = part
    said["settings"] = [AcceleratorState().mixed_precision, state.deepspeed_plugin]
    said["sum"] = runtime.reduce(torch.ones(1)).item()
    said["broadcast"] = broadcast(torch.tensor(runtime.process_index), from_process=runtime.num_processes - 1).item()
    said["initialized"].append(is_initialized())
    runtime.end_training()
    said["after"] = facts(state)
    rank = runtime.process_index
    state.destroy_process_group()
    said["initialized"] += [is_initialized(), torch.distributed.is_initialized()]
    said["ended"] = facts(state)
    state.destroy_process_group()
    (OUT / f"rank{rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
