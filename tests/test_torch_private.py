"""The private names of torch that core uses: each does what core uses it for, or its test here fails."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import multiprocessing
import pickle
import traceback
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker as loader_worker

from core.utilities import torch_private


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def write_shards(path: Path) -> None:
    """Write a checkpoint of torch's with one tensor, from this process alone."""
    with warnings.catch_warnings(action="ignore"):  # that it is alone
        save({"a": torch.arange(3.0)}, checkpoint_id=path, no_dist=True)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    """An optimizer for ``module``."""
    return torch.optim.SGD(module.parameters(), lr=0.1)


# -- versions ----------------------------------------------------------------------------------------------------------


def test_a_clone_of_a_store_is_another_connection() -> None:
    """What one connection sets, the other one gets; torch before 2.7 has no clones."""
    store = torch_private.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    clone = torch_private.clone_of_store(store)
    assert (clone is None) == (not torch_private.LIBUV_TAKES_SOCKETS)
    if clone is not None:
        clone.set("key", "value")
        assert clone is not store
        assert store.get("key") == b"value"


def test_a_process_alone_loads_shards(tmp_path: Path) -> None:
    """Without the other processes, and so also where there is no process group."""
    write_shards(tmp_path)
    into = {"a": torch.zeros(3)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is alone
        torch_private.load_in_this_process(into, storage_reader=FileSystemReader(tmp_path))
    assert into["a"].tolist() == [0, 1, 2]


def test_the_classes_of_stores_are_the_public_ones() -> None:
    """Only their types stand in a private module."""
    for name in ("GradBucket", "PrefixStore", "Store", "TCPStore"):
        assert getattr(torch_private, name) is getattr(dist, name)


# -- modules -----------------------------------------------------------------------------------------------------------


def test_the_content_of_a_module_is_in_these_attributes() -> None:
    """A module that shares them has the same parameters, buffers, submodules and ``state_dict``."""
    whole, other = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)), nn.Module()
    whole.register_buffer("kept", torch.ones(1))
    whole.register_buffer("left_out", torch.ones(1), persistent=False)
    assert {*torch_private.MODULE_CONTENT} <= {*vars(whole)}
    for name in torch_private.MODULE_CONTENT:
        vars(other)[name] = vars(whole)[name]
    assert [*other.state_dict()] == [*whole.state_dict()]
    assert [*map(id, other.parameters())] == [*map(id, whole.parameters())]
    assert [name for name, _ in other.named_buffers()] == [name for name, _ in whole.named_buffers()]


def test_what_a_module_may_keep_of_a_state_is_copied() -> None:
    """Torch's own modules and hooks copy what they load; others may keep it, as may a hook of the user's."""

    class Keeps(nn.Linear):
        def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
            self.weight.data = state[f"{prefix}weight"]

    hooked, shared = nn.LazyBatchNorm1d(), Keeps(1, 1)
    hooked.register_load_state_dict_pre_hook(lambda *_: None)  # type: ignore[no-untyped-call]
    module = nn.ModuleList([nn.BatchNorm1d(1), nn.LazyBatchNorm1d(), hooked, shared, nn.Sequential(shared)])
    state = module.state_dict()
    given = torch_private.copied_where_kept(module, state)
    copied = {name for name in state if given[name] is not state[name]}
    assert {name[0] for name in copied} == {"2", "3", "4"}
    assert "2.weight" not in copied  # it has no content yet
    assert all(callable(getattr(nn.Module, name)) for name in torch_private.MODULE_LOADS)
    assert vars(given) == vars(state)  # the versions of the classes
    assert torch_private.copied_where_kept(module[0], state) is state
    lazy, weights = nn.LazyBatchNorm1d(), nn.BatchNorm1d(1).state_dict()
    lazy.load_state_dict(weights)  # with a hook of torch's
    assert all(each.data_ptr() != weights[name].data_ptr() for name, each in lazy.state_dict().items())


def test_a_module_without_its_constructor_is_noticed() -> None:
    """torch itself fails later, with another message for each use."""
    module = nn.Linear.__new__(nn.Linear)
    assert not torch_private.is_initialized(module)
    with pytest.raises(AttributeError):
        module(torch.ones(1))
    assert torch_private.is_initialized(nn.Linear(1, 1))


def test_non_persistent_buffers_are_those_that_state_dict_leaves_out() -> None:
    """Each module knows its own."""
    module = nn.Module()
    module.register_buffer("kept", torch.ones(1))
    module.register_buffer("left_out", torch.ones(1), persistent=False)
    assert torch_private.non_persistent_buffers(module) == {"left_out"}
    assert [*module.state_dict()] == ["kept"]


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.LazyBatchNorm1d])
def test_batch_norm_is_the_base_class_of_its_layers(kind: Any) -> None:
    """Other normalization layers are none of them."""
    assert issubclass(kind, torch_private.BatchNorm)
    assert not issubclass(nn.InstanceNorm1d, torch_private.BatchNorm)
    assert not issubclass(nn.GroupNorm, torch_private.BatchNorm)


