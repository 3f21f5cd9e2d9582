"""The strategy's settings in the names of scripts for Accelerate: what they pass, and read as ``deepspeed_plugin``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_hal.errors import ConfigurationError
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


def arguments_of(plugin: Any) -> dict[str, Any]:
    """The strategy's arguments in an object of :class:`DeepSpeedPlugin`, or one with some of its attributes."""
    fields = {field.name: getattr(plugin, field.name, None) for field in dataclasses.fields(DeepSpeedPlugin)}
    given = {name: None if value in ("auto", "none") else value for name, value in fields.items()}
    config = read_config(getattr(given["hf_ds_config"], "config", given["hf_ds_config"]))  # Accelerate wraps a config
    config.pop("gradient_accumulation_steps", None)  # the Runtime counts micro-batches
    if given["gradient_clipping"] is not None:
        config["gradient_clipping"] = given["gradient_clipping"]
    return {
        "config": config,
        "stage": given["zero_stage"],
        "offload_optimizer": given["offload_optimizer_device"],
        "offload_parameters": given["offload_param_device"],
    }


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
