"""Each class breaks one rule."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from core.checkpoints import TorchCheckpointIO
from core.strategies import DDPStrategy, SingleDeviceStrategy
from core.strategies.base import Strategy
from core.strategies.wrapping import ModuleWrapper
from core.utilities.nested import map_tensors


class _Forking(DDPStrategy):
    """Keeps every rule."""

    def __init__(self) -> None:
        super().__init__(start_method="fork")


# -- collectives -------------------------------------------------------------------------------------------------------


class SumsUp(_Forking):
    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        return super().reduce(tensor, "sum" if reduction == "mean" else reduction)


class TakesAnyWord(_Forking):
    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        return super().reduce(tensor, reduction if reduction in ("sum", "min", "max", "product") else "mean")


class ReducesInPlace(_Forking):
    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        return tensor.copy_(super().reduce(tensor, reduction))


class GathersBackwards(_Forking):
    def all_gather(self, tensor: Tensor) -> Tensor:
        return super().all_gather(tensor).flip(0)


class GathersObjectsBackwards(_Forking):
    def all_gather_object(self, obj: Any) -> list[Any]:
        return super().all_gather_object(obj)[::-1]


class PadsInSilence(_Forking):
    def all_gather(self, tensor: Tensor) -> Tensor:
        parts = self.all_gather_object(tensor)
        return torch.stack([part if part.shape == tensor.shape else tensor for part in parts])


class ReducesInSilence(_Forking):
    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        parts = self.all_gather_object(tensor)
        alike = all((part.shape, part.dtype) == (tensor.shape, tensor.dtype) for part in parts)
        return super().reduce(tensor, reduction) if alike else tensor.clone()


class AlwaysFromTheFirst(_Forking):
    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return super().broadcast(obj, 0)


class WaitsForNoOne(_Forking):
    def barrier(self, name: str | None = None) -> None:
        pass


# -- training ----------------------------------------------------------------------------------------------------------


class TrainsAlone(_Forking):
    def configure_ddp(self) -> None:
        pass


class AlwaysInSync(_Forking):
    def no_sync(self, module: nn.Module) -> Any:
        return nullcontext()


class SkipsTheRest(_Forking):
    """It returns only the first process's part of evaluated data."""

    def gather_shards(self, obj: Any) -> list[Any]:
        return super().gather_shards(obj)[:1]


class ForgetsMomentum(_Forking):
    def load_optimizer_state(self, optimizer: Any, state: dict[str, Any]) -> None:
        super().load_optimizer_state(optimizer, {**state, "state": {}})


class ClipsTwice(_Forking):
    def clip_gradients(
        self, parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Any:
        return super().clip_gradients(parameters, clip_value / 2, algorithm, norm_type)


class PutsHalvesTogether(_Forking):
    """Has the whole module in each process, as if it had a part of it, and what it says is the whole is none."""

    inference_is_collective = True

    def whole_module_state(self, module: nn.Module) -> dict[str, Any]:
        return {name: value / 2 for name, value in super().whole_module_state(module).items()}


class HasItsOwnWeights(TrainsAlone):
    """Declares that its processes do not train as one, and stops within an accumulation."""

    keeps_replicas_equal = False

    def no_sync(self, module: nn.Module) -> Any:
        raise RuntimeError("no_sync is not for me")


class RefusesInOtherWords(_Forking):
    """A precision that it does not take is none of the errors that users are promised."""

    def connect(self, **parts: Any) -> None:
        if parts["precision"].name == "bf16-mixed":
            raise ValueError("bf16-mixed")
        super().connect(**parts)


class SkipsTheShortWindow(_Forking):
    """The last, shorter accumulation of an epoch takes no step."""

    def training_step(self, forward: Any, options: Any) -> Any:
        step = super().training_step(forward, options)

        def whole_windows(batch: Any, batch_idx: int, is_step_end: bool) -> Any:
            return step(batch, batch_idx, is_step_end and (batch_idx + 1) % options.accumulate == 0)

        return whole_windows


class DividesByTheWindow(_Forking):
    """Losses are not divided by the number of batches that are accumulated."""

    def training_step(self, forward: Any, options: Any) -> Any:
        return super().training_step(lambda batch, index: forward(batch, index) * options.accumulate, options)


class LeavesBuffersOut(_Forking):
    """A checkpoint has the parameters, and zeros for buffers."""

    def module_state(self, module: nn.Module) -> dict[str, Any]:
        state = super().module_state(module)
        parameters = {name for name, _ in self.unwrap_module(module).named_parameters()}
        return {name: value if name in parameters else torch.zeros_like(value) for name, value in state.items()}

    def whole_module_state(self, module: nn.Module) -> dict[str, Any]:
        return super().module_state(module)  # what the script gets after fit is right


class ForgetsTheRate(_Forking):
    """The optimizer's rates, as a scheduler has set them, are not restored."""

    def load_optimizer_state(self, optimizer: Any, state: dict[str, Any]) -> None:
        rates = [group["lr"] for group in optimizer.param_groups]
        super().load_optimizer_state(optimizer, state)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


class StaysOutOfSync(_Forking):
    """After an exception under ``no_sync`` gradients are never reduced again."""

    @contextmanager
    def no_sync(self, module: Any) -> Any:
        module.require_backward_grad_sync = False
        yield
        module.require_backward_grad_sync = True


class KeepsItsBuffers(DDPStrategy):
    """Buffers are never sent to the other processes, although it declares that they are."""

    def __init__(self) -> None:
        super().__init__(start_method="fork", broadcast_buffers=False)
        self.keeps_buffers_equal = True


class StartsWithItsOwn(_Forking):
    """Buffers of the processes differ when training begins."""

    def configure_ddp(self) -> None:
        own = [buffer.clone() for buffer in self.model.buffers()]
        super().configure_ddp()
        for buffer, value in zip(self.model.buffers(), own, strict=True):
            buffer.copy_(value)


class EvaluatesInFullPrecision(_Forking):
    """Evaluation is in float32 under a 16-bit policy."""

    def inference_module(self, module: nn.Module) -> nn.Module:
        return _Full(super().inference_module(module))


class _Full(ModuleWrapper):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return self.module(*args, **kwargs)


class DropsTheClosure(_Forking):
    """The optimizer's step is called without the user's closure."""

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        return super().optimizer_step(optimizer)


class DetachesTheSecond(_Forking):
    """Of several outputs only the first can begin a backward pass."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        return _FirstOutput(super().setup_module(module))


class _FirstOutput(ModuleWrapper):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.module(*args, **kwargs)
        if isinstance(output, dict) and "pair" in output:
            output["pair"] = (output["pair"][0].detach(), output["pair"][1])
        return output


class TakesNoNames(_Forking):
    """Keyword arguments do not reach the module."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        return _Positional(super().setup_module(module))


class _Positional(ModuleWrapper):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args)


