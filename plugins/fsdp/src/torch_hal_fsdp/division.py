"""Shard a module over processes part by part: only one part at a time is unsharded on a device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import attrs
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint as recomputed

from torch_hal.errors import ConfigurationError, quoted
from torch_hal.precisions import Precision
from torch_hal.random import get_host_rng_state, set_host_rng_state
from torch_hal.strategies.sharding import Plan, apply_plan, find_plan
from torch_hal.utilities.nested import hook_gradients
from torch_hal_fsdp.deferred import Deferred, InitFunction, find_deferred, initialize
from torch_hal_fsdp.groups import reshard
from torch_hal_fsdp.selection import Selection, post_order, select

__all__ = ["Division"]

HOST = torch.device("cpu")


@attrs.frozen(kw_only=True)
class Division:
    """How a module is sharded: the arguments of :class:`torch_hal_fsdp.FSDPStrategy`, and the devices."""

    mesh: DeviceMesh
    device: torch.device
    precision: Precision
    wrap_policy: Selection
    reshard_after_forward: bool | int | None
    activation_checkpointing: Selection | None
    compile_blocks: bool | Mapping[str, Any]
    cpu_offload: bool
    tensor_parallel_plan: Plan | None
    init_fn: InitFunction | None

    def apply(self, module: nn.Module, roots: Sequence[nn.Module]) -> None:
        """Shard ``module`` in place; every process calls it.

        Args:
            module: The module.
            roots: The parts of it whose forward and backward passes follow one another: ``module`` itself, unless
                backward runs within its forward pass.

        Raises:
            ConfigurationError: It cannot be sharded this way.
        """
        outer = {id(root) for root in roots}
        parts = [part for part in self._parts(module) if id(part) not in outer]
        deferred = find_deferred(module, self.init_fn)
        self.precision.convert_module(module)
        if "tensor" in self._dimensions():
            owner, plan = find_plan(module, self.tensor_parallel_plan)
            self._bring(module.modules())
            apply_plan(owner, plan, self.mesh["tensor"])
        if self.activation_checkpointing is not None:
            for part in select("activation_checkpointing", module, self.activation_checkpointing):
                _recompute(part)
        if self.compile_blocks:
            for part in parts:
                part.compile(**(self.compile_blocks if isinstance(self.compile_blocks, Mapping) else {}))
        for part in parts:
            self._divide(part)
        for root in roots:
            self._divide(root, is_root=True, is_part=root is not module)
            root.register_forward_hook(_release)
        self._bring(_undivided(module))
        if deferred:
            self._fill(module, deferred)

    def _dimensions(self) -> tuple[str, ...]:
        return self.mesh.mesh_dim_names or ()

    # -- which parts ---------------------------------------------------------------------------------------------

    def _parts(self, module: nn.Module) -> list[nn.Module]:
        """The parts that are gathered separately, inner parts first."""
        scalars = [name for name, parameter in module.named_parameters() if not parameter.dim()]
        if scalars:
            raise ConfigurationError(
                f"module: parameters {quoted(scalars)} have no dimension and cannot be sharded. Give them shape (1,)."
            )
        chosen = select("wrap_policy", module, self.wrap_policy)
        if self._policy().param_dtype is not None:
            # Their running statistics are not computed with in 16 bits, and only parameters of the same dtype go with
            # those.
            chosen += [part for part in module.modules() if isinstance(part, _BatchNorm)]
        wanted = {id(part) for part in chosen if part is not module}
        parts = [part for part in post_order(module) if id(part) in wanted and any(True for _ in part.parameters())]
        return [part for part in parts if not self._shares(part, module)]

    def _shares(self, part: nn.Module, root: nn.Module) -> bool:
        """Whether ``part`` shares parameters with modules outside of it, so that they must be gathered together."""
        inside = {id(module) for module in part.modules()}
        outside = {
            id(parameter)
            for module in root.modules()
            if id(module) not in inside
            for parameter in module.parameters(recurse=False)
        }
        shared = [name for name, parameter in part.named_parameters() if id(parameter) in outside]
        if shared and self.wrap_policy != "blocks" and not isinstance(self.wrap_policy, int):
            raise ConfigurationError(
                f"wrap_policy={self.wrap_policy!r}: {type(part).__name__} shares its parameters {quoted(shared)} with "
                "other parts of the model. Choose a policy without it, or one that selects a part which contains both."
            )
        return bool(shared)

    # -- sharding one --------------------------------------------------------------------------------------------

    def _divide(self, part: nn.Module, is_root: bool = False, is_part: bool = True) -> None:
        self._bring(_undivided(part))
        data = tuple(name for name in self._dimensions() if name != "tensor")
        pin = self.device.type != HOST.type
        fully_shard(
            part,
            mesh=self.mesh[data] if len(data) < self.mesh.ndim else self.mesh,
            reshard_after_forward=self.reshard_after_forward,
            mp_policy=self._policy(batch_norm=isinstance(part, _BatchNorm), is_root=is_root, is_part=is_part),
            offload_policy=CPUOffloadPolicy(pin_memory=pin) if self.cpu_offload else OffloadPolicy(),
        )
        part.register_forward_hook(_watch_second_order)
        # Of a class that fully_shard has made. torch's own function raises an AssertionError.
        type(part).__deepcopy__ = _refuse_copy  # type: ignore[attr-defined]

    def _policy(self, batch_norm: bool = False, is_root: bool = False, is_part: bool = True) -> MixedPrecisionPolicy:
        """The precision as FSDP's MixedPrecisionPolicy."""
        declared = self.precision
        narrow = declared.compute_dtype is not declared.param_dtype and not batch_norm
        computed = declared.compute_dtype if narrow else declared.param_dtype
        return MixedPrecisionPolicy(
            param_dtype=computed if narrow else None,
            reduce_dtype=declared.reduce_dtype if declared.reduce_dtype is not computed else None,
            output_dtype=declared.output_dtype if narrow and is_root else None,
            cast_forward_inputs=is_part,  # of the whole module, they may be what a loss is computed against
        )

    def _bring(self, modules: Iterable[nn.Module]) -> None:
        """Move what is not sharded yet to the device, with the values of process 0.

        Parameters are replaced, not moved: an optimizer that was made before holds them until it follows, on the host.
        """
        taken: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
        for module in modules:
            own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            pending = [tensor for tensor in own if not tensor.is_meta and not isinstance(tensor, DTensor)]
            if len(pending) < len(own):
                if pending:
                    raise ConfigurationError(
                        f"module: {type(module).__name__} has some of its own tensors on 'meta' and some not. Make "
                        "all of a module's own tensors on 'meta', or none."
                    )
                continue
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
                if id(parameter) not in taken:
                    here = nn.Parameter(self._of_process_0(parameter), parameter.requires_grad)
                    taken[id(parameter)] = parameter, here
                module._parameters[name] = taken[id(parameter)][1]
            for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
                module._buffers[name] = self._of_process_0(buffer)

    def _of_process_0(self, tensor: Tensor) -> Tensor:
        here = tensor.detach().to(self.device).contiguous()
        dist.broadcast(here, 0)
        return here

    # -- modules on meta -----------------------------------------------------------------------------------------

    def _fill(self, module: nn.Module, deferred: list[Deferred]) -> None:
        """Allocate the shards of modules on ``meta`` and initialize them as process 0 would."""

        def allocate(tensor: Tensor) -> Tensor:
            if not tensor.is_meta or not isinstance(tensor, DTensor):  # buffers are made whole
                return tensor
            return torch.empty_like(tensor, device=HOST if self.cpu_offload else self.device)

        module._apply(allocate)  # type: ignore[no-untyped-call]
        own = get_host_rng_state()
        holder = [own]
        dist.broadcast_object_list(holder, 0)
        set_host_rng_state(holder[0])
        initialize(deferred, self.init_fn, self.device)
        if not torch.equal(own["torch"], holder[0]["torch"]):
            set_host_rng_state(own)


