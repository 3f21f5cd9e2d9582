"""Private names of torch under plain ones, and what differs between its versions. No other file of core uses these.

Each stands here because torch has no public name for it. tests/test_torch_private.py fails if torch changes one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.data._utils import worker as loader_worker
from torch.utils.data.dataloader import _BaseDataLoaderIter as DataLoaderIterator

from .nested import map_tensors, with_parts

if TYPE_CHECKING:  # torch.distributed has these classes too, without types
    from torch._C._distributed_c10d import GradBucket, PrefixStore, Store, TCPStore
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Placement
else:
    from torch.distributed import GradBucket, PrefixStore, Store, TCPStore

T = TypeVar("T")

__all__ = [
    "LIBUV_TAKES_SOCKETS",
    "MODULE_CONTENT",
    "MODULE_LOADS",
    "PATH_OF_LAYOUT",
    "BatchNorm",
    "DataLoaderIterator",
    "FixedBuckets",
    "GradBucket",
    "PrefixStore",
    "Store",
    "TCPStore",
    "accumulates",
    "check_input_dim",
    "clear_kept_iterator",
    "clone_of_store",
    "data_iterator",
    "compiled_call",
    "copied_where_kept",
    "count_scheduler_call",
    "device_of_objects",
    "device_type_names",
    "end_workers",
    "expect_gradients",
    "found_inf",
    "has_workers_to_end",
    "hooks_after_accumulation",
    "is_backward",
    "is_initialized",
    "kept_iterator",
    "learns_graph",
    "left_out_by_ddp",
    "load_in_this_process",
    "local_shape_and_offset",
    "mark_stepped",
    "moves_in_place",
    "non_persistent_buffers",
    "num_groups",
    "num_yielded",
    "prepares_objects",
    "private_metadata_classes",
    "release_groups",
    "run_worker",
    "sequence_number",
    "set_worker_function",
    "share_options",
    "takes_load_hooks",
    "uncompiled",
    "uncompiled_call",
    "uncompiled_names",
]

# -- versions ----------------------------------------------------------------------------------------------------------

LIBUV_TAKES_SOCKETS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)
"""Whether torch's newer store does; 2.6 writes an error to the standard error stream if it is tried."""


def clone_of_store(store: Store) -> Store | None:
    """Another connection to ``store``; ``None`` in torch 2.6, whose stores cannot be cloned."""
    clone: Any = getattr(store, "clone", None)
    return None if clone is None else clone()


def load_in_this_process(tensors: Mapping[str, Tensor], **reading: Any) -> None:
    """Fill ``tensors`` from the shards of a checkpoint, without the other processes."""
    from torch.distributed.checkpoint import state_dict_loader

    if "no_dist" in inspect.signature(state_dict_loader.load).parameters:
        state_dict_loader.load(dict(tensors), no_dist=True, **reading)
    else:  # as in torch 2.6
        state_dict_loader._load_state_dict(dict(tensors), no_dist=True, **reading)


# -- modules -----------------------------------------------------------------------------------------------------------

MODULE_CONTENT = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""Attributes in which a module keeps its content, so that another module can share it."""
MODULE_LOADS = ("load_state_dict", "_load_from_state_dict")
"""The methods of a module and of its submodules that load a ``state_dict``."""


def is_initialized(module: nn.Module) -> bool:
    """Whether the constructor of ``torch.nn.Module`` has run: without it, each use fails with its own message."""
    return MODULE_CONTENT[0] in vars(module)


def non_persistent_buffers(module: nn.Module) -> set[str]:
    """The names of the buffers that are not in the module's own ``state_dict``, which gathers all tensors."""
    return module._non_persistent_buffers_set


def check_input_dim(layer: Any, inputs: Tensor) -> None:
    """Reject inputs that do not have the number of dimensions of this batch norm layer, as torch does."""
    layer._check_input_dim(inputs)


def uncompiled_call(module: nn.Module) -> Callable[..., Any]:
    """What ``module(...)`` runs, hooks included, whatever ``module.compile`` has put in its place."""
    call: Callable[..., Any] = module._call_impl
    return call


@contextmanager
def compiled_call(module: nn.Module, call: Callable[..., Any]) -> Iterator[None]:
    """A context in which ``module(...)`` is ``call``, as ``module.compile`` does it, which has no way back."""
    before, module._compiled_call_impl = module._compiled_call_impl, call
    try:
        yield
    finally:
        module._compiled_call_impl = before


def uncompiled(module: Any) -> tuple[Any, Any]:
    """The module in what ``torch.compile`` returned, and how it was compiled; ``(None, None)`` of anything else."""
    original, compiler = (getattr(module, name, None) for name in ("_orig_mod", "dynamo_ctx"))
    return (original, compiler) if isinstance(original, nn.Module) and compiler is not None else (None, None)