def test_a_batch_norm_layer_checks_its_inputs() -> None:
    """With the message that its own forward pass has."""
    torch_private.check_input_dim(nn.BatchNorm2d(2), torch.ones(1, 2, 3, 3))
    with pytest.raises(ValueError, match="4D"):
        torch_private.check_input_dim(nn.BatchNorm2d(2), torch.ones(1, 2))


def test_the_uncompiled_call_is_that_of_the_module() -> None:
    """It runs hooks, and stays what it is where ``module.compile`` replaced the call."""
    module, called = nn.Linear(1, 1), []
    module.register_forward_hook(lambda *_: called.append(1))
    module.compile(backend=lambda *_: pytest.fail("compiled"))
    inputs = torch.ones(1, 1)
    assert torch.equal(torch_private.uncompiled_call(module)(inputs), inputs @ module.weight.T + module.bias)
    assert called == [1]


def test_a_compiled_call_replaces_that_of_the_module_for_a_while() -> None:
    """After the context, ``module(...)`` is what it was."""
    module = nn.Linear(1, 1)
    before = module(torch.ones(1, 1))
    with torch_private.compiled_call(module, lambda inputs: inputs + 41):
        assert module(torch.ones(1, 1)) == 42
    assert torch.equal(module(torch.ones(1, 1)), before)


def test_the_module_in_a_compiled_one_is_found() -> None:
    """And how it was compiled, which compiles another one alike."""
    module = nn.Linear(1, 1)
    inner, compiler = torch_private.uncompiled(torch.compile(module, backend="eager"))
    assert inner is module
    assert torch.equal(compiler(copy.deepcopy(module))(torch.ones(1, 1)), module(torch.ones(1, 1)))
    assert torch_private.uncompiled(module) == (None, None)
    part: Any = torch.compile(nn.Sequential(module), backend="eager")
    whole: Any = torch.compile(nn.Sequential(nn.Linear(1, 1), part), backend="eager")
    names = torch_private.uncompiled_names(whole.state_dict())
    assert list(names) == ["0.weight", "0.bias", "1.0.weight", "1.0.bias"]


# -- optimizers and schedulers -----------------------------------------------------------------------------------------


def test_a_scheduler_believes_that_a_marked_optimizer_has_stepped() -> None:
    """Without the mark it warns, so the test notices if torch keeps that elsewhere."""
    optimizer = sgd(nn.Linear(1, 1))
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        StepLR(optimizer, 1).step()
    optimizer = sgd(nn.Linear(1, 1))
    scheduler = StepLR(optimizer, 1)
    torch_private.mark_stepped(optimizer)
    with warnings.catch_warnings(action="error"):
        scheduler.step()


def test_a_counted_call_is_in_the_state_of_a_scheduler() -> None:
    """As if its step had been called; nothing else of the state changes."""
    scheduler: Any = StepLR(sgd(nn.Linear(1, 1)), 1)
    before = scheduler.state_dict()
    torch_private.count_scheduler_call(scheduler)
    changed = {name: value for name, value in scheduler.state_dict().items() if value != before[name]}
    assert changed == {"_step_count": before["_step_count"] + 1}
    torch_private.count_scheduler_call(object())  # one of another library need not count


def test_hooks_of_loading_need_torchs_constructor() -> None:
    """Registering one fails exactly where this says so."""
    with pytest.raises(AttributeError):
        (bare := object.__new__(torch.optim.SGD)).register_load_state_dict_pre_hook(print)
    assert torch_private.takes_load_hooks(sgd(nn.Linear(1, 1))) > torch_private.takes_load_hooks(bare)


@pytest.mark.parametrize("gradient", [1.0, float("inf")])
def test_the_scaler_says_whether_it_found_infinite_gradients(gradient: float) -> None:
    """It takes the step exactly if it found none."""
    module = nn.Linear(1, 1)
    optimizer, scaler = sgd(module), torch.amp.GradScaler("cpu", init_scale=2.0)
    before = module.weight.detach().clone()
    scaler.scale(module(torch.full((1, 1), gradient)).sum()).backward()
    scaler.step(optimizer)
    assert [bool(found) for found in torch_private.found_inf(scaler, optimizer)] == [gradient == float("inf")]
    assert torch.equal(module.weight, before) == (gradient == float("inf"))


