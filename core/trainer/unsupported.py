"""Methods of other libraries' modules, callbacks and DataModules that have no effect here, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["OF_CALLBACKS", "OF_DATAMODULES", "OF_MODULES"]

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
        "training_epoch_end": "Use on_train_epoch_end.",
        "validation_epoch_end": "Use on_validation_epoch_end.",
        "test_epoch_end": "Use on_test_epoch_end.",
        "validation_step_end": "Do this at the end of validation_step.",
        "test_step_end": "Do this at the end of test_step.",
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
