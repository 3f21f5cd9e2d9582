"""Attributes that the front ends of other libraries have, or that scripts expect of a Runtime, and what to use."""

from __future__ import annotations

from types import MappingProxyType

__all__ = ["FOREIGN"]

FOREIGN = MappingProxyType(
    {
        "accelerator": "Use runtime.strategy.accelerator.",
        "all_gather": "Call runtime.gather.",
        "all_reduce": "Call runtime.reduce.",
        "call": "Call your functions in the loop, or use core.Trainer, which has callbacks.",
        "clip_gradients": "Call runtime.clip_grad_norm_ or clip_grad_value_.",
        "clip_grad_norm": "Call runtime.clip_grad_norm_, with an underscore at its end.",
        "clip_grad_value": "Call runtime.clip_grad_value_, with an underscore at its end.",
        "device_type": "Use runtime.device.type.",
        "devices": "Use runtime.plan.devices.",
        "evaluate": "A Runtime is for loops of your own. Use core.Trainer for one that validates.",
        "fit": "A Runtime is for loops of your own. Use core.Trainer for one with fit.",
        "global_rank": "Use runtime.process_index.",
        "init_module": "Create the module as usual, and pass it to prepare.",
        "init_tensor": "Create the tensor with device=runtime.device.",
        "is_global_zero": "Use runtime.is_main_process.",
        "load_checkpoint": "Call runtime.load or load_state.",
        "local_rank": "Use runtime.local_process_index.",
        "logger": "Use runtime.trackers, or runtime.get_tracker(name).",
        "loggers": "Use runtime.trackers.",
        "log_dict": "Call runtime.log(values).",
        "log_metrics": "Call runtime.log(values, step=...).",
        "no_backward_sync": "Call runtime.no_sync.",
        "optimizer_step": "Call optimizer.step() of the prepared optimizer.",
        "precision": "Use runtime.plan.precision.name.",
        "rank": "Use runtime.process_index.",
        "rank_zero_first": "Call runtime.main_process_first.",
        "save_checkpoint": "Call runtime.save or save_state.",
        "seed_everything": "Call core.seed_everything(seed).",
        "set_seed": "Call core.seed_everything(seed).",
        "setup": "Call runtime.prepare.",
        "setup_dataloaders": "Call runtime.prepare.",
        "setup_module": "Call runtime.prepare_model.",
        "setup_optimizers": "Call runtime.prepare_optimizer.",
        "sharded_model": "Create the model as usual, and pass it to prepare.",
        "step": "Call optimizer.step() of the prepared optimizer.",
        "to": "Call tensor.to(runtime.device). Batches of prepared loaders are there already.",
        "to_device": "Call tensor.to(runtime.device). Batches of prepared loaders are there already.",
        "train": "A Runtime is for loops of your own. Use core.Trainer for one with fit.",
        "world_size": "Use runtime.num_processes.",
        "zero_grad": "Call optimizer.zero_grad() of the prepared optimizer.",
    }
)
"""For each attribute: what to do."""
