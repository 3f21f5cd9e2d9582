"""One process that splits each batch over all devices: SPMD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from torch_hal.strategies import ModuleWrapper, SingleDeviceStrategy
from torch_hal.utilities.nested import map_tensors
from torch_hal_xla.strategies.devices import require_all
from torch_hal_xla.strategies.steps import MarksSteps

__all__ = ["XLASPMDStrategy"]

_AXIS = "data"


class XLASPMDStrategy(MarksSteps, SingleDeviceStrategy):
    """One process uses all devices as one: XLA splits each computation over all devices of the machine.

    The inputs of a prepared module are split along their first dimension, and its parameters are on every device; XLA
    adds the communication, such as the sum of gradients. So the loader's batch is the whole batch, and results are
    those of one device, including batch statistics.

    Source: Xu et al., GSPMD, 2021; ``torch_xla.distributed.spmd``.

    It calls ``torch_xla.runtime.use_spmd()``, which cannot be undone: the process can run nothing else afterwards.
    """

    name = "xla_spmd"
    one_process_per_node: ClassVar[bool] = True
    mesh: Any
    """All devices in one dimension, ``"data"``: a ``torch_xla.distributed.spmd.Mesh``, once set up."""

    def connect(self, **parts: Any) -> None:
        """See the base class.

        Raises:
            ConfigurationError: Not all devices are requested.
        """
        super().connect(**parts)
        require_all(self.name, self.parallel_devices, self.accelerator)

    def setup_environment(self) -> None:
        """Put this process into SPMD mode, then as in the base class."""
        import torch_xla.distributed.spmd as xs
        import torch_xla.runtime as xr

        if not xr.is_spmd():
            xr.use_spmd()
        super(MarksSteps, self).setup_environment()
        self.mesh = xs.get_1d_mesh(_AXIS)

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Convert and move the module, and wrap it to split its inputs over the devices."""
        return _SplitModule(super().setup_module(module), self.split)

    def split(self, data: Any) -> Any:
        """Split each tensor in ``data`` along its first dimension over the devices, in place; return ``data``."""
        return map_tensors(self._split, data)

    def _split(self, tensor: Tensor) -> Tensor:
        import torch_xla.distributed.spmd as xs

        if tensor.dim() and tensor.device.type == self.root_device.type:
            xs.mark_sharding(tensor, self.mesh, (_AXIS, *(None,) * (tensor.dim() - 1)))
        return tensor


class _SplitModule(ModuleWrapper):
    """``module`` with its inputs split over the devices.

    Args:
        module: The wrapped module.
        split: The function that splits inputs.
    """

    def __init__(self, module: nn.Module, split: Callable[[Any], Any]) -> None:
        super().__init__(module)
        self._split = split

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module with split inputs."""
        return self.module(*self._split(args), **self._split(kwargs))
