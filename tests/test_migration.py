"""docs/migrating-from-accelerate.md: every name has a row, and what stands in the middle column runs."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from installing import import_packages_from_here
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import core
from core import Runtime
from core.data import DataSettings
from core.loggers import CSVLogger
from core.strategies import DDPStrategy

PAGE = Path(__file__).parents[1] / "docs" / "migrating-from-accelerate.md"

NAMES = """
mixed_precision gradient_accumulation_steps device_placement split_batches dispatch_batches even_batches
use_seedable_sampler data_seed use_stateful_dataloader non_blocking cpu rng_types log_with project_dir project_config
step_scheduler_with_optimizer kwargs_handlers prepare prepare_model prepare_optimizer prepare_data_loader
prepare_scheduler backward autocast accumulate sync_gradients gradient_state no_sync trigger_sync_in_backward
join_uneven_inputs clip_grad_norm_ clip_grad_value_ unscale_gradients optimizer_step_was_skipped gather
gather_for_metrics gather_object reduce broadcast broadcast_object_list pad_across_processes split_between_processes
wait_for_everyone main_process_first local_main_process_first on_main_process on_local_main_process on_last_process
on_process is_main_process is_local_main_process is_last_process print save save_model get_state_dict save_state
load_state register_for_checkpointing register_save_state_pre_hook register_load_state_pre_hook skip_first_batches
unwrap_model is_peft_model free_memory clear set_trigger check_trigger profile init_trackers log get_tracker trackers
end_training distributed_type use_distributed device process_index num_processes state get_logger set_seed
find_executable_batch_size ProjectConfiguration LocalSGD notebook_launcher release_memory deepspeed_plugin fsdp_plugin
dynamo_plugin parallelism_config torch_device_mesh maybe_context_parallel fp8_recipe_handler dataloader_config
"""
"""The names that 180 scripts written for Accelerate use."""

ROWS = re.findall(r"^\| (.+?) \| `(.+?)` \| (.*?) ?\|$", PAGE.read_text("utf-8"), re.MULTILINE)


def test_every_name_has_a_row() -> None:
    """Each of Accelerate's names is in a first column."""
    named = {name for left, _, _ in ROWS for name in re.findall(r"`(\w+)(?:\(\))?`", left)}
    assert set(NAMES.split()) - named == set()


@pytest.fixture
def namespace(tmp_path: Path) -> dict[str, Any]:
    """A live Runtime and the usual objects, for one row."""
    folder = tmp_path
    runtime = Runtime(accelerator="cpu", devices=1, log_with="csv", project_dir=folder, gradient_accumulation_steps=2)
    model = runtime.prepare(torch.nn.Linear(2, 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    items: Any = range(10)
    return {
        **{name: getattr(core, name) for name in core.__all__},
        "DDPStrategy": DDPStrategy,
        "DataSettings": DataSettings,
        "CSVLogger": CSVLogger,
        "DataLoader": DataLoader,
        "Linear": torch.nn.Linear,
        "SGD": SGD,
        "StepLR": StepLR,
        "timedelta": timedelta,
        "folder": folder,
        "runtime": runtime,
        "model": model,
        "optimizer": optimizer,
        "loader": DataLoader(items, batch_size=2),
        "scheduler": StepLR(optimizer, 1),
        "inputs": torch.ones(4, 2),
    }


BEFORE = {
    "`load_state`": "runtime.save_state(folder / 'state')",
    "`log`": "runtime.init_trackers('project')",
    "`prepare_scheduler`": "optimizer = runtime.prepare_optimizer(optimizer)",
    "`get_tracker`": "runtime.init_trackers('project')",
}
"""By row, what a script does before."""


@pytest.mark.parametrize(("name", "code"), [pytest.param(left, code, id=left) for left, code, _ in ROWS])
def test_the_right_hand_side_runs(
    name: str, code: str, namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the page shows runs without a warning; a decorator or a name with its first column in it, too."""
    monkeypatch.setenv("CORE_ACCELERATOR", "cpu")
    monkeypatch.setenv("CORE_DEVICES", "1")
    import_packages_from_here(monkeypatch)
    exec(compile(f"{BEFORE.get(name, '')}\n{code}", name, "exec"), namespace)
