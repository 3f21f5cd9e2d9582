"""Making Accelerate run what was planned, in this process and from now on."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn

from torch_hal.errors import ConfigurationError
from torch_hal.plan import Plan, assemble
from torch_hal.strategies import move_module
from torch_hal_accelerate.active import Active, active, set_active
from torch_hal_accelerate.importing import when_imported
from torch_hal_accelerate.planning import make_plan, mixed_precision_of

__all__ = ["activate", "deactivate"]


def activate(
    accelerator: Any = "auto",
    strategy: Any = "auto",
    devices: Any = "auto",
    num_nodes: Any = "auto",
    precision: Any = "auto",
    cluster_environment: Any = "auto",
) -> Plan:
    """Make Accelerate, and the Trainers of Transformers and TRL, use the planned device and process group.

    Call it before anything of Accelerate is used; further calls with the same arguments return the same Plan. Where
    several devices are planned and no launcher has started the processes, this script is started again for each.

    Args:
        accelerator: A name, such as that of a plugin, or an object of :class:`core.Accelerator`.
        strategy: ``"ddp"`` or ``"single_device"``; by default what the number of devices needs.
        devices: As in :mod:`core.accelerators.devices`.
        num_nodes: The number of machines.
        precision: ``"32-true"``, ``"bf16-mixed"`` or ``"16-mixed"``; by default what the script says.
        cluster_environment: A name or an object; detected unless given.

    Returns:
        The Plan.

    Raises:
        ConfigurationError: Accelerate is in use already, was activated for something else, or cannot run the strategy.
        CoreError: An argument cannot be resolved here.
    """
    arguments = {
        "accelerator": accelerator,
        "strategy": strategy,
        "devices": devices,
        "num_nodes": num_nodes,
        "precision": precision,
        "cluster_environment": cluster_environment,
    }
    if (before := active()) is not None:
        different = [name for name, value in arguments.items() if value not in ("auto", before.arguments[name])]
        if different:
            raise ConfigurationError(
                f"activate({different[0]}={arguments[different[0]]!r}): Accelerate was activated with "
                f"{different[0]}={before.arguments[different[0]]!r} in this process. Use the same arguments, or call "
                "deactivate() first."
            )
        return before.plan

    from accelerate.state import PartialState

    from torch_hal_accelerate.state import plan_states

    if PartialState._shared_state:
        raise ConfigurationError(
            "activate(): Accelerate is in use already in this process. Call it first, before an Accelerator, a "
            "PartialState or TrainingArguments is created."
        )
    plan = make_plan(**arguments)
    live = assemble(plan)
    live.launch(lambda: None)
    live.setup_environment()
    made = Active(plan, live, arguments)
    _set_variables(made)
    _keep_parameters(made)
    _move_before_fsdp(made)
    plan_states(made)
    _prepare_transformers(made)
    set_active(made)
    return plan


def deactivate() -> None:
    """Leave the process group, and restore Accelerate and the environment variables, so that another run can follow.

    Without it, the process leaves the group when it ends.
    """
    if (made := active()) is None:
        return
    set_active(None)
    from accelerate.state import AcceleratorState

    for undo in reversed(made.restore):
        undo()
    AcceleratorState._reset_state(reset_partial_state=True)
    made.strategy.teardown()


def _set_variables(made: Active) -> None:
    strategy, plan = made.strategy, made.plan
    variables: dict[str, str] = {}
    if strategy.root_device.type != "cpu":
        variables["ACCELERATE_TORCH_DEVICE"] = str(strategy.root_device)
    if plan.request["precision"] != "auto":
        variables["ACCELERATE_MIXED_PRECISION"] = mixed_precision_of(plan)
    if strategy.world_size > 1:
        variables |= {
            "RANK": str(strategy.global_rank),
            "WORLD_SIZE": str(strategy.world_size),
            "LOCAL_RANK": str(strategy.local_rank),
            "LOCAL_WORLD_SIZE": str(strategy.local_processes),
        }
        if strategy.root_device.index not in (None, strategy.local_rank):
            # Accelerate takes the local rank for the device's index where it wraps a model, unless it is told not to.
            variables["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"
    for name, value in variables.items():
        before = os.environ.get(name)
        if before == value:
            continue
        os.environ[name] = value
        made.restore.append(_restorer(name, before))


def _keep_parameters(made: Active) -> None:
    """Let ``module.to(device)`` swap parameters where torch would make new ones.

    Optimizers and tied weights refer to parameters as objects, and Accelerate moves a model after the optimizer was
    made. On most devices from outside torch it would go on to train the parameters on the host.
    """
    if _takes_tensors(made.strategy.root_device):
        return
    original = nn.Module.to

    @wraps(original)
    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        target: Any = kwargs.get("device", args[0] if args else None)
        types = {parameter.device.type for parameter in self.parameters()}
        is_device = isinstance(target, str | torch.device)
        swaps = is_device and bool(types - {torch.device(target).type, "meta"})
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(before or swaps)
        try:
            return original(self, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    nn.Module.to = to  # type: ignore[method-assign, assignment]
    made.restore.append(lambda: setattr(nn.Module, "to", original))


def _takes_tensors(device: torch.device) -> bool:
    """Whether a tensor on ``device`` can take the place of one on the host, as ``parameter.data = ...`` does it."""
    return torch._has_compatible_shallow_copy_type(torch.empty(0), torch.empty(0, device=device))


def _move_before_fsdp(made: Active) -> None:
    """Let Accelerate's ``prepare`` move modules before FSDP divides them, where FSDP cannot move them itself."""
    device = made.strategy.root_device
    if _takes_tensors(device):
        return
    from accelerate import Accelerator

    original = Accelerator.prepare

    @wraps(original)
    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        plugin = getattr(self.state, "fsdp_plugin", None)
        if plugin is not None and plugin.fsdp_version == 1:
            raise ConfigurationError(
                f"fsdp_version=1: torch's FullyShardedDataParallel cannot move a module to {device}. Use "
                "fsdp_version=2, or core.Runtime with strategy='fsdp'."
            )
        if plugin is not None and not plugin.cpu_ram_efficient_loading:  # which fills the parameters on the device
            for module in args:
                if isinstance(module, nn.Module) and not any(one.is_meta for one in module.parameters()):
                    move_module(module, device)
        return original(self, *args, **kwargs)

    Accelerator.prepare = prepare
    made.restore.append(lambda: setattr(Accelerator, "prepare", original))


def _prepare_transformers(made: Active) -> None:
    """Where the script imports it: the device's generator in checkpoints, and ``bf16=True`` on the planned device."""
    accelerator = made.strategy.accelerator

    def extend_trainer(module: Any) -> None:
        from torch_hal_accelerate.transformers_trainer import extend_trainer

        extend_trainer(module)

    def allow_bfloat16(module: Any) -> None:
        original = module.is_torch_bf16_gpu_available
        module.is_torch_bf16_gpu_available = lambda: "bfloat16" not in accelerator.unsupported
        made.restore.append(lambda: setattr(module, "is_torch_bf16_gpu_available", original))

    made.restore.append(when_imported("transformers.training_args", allow_bfloat16))
    if made.strategy.root_device.type != "cpu":  # the Trainer knows the CPU's generator
        made.restore.append(when_imported("transformers.trainer", extend_trainer))


def _restorer(name: str, value: str | None) -> Callable[[], object]:
    return lambda: os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
