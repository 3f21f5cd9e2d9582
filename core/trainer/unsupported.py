"""Methods of Lightning's modules and DataModules that have no effect here, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["OF_DATAMODULES", "OF_MODULES"]

OF_MODULES: Mapping[str, str] = MappingProxyType(
    {
        "configure_sharded_model": "Use configure_model.",
        "training_epoch_end": "Use on_train_epoch_end.",
        "validation_epoch_end": "Use on_validation_epoch_end.",
        "test_epoch_end": "Use on_test_epoch_end.",
        "validation_step_end": "Do this at the end of validation_step.",
        "test_step_end": "Do this at the end of test_step.",
    }
)
"""By name, what to do instead of defining it in a Module."""

OF_DATAMODULES: Mapping[str, str] = MappingProxyType(
    {"on_save_checkpoint": "Use state_dict.", "on_load_checkpoint": "Use load_state_dict."}
)
"""By name, what to do instead of defining it in a DataModule."""
