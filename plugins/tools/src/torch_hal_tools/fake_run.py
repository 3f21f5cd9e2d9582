"""Training steps on tensors that have shapes and no memory, and the bytes that they would hold.

Two modules of torch that are used here are not public. ``FakeTensorMode`` is what torch's page "Fake tensor" describes,
and no public name leads to it. A process group of one process that behaves as rank 0 of many, the backend ``fake``, is
only in ``torch.testing._internal``. ``tests/test_estimate.py`` fails if a version of torch changes either.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

from torch_hal import Module
from torch_hal.precisions import Precision

__all__ = ["Held", "Meter", "Step", "bytes_of", "fake_copy", "fake_processes", "fake_steps"]

STEPS = 2
"""The second step is like all others: the optimizer's state is there from its beginning."""


@attrs.frozen
class Held:
    """Bytes that a process holds in a step."""

    parameters: int
    buffers: int
    gradients: int
    optimizer: int
    """The optimizer's state."""
    state_of: tuple[tuple[int, int], ...]
    """For each trained parameter its number of elements, and the bytes of its state."""
    activations: int
    """Between the forward and the backward pass, without all of the above; 0 if the step is not known."""
    passes: int
    """The most during the forward and backward pass, everything included; 0 if the step is not known."""
    stepping: int
    """The most during the optimizer's step, everything included."""

    @property
    def peak(self) -> int:
        """The most at any time."""
        return max(self.passes, self.stepping)


class Step(nn.Module):
    """A training step as a forward pass, as the Trainer gives it to a strategy.

    Args:
        module: Of which the step is: a Module with ``training_step``, or any module, whose outputs' mean is the loss.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any) -> Tensor | None:
        """The loss of a batch; ``None`` if the step skips it."""
        if not isinstance(self.module, Module):
            given = batch if isinstance(batch, tuple) else (batch,)
            return _loss_in(self.module(**batch) if isinstance(batch, dict) else self.module(*given))
        takes = inspect.signature(self.module.training_step).parameters
        return _loss_in(self.module.training_step(*(batch, 0)[: len(takes)]))


def _loss_in(output: Any) -> Tensor | None:
    """The loss in what a step has returned; of several outputs without one, the mean of all."""
    if output is None or (isinstance(output, Tensor) and not output.dim()):
        return output
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    tensors = [each for each in tree_iter(output) if isinstance(each, Tensor) and each.requires_grad]
    return sum((each.float().mean() for each in tensors), start=torch.zeros(()))


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages that operations in it take or return, as long as these live.

    A number that an operation would read from a tensor, which has none, is 1, and a truth value false.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._living: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.peak = 0
        """The most bytes since :meth:`restart`."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation, then count."""
        try:
            result = func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            if func is not torch.ops.aten._local_scalar_dense.default:
                raise
            dtype = args[0].dtype
            return False if dtype is torch.bool else 1.0 if dtype.is_floating_point else 1
        if func is torch.ops.aten.mkldnn_rnn_layer.default:
            result = (*result[:3], torch.empty(_workspace(*args), dtype=torch.uint8))
        self.watch(tree_iter((args, kwargs, result)))
        during = _DURING[func](*args) if func in _DURING else 0
        self.peak = max(self.peak, self.now() + during)
        return result

    def watch(self, found: Iterable[Any]) -> None:
        """Count the tensors in ``found`` from now on."""
        for tensor in found:
            if isinstance(tensor, Tensor):
                storage = _local(tensor).untyped_storage()
                key = id(storage)
                if key not in self._living:
                    self._living[key] = weakref.ref(storage, partial(self._forget, key))

    def _forget(self, key: int, reference: object) -> None:
        del reference
        self._living.pop(key, None)

    def now(self) -> int:
        """The bytes at this moment. FSDP resizes storages without an operation, so all are asked."""
        storages = (reference() for reference in list(self._living.values()))
        return sum(storage.nbytes() for storage in storages if storage is not None)

    def restart(self) -> int:
        """The peak so far; a new one begins."""
        peak, self.peak = self.peak, self.now()
        return peak


# Some operations allocate more than their shape functions say. The sizes are those that torch's profiler shows with
# torch 2.13 and oneDNN 3, without a few percent of padding; benchmarks/estimates.py compares them with trainings.


def _workspace(inputs: Tensor, *arguments: Any) -> int:
    """What a layer of an LSTM on the CPU keeps for its backward pass; torch's shape function says nothing.

    For each step and item oneDNN keeps four gates and five hidden vectors in the input's dtype, and six in float32.
    """
    *_, hidden, _layers, _biases, _bidirectional, _batch_first, _train = arguments
    vectors = inputs.numel() // inputs.shape[-1]
    return int(vectors * hidden * (9 * inputs.element_size() + 6 * 4))