def _undivided(part: nn.Module) -> Iterator[nn.Module]:
    """``part`` and its submodules, except those that are sharded separately, or already."""
    if isinstance(part, FSDPModule):
        return
    yield part
    for child in part.children():
        yield from _undivided(child)


def _recompute(part: nn.Module) -> None:
    """Let the backward pass recompute the forward pass of ``part``."""
    forward = part.forward

    def forward_kept_by_its_inputs(*args: Any, **kwargs: Any) -> Any:
        return recomputed(forward, *args, use_reentrant=False, **kwargs)

    part.forward = forward_kept_by_its_inputs


def _release(root: nn.Module, inputs: object, output: object) -> None:
    """After a forward pass without gradients: what it gathered would hide a step, or be what a hook changes in vain."""
    if not torch.is_grad_enabled():
        reshard(root)


def _watch_second_order(part: nn.Module, inputs: object, output: Any) -> None:
    """After a forward pass of a part: look at backward passes that reach its output."""
    hook_gradients(output, _refuse_second_order)


def _refuse_second_order(gradient: Tensor) -> None:
    """In a backward pass: FSDP2 releases parameters after it, and leaves out gradients that reach them later."""
    if torch.is_grad_enabled():
        raise ConfigurationError(
            "create_graph=True: gradients of a module that FSDP2 shards cannot be differentiated: torch would leave "
            "out a part of the result, without an error. Use strategy='ddp'. Or compute what needs them, such as a "
            "gradient penalty, within the forward pass of the module, and gather that as a whole: "
            "wrap_policy=lambda part: False."
        )


def _refuse_copy(module: nn.Module, memo: object) -> NoReturn:
    """What :func:`copy.deepcopy` and so :class:`torch.optim.swa_utils.AveragedModel` call for a sharded module."""
    del memo
    raise ConfigurationError(
        f"copy.deepcopy: {type(module).__name__.removeprefix('FSDP')} is sharded over the processes, and torch cannot "
        "copy it. To average weights, keep means = [p.detach().clone() for p in model.parameters()] and call "
        "mean.lerp_(p.detach(), 0.01) for each in each step, or use strategy='ddp'. For a copy of the whole model, use "
        "runtime.get_state_dict(model)."
    )
