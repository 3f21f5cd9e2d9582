"""Arguments that older scripts, and those for other libraries, give a Trainer, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["FOREIGN", "OF_CALLBACKS", "OF_DATAMODULES", "OF_MODULES", "REMEDIES", "change_import"]


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


OF_CALLBACKS: Mapping[str, str] = MappingProxyType(
    {
        "on_batch_start": "Use on_train_batch_start.",
        "on_batch_end": "Use on_train_batch_end.",
        "on_epoch_start": "Use on_train_epoch_start.",
        "on_epoch_end": "Use on_train_epoch_end.",
        "on_pretrain_routine_start": "Use on_fit_start.",
        "on_pretrain_routine_end": "Use on_fit_start.",
        "on_init_start": "Do this in setup.",
        "on_init_end": "Do this in setup.",
        "on_keyboard_interrupt": "Use on_exception.",
        "on_train_begin": "Use on_train_start.",
        "on_epoch_begin": "Use on_train_epoch_start.",
        "on_step_begin": "Use on_train_batch_start.",
        "on_step_end": "Use on_train_batch_end.",
        "on_evaluate": "Use on_validation_end.",
        "on_save": "Use on_save_checkpoint.",
        "on_log": "Use on_train_batch_end, and trainer.callback_metrics.",
    }
)
"""By name, what to do instead of defining it in a Callback; hooks of modules have the same names."""

OF_MODULES: Mapping[str, str] = MappingProxyType(
    {
        **OF_CALLBACKS,
        "configure_sharded_model": "Use configure_model.",
        "tng_dataloader": "Use train_dataloader.",
        "tbptt_split_batch": "Split the sequence in training_step, with manual optimization.",
        "get_progress_bar_dict": "Use self.log(name, value, prog_bar=True).",
        "get_tqdm_dict": "Use self.log(name, value, prog_bar=True).",
        "configure_apex": "Set precision='16-mixed' in the Trainer.",
        "configure_ddp": "Override configure_ddp of core.strategies.DDPStrategy.",
        "configure_sync_batchnorm": "Set sync_batchnorm=True in the Trainer.",
        "init_ddp_connection": "Override init_dist_connection of core.strategies.DDPStrategy.",
    }
)
"""By name, what to do instead of defining it in a Module."""

OF_DATAMODULES: Mapping[str, str] = MappingProxyType(
    {"on_save_checkpoint": "Use state_dict.", "on_load_checkpoint": "Use load_state_dict."}
)
"""By name, what to do instead of defining it in a DataModule."""


OURS = {
    "LightningModule": "from core import Module as LightningModule",
    "LightningDataModule": "from core import DataModule as LightningDataModule",
    "Callback": "from core import Callback",
}
"""By Lightning's class, the import to write."""
PACKAGES = ("lightning", "pytorch_lightning")


def change_import(given: Any) -> str | None:
    """What to do if ``given`` derives from one of Lightning's classes; ``None`` if it does not."""
    for kind in type(given).__mro__:
        if kind.__name__ in OURS and kind.__module__.partition(".")[0] in PACKAGES:
            package = kind.__module__.partition(".")[0]
            return (
                f"It derives from {package}'s {kind.__name__}: change the import to '{OURS[kind.__name__]}', and run "
                "'torch-hal migrate FILE' on the script, which lists what else differs."
            )
    return None
