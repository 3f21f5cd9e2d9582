"""Arguments of Ray's TorchTrainer for an accelerator of torch-hal."""

from __future__ import annotations

from typing import Any

import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig

from torch_hal import Request, resolve
from torch_hal_ray.resources import RAY_NAMES, resources_for

__all__ = ["scaling_config", "torch_config"]


def scaling_config(num_workers: int, accelerator: str = "cpu", **others: Any) -> ScalingConfig:
    """A ``ray.train.ScalingConfig`` whose workers take one CPU and one device each.

    Args:
        num_workers: Number of processes.
        accelerator: Name of the accelerator; its resource in Ray is ``GPU``, ``TPU``, ``HPU``, ``NPU``, or this name.
        **others: As in ``ray.train.ScalingConfig``.
    """
    resources = resources_for(accelerator, None, None)
    if RAY_NAMES.get(accelerator) == "GPU":
        others.setdefault("use_gpu", True)
    return ScalingConfig(num_workers=num_workers, resources_per_worker=resources, **others)


def torch_config(accelerator: str, **others: Any) -> TorchConfig:
    """A ``ray.train.torch.TorchConfig`` whose process group serves this accelerator's devices and the CPU.

    Ray itself knows the backends for a few kinds of devices; a plugin's accelerator knows its own.

    Args:
        accelerator: Name of the accelerator.
        **others: As in ``ray.train.torch.TorchConfig``.

    Raises:
        CoreError: The accelerator is not installed, or has no device here.
    """
    plan = resolve(Request.read(environ={}, accelerator=accelerator, devices=1))
    live, device = plan.parts["accelerator"], torch.device(plan.devices[0])
    live.import_backend()
    own = live.process_group_backend(device)
    backend = own if device.type == "cpu" or ":" in own else f"cpu:gloo,{device.type}:{own}"
    return TorchConfig(backend=backend, **others)
