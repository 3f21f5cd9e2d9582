"""One process that splits each batch over all devices: SPMD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from core.nested import map_tensors
from core.strategies import SingleDeviceStrategy
from torch_hal_xla.strategies.devices import require_all
from torch_hal_xla.strategies.steps import MarksSteps

__all__ = ["XLASPMDStrategy"]

_AXIS = "data"


class XLASPMDStrategy(MarksSteps, SingleDeviceStrategy):
    """One process that sees one large device: XLA splits each computation over all devices of the machine.

    What a prepared module is called with is split along its first dimension, and its parameters are on every device;
    what follows from that, such as the sum of gradients, XLA adds by itself. So a batch is one batch, of the size that
    the loader gives, and a result is that of one device, batch statistics too.

    Source: Xu et al., GSPMD, 2021; ``torch_xla.distributed.spmd``.

    ``torch_xla.runtime.use_spmd()`` is called, and cannot be taken back: from then on, this process runs nothing else.
    """

    name = "xla_spmd"
    one_process_per_node: ClassVar[bool] = True
    mesh: Any
    """All devices in one dimension, ``"data"``: a ``torch_xla.distributed.spmd.Mesh``, once set up."""

    def connect(self, *, parallel_devices: Sequence[torch.device], **parts: Any) -> None:
        """As in the base class.

        Raises:
            ConfigurationError: The devices are not all there are.
        """
        super().connect(parallel_devices=parallel_devices, **parts)
        require_all(self.name, parallel_devices, self.accelerator)

    def setup_environment(self) -> None:
        """Put this process into SPMD mode, then as in the base class."""
        import torch_xla.distributed.spmd as xs
        import torch_xla.runtime as xr

        if not xr.is_spmd():
            xr.use_spmd()
        super(MarksSteps, self).setup_environment()
        self.mesh = xs.get_1d_mesh(_AXIS)

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Converted and moved, what it is called with split over the devices."""
        return _SplitModule(super().setup_module(module), self.split)

    def unwrap_module(self, module: nn.Module) -> nn.Module:
        """The module within."""
        return module.module if isinstance(module, _SplitModule) else module

    def split(self, data: Any) -> Any:
        """Have each tensor in ``data`` split along its first dimension over the devices; in place, and handed back."""
        return map_tensors(self._split, data)

    def _split(self, tensor: Tensor) -> Tensor:
        import torch_xla.distributed.spmd as xs

        if tensor.dim() and tensor.device.type == self.root_device.type:
            xs.mark_sharding(tensor, self.mesh, (_AXIS, *(None,) * (tensor.dim() - 1)))
        return tensor


class _SplitModule(nn.Module):
    """``module``, with what it is called with split over the devices.

    Args:
        module: What is called.
        split: What splits.
    """

    module: nn.Module

    def __init__(self, module: nn.Module, split: Any) -> None:
        super().__init__()
        self.module = module
        self._split = split
        self.training = module.training  # not train(), which would wake parts that are in evaluation mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's."""
        return self.module(*self._split(args), **self._split(kwargs))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's, without a prefix."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Into the module."""
        return self.module.load_state_dict(*args, **kwargs)
