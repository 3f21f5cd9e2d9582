"""Each class breaks one rule."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from core.checkpoints import TorchCheckpointIO
from core.nested import map_tensors
from core.strategies import DDPStrategy, SingleDeviceStrategy
from core.strategies.base import Strategy


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


class WaitsForNobody(_Forking):
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
    """Of what is evaluated, it takes the first process's part for all."""

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
