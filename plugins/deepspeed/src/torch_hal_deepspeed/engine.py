"""One of DeepSpeed's engines, with the few operations that its own interface lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from torch_hal.errors import ConfigurationError, quoted
from torch_hal_deepspeed import drive
from torch_hal_deepspeed.config import Config
from torch_hal_deepspeed.library import load_file, part, quiet
from torch_hal_deepspeed.module import EngineModule

__all__ = ["Engine", "check_averages", "is_divided", "is_released", "load_divided", "whole_state"]

LARGEST_BUCKET = 500_000_000
"""DeepSpeed's default number of elements in a gradient bucket. It allocates that many, however small the model."""


def is_divided(module: nn.Module) -> bool:
    """Whether DeepSpeed has sharded parameters of ``module``."""
    return any(hasattr(parameter, "ds_id") for parameter in module.parameters())


def is_released(module: nn.Module) -> bool:
    """Whether parameters of ``module`` were sharded in a run that has ended."""
    return any(getattr(parameter, "ds_process_group", parameter) is None for parameter in module.parameters())


def check_averages(module: nn.Module) -> None:
    """Check that no part of ``module``, which is to be sharded, averages another one.

    Raises:
        ConfigurationError: One does. Between the steps it would find nothing to average.
    """
    for name, each in module.named_modules():
        if isinstance(each, AveragedModel):
            raise ConfigurationError(
                f"module: {type(module).__name__} has an AveragedModel, {name!r}, and DeepSpeed's stage 3 shards the "
                f"parameters that it averages. {_TO_AVERAGE}"
            )


_TO_AVERAGE = "To average weights, set stage=2 or less."


def _refuse_copy(name: str, memo: object) -> NoReturn:
    del memo
    raise ConfigurationError(
        f"copy.deepcopy: the parameter {name!r} is sharded by DeepSpeed's stage 3 and cannot be copied. {_TO_AVERAGE} "
        "For a copy of the whole model, use runtime.get_state_dict(model)."
    )


