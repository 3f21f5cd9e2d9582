"""A model compiled into whole steps."""

from __future__ import annotations

import copy
from types import MethodType
from typing import Any
from weakref import WeakSet

import torch
from stand_ins import calls, recorded
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from poptorch import optim
from poptorch.device import DeviceSide
from poptorch.graph import Error, Graph
from poptorch.options import Options, OutputMode

__all__ = ["PoplarExecutor", "inferenceModel", "trainingModel"]

_wrapped: WeakSet[nn.Module] = WeakSet()
"""Models that are wrapped for training."""


class PoptorchParameter(nn.Parameter):
    """What the library makes of a model's parameters while they are trained."""


class PoptorchBuffer(Tensor):
    """What it makes of buffers; what is computed from one is of this class too."""


class PoplarExecutor:
    """What ``trainingModel`` and ``inferenceModel`` return; made by them alone."""

    def __init__(self, model: nn.Module, options: Options, optimizer: torch.optim.Optimizer | None) -> None:
        options._freeze()
        self.options = options.clone()
        if self.options.output_mode is OutputMode.Default:
            self.options.output_mode = OutputMode.Final if optimizer else OutputMode.All
        if optimizer is None and self.options.Training.gradient_accumulation != 1:
            raise Error("gradientAccumulation must be 1 for inference")
        self.options._freeze()
        self.model = model
        self._model = copy.copy(model)  # what is traced is not the very object that was given
        self._training = optimizer is not None
        self._optimizer: Any = optimizer
        self._graph: Graph | None = None
        self._device: DeviceSide | None = None
        self._inputs: tuple[Any, ...] = ()
        if optimizer is not None:
            _wrapped.add(model)
            for parameter in model.parameters():
                parameter.__class__ = PoptorchParameter
            for buffer in model.buffers():
                buffer.__class__ = PoptorchBuffer
            self._bind(optimizer)

    # -- the library's names -------------------------------------------------------------------------------------

    def isCompiled(self) -> bool:  # noqa: N802
        """Whether it has run or was compiled."""
        return self._graph is not None

    def isAttachedToDevice(self) -> bool:  # noqa: N802
        """Whether it holds IPUs."""
        return self._device is not None

    def compile(self, *args: Any) -> None:
        """Compile for inputs of these shapes, and attach."""
        self._check(args)
        if self._graph is None:
            calls.append("compile")
            self._inputs = args
            self._graph = Graph(self._model, self._split(args)[0], self._training)
            self._attach()

    def attachToDevice(self) -> None:  # noqa: N802
        """Take IPUs; the host's weights go to them."""
        self._compiled()
        if self._device is not None:
            raise Error("Device is already attached")
        calls.append("attachToDevice")
        self._attach()

    def detachFromDevice(self) -> None:  # noqa: N802
        """Give the IPUs back; weights, and the state of the library's optimizers, are copied to the host."""
        calls.append("detachFromDevice")
        self._to_host()
        self._attached().release()
        self._device = None

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: N802
        """Go on with the settings of another optimizer, or with new ones of the same."""
        calls.append("setOptimizer")
        if optimizer is not self._optimizer:
            self._bind(optimizer)
        self._optimizer = optimizer
        if self._device is not None:
            self._device.set_optimizer(optimizer)

    def copyWeightsToHost(self) -> None:  # noqa: N802
        """The host's weights become those of the device."""
        calls.append("copyWeightsToHost")
        self._attached().download()

    def copyWeightsToDevice(self) -> None:  # noqa: N802
        """The device's weights become those of the host."""
        calls.append("copyWeightsToDevice")
        self._attached().upload()

    def destroy(self) -> None:
        """Give the IPUs back and forget what was compiled; weights and state are copied to the host."""
        if self._graph is None:
            return
        calls.append("destroy")
        if self._device is not None:
            self._to_host()
            self._device.release()
        self._graph = self._device = None
        _wrapped.discard(self.model)
        for parameter in self.model.parameters() if self._training else ():
            parameter.__class__ = nn.Parameter
        for buffer in self.model.buffers() if self._training else ():
            buffer.__class__ = Tensor

    def __call__(self, *args: Any) -> Any:
        """Run all steps of one call.

        Returns:
            The results of the parts that the output mode says, joined along their first dimension; scalars as a vector.
        """
        self.compile(*args)
        if self._device is None:
            self._attach()
        calls.append("step" if self._training else "infer")
        parts = self._split(args)
        per_step = len(parts) // self.options.device_iterations
        results = []
        for start in range(0, len(parts), per_step):
            results += self._iterate(parts[start : start + per_step])
        return self._compiled().rebuilt([self._chosen(list(each)) for each in zip(*results, strict=True)])

    # -- inside --------------------------------------------------------------------------------------------------

    def _iterate(self, parts: list[tuple[Any, ...]]) -> list[list[Tensor]]:
        device, graph = self._attached(), self._compiled()
        done = [graph(device.parameters, device.buffers, part) for part in parts]
        if self._training:
            by_parameter = zip(*(gradients for _, gradients in done), strict=True)
            device.step([None if each[0] is None else sum(each) / len(parts) for each in by_parameter])
        return [results for results, _ in done]

    def _chosen(self, results: list[Tensor]) -> Tensor:
        mode = self.options.output_mode
        if mode is OutputMode.Final:
            results = results[-self.options.replication_factor :]
        if mode is OutputMode.Sum:
            results = [torch.stack(results).sum(0)]
        if len(results) == 1:
            return results[0]
        return torch.stack(results) if results[0].dim() == 0 else torch.cat(results)

    def _split(self, args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        accumulation = self.options.Training.gradient_accumulation if self._training else 1
        parts = self.options.device_iterations * self.options.replication_factor * accumulation
        leaves, structure = pytree.tree_flatten(args)
        for leaf in leaves:
            if isinstance(leaf, Tensor) and leaf.shape[0] % parts:
                raise Error(f"a batch of {leaf.shape[0]} cannot be split into {parts} equal parts")
        split = [torch.tensor_split(leaf, parts) if isinstance(leaf, Tensor) else (leaf,) * parts for leaf in leaves]
        return [pytree.tree_unflatten(list(part), structure) for part in zip(*split, strict=True)]

    def _check(self, args: tuple[Any, ...]) -> None:
        leaves, structure = pytree.tree_flatten(args)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not tensors or any(tensor.device.type != "cpu" for tensor in tensors):
            raise TypeError(f"poptorch takes tensors of the host; given {[str(t.device) for t in tensors]}")
        if self._graph is None:
            return
        compiled, known = pytree.tree_flatten(self._inputs)
        if structure != known or any(_facts(a) != _facts(b) for a, b in zip(leaves, compiled, strict=True)):
            raise Error("the inputs passed at runtime don't match the inputs used to compile the model")

    def _attach(self) -> None:
        self._device = DeviceSide(self._model, self.options.replication_factor, self._optimizer)

    def _to_host(self) -> None:
        if self._training:
            self._attached().download()
            if isinstance(self._optimizer, optim.Optimizer):
                self._optimizer.set_device_state(self._attached().optimizer_state())

    def _bind(self, optimizer: Any) -> None:
        """The state dict of the library's optimizers reads the device."""
        if not isinstance(optimizer, optim.Optimizer):
            return

        def state_dict(bound: Any) -> dict[str, Any]:
            if self._device is not None and bound is self._optimizer:
                calls.append("readOptimizerState")
                bound.set_device_state(self._device.optimizer_state())
            state: dict[str, Any] = bound.get_state_dict()
            return state

        optimizer.state_dict = MethodType(state_dict, optimizer)  # type: ignore[method-assign]

    def _compiled(self) -> Graph:
        if self._graph is None:
            raise Error("Model has not been compiled or has been destroyed.")
        return self._graph

    def _attached(self) -> DeviceSide:
        self._compiled()
        if self._device is None:
            raise Error("Device is not attached")
        return self._device


@recorded("trainingModel")
def trainingModel(  # noqa: N802
    model: nn.Module, options: Options | None = None, optimizer: torch.optim.Optimizer | None = None
) -> PoplarExecutor:
    """A model whose ``forward`` returns its loss, or a tuple with the loss last, or marked by ``identity_loss``.

    Without an optimizer it is trained by SGD with a rate of 0.01.
    """
    if model in _wrapped:
        raise RuntimeError("Model has already been wrapped in 'poptorch.trainingModel'.")
    return PoplarExecutor(model, options or Options(), optimizer or optim.SGD(model.parameters(), lr=0.01))


@recorded("inferenceModel")
def inferenceModel(model: nn.Module, options: Options | None = None) -> PoplarExecutor:  # noqa: N802
    """A model that is only evaluated."""
    return PoplarExecutor(model, options or Options(), None)


def _facts(leaf: Any) -> Any:
    return (leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf
