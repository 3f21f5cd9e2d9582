"""The strategy's settings in the names of scripts for Accelerate: what they pass, and read as ``deepspeed_plugin``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_hal.errors import ConfigurationError, WrongTypeError
from torch_hal_deepspeed.config import Config, read_config

if TYPE_CHECKING:
    from torch_hal_deepspeed.strategy import DeepSpeedStrategy

__all__ = ["DeepSpeedPlugin", "ScriptSettings", "arguments_of"]


@dataclass(frozen=True, kw_only=True)
class DeepSpeedPlugin:
    """Arguments of :class:`DeepSpeedStrategy` under Accelerate's names, for ``Runtime(deepspeed_plugin=...)``."""

    hf_ds_config: Mapping[str, Any] | str | None = None
    """``config``."""
    gradient_accumulation_steps: int | None = None
    """An argument of the Runtime's."""
    gradient_clipping: float | None = None
    """``config["gradient_clipping"]``."""
    zero_stage: int | None = None
    """``stage``."""
    offload_optimizer_device: str | None = None
    """``offload_optimizer``, or ``"none"``."""
    offload_param_device: str | None = None
    """``offload_parameters``, or ``"none"``."""
    offload_optimizer_nvme_path: str | None = None
    """``config["zero_optimization"]["offload_optimizer"]["nvme_path"]``."""
    offload_param_nvme_path: str | None = None
    """``config["zero_optimization"]["offload_param"]["nvme_path"]``."""
    zero3_save_16bit_model: bool | None = None
    """``config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"]``, for scripts that call the engine;
    ``Runtime.save_model`` writes whole tensors with any."""
    transformer_moe_cls_names: str | None = None
    """``config["zero_optimization"]["leaf_module"]["classes"]``: names with commas between them."""
    is_train_batch_min: bool = True
    """Any: the engine's batch size is that of the training batches."""
    zero3_init_flag: bool | None = None
    """Any, since no result depends on it: ``runtime.strategy.init_module()`` shards a module while it is built."""
    enable_msamp: bool | None = None
    """Must be ``False``: set ``precision`` of the Runtime."""
    msamp_opt_level: str | None = None
    """Must be ``"O1"``."""


_INSTEAD = {
    "enable_msamp": "Set precision= of the Runtime, such as 'bf16-mixed', and leave it out.",
    "msamp_opt_level": "Set precision= of the Runtime, such as 'bf16-mixed', and leave it out.",
}
_DEFAULTS: dict[str, tuple[Any, ...]] = {"enable_msamp": (False,), "msamp_opt_level": ("O1",)}
"""Fields without a counterpart, and the values that Accelerate's class gives them by itself."""


def arguments_of(plugin: Any) -> dict[str, Any]:
    """The strategy's arguments in an object of :class:`DeepSpeedPlugin`, or one with some of its attributes.

    Raises:
        WrongTypeError: It has no attributes.
        ConfigurationError: A field is unknown, has a value without a counterpart, or contradicts the config.
    """
    given = _given(plugin)
    config = read_config(given.get("hf_ds_config"))
    zero = dict(config.get("zero_optimization", {}))
    steps = config.pop("gradient_accumulation_steps", None)  # the Runtime counts micro-batches
    if steps not in (None, 1, given.get("gradient_accumulation_steps")):
        raise ConfigurationError(
            f"deepspeed_plugin: hf_ds_config['gradient_accumulation_steps']={steps!r}: the Runtime counts "
            f"micro-batches. Set gradient_accumulation_steps={steps!r} of the plugin too."
        )
    _put(config, "gradient_clipping", given, "gradient_clipping")
    _put(zero, "stage3_gather_16bit_weights_on_model_save", given, "zero3_save_16bit_model")
    if names := given.get("transformer_moe_cls_names"):
        classes = [name.strip() for name in names.split(",")]
        _put(zero, "leaf_module", {"transformer_moe_cls_names": {"classes": classes}}, "transformer_moe_cls_names")
    for section in ("offload_optimizer", "offload_param"):
        _put_offload(zero, section, given)
    if zero:
        config["zero_optimization"] = zero
    return {"config": config, "stage": given.get("zero_stage")}