def uncompiled_names(state: Mapping[str, T]) -> dict[str, T]:
    """``state`` with the names that parameters and buffers have without ``torch.compile``."""
    return {re.sub(r"(?:(?<=\.)|^)_orig_mod\.", "", name): value for name, value in state.items()}


# -- optimizers and schedulers -----------------------------------------------------------------------------------------


def mark_stepped(optimizer: Any) -> None:
    """Note that ``optimizer`` has stepped: else a scheduler's first step warns that it comes too early.

    It warns after a resume, and where another optimizer or a loss scaler takes the step.
    """
    optimizer._opt_called = True


def count_scheduler_call(scheduler: Any) -> None:
    """Count a call of ``scheduler.step`` that is left out, in a scheduler of torch's."""
    if hasattr(scheduler, "_step_count"):
        scheduler._step_count += 1


def takes_load_hooks(optimizer: Optimizer) -> bool:
    """Whether hooks of ``load_state_dict`` can be registered: not if ``Optimizer.__init__`` was not called."""
    return hasattr(optimizer, "_optimizer_load_state_dict_pre_hooks")


def found_inf(scaler: torch.amp.GradScaler, optimizer: Optimizer) -> list[Tensor]:
    """By device, whether the scaler found infinite gradients: it takes no step then, and does not say so."""
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return list(found.values())


def share_options(optimizer: Any) -> None:
    """Give the inner optimizer of a ``ZeroRedundancyOptimizer`` the options of the outer one, as each step does."""
    optimizer._sync_param_groups(optimizer.param_groups, optimizer.optim.param_groups)


# -- DistributedDataParallel -------------------------------------------------------------------------------------------


class FixedBuckets(DistributedDataParallel):
    """DistributedDataParallel whose buckets begin with the last parameter's gradient, from the first step on.

    By default, DistributedDataParallel starts with one layout and changes it after the first step to the order in
    which gradients became ready. Sums over three or more processes, and communication hooks, depend on where in a
    bucket a gradient is, so the first step of a resumed run would differ in the last bits.
    """

    def __init__(self, module: nn.Module, **arguments: Any) -> None:
        super().__init__(module, **arguments)
        # These run no backward pass, and so touch no gradient, hook, buffer or random number.
        if hasattr(self, "reducer"):  # it is absent if delay_all_reduce_named_params has all parameters
            self.reducer._push_all_rebuilt_params()
            self.reducer._rebuild_buckets()

    def _build_params_for_reducer(self) -> Any:
        # The layout follows this list. Gradients become ready from the last parameter to the first.
        parameters, expect_sparse = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        return parameters[::-1], expect_sparse[::-1]


def left_out_by_ddp(module: nn.Module) -> Sequence[str]:
    """Names of parameters and buffers that DistributedDataParallel was told not to synchronize."""
    names: Sequence[str] = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    return names


