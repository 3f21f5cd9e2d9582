"""One card, and one card for each process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from core.errors import ConfigurationError
from core.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch_hal_hpu import cards, detect
from torch_hal_hpu.accelerator import HPUAccelerator

__all__ = ["HPUParallelStrategy", "SingleHPUStrategy"]

_WITHOUT_FLOAT16 = "GAUDI"


class _OnGaudi(Strategy):
    """What both have in common: the process's own card, and marks of where a step ends.

    The library's lazy mode gathers operations, and compiles and runs them where it is told that a step ends: after a
    backward pass and after an optimizer's step, as Intel's documentation asks, and after a batch of an evaluation. In
    eager mode nothing is marked, and the step path is that of any other device.
    """

    accelerators: ClassVar[tuple[str, ...] | None] = ("hpu",)
    accelerator: HPUAccelerator

    def connect(self, **parts: Any) -> None:
        """As in the base class.

        Raises:
            ConfigurationError: The precision takes float16, which the first generation lacks.
        """
        super().connect(**parts)
        dtypes = (self.precision.param_dtype, self.precision.compute_dtype)
        if torch.float16 in dtypes and detect.generation() == _WITHOUT_FLOAT16:
            raise ConfigurationError(
                f"precision={self.precision.name!r} needs float16, which a Gaudi card of the first generation lacks. "
                "Valid: 'bf16-mixed', 'bf16-true', '32-true'."
            )
        self._card: torch.device | None = None
        self._mark: Callable[[], None] | None = None

    def setup_environment(self) -> None:
        """Make the card this process's own, which torch calls ``hpu:0`` whichever it is; ask for the library's mode."""
        self._card = self.root_device
        super().setup_environment()
        self._use(self.accelerator.own_device())
        self._mark = self.accelerator.step_mark()

    def teardown(self, failed: bool = False) -> None:
        """As in the base class; what is set up again is the same card."""
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
        """As in the base class; in lazy mode a mark follows."""
        super().backward(loss, *args, **kwargs)
        if self._mark is not None:
            self._mark()

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """As in the base class; in lazy mode a mark follows."""
        result = super().optimizer_step(optimizer, closure)
        if self._mark is not None:
            self._mark()
        return result

    def bound_backward(self) -> Callable[..., None]:
        """As in the base class: in eager mode nobody has a say but the precision."""
        return self.precision.backward if self._mark is None else self.backward

    def steps_plainly(self) -> bool:
        """As in the base class: in eager mode nobody has a say but the precision."""
        return self._mark is None and not self.precision.acts_in("optimizer_step")

    def inference_module(self, module: nn.Module) -> nn.Module:
        """As in the base class; in lazy mode a mark follows each forward pass."""
        inner = super().inference_module(module)
        return inner if self._mark is None else _Marked(inner, self._mark)


class SingleHPUStrategy(_OnGaudi, SingleDeviceStrategy):
    """One process on one Gaudi card."""

    name = "hpu_single"


class HPUParallelStrategy(_OnGaudi, DDPStrategy):
    """A replica in each process, a Gaudi card each; gradients are averaged over HCCL.

    Arguments are those of :class:`core.strategies.DDPStrategy`. Intel's guide to optimization recommends, where the
    model allows it, ``gradient_as_bucket_view=True``, ``static_graph=True`` and a larger ``bucket_cap_mb``; torch's own
    defaults hold here.
    """

    name = "hpu_parallel"

    def init_dist_connection(self) -> None:
        """As in the base class; while the group lives, the environment says which module this process works on."""
        cards.announce()
        super().init_dist_connection()

    def ddp_device_ids(self) -> None:
        """Nothing: the module is on its card already, and the only one that the process has."""
        return

    def process_group_device(self) -> None:
        """Nothing: the library's ``init_process_group`` takes no device."""
        return


class _Marked(nn.Module):
    """Calls ``inner``, and marks that a step ends."""

    def __init__(self, inner: nn.Module, mark: Callable[[], None]) -> None:
        super().__init__()
        self.inner = inner
        self.mark = mark

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.inner(*args, **kwargs)
        self.mark()
        return output
