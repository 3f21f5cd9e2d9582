"""FSDP2: parameters, gradients and optimizer state sharded over processes."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import Replicate, Shard
from torch.optim import Optimizer

from torch_hal.accelerators import Accelerator
from torch_hal.checkpoints import AsyncCheckpointIO, ShardedCheckpointIO
from torch_hal.errors import CheckpointError, ConfigurationError, WrongTypeError, quoted
from torch_hal.strategies import InferenceModule, ProcessGroupParts, ProcessGroupStrategy, while_alive
from torch_hal.strategies.sharding import (
    FollowedParameters,
    Plan,
    check_plan,
    check_size,
    detach_mesh,
    like,
    make_mesh,
    to_whole,
)
from torch_hal_fsdp.deferred import InitFunction
from torch_hal_fsdp.division import Division
from torch_hal_fsdp.groups import (
    attach,
    detach,
    divided_parts,
    load_open_gradients,
    open_gradients,
    outermost,
    reshard,
)
from torch_hal_fsdp.script_settings import ScriptSettings, arguments_of
from torch_hal_fsdp.selection import Selection, check_selection

__all__ = ["FSDPStrategy"]

STATE_DICT_TYPES = ("sharded", "full")


class FSDPStrategy(ProcessGroupStrategy):
    """Each process holds a part of the parameters, gradients and optimizer state.

    A block's parameters are gathered when a forward or backward pass reaches it, and released after it; its gradients
    are averaged and sharded in one operation. The module is sharded in place: its parameters become
    :class:`torch.distributed.tensor.DTensor`, and stay so after the run.

    Source: Zhao et al., PyTorch FSDP, VLDB 2023; :func:`torch.distributed.fsdp.fully_shard`.

    Args:
        wrap_policy: Which submodules are gathered separately: ``"blocks"`` for the outermost modules whose class is
            repeated in one list of modules; ``"model"`` for those that its ``_no_split_modules`` names; a number for
            modules with at least that many parameters; a list of module classes or their names; or a function of a
            module that returns a bool. All other parameters are gathered for the whole pass.
        reshard_after_forward: Whether a block is released after its forward pass and gathered again for its backward
            pass. ``None`` means all blocks, but not the other parameters; a number keeps parameters sharded over that
            many processes between the two passes.
        activation_checkpointing: Which submodules run their forward pass again in the backward pass instead of keeping
            activations: as ``wrap_policy``; ``None`` for none.
        compile_blocks: Whether each block of ``wrap_policy`` is compiled; or the options of :func:`torch.compile`.
        cpu_offload: Whether shards, gradients and optimizer state stay in CPU memory, where the optimizer steps.
        replicas: The number of groups of processes that hold the whole model each; ``"nodes"`` for one per machine.
        tensor_parallel_size: The number of processes that share the work on one batch; ``"node"`` for those of a
            machine.
        tensor_parallel_plan: How modules are sharded: names of modules, in which ``*`` matches any, mapped to
            ``"colwise"``, ``"rowwise"``, ``"sequence"`` or torch's ParallelStyle objects; the model's attribute of this
            name unless given.
        init_fn: Initializes a module's own parameters and buffers if it was created on ``meta``, instead of its
            ``reset_parameters``.
        state_dict_type: ``"sharded"``: each process writes what it holds; ``"full"``: rank 0 gathers and writes whole
            tensors.
        reduce_each_batch: Whether gradients are averaged and sharded after each accumulated batch, which saves memory,
            instead of once per step.
        **parts: As in :class:`core.strategies.ProcessGroupStrategy`. For ``state_dict_type="sharded"``,
            ``checkpoint_io`` is one that every process writes with: ``"sharded"``, which is the default, or
            ``"async"``.

    Raises:
        ConfigurationError: An argument is unknown or has an invalid value.
        WrongTypeError: An argument has the wrong type.
    """

    distributed_type = "FSDP"
    name = "fsdp"
    inference_is_collective: ClassVar[bool] = True
    applies_precision: ClassVar[bool] = False
    copies_loaded_state: ClassVar[bool] = True
    keeps_buffers_equal = False
    equal_buffers_in_evaluation = True

    def __init__(
        self,
        *,
        wrap_policy: Selection = "blocks",
        reshard_after_forward: bool | int | None = None,
        activation_checkpointing: Selection | None = None,
        compile_blocks: bool | Mapping[str, Any] = False,
        cpu_offload: bool = False,
        replicas: int | str = 1,
        tensor_parallel_size: int | str = 1,
        tensor_parallel_plan: Plan | None = None,
        init_fn: InitFunction | None = None,
        state_dict_type: str = "sharded",
        reduce_each_batch: bool = False,
        **parts: Unpack[ProcessGroupParts],
    ) -> None:
        if state_dict_type not in STATE_DICT_TYPES:
            raise ConfigurationError(f"state_dict_type={state_dict_type!r}. Valid: {quoted(STATE_DICT_TYPES)}.")
        self.default_checkpoint_io = "sharded" if state_dict_type == "sharded" else "torch"
        super().__init__(**parts)
        check_selection("wrap_policy", wrap_policy)
        if activation_checkpointing is not None:
            check_selection("activation_checkpointing", activation_checkpointing)
        if tensor_parallel_plan is not None:
            check_plan(tensor_parallel_plan)
        if init_fn is not None and not callable(init_fn):
            raise WrongTypeError(f"init_fn={init_fn!r}. Valid: a function of a module, or None.")
        check_size("replicas", replicas, "nodes")
        check_size("tensor_parallel_size", tensor_parallel_size, "node")
        if replicas != 1 and tensor_parallel_size != 1:
            raise ConfigurationError(
                f"replicas={replicas!r} contradicts tensor_parallel_size={tensor_parallel_size!r}. Valid: one of them."
            )
        for argument, given, kinds, valid in (
            ("reshard_after_forward", reshard_after_forward, (int, type(None)), "True, False, None, or an integer"),
            ("compile_blocks", compile_blocks, (bool, Mapping), "True, False, or torch.compile's options as a mapping"),
            ("cpu_offload", cpu_offload, (bool,), "True, False"),
            ("reduce_each_batch", reduce_each_batch, (bool,), "True, False"),
        ):
            if not isinstance(given, kinds):
                raise WrongTypeError(f"{argument}={given!r}. Valid: {valid}.")
        if reshard_after_forward is not None and reshard_after_forward < 0:
            raise ConfigurationError(
                f"reshard_after_forward={reshard_after_forward!r}: must be True, False, None, or an integer from 2."
            )
        self.wrap_policy = wrap_policy
        self.reshard_after_forward = reshard_after_forward
        self.activation_checkpointing = activation_checkpointing
        self.compile_blocks = compile_blocks
        self.cpu_offload = cpu_offload
        self.replicas = replicas
        self.tensor_parallel_size = tensor_parallel_size
        self.tensor_parallel_plan = tensor_parallel_plan
        self.init_fn = init_fn
        self.state_dict_type = state_dict_type
        self.reduce_each_batch = reduce_each_batch
        self.engine_settings = {"fsdp_plugin": ScriptSettings(self), "device_mesh": None}
        self._mesh: DeviceMesh | None = None
        self._followed = FollowedParameters()

    @classmethod
    def of_script(cls, plugin: Any = None, **arguments: Any) -> FSDPStrategy:
        """The strategy that a script asks for by ``Runtime(fsdp_plugin=plugin)``, with Accelerate's object.

        Args:
            plugin: The object; ``None`` for the defaults.
            **arguments: Further arguments.

        Raises:
            ConfigurationError: A setting has no counterpart here.
        """
        return cls(**arguments_of(plugin) | {name: value for name, value in arguments.items() if value != 1})

    # -- who and where -------------------------------------------------------------------------------------------

    def process_group_backend_for(self, accelerator: Accelerator, device: torch.device) -> str | None:
        """See the base class; with ``cpu_offload`` also a backend for the CPU, where gradient norms are combined."""
        backend = super().process_group_backend_for(accelerator, device)
        if self.process_group_backend is None and self.cpu_offload and device.type != "cpu" and ":" not in str(backend):
            return f"cpu:gloo,{device.type}:{backend}"
        return backend

    def connect(self, **parts: Any) -> None:
        """See the base class.

        Raises:
            ConfigurationError: The number of processes is not divisible as the arguments require, the loss is scaled
                under tensor parallelism, or ``state_dict_type="sharded"`` and only rank 0 writes with the CheckpointIO.
        """
        super().connect(**parts)
        processes, num_nodes = self.plan.world_size, self.plan.num_nodes
        self._replicas = num_nodes if self.replicas == "nodes" else int(self.replicas)
        is_node = self.tensor_parallel_size == "node"
        self._tensor = self.local_processes if is_node else int(self.tensor_parallel_size)
        for argument, size in (("replicas", self._replicas), ("tensor_parallel_size", self._tensor)):
            if processes % size:
                raise ConfigurationError(
                    f"{argument}={size} does not divide {processes} processes. Valid: a number that does."
                )
        self._check_reshard(processes // self._replicas // self._tensor)
        if self._tensor > 1 and self.precision.scales_loss:
            raise ConfigurationError(
                f"precision={self.precision.name!r} with tensor_parallel_size={self._tensor}: torch's GradScaler lets "
                "processes disagree on whether a step's gradients are finite. Valid: 'bf16-mixed', or another that "
                "does not scale the loss."
            )
        if self.state_dict_type == "sharded" and not self.checkpoint_io.is_collective:
            raise ConfigurationError(
                f"checkpoint_io={type(self.checkpoint_io).__name__} with state_dict_type='sharded': process 0 alone "
                "writes with it. Valid: state_dict_type='full', or checkpoint_io='sharded'."
            )

    def _check_reshard(self, shards: int) -> None:
        size = self.reshard_after_forward
        if size is not None and not isinstance(size, bool) and (not 1 < size < shards or shards % size):
            raise ConfigurationError(
                f"reshard_after_forward={size!r} with parameters divided among {shards} processes. Valid: True, False, "
                f"None, or a divisor of {shards} between 1 and it."
            )

    @property
    def data_shards(self) -> int:
        """The number of parts of the data; processes that share the work on a batch take the same part."""
        return self.world_size // self._tensor

    @property
    def data_shard(self) -> int:
        """The part of the data that this process takes."""
        return self.global_rank // self._tensor

    def init_dist_connection(self) -> None:
        """Join the process group, and create the mesh: (replicas, shards) or (shards, processes of a batch)."""
        super().init_dist_connection()
        sizes = {"replicate": self._replicas, "shard": self.data_shards // self._replicas, "tensor": self._tensor}
        used = {name: size for name, size in sizes.items() if name == "shard" or size > 1}
        self._mesh = make_mesh(self.root_device.type, used)
        if self._tensor > 1:
            self._mesh._flatten()  # for norms over both dimensions in one operation
        self.release_at_leave(partial(detach_mesh, self._mesh))
        self.engine_settings = {**self.engine_settings, "device_mesh": self._mesh}

    @property
    def mesh(self) -> DeviceMesh:
        """All processes of the run, along the dimensions ``replicate``, ``shard``, ``tensor`` that it has.

        Raises:
            ConfigurationError: No run is active.
        """
        if self._mesh is None:
            raise ConfigurationError(f"strategy {self.name!r}: there is a mesh only while a run is active.")
        return self._mesh

    def teardown(self, failed: bool = False) -> None:
        """See the base class; modules stay sharded."""
        super().teardown(failed)
        self._mesh = None
        self.engine_settings = {**self.engine_settings, "device_mesh": None}
        self._followed.clear()

    # -- modules -------------------------------------------------------------------------------------------------

    def setup_module(self, module: nn.Module) -> nn.Module:
        """``module`` itself, sharded; a module of an earlier run stays sharded as it is.

        All processes start with the parameters and buffers of rank 0. Modules on ``meta`` are initialized now, one at a
        time, with the random numbers of rank 0's generator.

        Raises:
            ConfigurationError: It cannot be sharded as the arguments require.
        """
        if isinstance(module, FSDPModule) or "_divided_over" in module.__dict__:
            return self._take_up(module)
        roots = self._roots(module)
        is_whole = roots == [module]
        before = dict(module.named_parameters(remove_duplicate=False))
        Division(
            mesh=self.mesh,
            device=self.root_device,
            precision=self.precision,
            wrap_policy=self.wrap_policy,
            reshard_after_forward=self.reshard_after_forward if is_whole else self.reshard_after_forward or True,
            activation_checkpointing=self.activation_checkpointing,
            compile_blocks=self.compile_blocks,
            cpu_offload=self.cpu_offload,
            tensor_parallel_plan=self.tensor_parallel_plan,
            init_fn=self.init_fn,
        ).apply(module, roots)
        self._followed.record(before, module)
        module.__dict__["_divided_over"] = tuple(self.mesh.shape), self.mesh.mesh_dim_names, self.root_device.type
        self._let_go_at_leave(module)
        return module

    def _roots(self, module: nn.Module) -> list[nn.Module]:
        """What is gathered by itself: ``module``, or its layers where backward runs within its forward pass.

        Raises:
            ConfigurationError: Backward does, and an argument or the module does not allow it.
        """
        parts: list[nn.Module] | None = getattr(module, "backward_parts", None)
        if parts is None:
            return [module]
        if self.reshard_after_forward is False or self._tensor > 1:
            given = f"tensor_parallel_size={self._tensor}" if self._tensor > 1 else "reshard_after_forward=False"
            raise ConfigurationError(
                f"{given}: strategy {self.name!r} does not support it with manual optimization. Leave it out."
            )
        return parts

    def _take_up(self, module: nn.Module) -> nn.Module:
        """Use a module that was sharded before: in this run, or in an earlier one over an equal mesh."""
        here = tuple(self.mesh.shape), self.mesh.mesh_dim_names, self.root_device.type
        divided = module.__dict__.get("_divided_over")
        if divided != here:
            raise ConfigurationError(
                f"module: it is divided already, over {divided}, but this run's processes form {here}. Create a new "
                "module, and load a checkpoint."
            )
        reshard(module)
        attach(module, self.mesh)
        self._let_go_at_leave(module)
        return module

    def _let_go_at_leave(self, module: nn.Module) -> None:
        for part in divided_parts(module):  # the user may drop the module and keep one of its parts
            self.release_at_leave(while_alive(part, detach))

    def inference_module(self, module: nn.Module) -> nn.Module:
        """``module``, outside of :class:`torch.inference_mode`: parameters gathered in it cannot be trained later."""
        return InferenceModule(module)

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        """A context in which backward leaves gradients whole and unreduced, unless ``reduce_each_batch``."""
        return nullcontext() if self.reduce_each_batch else _unreduced(list(outermost(module)))

    def accumulation_state(self, module: nn.Module) -> dict[str, Any]:
        """Whole gradients of this process that are not reduced, and its shards of those that are.

        Raises:
            CheckpointError: Processes share the work on a batch.
        """
        if self._tensor > 1:
            raise CheckpointError(
                f"tensor_parallel_size={self.tensor_parallel_size!r}: accumulated gradients cannot be saved. Save "
                "after an optimizer step."
            )
        return {"gradients": open_gradients(module)}

    def load_accumulation_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """See :meth:`accumulation_state`."""
        load_open_gradients(module, state["gradients"], self.root_device)

    # -- optimizers ----------------------------------------------------------------------------------------------

    def setup_optimizers(self, optimizers: Sequence[Optimizer]) -> list[Optimizer]:
        """The optimizers themselves; their groups hold the sharded parameters.

        Raises:
            ConfigurationError: One has already stepped, or is ``foreach`` or ``fused`` but its parameters are on
                different meshes.
        """
        for optimizer in optimizers:
            self._followed.follow(optimizer, self.name, self.mesh["tensor"] if self._tensor > 1 else None)
        return super().setup_optimizers(optimizers)

    # -- state ---------------------------------------------------------------------------------------------------

    def module_state(self, module: nn.Module) -> dict[str, Any]:
        """Sharded tensors; with ``state_dict_type="full"``, whole ones in rank 0, and nothing in the others."""
        state = module.state_dict()
        return state if self.state_dict_type == "sharded" else self._whole(state)

    def whole_module_state(self, module: nn.Module) -> dict[str, Any]:
        """Whole tensors on the CPU in rank 0, nothing in the others."""
        return self._whole(module.state_dict())

    def load_module_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """Load this process's shards of a state that any strategy wrote."""
        super().load_module_state(module, self._laid_out(module.state_dict(), state))

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Like :meth:`module_state`."""
        state = optimizer.state_dict()
        if self.state_dict_type == "sharded":
            return state
        by_parameter = {index: self._whole(entries) for index, entries in state["state"].items()}
        return {**state, "state": by_parameter}

    def load_optimizer_state(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Load this process's shards of a state that any strategy wrote."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        indices = [index for group in state["param_groups"] for index in group["params"]]
        taken = dict(state["state"])
        for index, parameter in zip(indices, parameters, strict=False):  # torch itself refuses unequal numbers
            if index in taken:
                taken[index] = {
                    name: like(parameter, value, self.root_device) if _is_shaped_as(parameter, value) else value
                    for name, value in taken[index].items()
                }
        optimizer.load_state_dict({**state, "state": taken})

    def load_checkpoint(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """See the base class; of sharded tensors, this process reads its part."""
        io = self.checkpoint_io
        if not isinstance(io, ShardedCheckpointIO | AsyncCheckpointIO) or not io.is_collective:
            return super().load_checkpoint(path)
        placements = [Shard(0) if name == "shard" else Replicate() for name in self.mesh.mesh_dim_names or ()]
        return io.load_shards(path, self.mesh, placements)

    def _whole(self, state: dict[str, Any]) -> dict[str, Any]:
        whole = copy.copy(state)
        for name, value in state.items():
            gathered = to_whole(value, self.root_device) if isinstance(value, Tensor) else value
            whole[name] = gathered.cpu() if isinstance(gathered, Tensor) else gathered
            if not self.is_global_zero:
                del whole[name]
        return whole

    def _laid_out(self, current: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
        laid_out: dict[str, Any] = copy.copy(dict(state) if not isinstance(state, dict) else state)
        for name, value in state.items():
            if name in current and _is_shaped_as(current[name], value):
                laid_out[name] = like(current[name], value, self.root_device)
        return laid_out


@contextmanager
def _unreduced(roots: list[FSDPModule]) -> Iterator[None]:
    for root in roots:
        root.set_requires_gradient_sync(False)
        root.set_is_last_backward(False)
    try:
        yield
    finally:
        for root in roots:
            root.set_requires_gradient_sync(True)
            root.set_is_last_backward(True)


def _is_shaped_as(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape
