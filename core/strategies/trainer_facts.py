"""What a strategy of Lightning's owns and a Trainer owns here, read from the Trainer that runs the strategy."""

from __future__ import annotations

from typing import Any
from weakref import ref

from torch.optim import Optimizer

from ..precisions.base import Precision

__all__ = ["TrainerFacts"]


class TrainerFacts:
    """The members of a strategy that are the Trainer's; without one, there is no module, optimizer or scheduler."""

    precision: Precision
    _trainer: ref[Any] | None = None

    def follow(self, trainer: Any) -> None:
        """Read the facts from ``trainer``, which is not kept alive."""
        self._trainer = ref(trainer)

    def _fact(self, name: str, default: Any) -> Any:
        trainer = None if self._trainer is None else self._trainer()
        return default if trainer is None else getattr(trainer, name)

    @property
    def precision_plugin(self) -> Precision:
        """``precision``, by Lightning's name."""
        return self.precision

    @property
    def lightning_module(self) -> Any:
        """The module of the running or the last run of the Trainer; ``None`` without one."""
        return self._fact("lightning_module", None)

    @property
    def optimizers(self) -> list[Optimizer]:
        """Like :attr:`core.Trainer.optimizers`: the optimizers that this strategy has set up."""
        return self._fact("optimizers", [])  # type: ignore[no-any-return]

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """Like :attr:`core.Trainer.lr_scheduler_configs`."""
        return self._fact("lr_scheduler_configs", [])  # type: ignore[no-any-return]
