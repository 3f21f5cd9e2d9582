"""Strategy ``colossalai``: the module is boosted by Colossal-AI."""

from __future__ import annotations

import logging
import warnings
from typing import Any, TypedDict, Unpack

from torch import nn

from torch_hal.errors import BackendError, ConfigurationError, WrongTypeError, quoted
from torch_hal.strategies import DDPStrategy, StrategyParts, keyword_parameters

__all__ = ["ColossalAIOptions", "ColossalAIStrategy"]

logger = logging.getLogger(__name__)

PLUGIN = "torch_ddp"
"""The one of Colossal-AI's plugins that this strategy uses."""

_REFUSED = {
    "gemini": ("its memory manager asks for the memory of a GPU", "'fsdp_cpu_offload', 'deepspeed_stage_3_offload'"),
    "low_level_zero": ("its optimizer needs a GPU", "'deepspeed_stage_1', 'deepspeed_stage_2', 'ddp_sharded'"),
    "hybrid_parallel": ("it needs a GPU, and its own policy for each class of model", "'tensor_parallel', 'pipeline'"),
    "moe_hybrid_parallel": ("it needs a GPU, and its own policy for each class of model", "'tensor_parallel'"),
    "torch_fsdp": ("it needs a GPU", "'fsdp'"),
}
"""Colossal-AI's other plugins: why they do not run on a CPU, and names that do the same."""


class ColossalAIOptions(TypedDict, total=False):
    """Arguments of Colossal-AI's ``TorchDDPPlugin``."""

    broadcast_buffers: bool
    bucket_cap_mb: int
    find_unused_parameters: bool
    check_reduction: bool
    gradient_as_bucket_view: bool
    static_graph: bool
    fp8_communication: bool


class ColossalAIArguments(StrategyParts, ColossalAIOptions, total=False):
    """All further arguments of the strategy."""

    start_method: str


class ColossalAIStrategy(DDPStrategy):
    """A replica of the module in each process, boosted by Colossal-AI with its ``TorchDDPPlugin``.

    Precision, clipping and checkpoints are torch-hal's, as with ``ddp``. On a GPU, Colossal-AI turns batch norm into
    ``SyncBatchNorm``; on a CPU, for which torch has none, batch norm stays as it is, and the log says so.

    Source: Li et al., Colossal-AI, ICPP 2023; ``colossalai.booster.plugin.TorchDDPPlugin``.

    Args:
        plugin: ``"torch_ddp"``. Colossal-AI's others do not run on a CPU, and were not run on hardware.
        **others: Options of ``TorchDDPPlugin``, see :class:`ColossalAIOptions`; and as in
            :class:`core.strategies.ProcessGroupStrategy`.

    Raises:
        ConfigurationError: An argument is unknown or has an invalid value, or ``plugin`` is not supported.
        WrongTypeError: An option has the wrong type.
    """

    name = "colossalai"
    accelerators = ("cpu", "cuda", "npu")
    extra_arguments = keyword_parameters(ColossalAIOptions.__annotations__)

    def __init__(self, *, plugin: str = PLUGIN, **others: Unpack[ColossalAIArguments]) -> None:
        arguments: dict[str, Any] = {**others}
        self.options = {name: arguments.pop(name) for name in others if name in ColossalAIOptions.__annotations__}
        if plugin in _REFUSED:
            reason, instead = _REFUSED[plugin]
            raise ConfigurationError(
                f"plugin={plugin!r}: Colossal-AI's plugin does not run on a CPU ({reason}), and was not run on "
                f"hardware, so strategy='colossalai' does not offer it. To the same end: strategy={instead}."
            )
        if plugin != PLUGIN:
            raise ConfigurationError(f"plugin={plugin!r} is unknown. Valid: {PLUGIN!r}.")
        for name in ("communication_hook", "communication_options"):
            if name in arguments:
                raise ConfigurationError(f"{name}={arguments[name]!r}: Colossal-AI has fp8_communication=True instead.")
        for name, value in self.options.items():
            expected = int if name == "bucket_cap_mb" else bool
            if type(value) is not expected:
                raise WrongTypeError(f"{name}={value!r}: must be {'an integer' if expected is int else 'a bool'}.")
        super().__init__(**arguments)
        if not self.options.get("broadcast_buffers", True):
            self.keeps_buffers_equal = False

    def setup_environment(self) -> None:
        """Import Colossal-AI, which sets an environment variable for CUDA, and connect the processes.

        Raises:
            BackendError: Colossal-AI cannot be imported.
            ConfigurationError: ``fp8_communication`` is set on CPUs.
        """
        if self.options.get("fp8_communication") and self.root_device.type == "cpu":
            raise ConfigurationError(
                "fp8_communication=True: Colossal-AI's hook fails on a CPU with several processes, and was not run on "
                "hardware. Leave it out; strategy='bagua_bytegrad' sends 8 bits."
            )
        _load(self.root_device.type)
        super().setup_environment()

    def configure_ddp(self) -> None:
        """Boost the module."""
        engine, ddp = _load(self.root_device.type)
        plugin = ddp.TorchDDPPlugin(**self.options)
        module = self.model
        norms = [name for name, one in module.named_modules() if isinstance(one, nn.modules.batchnorm._BatchNorm)]
        if norms and self.root_device.type == "cpu":
            logger.warning("strategy='colossalai': batch norm is not synchronized on a CPU: %s", quoted(norms[:10]))
            plugin.configure = lambda model, *others: (ddp.TorchDDPModel(model, **plugin.ddp_kwargs), *others)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # Colossal-AI passes an argument that torch will remove
            boosted = engine.Booster(plugin=plugin).boost(module)[0]
        # Around it, Colossal-AI has a module that only passes on calls.
        self.model = boosted.module


def _load(device_type: str) -> tuple[Any, Any]:
    """``colossalai.booster``, and the module of its TorchDDPPlugin; Colossal-AI uses devices of ``device_type``.

    Raises:
        BackendError: Colossal-AI cannot be imported.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Colossal-AI warns about packages that only some of its plugins need
            import colossalai.booster.plugin.torch_ddp_plugin
            from colossalai.accelerator import set_accelerator
    except (ImportError, AttributeError) as error:  # its kernels read attributes that not every version of torch has
        raise BackendError(
            f"strategy='colossalai': Colossal-AI cannot be imported: {error}. It requires an older torch than it runs "
            "with: see the README of torch-hal-colossalai for the line that installs it."
        ) from error
    set_accelerator(device_type)
    return colossalai.booster, colossalai.booster.plugin.torch_ddp_plugin
