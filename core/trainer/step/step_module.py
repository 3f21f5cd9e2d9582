"""A Module's steps as a forward pass, which is what strategies wrap."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from ...errors import ConfigurationError, WrongTypeError, quoted
from ..module.hooks import overridden
from ..module.module import Module


class StepModule(nn.Module):
    """Makes a step of the Module the forward pass that strategies wrap."""

    step: Callable[[Any, int], Any]
    name: str
    """The name of the step."""

    def __init__(self, module: Module) -> None:
        super().__init__()
        self._made: dict[tuple[str, int | None], tuple[Any, Callable[[Any, int], Any]]] = {}
        """The module's methods and what calls them: the same objects each time, since compiled code is for these."""
        self.module = module
        self.use("training_step")

    @classmethod
    def of(cls, module: Module) -> StepModule:
        """The step module of ``module``, the same in all its runs: a strategy may store state on it."""
        for step_module in module._step_modules:
            if isinstance(step_module, cls):
                return step_module
        step_module = cls(module)
        module._step_modules = (step_module,)
        return step_module

    @property
    def backward_parts(self) -> list[nn.Module] | None:
        """Where backward runs within the forward pass: the parts whose own forward passes have ended before it.

        ``None`` unless the Module has manual optimization. A strategy that divides parameters before a forward pass
        and after a backward pass does so for each of these parts by itself.

        Raises:
            ConfigurationError: The Module itself has parameters, or two parts share parameters.
        """
        if self.module.automatic_optimization:
            return None
        parts: list[nn.Module] = []
        pending: list[nn.Module] = [self.module]
        found: set[int] = set()
        while pending:
            holder = pending.pop()
            own = [name for name, _ in holder.named_parameters(recurse=False)]
            if own:
                raise ConfigurationError(
                    f"module: with manual optimization, this strategy gathers the parameters of a layer when the layer "
                    f"is called, and {quoted(own)} belong to {type(holder).__name__} itself. Put them in a layer."
                )
            for child in holder.children():
                if isinstance(child, nn.ModuleList | nn.ModuleDict):
                    pending.append(child)
                elif ids := {id(parameter) for parameter in child.parameters()}:
                    parts.append(child)
                    if found & ids:
                        raise ConfigurationError(
                            f"module: with manual optimization, this strategy gathers the parameters of a layer when "
                            f"the layer is called, and {type(child).__name__} shares some with another. Put both in "
                            "one layer."
                        )
                    found |= ids
        return parts

    @property
    def takes_parts(self) -> bool:
        """Whether a strategy that splits a batch returns what the step returned for each part, as a list."""
        return self.name == "training_step" and overridden(self.module, Module, "training_step_end") is not None

    def use(self, step: str, dataloader_idx: int | None = None) -> None:
        """Make the Module's method named ``step`` the forward pass.

        Args:
            step: The name.
            dataloader_idx: The number of the loader, if there are several: the method has to take it.

        Raises:
            ConfigurationError: The method cannot be called with the batch, or does not take the loader's number.
        """
        method, self.name = getattr(self.module, step), step
        made = self._made.get((step, dataloader_idx))
        if made is None or made[0] != method:
            made = self._made[step, dataloader_idx] = method, self._make(step, method, dataloader_idx)
        self.step = made[1]

    @staticmethod
    def _make(step: str, method: Any, dataloader_idx: int | None) -> Callable[[Any, int], Any]:
        parameters = inspect.signature(method).parameters
        if "dataloader_iter" in parameters:
            return partial(_with_iterator, step, method, dataloader_idx or 0)
        if "dataloader_idx" in parameters:
            method = partial(method, dataloader_idx=dataloader_idx or 0)
        elif dataloader_idx is not None and getattr(method, "__func__", method) is not Module.predict_step:
            if not _takes(method, 3):
                raise ConfigurationError(
                    f"module: there are several loaders, but {step} does not take the number of the loader. Define it "
                    f"as {step}(self, batch, batch_idx, dataloader_idx=0)."
                )
            return partial(_with_loader, method, dataloader_idx)
        return method if _takes_index(step, method) else partial(_without_index, method)

    def forward(self, batch: Any, batch_idx: int) -> Any:
        """Call the step."""
        return self.step(batch, batch_idx)


def _takes_index(step: str, method: Callable[..., Any]) -> bool:
    """Whether ``method`` takes the number of the batch in addition to the batch.

    Raises:
        ConfigurationError: It does not take the batch, or needs more than these two.
    """
    if _takes(method, 2):
        return True
    if _takes(method, 1):
        return False
    raise ConfigurationError(
        f"module: {step}{inspect.signature(method)} cannot be called. Define it as {step}(self, batch, batch_idx)."
    )


def _takes(method: Callable[..., Any], number: int) -> bool:
    """Whether ``method`` can be called with this number of positional arguments, and no other."""
    try:
        inspect.signature(method).bind(*range(number))
    except TypeError:
        return False
    return True


def _with_loader(method: Callable[[Any, int, int], Any], dataloader_idx: int, batch: Any, batch_idx: int) -> Any:
    return method(batch, batch_idx, dataloader_idx)


def _with_iterator(step: str, method: Callable[..., Any], dataloader_idx: int, batch: Any, batch_idx: int) -> Any:
    return method(_one_batch(step, batch, batch_idx, dataloader_idx))


def _one_batch(step: str, batch: Any, batch_idx: int, dataloader_idx: int) -> Iterator[tuple[Any, int, int]]:
    """What a step gets as ``dataloader_iter``: the batch on its device, its number and that of its loader."""
    yield batch, batch_idx, dataloader_idx
    raise ConfigurationError(
        f"{step}: next(dataloader_iter) was called again, and a step has one batch. Make the batches of the DataLoader "
        "larger, or set accumulate_grad_batches=."
    )


def _without_index(method: Callable[[Any], Any], batch: Any, batch_idx: int) -> Any:
    return method(batch)


def loss_in(output: Any) -> Tensor:
    """The loss in a mapping that ``training_step`` has returned.

    Raises:
        WrongTypeError: There is none.
    """
    try:
        loss = output["loss"]
    except (TypeError, KeyError, IndexError):
        loss = None
    if not isinstance(loss, Tensor):
        raise WrongTypeError(
            f"training_step: returned {output!r}. It must return the loss, a scalar tensor; or a mapping with the loss "
            "under 'loss'; or None to skip the batch."
        )
    return loss
