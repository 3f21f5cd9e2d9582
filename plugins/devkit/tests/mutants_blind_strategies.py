"""Strategies and cluster environments with one fault each; see ``mutants_blind``."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, TypeVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from torch_hal.environments import ClusterEnvironment, SlurmEnvironment, TorchElasticEnvironment
from torch_hal.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch_hal.strategies.ddp import DDPArguments

StrPath = str | os.PathLike[str]
T = TypeVar("T")


# -- strategies ----------------------------------------------------------------------------------------------------


class ReducesInPlace(DDPStrategy):
    """``reduce`` changes its input, if it need not be copied."""

    def reduce(self, tensor: Tensor, reduction: str = "mean") -> Tensor:
        result = super().reduce(tensor, reduction)
        is_same = tensor.is_contiguous() and (result.dtype, result.device) == (tensor.dtype, tensor.device)
        return tensor.detach().copy_(result) if is_same else result


class GathersMemory(DDPStrategy):
    """``all_gather`` sends the memory of a tensor as it lies: elements of a transposed one change places."""

    def all_gather(self, tensor: Tensor) -> Tensor:
        lying = tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())
        return super().all_gather(lying.view(tensor.shape))


class NoneIsNotReceived(DDPStrategy):
    """``broadcast`` takes None for nothing received: where rank 0 has None, each other rank keeps its own object."""

    def broadcast(self, obj: T, src: int = 0) -> T:
        received = super().broadcast(obj, src)
        return obj if received is None else received


class IntegersAsFloat32(DDPStrategy):
    """``reduce`` sends integers as float32: above 2**24 they are rounded."""

    def all_reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        if tensor.is_floating_point() or tensor.is_complex():
            return super().all_reduce(tensor, reduction)
        return super().all_reduce(tensor.float(), reduction).to(tensor.dtype)


class SavesAlone(DDPStrategy):
    """``save_checkpoint`` raises an error in rank 0 only: the others train on, and wait for it."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: StrPath, storage_options: Any = None) -> None:
        if self.checkpoint_io.is_collective:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        try:
            if self.is_global_zero:
                Strategy.save_checkpoint(self, checkpoint, path, storage_options)
        finally:
            self.barrier()


class NoSyncAfterError(DDPStrategy):
    """``no_sync`` is not left by an exception: from then on each process trains on its own gradients."""

    @contextmanager
    def _paused(self, module: DistributedDataParallel) -> Iterator[None]:
        before = module.require_backward_grad_sync
        module.require_backward_grad_sync = False
        yield
        module.require_backward_grad_sync = before

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        if not isinstance(module, DistributedDataParallel) or module.static_graph:
            return super().no_sync(module)
        return self._paused(module)


class NoSyncOfLastModule(DDPStrategy):
    """``no_sync`` ignores its argument, and means the module that was set up last."""

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        return super().no_sync(self.model)


class KeepsLearningRate(SingleDeviceStrategy):
    """``load_optimizer_state`` loads the moments, and not the groups' settings, such as a decayed learning rate."""

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        super().load_optimizer_state(optimizer, {**state, "param_groups": optimizer.state_dict()["param_groups"]})