def _in_lstm(inputs: Tensor, *arguments: Any) -> int:
    """The backward pass of a layer: its weights in another order, their gradients in float32, and gates in float32."""
    weights = arguments[0].numel() + arguments[1].numel()
    gates = inputs.numel() // inputs.shape[-1] * arguments[0].shape[0] * 4 if inputs.dtype is torch.float32 else 0
    return int(weights * (inputs.element_size() + 4) + gates)


_DURING: dict[Any, Callable[..., int]] = {
    torch.ops.aten.mkldnn_rnn_layer_backward.default: _in_lstm,
    # gloo has no such operations: torch gathers into a copy of the whole output, and adds up one of the whole input.
    torch.ops.c10d._allgather_base_.default: lambda output, *_: output.nbytes,
    torch.ops.c10d._reduce_scatter_base_.default: lambda output, inputs, *_: inputs.nbytes,
}
"""Bytes that an operation on the CPU allocates and frees again, of its arguments."""


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def bytes_of(tensors: Iterable[Any]) -> int:
    """Bytes of what this process holds of ``tensors``, each storage counted once."""
    storages: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            storage = _local(tensor).untyped_storage()
            storages[id(storage)] = storage
    return sum(storage.nbytes() for storage in storages.values())


def fake_copy(found: Any, modules: Iterable[nn.Module], precision: Precision) -> Any:
    """A deep copy of ``found`` without memory, in a :class:`FakeTensorMode` that is active.

    Args:
        found: Modules, and optimizers of their parameters.
        modules: The modules, on any device or on ``meta``.
        precision: Says in which dtypes parameters and buffers are stored.
    """
    memo: dict[int, Any] = {}

    def fake(tensor: Tensor, dtype: torch.dtype) -> Tensor:
        dtype = dtype if tensor.is_floating_point() else tensor.dtype
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="cpu")

    for module in modules:
        for parameter in module.parameters():
            memo[id(parameter)] = nn.Parameter(fake(parameter, precision.param_dtype), parameter.requires_grad)
        for buffer in module.buffers():
            memo[id(buffer)] = fake(buffer, precision.buffer_dtype)
    return copy.deepcopy(found, memo)


def fake_steps(
    step: Step,
    optimizers: list[Optimizer],
    batch: Any,
    precision: Precision,
    mode: FakeTensorMode,
) -> Held:
    """Train for some steps; returns what the last of them holds.

    Args:
        step: A fake copy, on which this process's strategy has acted.
        optimizers: Of its parameters.
        batch: Real tensors, or on ``meta``; ``None`` if the step is not known.
        precision: Connected to the device.
        mode: The mode in which ``step`` is fake.
    """
    parameters, buffers = list(step.parameters()), list(step.buffers())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    passes = stepping = activations = 0
    with mode, Meter() as meter:
        meter.watch((*parameters, *buffers))
        held = tree_map(_fake, batch)
        meter.watch(tree_iter(held))
        for _ in range(STEPS):
            meter.restart()
            before = meter.now()
            if batch is None:
                for parameter in trained:
                    parameter.grad = torch.empty_like(parameter)
            else:
                with precision.forward_context():
                    loss = precision.convert_output(step(precision.convert_input(held)))
                activations = meter.now() - before + bytes_of(tree_iter(held))
                if loss is not None:
                    loss.backward()
                del loss
            passes = meter.restart()
            gradients = bytes_of(parameter.grad for parameter in trained)
            for optimizer in optimizers:
                optimizer.step()
            stepping = meter.restart()
            states = {key: value for optimizer in optimizers for key, value in optimizer.state.items()}
            state = bytes_of(tree_iter(list(states.values())))
            for optimizer in optimizers:
                optimizer.zero_grad()
    state_of = tuple((each.numel(), bytes_of(tree_iter(states.get(each, {})))) for each in trained)
    return Held(
        parameters=bytes_of(parameters),
        buffers=bytes_of(buffers),
        gradients=gradients,
        optimizer=state,
        state_of=state_of,
        activations=activations,
        passes=0 if batch is None else passes,
        stepping=stepping,
    )


def _fake(found: Any) -> Any:
    """A tensor like ``found``, in the active mode; anything else as it is."""
    if not isinstance(found, Tensor):
        return found
    return torch.empty_strided(found.shape, found.stride(), dtype=found.dtype, device="cpu")


@contextmanager
def fake_processes(number: int) -> Iterator[None]:
    """A process group in which this process is rank 0 of ``number``, and operations do nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=number)
    try:
        yield
    finally:
        dist.destroy_process_group()
