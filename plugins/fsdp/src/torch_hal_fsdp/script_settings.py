"""The strategy's settings in the names that scripts written for Accelerate read: ``state.fsdp_plugin``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from torch_hal.errors import ConfigurationError

if TYPE_CHECKING:
    from torch_hal_fsdp.strategy import FSDPStrategy

__all__ = ["ScriptSettings"]

STATE_DICT_TYPES = {"sharded": "SHARDED_STATE_DICT", "full": "FULL_STATE_DICT"}
"""The values of the strategy's argument, and Accelerate's."""


class ScriptSettings:
    """What a script can read; the strategy's arguments set it.

    Args:
        strategy: Of the run.
    """

    fsdp_version = 2

    def __init__(self, strategy: FSDPStrategy) -> None:
        object.__setattr__(self, "_strategy", strategy)

    _strategy: FSDPStrategy

    @property
    def reshard_after_forward(self) -> bool | int | None:
        """As the strategy's argument."""
        return self._strategy.reshard_after_forward

    @property
    def cpu_offload(self) -> bool:
        """As the strategy's argument."""
        return self._strategy.cpu_offload

    @property
    def activation_checkpointing(self) -> bool:
        """Whether some forward passes run again in the backward pass."""
        return self._strategy.activation_checkpointing is not None

    @property
    def state_dict_type(self) -> str:
        """``SHARDED_STATE_DICT`` or ``FULL_STATE_DICT``."""
        return STATE_DICT_TYPES[self._strategy.state_dict_type]

    def set_state_dict_type(self, state_dict_type: Any) -> None:
        """Accept what is set already.

        Raises:
            ConfigurationError: It is another one.
        """
        given = str(getattr(state_dict_type, "name", state_dict_type))
        if given != self.state_dict_type:
            self._refuse("state_dict_type", state_dict_type)

    def __setattr__(self, name: str, value: Any) -> None:
        if value != getattr(self, name, None):
            self._refuse(name, value)

    def _refuse(self, name: str, value: Any) -> NoReturn:
        raise ConfigurationError(
            f"fsdp_plugin.{name}={value!r}: arguments of the strategy set this. Create "
            "Runtime(strategy=FSDPStrategy(...)) with the argument, of torch_hal_fsdp. Runtime.save_model and "
            "get_state_dict give whole tensors with any."
        )

    def __repr__(self) -> str:
        names = ("fsdp_version", "reshard_after_forward", "cpu_offload", "activation_checkpointing", "state_dict_type")
        return f"<fsdp_plugin: {', '.join(f'{name}={getattr(self, name)!r}' for name in names)}>"
