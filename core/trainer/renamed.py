"""Arguments that older scripts, and those for other libraries, give a Trainer, and what to write instead."""

from __future__ import annotations

from types import MappingProxyType

__all__ = ["REMEDIES"]

_DEVICES = "Set devices=, and accelerator= to the hardware."
_LOADER = "Set it in the DataLoader, which you pass to fit()."
_TO_FIT = "Make a DataLoader of it, and pass that to fit()."
_OWN_DIRECTORY = "Set default_root_dir=, or add core.callbacks.ModelCheckpoint(dirpath=...) to callbacks=."

REMEDIES = MappingProxyType(
    {
        "gpus": _DEVICES,
        "num_processes": "Set devices=.",
        "distributed_backend": "Set strategy=.",
        "epochs": "Set max_epochs=.",
        "resume_from_checkpoint": "Pass ckpt_path= to fit().",
        "ckpt_path": "Pass it to fit(), validate(), test() or predict().",
        "auto_lr_find": "Add core.callbacks.LearningRateFinder to callbacks=.",
        "auto_scale_batch_size": "Add core.callbacks.BatchSizeFinder to callbacks=.",
        "stochastic_weight_avg": "Add core.callbacks.StochasticWeightAveraging to callbacks=.",
        "checkpoint_callback": "Set enable_checkpointing=.",
        "progress_bar_refresh_rate": "Add core.callbacks.TQDMProgressBar(refresh_rate=...) to callbacks=.",
        "weights_summary": "Set enable_model_summary=.",
        "replace_sampler_ddp": "Set use_distributed_sampler=.",
        "track_grad_norm": "Log the norm in on_before_optimizer_step.",
        "terminate_on_nan": "Set detect_anomaly=.",
        "early_stop_callback": "Add core.callbacks.EarlyStopping to callbacks=.",
        "gradient_accumulation_steps": "Set accumulate_grad_batches=.",
        "mixed_precision": "Set precision=, as in precision='bf16-mixed'.",
        "log_with": "Set logger=.",
        "amp_backend": "Set precision=.",
        "amp_level": "Set precision=.",
        "fp16": "Set precision='16-mixed'.",
        "bf16": "Set precision='bf16-mixed'.",
        "num_gpus": _DEVICES,
        "gpu": _DEVICES,
        "n_gpu": _DEVICES,
        "cpu": "Set accelerator='cpu'.",
        "backend": "Set strategy=DDPStrategy(process_group_backend=...).",
        "amp": "Set precision=, as in precision='bf16-mixed'.",
        "device": "Set accelerator= to the hardware, and devices=.",
        "lr": "Set it in the optimizer that configure_optimizers returns.",
        "learning_rate": "Set it in the optimizer that configure_optimizers returns.",
        "optimizer": "Return it from configure_optimizers of the module.",
        "batch_size": _LOADER,
        "num_workers": _LOADER,
        "per_device_train_batch_size": _LOADER,
        "per_device_eval_batch_size": _LOADER,
        "train_dataset": _TO_FIT,
        "eval_dataset": _TO_FIT,
        "args": "Pass each setting by its name, as in Trainer(max_epochs=3).",
        "compute_metrics": "Log the metrics in validation_step, with self.log.",
        "metrics": "Log them in the steps of the module, with self.log.",
        "loss": "Return it from training_step of the module.",
        "scheduler": "Return it from configure_optimizers of the module.",
        "num_train_epochs": "Set max_epochs=.",
        "max_iter": "Set max_steps=.",
        "clip_grad_norm": "Set gradient_clip_val=.",
        "max_grad_norm": "Set gradient_clip_val=.",
        "seed": "Call core.seed_everything(seed) before.",
        "resume": "Pass ckpt_path= to fit().",
        "early_stopping": "Add core.callbacks.EarlyStopping(monitor=...) to callbacks=.",
        "save_every": "Add core.callbacks.ModelCheckpoint(every_n_epochs=...) to callbacks=.",
        "checkpoint_dir": _OWN_DIRECTORY,
        "output_dir": _OWN_DIRECTORY,
        "project_dir": _OWN_DIRECTORY,
        "weights_save_path": _OWN_DIRECTORY,
        "flush_logs_every_n_steps": "Set it in the logger: CSVLogger(..., flush_logs_every_n_steps=...).",
        "log_gpu_memory": "Add core.callbacks.DeviceStatsMonitor() to callbacks=.",
        "prepare_data_per_node": "Set it as an attribute of the DataModule, or of the module.",
        "multiple_trainloader_mode": "Pass core.data.CombinedLoader(loaders, mode) to fit().",
        "truncated_bptt_steps": "Remove it: split the sequence in training_step, with manual optimization.",
        "move_metrics_to_cpu": "Remove it: log what you need with value.cpu().",
        "process_position": "Remove it.",
        "model": "Pass it to fit(), validate(), test() or predict().",
        "train_dataloaders": "Pass it to fit().",
        "datamodule": "Pass it to fit(), validate(), test() or predict().",
        "patience": "Add core.callbacks.EarlyStopping(monitor=..., patience=...) to callbacks=.",
        "log_dir": "Set default_root_dir=, or pass a logger with its own directory.",
        "model_registry": "Remove it: checkpoints are files.",
        "enable_autolog_hparams": "Remove it; call save_hyperparameters(logger=False) to keep them out of the loggers.",
    }
)
"""For each argument: what to do."""