def _given(plugin: Any) -> dict[str, Any]:
    """The fields that are set, by name; without what cannot be asked for."""
    if isinstance(plugin, Mapping) or not hasattr(plugin, "__dict__"):
        raise WrongTypeError(
            f"deepspeed_plugin={plugin!r:.100}: must be one object of torch_hal_deepspeed.DeepSpeedPlugin, or of "
            "Accelerate's class. Make a Runtime for each of several."
        )
    given = {name: value for name, value in vars(plugin).items() if name[0] != "_" and value not in (None, "auto")}
    wrapped = given.get("hf_ds_config")
    config = getattr(wrapped, "config", None if wrapped == "none" else wrapped)  # Accelerate wraps a config
    other = given.pop("deepspeed_config", config)  # Accelerate's second name of it
    if config not in (None, other):
        raise ConfigurationError("deepspeed_plugin: hf_ds_config and deepspeed_config: differ. Set one of them.")
    given["hf_ds_config"] = other
    known = {field.name for field in dataclasses.fields(DeepSpeedPlugin)}
    for name, value in given.items():
        if name not in known or (name in _DEFAULTS and value not in _DEFAULTS[name]):
            instead = _INSTEAD.get(
                name, "Leave it out, or pass strategy=DeepSpeedStrategy(...) of torch_hal_deepspeed."
            )
            raise ConfigurationError(f"deepspeed_plugin: {name}={value!r:.100}: has no counterpart here. {instead}")
    return given


def _put(section: Config, key: str, given: Mapping[str, Any], name: str) -> None:
    """Put the field ``name`` into the config, which may have the same value."""
    value = given.get(name)
    if value is None:
        return
    if section.get(key, value) != value:
        raise ConfigurationError(
            f"deepspeed_plugin: {name}={value!r} contradicts {key!r}: {section[key]!r} in hf_ds_config. "
            "Set one of them."
        )
    section[key] = value


def _put_offload(zero: Config, section: str, given: Mapping[str, Any]) -> None:
    offload = dict(zero.get(section) or {})
    _put(offload, "device", given, f"{section}_device")
    path = f"{section}_nvme_path"
    if given.get(path, "none") != "none":
        if offload.get("device") != "nvme":
            raise ConfigurationError(
                f"deepspeed_plugin: {path}={given[path]!r}: has no effect without {section}_device='nvme'. Set it, or "
                "leave out the path."
            )
        _put(offload, "nvme_path", given, path)
    if offload.get("nvme_path") == "none":  # Accelerate's default
        del offload["nvme_path"]
    if offload:
        zero[section] = offload


class ScriptSettings:
    """What a script can read; the strategy's arguments set it.

    Args:
        strategy: Of the run.
    """

    def __init__(self, strategy: DeepSpeedStrategy) -> None:
        object.__setattr__(self, "_strategy", strategy)

    _strategy: DeepSpeedStrategy

    @property
    def deepspeed_config(self) -> Config:
        """The engine's config. What a script writes into it counts until the optimizer is prepared."""
        return self._strategy.config

    @property
    def zero_stage(self) -> int:
        """As the strategy's argument ``stage``."""
        return self._strategy.stage

    @property
    def gradient_accumulation_steps(self) -> int:
        """As the config has it; the front end counts micro-batches."""
        return int(self.deepspeed_config.get("gradient_accumulation_steps", 1))

    @property
    def gradient_clipping(self) -> float | None:
        """As the config has it."""
        clipping: float | None = self.deepspeed_config.get("gradient_clipping")
        return clipping

    @property
    def offload_optimizer_device(self) -> str:
        """Where the optimizer state is kept: ``none`` for the device."""
        return self._offload("offload_optimizer")

    @property
    def offload_param_device(self) -> str:
        """Where parameters are kept: ``none`` for the device."""
        return self._offload("offload_param")

    def _offload(self, section: str) -> str:
        return str(self.deepspeed_config["zero_optimization"].get(section, {}).get("device", "none"))

    def is_zero3_init_enabled(self) -> bool:
        """Whether modules are sharded while they are created, without a context."""
        return False

    def zero3_init_context_manager(self, enable: bool = False) -> AbstractContextManager[Any]:
        """With ``enable`` :meth:`DeepSpeedStrategy.init_module`, else a context that changes nothing."""
        return self._strategy.init_module() if enable else nullcontext()

    def __setattr__(self, name: str, value: Any) -> None:
        if value != getattr(self, name, None):
            raise ConfigurationError(
                f"deepspeed_plugin.{name}={value!r}: arguments of the strategy set this. Create "
                "Runtime(strategy=DeepSpeedStrategy(...)) with the argument, of torch_hal_deepspeed."
            )

    def __repr__(self) -> str:
        return f"<deepspeed_plugin: {self.deepspeed_config!r}>"