def copied_where_kept(module: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """``state`` with copies of the tensors that ``module`` may keep when it loads them; torch's modules copy theirs."""
    plain = {"torch", __name__.partition(".")[0]}

    def copied(tensor: Tensor) -> Tensor:
        return tensor if is_lazy(tensor) else tensor.clone()

    def may_keep(part: nn.Module) -> bool:
        part = getattr(part.load_state_dict, "__self__", part)  # of an adapter, the user's module
        loads = [getattr(part, name) for name in (*MODULE_LOADS, "set_extra_state")]
        hooks: Mapping[int, Any] = part._load_state_dict_pre_hooks
        loads += [wrapped.hook for wrapped in hooks.values()]  # torch's own, as of sharded modules, keep nothing
        return any(str(getattr(load, "__module__", "")).partition(".")[0] not in plain for load in loads)

    named = module.named_modules(remove_duplicate=False)
    prefixes = tuple(f"{name}." if name else "" for name, part in named if may_keep(part))
    kept = {name: map_tensors(copied, each) for name, each in state.items() if name.startswith(prefixes)}
    return with_parts(state, kept) if kept else state


def hooks_after_accumulation(parameter: Tensor) -> list[Callable[..., Any]]:
    """What ``register_post_accumulate_grad_hook`` was called with."""
    return list((parameter._post_accumulate_grad_hooks or {}).values())


def learns_graph(module: DistributedDataParallel) -> bool:
    """Whether the next backward pass records the static graph: torch asserts that it reduces gradients."""
    return module.static_graph and not module._static_graph_delay_allreduce_enqueued


def expect_gradients(module: DistributedDataParallel, loss: torch.Tensor) -> None:
    """Have the reducer wait for the gradients of ``loss``, as a forward pass outside of ``no_sync`` does.

    If it waits for some already, an earlier loss was of other parameters, and this one goes on.
    """
    try:
        module.reducer._check_reducer_finalized()
    except RuntimeError:
        return
    module.reducer._rebuild_buckets()
    module.reducer.prepare_for_backward([loss] if module.find_unused_parameters and not module.static_graph else [])


# -- data loaders ------------------------------------------------------------------------------------------------------


def num_yielded(iterator: Any) -> int:
    """How many batches the iterator of a ``DataLoader`` has returned; 0 for any other iterator."""
    count: int = getattr(iterator, "_num_yielded", 0)
    return count


def data_iterator(iterator: Any) -> Any:
    """The iterator over an iterable data set that one of a ``DataLoader`` without workers reads, or ``None``."""
    return getattr(getattr(iterator, "_dataset_fetcher", None), "dataset_iter", None)


def has_workers_to_end(iterator: Any) -> bool:
    """Whether :func:`end_workers` can end the worker processes of ``iterator``."""
    return hasattr(iterator, "_shutdown_workers")


def end_workers(iterator: Any) -> None:
    """End the worker processes of ``iterator``: torch does so when nothing refers to it, and a traceback may."""
    iterator._shutdown_workers()


run_worker: Callable[..., None] = loader_worker._worker_loop
"""The function that a worker process of a DataLoader runs."""


def set_worker_function(function: Callable[..., None]) -> None:
    """Let the workers that any DataLoader starts from now on run ``function``, with the arguments of `run_worker`."""
    loader_worker._worker_loop = function


def kept_iterator(loader: Any) -> Any:
    """The iterator that ``loader`` keeps with ``persistent_workers=True``; the next pass uses its workers."""
    return getattr(loader, "_iterator", None)


def clear_kept_iterator(loader: Any) -> None:
    """Let ``loader`` forget it, so that the next pass starts workers."""
    object.__setattr__(loader, "_iterator", None)


# -- autograd ----------------------------------------------------------------------------------------------------------


def accumulates(parameters: Iterable[torch.Tensor]) -> bool:
    """Whether the backward pass that is running adds to ``.grad`` of any of ``parameters``: autograd.grad does not."""
    for parameter in parameters:
        with suppress(RuntimeError):  # it is what autograd.grad differentiates by
            if torch._C._will_engine_execute_node(torch.autograd.graph.get_gradient_edge(parameter).node):
                return True
    return False


def is_backward(function: str) -> bool:
    """Whether ``function`` is the name of torch's function that waits in a backward pass, in a traceback."""
    return function == "_engine_run_backward"


# -- processes ---------------------------------------------------------------------------------------------------------


def sequence_number() -> int:
    """The number of collectives that the default process group has begun; torch shows it where collectives differ.

    Raises:
        AttributeError, RuntimeError or ValueError: There is no group, or its backend does not count.
    """
    group: Any = dist.group.WORLD
    return int(group._get_sequence_number_for_group())


def device_of_objects(group: dist.ProcessGroup | None) -> str:
    """The type of device over which a process group sends objects: the CPU if it has a backend for it."""
    return dist.distributed_c10d._get_object_coll_device(group)


def num_groups() -> int:
    """How many process groups this process is in."""
    return len(dist.distributed_c10d._world.pg_map)


def prepares_objects(frame: FrameType) -> bool:
    """Whether ``frame`` belongs to a function that pickles an object before torch sends it."""
    return frame.f_code.co_name == "_object_to_tensor"


def release_groups(mesh: DeviceMesh) -> None:
    """Let ``mesh`` forget its process groups: else it keeps them when they are destroyed."""
    mesh._get_root_mesh()._pg_registry.clear()


def local_shape_and_offset(
    size: torch.Size, mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of this process's part of a sharded tensor, and where it begins."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return compute_local_shape_and_global_offset(size, mesh, placements)


# -- devices -----------------------------------------------------------------------------------------------------------


def device_type_names() -> tuple[str, ...]:
    """The device types that torch knows; that of a backend from outside torch comes first."""
    return (torch._C._get_privateuse1_backend_name(), *map(str.lower, torch._C._autograd.DeviceType.__members__))


def moves_in_place(place: torch.device, target: torch.device) -> bool:
    """Whether a tensor on ``place`` stays the same object where ``module.to`` moves it to ``target``."""
    return torch._has_compatible_shallow_copy_type(torch.empty(0, device=place), torch.empty(0, device=target))


# -- files -------------------------------------------------------------------------------------------------------------

PATH_OF_LAYOUT = ("torch.serialization", "_get_layout")
"""The function that a pickled ``torch.layout`` names."""


def private_metadata_classes() -> tuple[type[Any], type[Any]]:
    """Of the objects in the metadata of distributed checkpoints: the place of a tensor, and its memory format."""
    from torch.distributed.checkpoint import metadata as facts
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    return _StorageInfo, facts._MEM_FORMAT_ENCODING
