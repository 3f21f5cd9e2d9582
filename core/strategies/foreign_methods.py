"""Methods of Lightning's strategies that nothing calls here, and what to override instead."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..errors import ConfigurationError
from .base import Strategy

__all__ = ["OF_STRATEGIES", "check_methods"]

_CALLBACK = "Use a callback."
_INFERENCE = "Override inference_module, which returns the module that runs these steps."

OF_STRATEGIES: Mapping[str, str] = MappingProxyType(
    {
        "batch_to_device": "Define transfer_batch_to_device in the module or the DataModule.",
        "block_backward_sync": "Override no_sync.",
        "determine_ddp_device_ids": "Override ddp_device_ids.",
        "distributed_sampler_kwargs": "Override data_shards and data_shard.",
        "handles_gradient_accumulation": "Override training_step, which gets the number of batches to accumulate.",
        "lightning_module_state_dict": "Override module_state.",
        "lightning_restore_optimizer": "Override load_optimizer_state.",
        "load_model_state_dict": "Override load_module_state.",
        "load_optimizer_state_dict": "Override load_optimizer_state.",
        "model_sharded_context": "Define configure_model in the module, or override setup_module.",
        "model_to_device": "Override setup_module.",
        "on_exception": "Override teardown, which is told whether the run has failed.",
        "on_predict_end": _CALLBACK,
        "on_predict_start": _CALLBACK,
        "on_test_end": _CALLBACK,
        "on_test_start": _CALLBACK,
        "on_train_batch_start": _CALLBACK,
        "on_train_end": _CALLBACK,
        "on_train_start": _CALLBACK,
        "on_validation_end": _CALLBACK,
        "on_validation_start": _CALLBACK,
        "post_backward": "Override backward.",
        "post_training_step": "Override training_step.",
        "pre_backward": "Override backward.",
        "predict_step": _INFERENCE,
        "process_dataloader": "Return another loader in the module or the DataModule.",
        "reduce_boolean_decision": "Override reduce.",
        "restore_checkpoint_after_setup": "Remove it: checkpoints are loaded after setup_module and setup_optimizers.",
        "set_world_ranks": "Write a ClusterEnvironment, which says the ranks.",
        "setup_distributed": "Override setup_environment, or init_dist_connection.",
        "setup_precision_plugin": "Override setup_module and setup_optimizers.",
        "tensor_init_context": "Define configure_model in the module, or override setup_module.",
        "test_step": _INFERENCE,
        "validation_step": _INFERENCE,
    }
)
"""By name, what to do instead of defining it in a Strategy."""


def check_methods(strategy: Strategy) -> None:
    """Refuse a strategy whose class defines a method of Lightning's that nothing calls here.

    Raises:
        ConfigurationError: There is one.
    """
    kinds = [kind for kind in type(strategy).__mro__ if issubclass(kind, Strategy)]
    for kind in kinds:
        for name in OF_STRATEGIES:
            if name in vars(kind):
                raise ConfigurationError(
                    f"strategy: {kind.__name__} defines {name!r}, as strategies of Lightning do, but nothing calls it "
                    f"here. {OF_STRATEGIES[name]}"
                )
