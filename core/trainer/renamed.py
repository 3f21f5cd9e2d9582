"""Arguments that older scripts give a Trainer, and what to write instead."""

from __future__ import annotations

from types import MappingProxyType

__all__ = ["REMEDIES"]

REMEDIES = MappingProxyType(
    {
        "gpus": "Set devices=, and accelerator= to the hardware.",
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
        "num_gpus": "Set devices=, and accelerator= to the hardware.",
        "device": "Set accelerator= to the hardware, and devices=.",
        "lr": "Set it in the optimizer that configure_optimizers returns.",
        "learning_rate": "Set it in the optimizer that configure_optimizers returns.",
        "optimizer": "Return it from configure_optimizers of the module.",
        "batch_size": "Set it in the DataLoader.",
        "num_workers": "Set it in the DataLoader.",
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
