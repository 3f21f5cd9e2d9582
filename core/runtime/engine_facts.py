"""Which engines and settings are in use, in the names that scripts written for Accelerate read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from core.errors import ConfigurationError
from core.strategies.base import Strategy

__all__ = ["CompileFacts", "EngineFacts"]


class CompileFacts:
    """What scripts read of ``dynamo_plugin``: no model is compiled but by the script itself.

    Raises:
        ConfigurationError: A script sets one of these attributes, which would compile nothing.
    """

    backend = "NO"
    mode = "default"
    fullgraph = disable = use_regional_compilation = False
    dynamic = options = None

    def __setattr__(self, name: str, value: Any) -> None:
        if value == getattr(self, name, None):
            return
        raise ConfigurationError(
            f"dynamo_plugin.{name}={value!r}: torch-hal compiles no model. Call torch.compile(model, ...) before "
            "prepare."
        )

    def __repr__(self) -> str:
        return f"<dynamo_plugin: backend={self.backend!r}>"


class EngineFacts:
    """The facts about a run's engine: ``None`` for an engine that is not in use."""

    _strategy: Strategy

    def _engine_setting(self, name: str) -> Any:
        """What the strategy declares under ``name``; ``None`` if it does not."""
        return self._strategy.engine_settings.get(name)

    @property
    def deepspeed_plugin(self) -> Any:
        """The settings of a strategy with this engine; otherwise ``None``."""
        return self._engine_setting("deepspeed_plugin")

    @property
    def fsdp_plugin(self) -> Any:
        """The settings of a strategy that shards the model's parameters with torch's FSDP; otherwise ``None``."""
        return self._engine_setting("fsdp_plugin")

    @property
    def megatron_lm_plugin(self) -> Any:
        """The settings of a strategy with this engine; otherwise ``None``."""
        return self._engine_setting("megatron_lm_plugin")

    @property
    def torch_tp_plugin(self) -> None:
        """``None``: tensor parallelism is set by arguments of the strategy."""
        return None

    @property
    def parallelism_config(self) -> None:
        """``None``: how processes share the work is set by arguments of the strategy."""
        return None

    @property
    def dynamo_plugin(self) -> CompileFacts:
        """The settings of compilation, which is never in use: ``backend`` is ``"NO"``."""
        return CompileFacts()

    @property
    def fp8_recipe_handler(self) -> None:
        """``None``: there is no precision with 8 bits."""
        return None

    @property
    def is_fsdp2(self) -> bool:
        """Whether the model's parameters are sharded with the second version of torch's FSDP."""
        return getattr(self.fsdp_plugin, "fsdp_version", None) == 2

    @property
    def device_mesh(self) -> Any:
        """The strategy's :class:`torch.distributed.device_mesh.DeviceMesh`; ``None`` if it has none.

        Raises:
            ConfigurationError: It has one, but its processes have not been started.
        """
        settings = self._strategy.engine_settings
        mesh = settings.get("device_mesh")
        if mesh is None and "device_mesh" in settings:
            raise ConfigurationError(
                f"device_mesh: strategy {self._strategy.name!r} makes it when its processes start. Call "
                "runtime.launch() before."
            )
        return mesh

    @property
    def torch_device_mesh(self) -> Any:
        """As :attr:`device_mesh`."""
        return self.device_mesh

    def maybe_context_parallel(
        self,
        buffers: Sequence[Tensor] | None = None,
        buffer_seq_dims: Sequence[int] | None = None,
        no_restore_buffers: set[Tensor] | None = None,
    ) -> AbstractContextManager[None]:
        """A context that changes nothing: a strategy that divides sequences among processes does so by itself."""
        del buffers, buffer_seq_dims, no_restore_buffers
        return nullcontext()
