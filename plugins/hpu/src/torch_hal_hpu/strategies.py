"""Strategies with one Gaudi card, and with one card per process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_hal.errors import ConfigurationError
from torch_hal.strategies import DDPStrategy, InferenceModule, SingleDeviceStrategy, Strategy
from torch_hal_hpu import cards, detect
from torch_hal_hpu.accelerator import HPUAccelerator

__all__ = ["HPUParallelStrategy", "SingleHPUStrategy"]

_WITHOUT_FLOAT16 = "GAUDI"


class _OnGaudi(Strategy):
    """Base of both strategies: the process's own card, and step marks.

    The library's lazy mode collects operations, and compiles and runs them when the end of a step is marked: after a
    backward pass and an optimizer step, as Intel's documentation asks, and after an evaluation batch. In eager mode
    nothing is marked, and steps run as on any other device.
    """

    accelerators: ClassVar[tuple[str, ...] | None] = ("hpu",)
    compile_options: ClassVar[Mapping[str, Any]] = MappingProxyType({"backend": "hpu_backend"})
    accelerator: HPUAccelerator

    def connect(self, **parts: Any) -> None:
        """See the base class.

        Raises:
            ConfigurationError: The precision needs float16, and the card is of the first generation.
        """
        super().connect(**parts)
        dtypes = (self.precision.param_dtype, self.precision.compute_dtype)
        if torch.float16 in dtypes and detect.generation() == _WITHOUT_FLOAT16:
            raise ConfigurationError(
                f"precision={self.precision.name!r}: Gaudi cards of the first generation do not support float16. Use "
                "'bf16-mixed', 'bf16-true' or '32-true'."
            )
        self._card: torch.device | None = None
        self._mark: Callable[[], None] | None = None

    def setup_environment(self) -> None:
        """Set up the card of this process, which torch calls ``hpu:0``, and read the library's mode."""
        self._card = self.root_device
        super().setup_environment()
        self._use(self.accelerator.own_device())
        self._mark = self.accelerator.step_mark()

    def teardown(self, failed: bool = False) -> None:
        """See the base class; a later setup uses the same card."""
        super().teardown(failed)
        if self._card is not None:
            self._use(self._card)
            self._card = None

    def _use(self, device: torch.device) -> None:
        devices = list(self.parallel_devices)
        devices[self.local_rank] = device
        self.parallel_devices = devices

    # -- marks of steps ------------------------------------------------------------------------------------------

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """See the base class; in lazy mode, mark the step."""
        super().backward(loss, *args, **kwargs)
        if self._mark is not None:
            self._mark()

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """See the base class; in lazy mode, mark the step."""
        result = super().optimizer_step(optimizer, closure)
        if self._mark is not None:
            self._mark()
        return result

    def make_backward(self) -> Callable[..., None]:
        """See the base class; in eager mode only the precision can change it."""
        return self.precision.backward if self._mark is None else self.backward

    def uses_native_step(self) -> bool:
        """See the base class; in eager mode only the precision can change it."""
        return self._mark is None and not self.precision.overrides("optimizer_step")

    def inference_module(self, module: nn.Module) -> nn.Module:
        """See the base class; in lazy mode, mark the step after each forward pass."""
        inner = super().inference_module(module)
        return inner if self._mark is None else InferenceModule(inner, after=self._mark, in_inference_mode=True)


class SingleHPUStrategy(_OnGaudi, SingleDeviceStrategy):
    """One process on one Gaudi card."""

    name = "hpu_single"


class HPUParallelStrategy(_OnGaudi, DDPStrategy):
    """One replica and one Gaudi card per process; gradients are averaged over HCCL.

    Arguments are those of :class:`core.strategies.DDPStrategy`, with torch's defaults. For models that allow it,
    Intel's optimization guide recommends ``gradient_as_bucket_view=True``, ``static_graph=True`` and a larger
    ``bucket_cap_mb``.
    """

    name = "hpu_parallel"

    def init_dist_connection(self) -> None:
        """See the base class; the environment names this process's module while the process group exists."""
        cards.announce()
        super().init_dist_connection()

    def ddp_device_ids(self) -> None:
        """Return ``None``: the module is already on the process's only card."""
        return

    def process_group_device(self) -> None:
        """Return ``None``: the library's ``init_process_group`` takes no device."""
        return
