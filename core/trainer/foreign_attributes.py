"""Attributes that other libraries' Trainers have, and what to use instead."""

from __future__ import annotations

from types import MappingProxyType

__all__ = ["FOREIGN"]

_TUNER = "Use core.Tuner(trainer), or the callbacks LearningRateFinder and BatchSizeFinder."
_OWN_LOOP = "The Trainer runs the loop itself. Use core.Runtime for a loop of your own."
_LOOP = "Use trainer.progress for the position of the run, and trainer.settings."

FOREIGN = MappingProxyType(
    {
        "accumulate": _OWN_LOOP,
        "autocast": _OWN_LOOP,
        "backward": _OWN_LOOP,
        "clip_grad_norm_": _OWN_LOOP,
        "gather": "Call self.all_gather in the module.",
        "gather_for_metrics": "Call self.log in validation_step: it takes the mean over all processes.",
        "launch": "Call trainer.fit: it starts the processes.",
        "prepare": _OWN_LOOP,
        "save_state": "Call trainer.save_checkpoint(path).",
        "load_state": "Pass ckpt_path= to trainer.fit.",
        "unwrap_model": "Use trainer.lightning_module, or the module that you passed to fit.",
        "all_gather": "Call self.all_gather in the module, or trainer.strategy.all_gather.",
        "barrier": "Call trainer.strategy.barrier().",
        "batch_idx": "Take batch_idx from the arguments of the step or the hook.",
        "best_model_path": "Use trainer.checkpoint_callback.best_model_path.",
        "best_model_score": "Use trainer.checkpoint_callback.best_model_score.",
        "device": "Use trainer.strategy.root_device, or self.device in the module.",
        "distributed_sampler_kwargs": "Remove it: processes divide the batches of every DataLoader.",
        "epoch": "Use trainer.current_epoch.",
        "evaluate": "Call trainer.validate or trainer.test.",
        "fit_loop": _LOOP,
        "validate_loop": _LOOP,
        "test_loop": _LOOP,
        "predict_loop": _LOOP,
        "gpus": "Use trainer.num_devices.",
        "num_gpus": "Use trainer.num_devices.",
        "init_module": "Create the module as usual; it is moved to the device.",
        "load_checkpoint": "Pass ckpt_path= to fit or test, or call load_from_checkpoint of the module.",
        "log": "Call self.log in a step or a hook of the module.",
        "log_metrics": "Call trainer.logger.log_metrics, or self.log in the module.",
        "lr_find": _TUNER,
        "tune": _TUNER,
        "tuner": _TUNER,
        "lr_schedulers": "Use trainer.lr_scheduler_configs.",
        "max_time": "Use the callback core.callbacks.Timer.",
        "metrics": "Use trainer.callback_metrics or trainer.logged_metrics.",
        "num_processes": "Use trainer.world_size.",
        "rank": "Use trainer.global_rank.",
        "process_index": "Use trainer.global_rank.",
        "history": "Use trainer.callback_metrics for the newest values, or a logger for all of them.",
        "loss": "Use trainer.callback_metrics, with the name that the module logs it by.",
        "model_checkpoint": "Use trainer.checkpoint_callback.",
        "resume": "Pass ckpt_path= to trainer.fit.",
        "reduce": "Call trainer.strategy.reduce(tensor).",
        "weights_save_path": "Use trainer.default_root_dir.",
        "is_main_process": "Use trainer.is_global_zero.",
        "root_device": "Use trainer.strategy.root_device.",
        "root_gpu": "Use trainer.strategy.root_device.",
        "running_sanity_check": "Use trainer.sanity_checking.",
        "save": "Call trainer.save_checkpoint(path).",
        "save_model": "Call trainer.save_checkpoint(path, weights_only=True).",
        "stop": "Set trainer.should_stop = True.",
        "step": "Use trainer.global_step.",
        "train": "Call trainer.fit.",
        "train_dataloaders": "Use trainer.train_dataloader, without an s.",
    }
)
"""For each attribute: what to do."""
