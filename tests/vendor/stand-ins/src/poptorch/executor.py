"""A model compiled into whole steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from stand_ins import calls, recorded
from torch import Tensor, nn

from poptorch.options import Options

__all__ = ["PoplarExecutor", "identity_loss", "inferenceModel", "trainingModel"]


class PoplarExecutor:
    """What ``trainingModel`` and ``inferenceModel`` return; made by them alone."""

    def __init__(self, model: nn.Module, options: Options, optimizer: torch.optim.Optimizer | None) -> None:
        self.model = model
        self.options = options
        self._optimizer = optimizer
        self._compiled = False

    def isCompiled(self) -> bool:  # noqa: N802
        """Whether it has run or was compiled."""
        return self._compiled

    def compile(self, *args: Any) -> None:
        """Compile for inputs of these shapes."""
        self._check(args)
        if not self._compiled:
            calls.append("compile")
            self._compiled = True

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: N802
        """Go on with the options of another optimizer."""
        calls.append("setOptimizer")
        self._optimizer = optimizer

    def copyWeightsToHost(self) -> None:  # noqa: N802
        """The host's parameters become those of the device; here they are the same."""
        calls.append("copyWeightsToHost")

    def copyWeightsToDevice(self) -> None:  # noqa: N802
        """The device's parameters become those of the host; here they are the same."""
        calls.append("copyWeightsToDevice")

    def destroy(self) -> None:
        """Give the devices back."""
        calls.append("destroy")
        self._compiled = False

    def __call__(self, *args: Any) -> Any:
        """Run all steps of one call.

        Returns:
            In training the last part's result, in inference those of all parts, joined.
        """
        self.compile(*args)
        calls.append("step" if self._optimizer else "infer")
        parts = list(zip(*(_split(arg, self._parts()) for arg in args), strict=True))
        if self._optimizer is None:
            with torch.no_grad():
                return _joined([self.model(*part) for part in parts])
        per_step = len(parts) // self.options.device_iterations
        result: Any = None
        for start in range(0, len(parts), per_step):
            self._optimizer.zero_grad()
            for part in parts[start : start + per_step]:
                result = self.model(*part)
                (_loss_of(result) / per_step).backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        return _mapped(result, Tensor.detach)

    def _parts(self) -> int:
        training = self.options.Training.gradient_accumulation if self._optimizer else 1
        return self.options.device_iterations * self.options.replication_factor * training

    def _check(self, args: tuple[Any, ...]) -> None:
        for arg in args:
            if not isinstance(arg, Tensor) or arg.device.type != "cpu":
                raise TypeError(f"poptorch takes tensors of the host; given {getattr(arg, 'device', type(arg))}")
            if arg.shape[0] % self._parts():
                raise ValueError(f"a batch of {arg.shape[0]} cannot be split into {self._parts()} equal parts")


@recorded("trainingModel")
def trainingModel(  # noqa: N802
    model: nn.Module, options: Options | None = None, optimizer: torch.optim.Optimizer | None = None
) -> PoplarExecutor:
    """A model whose ``forward`` returns its loss, or a tuple with the loss last.

    Without an optimizer it is trained by SGD with a rate of 0.01.
    """
    return PoplarExecutor(model, options or Options(), optimizer or torch.optim.SGD(model.parameters(), lr=0.01))


@recorded("inferenceModel")
def inferenceModel(model: nn.Module, options: Options | None = None) -> PoplarExecutor:  # noqa: N802
    """A model that is only evaluated."""
    return PoplarExecutor(model, options or Options(), None)


@recorded("identity_loss")
def identity_loss(x: Tensor, reduction: str) -> Tensor:
    """Mark a custom loss: ``"sum"``, ``"mean"`` or ``"none"``."""
    reductions: dict[str, Callable[[Tensor], Tensor]] = {"sum": Tensor.sum, "mean": Tensor.mean, "none": Tensor.clone}
    return reductions[reduction](x)


def _split(arg: Tensor, parts: int) -> tuple[Tensor, ...]:
    return torch.tensor_split(arg, parts)


def _loss_of(result: Any) -> Tensor:
    loss: Tensor = result[-1] if isinstance(result, tuple) else result
    return loss


def _joined(results: list[Any]) -> Any:
    if isinstance(results[0], tuple):
        return tuple(_joined(list(parts)) for parts in zip(*results, strict=True))
    return torch.cat([result.reshape(1) if result.dim() == 0 else result for result in results])


def _mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    return tuple(_mapped(item, function) for item in value) if isinstance(value, tuple) else function(value)
