"""Accelerate's own class on the planned device and process group."""

from __future__ import annotations

import os
from typing import Any

import accelerate
import torch

from torch_hal.errors import ConfigurationError
from torch_hal.plan import Plan
from torch_hal_accelerate import random_state
from torch_hal_accelerate.activation import activate
from torch_hal_accelerate.active import active
from torch_hal_accelerate.planning import MIXED_PRECISION, mixed_precision_of

__all__ = ["Accelerator"]


class Accelerator(accelerate.Accelerator):
    """``accelerate.Accelerator`` on any accelerator of torch-hal, on one process and on several.

    The script's other uses of Accelerate, and Transformers' Trainer, run on the same device; see
    :func:`torch_hal_accelerate.activate`. Checkpoints of ``save_state`` hold the device's random number generator too.

    Args:
        *args: As in Accelerate.
        accelerator: As for :func:`torch_hal_accelerate.activate`, and so are the others.
        strategy: As there.
        devices: As there.
        num_nodes: As there.
        precision: As there; or ``mixed_precision``, Accelerate's name for it.
        cluster_environment: As there.
        mixed_precision: ``"no"``, ``"bf16"`` or ``"fp16"``.
        cpu: The same as ``accelerator="cpu"``.
        **others: All other arguments of Accelerate's class.

    Raises:
        ConfigurationError: Arguments contradict each other, or Accelerate cannot run them.
        CoreError: An argument cannot be resolved here.
    """

    def __init__(
        self,
        *args: Any,
        accelerator: Any = "auto",
        strategy: Any = "auto",
        devices: Any = "auto",
        num_nodes: Any = "auto",
        precision: Any = "auto",
        cluster_environment: Any = "auto",
        mixed_precision: Any = None,
        cpu: bool = False,
        **others: Any,
    ) -> None:
        if mixed_precision is not None:
            mixed = str(mixed_precision)
            if mixed not in MIXED_PRECISION:
                raise ConfigurationError(f"mixed_precision={mixed!r}: must be 'no', 'bf16' or 'fp16'.")
            if precision not in ("auto", MIXED_PRECISION[mixed]):
                raise ConfigurationError(
                    f"mixed_precision={mixed!r} contradicts precision={precision!r}. Set one of them."
                )
            precision = MIXED_PRECISION[mixed]
        if cpu and accelerator not in ("auto", "cpu"):
            raise ConfigurationError(f"cpu=True contradicts accelerator={accelerator!r}. Set one of them.")
        activate(
            accelerator="cpu" if cpu else accelerator,
            strategy=strategy,
            devices=devices,
            num_nodes=num_nodes,
            precision=precision,
            cluster_environment=cluster_environment,
        )
        made = active()
        assert made is not None
        self.plan: Plan = made.plan
        name = mixed_precision_of(made.plan)
        device_type = made.strategy.root_device.type
        adds_scaler = name == "fp16" and device_type not in _KNOWN
        super().__init__(*args, mixed_precision="no" if adds_scaler else name, cpu=device_type == "cpu", **others)
        if adds_scaler:
            # Accelerate has a list of device types that it makes a GradScaler for, and refuses others.
            self.state._mixed_precision = "fp16"
            self.native_amp = True
            options = self.scaler_handler.to_kwargs() if self.scaler_handler is not None else {}
            autocast_type = made.strategy.accelerator.autocast_device_type(made.strategy.root_device)
            self.scaler = torch.amp.GradScaler(autocast_type, **options)
        if device_type != "cpu":
            self.register_save_state_pre_hook(_save)
            self.register_load_state_pre_hook(_load)

    def load_state(self, input_dir: Any = None, load_kwargs: Any = None, **load_model_func_kwargs: Any) -> Any:
        """As in Accelerate; tensors are read on the CPU, since safetensors knows some types of devices only."""
        if self.device.type not in _KNOWN:
            load_model_func_kwargs.setdefault("map_location", "cpu")
        return super().load_state(input_dir, load_kwargs, **load_model_func_kwargs)


_KNOWN = ("xpu", "cuda", "npu", "xla", "mlu", "musa", "hpu", "sdaa", "mps", "cpu")
"""The device types for which Accelerate's constructor knows what fp16 needs, or does nothing for it."""


def _save(models: Any, weights: Any, output_dir: str | os.PathLike[str]) -> None:
    made = active()
    if made is not None:
        random_state.save(made, output_dir)


def _load(models: Any, input_dir: str | os.PathLike[str]) -> None:
    made = active()
    if made is not None:
        random_state.load(made, input_dir)
