"""The user's optimizer, stepped by DeepSpeed's engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from torch_hal.errors import ConfigurationError
from torch_hal.strategies import OptimizerWrapper

if TYPE_CHECKING:
    from torch_hal_deepspeed.engine import Engine

__all__ = ["EngineOptimizer"]


class EngineOptimizer(OptimizerWrapper):
    """The user's optimizer, stepped by the engine. Its state covers this process's part of the parameters.

    Args:
        optimizer: The user's optimizer.
        engine: The engine that holds the optimizer's parameters.
    """

    own_attributes = ("engine",)

    engine: Engine

    def __init__(self, optimizer: Optimizer, engine: Engine) -> None:
        super().__init__(optimizer, engine.step)
        self.engine = engine

    @property
    def step_was_skipped(self) -> bool:
        """Whether the engine left out the last step, as it does where gradients are not finite."""
        return not self.engine.was_applied

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: the engine clears the gradients in its step.

        Raises:
            ConfigurationError: There are gradients that no step has applied. The engine cannot drop them.
        """
        del set_to_none
        if self.engine.has_gradients:
            raise ConfigurationError(
                "zero_grad: backward was called and no step followed. DeepSpeed's engine cannot drop these gradients. "
                "Call zero_grad after step, or before backward."
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Like torch's, with stage 0.

        Raises:
            ConfigurationError: The stage is another one, in which the engine would never step these parameters.
        """
        if self.engine.stage:
            raise ConfigurationError(
                f"add_param_group: DeepSpeed's stage {self.engine.stage} divides parameters in prepare, and would not "
                "train those that come later. Add the group before prepare, or set stage=0."
            )
        super().add_param_group(param_group)