@pytest.mark.usefixtures("group")
def test_the_inner_optimizer_gets_the_options_of_the_outer_one() -> None:
    """A scheduler changes those of the outer one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own module
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(nn.Linear(1, 1).parameters(), torch.optim.SGD, lr=0.1)
    optimizer.param_groups[0]["lr"] = 7.0
    torch_private.share_options(optimizer)
    assert optimizer.optim.param_groups[0]["lr"] == 7.0


# -- DistributedDataParallel: for FixedBuckets and accumulates see tests/strategies/test_buckets.py --------------------


@pytest.mark.usefixtures("group")
def test_names_that_ddp_leaves_out() -> None:
    """torch's own function that sets them, and DDP, which does not average their gradients."""
    module = nn.Linear(1, 1)
    assert not torch_private.left_out_by_ddp(module)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["bias"])  # type: ignore[no-untyped-call]
    assert torch_private.left_out_by_ddp(module) == ["bias"]
    assert DistributedDataParallel(module).parameters_to_ignore == {"bias"}


@pytest.mark.usefixtures("group")
def test_ddp_learns_a_static_graph_in_the_first_backward_pass() -> None:
    """And only then; a graph that is not static is never learnt."""
    ddp = DistributedDataParallel(nn.Linear(1, 1), static_graph=True)
    seen = []
    for _ in range(3):
        seen.append(torch_private.learns_graph(ddp))
        ddp(torch.ones(1, 1)).sum().backward()
    assert seen == [True, False, False]
    assert not torch_private.learns_graph(DistributedDataParallel(nn.Linear(1, 1)))


class Heads(nn.Module):
    """Two layers, each with an output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(inputs), self.second(inputs)


@pytest.mark.parametrize("arguments", [{}, {"find_unused_parameters": True}])
@pytest.mark.usefixtures("group")
def test_ddp_reduces_another_loss_of_a_forward_pass_if_it_is_told_to_expect_it(arguments: dict[str, Any]) -> None:
    """From the first step on; and each of two losses of different parameters, which are reduced together at last."""
    reduced: list[int] = []

    def hook(state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        reduced.append(len(bucket.parameters()))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    ddp = DistributedDataParallel(Heads(), **arguments)
    ddp.register_comm_hook(None, lambda state, bucket: hook(state, bucket))  # torch refuses annotations as text
    for expects in (True, False):
        reduced.clear()
        both = torch.cat(ddp(torch.ones(1, 1)))
        both.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
        if expects:
            torch_private.expect_gradients(ddp, both.square().sum())
        both.square().sum().backward()  # type: ignore[no-untyped-call]
        assert reduced == ([4, 4] if expects else [4])
    if not arguments:
        reduced.clear()
        for output in ddp(torch.ones(1, 1)):
            output.backward()
            if not reduced:
                torch_private.expect_gradients(ddp, output)
        assert reduced == [4]


# -- data loaders ------------------------------------------------------------------------------------------------------


def squares() -> Any:
    """A data set that workers can use."""
    return torch.arange(6).square()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_iterator_of_a_loader_counts_its_batches(num_workers: int) -> None:
    """Those that it has returned, not those that its workers have read ahead; other iterators count none."""
    batches = iter(DataLoader(squares(), 2, num_workers=num_workers))
    assert isinstance(batches, torch_private.DataLoaderIterator)
    assert [torch_private.num_yielded(batches) for _ in batches] == [1, 2, 3]
    assert (torch_private.num_yielded(iter([1])), torch_private.data_iterator(batches)) == (0, None)


def test_workers_can_be_ended_and_the_loader_starts_others() -> None:
    """A loader with persistent workers keeps its iterator until it is told to forget it."""
    loader = DataLoader(squares(), 2, num_workers=1, persistent_workers=True)
    assert torch_private.kept_iterator(loader) is None
    batches: Any = iter(loader)
    workers = batches._workers
    assert torch_private.kept_iterator(loader) is batches is iter(loader)
    assert torch_private.has_workers_to_end(batches)
    torch_private.end_workers(batches)
    assert not any(worker.is_alive() for worker in workers)
    torch_private.clear_kept_iterator(loader)
    assert len([*loader]) == 3
    torch_private.end_workers(torch_private.kept_iterator(loader))
    assert not torch_private.has_workers_to_end(iter([1]))


def test_workers_run_a_function_in_place_of_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets what torch's own needs to read the data."""
    monkeypatch.setattr(loader_worker, "_worker_loop", loader_worker._worker_loop)
    begun = multiprocessing.get_context("fork").Event()

    def run(*arguments: Any) -> None:
        begun.set()
        torch_private.run_worker(*arguments)

    torch_private.set_worker_function(run)
    assert len([*DataLoader(squares(), 2, num_workers=1, multiprocessing_context="fork")]) == 3
    assert begun.is_set()