class Engine:
    """DeepSpeed's engine for one module and its optimizer, or for the module alone to run it without gradients.

    Args:
        model: The module that the front end calls; it calls the engine from now on.
        optimizer: The user's optimizer. The engine replaces its parameters.
        config: The complete config of the engine.
    """

    def __init__(self, model: EngineModule, optimizer: Optimizer | None, config: Config) -> None:
        self.module = model.module
        self.optimizer = optimizer
        self.stage: int = config["zero_optimization"]["stage"]
        groups = [] if optimizer is None else optimizer.param_groups
        self.parameters = {id(parameter) for group in groups for parameter in group["params"]}
        """The ids of the optimizer's parameters; its groups hold other tensors from now on."""
        self._clip: float = config.get("gradient_clipping", 0.0)
        self.has_gradients = False
        """Whether backward was called since the last step."""
        self.was_applied = True
        """Whether the last step changed the parameters: one whose gradients are not finite may change nothing."""
        self.clips_once = False
        """Whether the current clipping is for the next step only."""
        self._norm: Tensor | None = None
        """What the next step sets to the norm of the gradients."""
        _limit_buffers(config, self.module)
        with quiet():
            if _are_on_drive(config) and not is_divided(self.module):
                # The dtype comes from the config; DeepSpeed would take bfloat16 on a device without float16.
                part("").zero.Init(module=self.module, config_dict_or_path=config)
            self.engine: Any = part("").initialize(
                model=self.module, optimizer=optimizer, config=config, dist_init_required=False
            )[0]
        self._clips_by_torch = self.stage == 0 and not (self.engine.fp16_enabled() or self.engine.bfloat16_enabled())
        if self._clips_by_torch:
            # DeepSpeed's own function clips in the same way, and drops the norm.
            self.engine.clip_fp32_gradients = self._clip_by_torch
        if self.stage == 0 and optimizer is not None:
            _forget_first_step(self.engine.optimizer, optimizer)
        if self.stage > 0 and optimizer is not None:
            _drop_copies(self.engine.optimizer, self.stage)
        if optimizer is not None:  # without one, it writes and loads nothing
            self.engine.checkpoint_engine.load = load_file
        for name, parameter in self.module.named_parameters():
            if hasattr(parameter, "ds_id"):  # what copy.deepcopy calls for it, also for a part of the module
                parameter.__deepcopy__ = partial(_refuse_copy, name)  # type: ignore[method-assign]
        if self.stage == 3:
            _pass_by(self.engine.optimizer, self.module)
            if optimizer is not None:
                drive.take_charge(self.engine)
        model.attach(self.engine)

    # -- the step ------------------------------------------------------------------------------------------------

    @property
    def stepped(self) -> set[int]:
        """The ids of the tensors that the optimizer's groups hold now: DeepSpeed's own, of all parameters together."""
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return {id(tensor) for group in groups for tensor in group["params"]}

    def backward(self, loss: Tensor, *args: Any, retain_graph: bool = False, **kwargs: Any) -> None:
        """Compute the gradients of ``loss`` and add them to those of the next step.

        Raises:
            ConfigurationError: An argument is given that the engine's ``backward`` does not take.
        """
        if args or kwargs:
            raise ConfigurationError(
                f"backward: DeepSpeed's engine does not support {quoted(kwargs) if kwargs else 'gradient='}. Valid: "
                "the loss, and retain_graph."
            )
        self.has_gradients = True
        self.engine.backward(loss, retain_graph=retain_graph)

    def make_backward(self) -> Callable[..., None]:
        """:meth:`backward`, quicker where it is given the loss alone."""
        backward = self.engine.backward

        def run(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            if args or kwargs:
                self.backward(loss, *args, **kwargs)
                return
            self.has_gradients = True
            backward(loss)

        return run

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Average what is not averaged yet, clip, step the optimizer and clear the gradients.

        Raises:
            ConfigurationError: A closure is given.
        """
        if closure is not None:
            raise ConfigurationError(
                f"optimizer {type(self.optimizer).__name__}: step was given a closure, which DeepSpeed's engine cannot "
                "run. Call step() without it."
            )
        self.has_gradients = False
        scaler = self.engine.torch_autocast_z0_gradscaler  # it skips steps without telling the engine
        scale = 0.0 if scaler is None else scaler.get_scale()
        self.engine.step()
        self.was_applied = self.engine.was_step_applied() and (scaler is None or scaler.get_scale() >= scale)
        if self.clips_once:
            if self._norm is not None:
                self._norm.fill_(self.engine.get_global_grad_norm())
            self.restore_clipping()

    def clip_always(self, value: float) -> None:
        """Clip in every step to the norm ``value``."""
        self._clip = value
        self._apply_clipping(value)

    def clip_next(self, value: float) -> Tensor | None:
        """Clip in the next step to the norm ``value``.

        Returns:
            A scalar that the next step sets to the norm before clipping; NaN until then, since gradients are averaged
            in the step. ``None`` where the engine does not tell the norm: float16 without ZeRO.
        """
        self.clips_once = True
        self._apply_clipping(value)
        tells = self.stage > 0 or self._clips_by_torch or hasattr(self.engine.optimizer, "_global_grad_norm")
        self._norm = torch.full((), math.nan, device=self.engine.device) if tells else None
        return self._norm

    def restore_clipping(self) -> None:
        """Restore the run's clipping after a step or a checkpoint that had another value."""
        self.clips_once, self._norm = False, None
        self._apply_clipping(self._clip)

    def _clip_by_torch(self) -> None:
        """Replaces DeepSpeed's function: clip averaged gradients in float32, and keep their norm."""
        parameters = self.engine.module.parameters()
        self.engine._global_grad_norm = nn.utils.clip_grad_norm_(parameters, self.engine.gradient_clipping())

    def _apply_clipping(self, value: float) -> None:
        """Set the value in both places where the engine keeps it, without and with ZeRO."""
        self.engine._config.gradient_clipping = value
        if hasattr(self.engine.optimizer, "clip_grad"):
            self.engine.optimizer.clip_grad = value

    # -- state ---------------------------------------------------------------------------------------------------

    def prefix(self, module: nn.Module) -> str:
        """The prefix of the names of ``module``'s parameters in the engine."""
        for name, found in self.module.named_modules():
            if found is module:
                return f"{name}." if name else ""
        return ""

    def load_weights(self, module: nn.Module, weights: Mapping[str, Any]) -> None:
        """Load weights into ``module`` and into the optimizer's copy; all processes call it with the same weights.

        Raises:
            RuntimeError: Names or shapes do not match.
        """
        if self.stage < 3:
            module.load_state_dict(weights)
        else:
            load_divided(module, weights)
        if hasattr(self.engine.optimizer, "refresh_fp32_params"):
            self.engine.optimizer.refresh_fp32_params()

    # -- the end -------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Release the module and the process group."""
        self.engine.destroy()
        for hook in ("module_forward_pre_hook", "module_forward_post_hook"):
            getattr(self.engine, hook).remove()
        for parameter in self.module.parameters():
            _release_groups(parameter)
        for name, value in list(vars(self.engine).items()):
            if isinstance(value, dist.ProcessGroup):
                setattr(self.engine, name, None)
        self.engine = None


def _pass_by(divided: Any, module: nn.Module) -> None:
    """Remove the hooks that DeepSpeed's stage 3 has at parts of ``module`` without parameters: activations, losses.

    There is nothing to gather there, and the hooks of one part take about 200 microseconds a step. If such a part uses
    a parameter of another one, DeepSpeed gathers it for the part around.
    """
    offload = getattr(divided, "parameter_offload", divided)  # the latter without an optimizer
    parts: list[Any] = list(module.modules())
    ids: set[int] = set()
    for each in parts:
        if next(each.parameters(), None) is None and not dict(each.ds_external_parameters()):
            ids |= each._forward_pre_hooks.keys() | each._forward_hooks.keys()
    for handle in (*offload.forward_hooks, *offload.backward_hooks):
        if handle.id in ids:
            handle.remove()


def _forget_first_step(wrapper: Any, optimizer: Optimizer) -> None:
    """Undo a step without gradients that DeepSpeed takes in 16 bits without ZeRO to allocate state."""
    for narrow, wide in zip(getattr(wrapper, "fp16_groups", ()), getattr(wrapper, "fp32_groups", ()), strict=True):
        optimizer.state.clear()
        for source, target in zip(narrow, wide, strict=True):
            target.data.copy_(source.data)


def _drop_copies(divided: Any, stage: int) -> None:
    """Let ZeRO's optimizer step this process's parameters directly where its copy of them is equal.

    DeepSpeed needs copies for 16-bit parameters, but makes them for others too.
    """
    if stage < 3:
        groups = zip(divided.parallel_partitioned_bit16_groups, divided.real_dp_process_group, strict=True)
        own_parts = [parts[dist.get_rank(group)] for parts, group in groups]
        copies, is_offloaded = divided.single_partition_of_fp32_groups, divided.cpu_offload
    else:
        own_parts, copies = divided.fp16_partitioned_groups_flat, divided.fp32_partitioned_groups_flat
        is_offloaded = divided.offload_optimizer or divided.offload_param
    if is_offloaded:
        return
    for own, stepped in zip(own_parts, copies, strict=True):
        if own.dtype is stepped.dtype and own.device == stepped.device:
            stepped.data = own
    if stage < 3:
        divided._link_all_hp_params()  # update the parameters' links to their copies


def _are_on_drive(config: Config) -> bool:
    """Whether parameters are offloaded to a drive."""
    offload: dict[str, Any] = config["zero_optimization"].get("offload_param", {})
    return offload.get("device") == "nvme"


def _limit_buffers(config: Config, module: nn.Module) -> None:
    """Limit buckets to the size of all gradients, and buffers to a parameter's shard, unless the config sets them."""
    if config["zero_optimization"]["stage"] == 0:
        return
    trained = (parameter for parameter in module.parameters() if parameter.requires_grad)
    total = sum(map(_numel, trained))
    config["zero_optimization"].setdefault("reduce_bucket_size", max(1, min(LARGEST_BUCKET, total)))
    if _are_on_drive(config):
        largest = max(map(_numel, module.parameters()), default=1)
        config["zero_optimization"]["offload_param"].setdefault("buffer_size", -(-largest // dist.get_world_size()))


def _numel(parameter: nn.Parameter) -> int:
    """The number of elements of the full parameter."""
    numel: int = getattr(parameter, "ds_numel", parameter.numel())
    return numel


def whole_state(module: nn.Module) -> dict[str, Any]:
    """The full state of ``module`` on the host in process 0, empty in the others; all processes call it."""
    whole: dict[str, Any] = {}
    for name, value in module.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            whole[name] = value
        elif hasattr(value, "ds_id"):
            with part("").zero.GatheredParameters([value]):
                if dist.get_rank() == 0:
                    whole[name] = value.detach().cpu().clone()
        else:
            whole[name] = value.detach().cpu()
    return whole if dist.get_rank() == 0 else {}


def load_divided(module: nn.Module, weights: Mapping[str, Any]) -> None:
    """Load weights into ``module``, which has sharded parameters; all processes call it with the same weights.

    Raises:
        RuntimeError: Shapes do not match; or names, unless ``strict_loading`` of the module is False.
    """
    current = module.state_dict(keep_vars=True)
    wrong = sorted(current.keys() ^ weights.keys())
    if wrong and getattr(module, "strict_loading", True):
        raise RuntimeError(f"missing or unexpected keys: {', '.join(wrong)}")
    for name, value in current.items():
        if name not in weights:
            continue
        if not hasattr(value, "ds_id"):
            if isinstance(value, Tensor):
                value.detach().copy_(weights[name])
            continue
        if tuple(value.ds_shape) != tuple(weights[name].shape):
            raise RuntimeError(
                f"{name}: the checkpoint has shape {tuple(weights[name].shape)}, the module {tuple(value.ds_shape)}"
            )
        with part("").zero.GatheredParameters([value], modifier_rank=0):
            if dist.get_rank() == 0:
                value.detach().copy_(weights[name])


def _release_groups(parameter: nn.Parameter) -> None:
    """Remove the process groups that ``parameter`` and its functions hold."""
    for name, value in list(vars(parameter).items()):
        if isinstance(value, dist.ProcessGroup):
            setattr(parameter, name, None)
        for cell in getattr(value, "__closure__", None) or ():
            holder = cell.cell_contents
            if isinstance(holder, part("runtime.zero.partition_parameters").Init):
                for attribute, held in list(vars(holder).items()):
                    if isinstance(held, dist.ProcessGroup):
                        setattr(holder, attribute, None)