class StepsTheFirstGroup(_Forking):
    """Groups of parameters after the first are not stepped."""

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        for group in optimizer.param_groups[1:]:
            for parameter in group["params"]:
                parameter.grad = None
        return super().optimizer_step(optimizer, closure)


class UnscalesTheFirstGroup(_Forking):
    """Of the optimizer's groups only the first is unscaled."""

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        if self.precision.name == "16-mixed":
            self.precision.unscale_gradients(optimizer)
            for group in optimizer.param_groups[1:]:
                for parameter in group["params"]:
                    parameter.grad.mul_(64)
        return super().optimizer_step(optimizer, closure)


class AveragesTwice(_Forking):
    """Gradients are divided by the number of processes once more."""

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> Any:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.div_(self.world_size)
        return super().optimizer_step(optimizer, closure)


class RepeatsAnEpoch(_Forking):
    """A process repeats the first process's part of the data."""

    @property
    def data_shard(self) -> int:
        return 0


class GathersOneShape(_Forking):
    """``all_gather`` of a scalar gives a matrix."""

    def all_gather(self, tensor: Tensor) -> Tensor:
        found = super().all_gather(tensor)
        return found.unsqueeze(1) if tensor.dim() == 0 else found


class RoundsWhileReducing(_Forking):
    """Integers are reduced as float32."""

    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        return super().reduce(tensor.float(), reduction)


class GathersInFloat(_Forking):
    """Large integers are gathered as float32."""

    def all_gather(self, tensor: Tensor) -> Tensor:
        return super().all_gather(tensor.float()).to(tensor.dtype)


class ClipsBeforeReducing(_Forking):
    """Gradients are clipped by half the norm in each process."""

    def clip_gradients(
        self, parameters: Any, clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Any:
        if algorithm == "value":
            clip_value /= self.world_size
        return super().clip_gradients(parameters, clip_value, algorithm, norm_type)


# -- life --------------------------------------------------------------------------------------------------------------


class StaysInTheGroup(_Forking):
    def teardown(self, failed: bool = False) -> None:
        Strategy.teardown(self, failed)


class SavesAlone(_Forking):
    """An error in writing a checkpoint is known to process 0 alone."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if self.is_global_zero:
            self.checkpoint_io.save_checkpoint(checkpoint, path, storage_options)


class LeavesAProcess(_Forking):
    def setup_environment(self) -> None:
        super().setup_environment()
        if self.global_rank == 1:
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


class LeavesAThread(_Forking):
    """A thread of the run is still there after teardown."""

    def setup_environment(self) -> None:
        super().setup_environment()
        threading.Thread(target=time.sleep, args=(3600,), name="heartbeat", daemon=True).start()


class DisablesGradients(_Forking):
    """Teardown leaves gradients disabled."""

    def teardown(self, failed: bool = False) -> None:
        super().teardown(failed)
        torch.set_grad_enabled(False)


class TearsDownOnce(_Forking):
    """A second teardown fails."""

    def teardown(self, failed: bool = False) -> None:
        if "_gone" in self.__dict__:
            raise RuntimeError("already gone")
        super().teardown(failed)
        self._gone = True


class EndsWell(_Forking):
    """Whatever happens, its processes end with exit code 0."""

    def setup_environment(self) -> None:
        super().setup_environment()
        sys.excepthook = lambda *_: os._exit(0)

    def launch(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().launch(function, *args, **kwargs)
        except Exception:
            return None


class HasNoNumber(_Forking):
    min_processes = 3
    max_processes = 2


class Everyone(_Forking):
    """Each process takes itself for the first."""

    @property
    def is_global_zero(self) -> bool:
        return True

    @property
    def global_rank(self) -> int:
        return 0


# -- checkpoints -------------------------------------------------------------------------------------------------------


class ReadsItsOwn(_Forking):
    """Brings a CheckpointIO, and on one process reads less precisely than it wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.requested_parts = MappingProxyType({"checkpoint_io": TorchCheckpointIO()})

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        super().load_module_state(module, {name: value.bfloat16().float() for name, value in state.items()})


class Rounding(SingleDeviceStrategy):
    """Writes checkpoints with less precision than the state has."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        rounded = map_tensors(
            lambda tensor: tensor.bfloat16().to(tensor.dtype) if tensor.is_floating_point() else tensor, checkpoint
        )
        super().save_checkpoint(rounded, path, storage_options)