# -- autograd ----------------------------------------------------------------------------------------------------------


def test_a_backward_pass_is_seen_in_a_traceback() -> None:
    """The function of torch from which the autograd engine raises."""
    weight = torch.ones(1, requires_grad=True)
    weight.register_hook(lambda _: 1 / 0)  # type: ignore[no-untyped-call]
    with pytest.raises(ZeroDivisionError) as raised:
        weight.sum().backward()  # type: ignore[no-untyped-call]
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(raised.value.__traceback__)]
    assert any(map(torch_private.is_backward, names))
    assert not any(map(torch_private.is_backward, ["backward", "forward"]))


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("group")
def test_a_group_counts_its_collectives() -> None:
    """One more for each."""
    before = torch_private.sequence_number()
    dist.all_reduce(torch.ones(1))
    assert torch_private.sequence_number() == before + 1


@pytest.mark.usefixtures("group")
def test_objects_are_sent_from_the_cpu() -> None:
    """A gloo group has a backend for it alone."""
    assert torch_private.device_of_objects(None) == torch_private.device_of_objects(dist.group.WORLD) == "cpu"


@pytest.mark.usefixtures("group")
def test_the_groups_of_a_process_are_counted() -> None:
    """A new one, until it is destroyed."""
    before = torch_private.num_groups()
    new = dist.new_group([0])
    assert torch_private.num_groups() == before + 1
    dist.destroy_process_group(new)
    assert torch_private.num_groups() == before


class Noticed:
    """Notes, when it is pickled, which of the calling functions prepare an object."""

    seen: ClassVar[list[bool]] = []

    def __reduce__(self) -> Any:
        frame = inspect.currentframe()
        while frame is not None:
            self.seen.append(torch_private.prepares_objects(frame))
            frame = frame.f_back
        return Noticed, ()


@pytest.mark.usefixtures("group")
def test_an_object_that_is_being_prepared_is_seen() -> None:
    """By the function that pickles it, before the collective begins."""
    dist.broadcast_object_list([Noticed()], src=0)
    assert sum(Noticed.seen) == 1


@pytest.mark.usefixtures("group")
def test_a_released_mesh_does_not_keep_its_groups() -> None:
    """A group that was destroyed is freed."""
    group = dist.new_group([0])
    mesh, known = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("data",)), weakref.ref(group)
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert known() is not None
    torch_private.release_groups(mesh)
    gc.collect()
    assert known() is None


@pytest.mark.usefixtures("group")
def test_the_part_of_a_sharded_tensor() -> None:
    """All of it on one process."""
    mesh = init_device_mesh("cpu", (1,))
    shape, offset = torch_private.local_shape_and_offset(torch.Size([5, 3]), mesh, [Shard(0)])
    assert (tuple(shape), tuple(offset)) == ((5, 3), (0, 0))


# -- devices -----------------------------------------------------------------------------------------------------------


def test_the_device_types_of_torch() -> None:
    """Each is the type of a device, but for those that this build does not have."""
    names = torch_private.device_type_names()
    assert {"cpu", "meta"} <= {*names}
    assert torch.device(names[0]).type == names[0]


def test_a_tensor_moves_in_place_where_its_parameter_stays_the_same() -> None:
    """As ``module.to`` does it, which is asked for both pairs of devices."""
    for target in ("cpu", "meta"):
        module = nn.Linear(1, 1)
        own = module.weight
        module.to(target)
        moves = torch_private.moves_in_place(torch.device("cpu"), torch.device(target))
        assert (module.weight is own) == moves, target


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_pickled_layout_names_this_function() -> None:
    """In the metadata of a sharded checkpoint."""
    found = pickle.dumps(torch.strided, protocol=0).decode()
    assert "\n".join(torch_private.PATH_OF_LAYOUT) in found


def test_the_metadata_of_shards_has_these_classes(tmp_path: Path) -> None:
    """What torch writes now can be read by names that core allows."""
    write_shards(tmp_path)
    named = set()

    class Noting(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            named.add(name)
            return super().find_class(module, name)

    Noting(io.BytesIO((tmp_path / ".metadata").read_bytes())).load()
    assert {kind.__name__ for kind in torch_private.private_metadata_classes()} <= named


def test_each_name_has_a_test_here() -> None:
    """A name without one could break in silence with the next version of torch."""
    here = Path(__file__)
    used = "".join(file.read_text("utf-8") for file in (here, here.parent / "strategies" / "test_buckets.py"))
    assert [name for name in torch_private.__all__ if name not in used] == []