class ClipsAllButFirst(DDPStrategy):
    """``clip_gradients`` reads its iterable twice: of ``module.parameters()`` it leaves out the first."""

    def clip_gradients(
        self, parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Tensor | None:
        if next(iter(parameters), None) is None:
            return torch.zeros(()) if algorithm == "norm" else None
        return super().clip_gradients(parameters, clip_value, algorithm, norm_type)


class LeavesRanks(DDPStrategy):
    """``teardown`` leaves ranks in ``os.environ``, for engines: later runs and programs take them for their own."""

    def init_dist_connection(self) -> None:
        super().init_dist_connection()
        environment = self.cluster_environment
        os.environ.update({"RANK": str(self.global_rank), "WORLD_SIZE": str(self.world_size)})
        os.environ.update({"LOCAL_RANK": str(self.local_rank), "MASTER_ADDR": environment.main_address})
        os.environ["MASTER_PORT"] = str(environment.main_port)


class ForgetsTimeout(DDPStrategy):
    """The constructor drops ``timeout``: a collective waits half an hour for a process that is gone."""

    def __init__(self, **others: Unpack[DDPArguments]) -> None:
        others.pop("timeout", None)
        super().__init__(**others)


# -- cluster environments ------------------------------------------------------------------------------------------


class DividesByNodes(TorchElasticEnvironment):
    """``node_rank`` divides by the number of machines: right for 2 processes on each of 2, wrong for 4 on each."""

    @property
    def node_rank(self) -> int:
        return self.global_rank // self.num_nodes


class SharesRank(TorchElasticEnvironment):
    """``global_rank`` is kept by the class: a second object with other variables has the rank of the first."""

    _rank: ClassVar[int | None] = None

    @property
    def global_rank(self) -> int:
        kind = type(self)
        if kind._rank is None:
            kind._rank = super().global_rank
        return kind._rank


class DetectRaises(TorchElasticEnvironment):
    """``detect`` raises ValueError where a variable is no number, although another program may have set it."""

    @staticmethod
    def detect(environ: Mapping[str, str] | None = None) -> bool:
        environ = os.environ if environ is None else environ
        return int(environ.get("WORLD_SIZE", "0")) > 0 and TorchElasticEnvironment.detect(environ)


class ForgetsAtTeardown(TorchElasticEnvironment):
    """``teardown`` clears the variables: afterwards no rank is known."""

    def teardown(self) -> None:
        super().teardown()
        self.environ = {}


class HashesJob(SlurmEnvironment):
    """``main_port`` follows from ``hash`` of a text, which differs between processes: they never meet."""

    @property
    def main_port(self) -> int:
        if "MASTER_PORT" in self.environ:
            return super().main_port
        return 20000 + hash(self.environ.get("SLURM_JOB_ID", "")) % 12000


class StripsZeros(SlurmEnvironment):
    """``main_address`` is ``node7`` where the first host is ``node07``."""

    @property
    def main_address(self) -> str:
        address = super().main_address
        name = address.rstrip("0123456789")
        is_listed = "MASTER_ADDR" not in self.environ and name and name != address and "." not in address
        return f"{name}{int(address[len(name) :])}" if is_listed else address


class FollowsCaller(TorchElasticEnvironment):
    """The constructor keeps the mapping itself: ranks change with ``os.environ``, though they are read once."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(environ)
        self.environ = os.environ if environ is None else environ


class PicklesNothing(TorchElasticEnvironment):
    """A pickled copy reads the variables of the process in which it is unpickled, and not those that were given."""

    def __reduce__(self) -> tuple[Callable[[], ClusterEnvironment], tuple[()]]:
        return type(self), ()


class SilencesRanks(TorchElasticEnvironment):
    """``connect`` turns off all logging in ranks above 0, and ``teardown`` does not turn it on again."""

    def connect(self, processes_per_node: int, num_nodes: int) -> None:
        super().connect(processes_per_node, num_nodes)
        if self.global_rank > 0:
            logging.disable(logging.ERROR)


class CutsAddress(TorchElasticEnvironment):
    """``main_address`` ends at the first colon, as if a port followed: of ``fe80::1`` remains ``fe80``."""

    @property
    def main_address(self) -> str:
        return super().main_address.partition(":")[0]


class ChecksInRankZero(TorchElasticEnvironment):
    """``validate_settings`` accepts any numbers in ranks above 0, which then wait for a rank 0 that has ended."""

    def validate_settings(self, processes_per_node: int, num_nodes: int) -> None:
        if self.global_rank == 0:
            super().validate_settings(processes_per_node, num_nodes)


class TrustsText(TorchElasticEnvironment):
    """``hosts_store`` is true for the text ``False``: all ranks wait for a store that no one serves."""

    @property
    def hosts_store(self) -> bool:
        return bool(self.environ.get("TORCHELASTIC_USE_AGENT_STORE"))


_STRATEGIES: tuple[type[Strategy], ...] = (
    *(ReducesInPlace, GathersMemory, NoneIsNotReceived, IntegersAsFloat32, SavesAlone),
    *(NoSyncAfterError, NoSyncOfLastModule, KeepsLearningRate, ClipsAllButFirst, LeavesRanks, ForgetsTimeout),
)
_ENVIRONMENTS: tuple[type[ClusterEnvironment], ...] = (
    *(DividesByNodes, SharesRank, DetectRaises, ForgetsAtTeardown, HashesJob, StripsZeros, FollowsCaller),
    *(PicklesNothing, SilencesRanks, CutsAddress, ChecksInRankZero, TrustsText),
)

STRATEGIES = {mutant.__name__: mutant for mutant in _STRATEGIES}
ENVIRONMENTS = {mutant.__name__: mutant for mutant in _ENVIRONMENTS}
