"""Tensors sharded over a mesh of processes: for strategies whose parameters are torch's DTensors.

Importing it imports :mod:`torch.distributed.tensor`; so :mod:`core.strategies` does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from itertools import count
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.optim import LBFGS, SGD, Adafactor, Adagrad, Optimizer, Rprop
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from ..errors import ConfigurationError, WrongTypeError, quoted
from ..utilities.torch_private import local_shape_and_offset, release_groups

__all__ = [
    "FollowedParameters",
    "Plan",
    "apply_plan",
    "check_plan",
    "check_size",
    "detach_mesh",
    "find_plan",
    "like",
    "make_mesh",
    "matches",
    "put_whole",
    "to_whole",
]


def make_mesh(device_type: str, sizes: Mapping[str, int]) -> DeviceMesh:
    """All processes along dimensions of these names and sizes, the last one fastest; every process calls it.

    Groups are formed one by one: torch's own way splits the default group, which only few backends can.
    """
    names = tuple(sizes)
    if len(sizes) == 1:
        group = dist.group.WORLD
        assert group is not None  # the strategy has joined it
        return DeviceMesh.from_group(group, device_type, mesh_dim_names=names)
    ranks = torch.arange(dist.get_world_size()).reshape(tuple(sizes.values()))
    groups = [_own_group(ranks.movedim(position, -1).flatten(0, -2).tolist()) for position in range(ranks.dim())]
    return DeviceMesh.from_group(groups, device_type, mesh=ranks, mesh_dim_names=names)


def _own_group(lines: list[list[int]]) -> dist.ProcessGroup:
    groups = {rank: group for line in lines for group in [dist.new_group(line)] for rank in line}
    own: dist.ProcessGroup = groups[dist.get_rank()]
    return own


def detach_mesh(mesh: DeviceMesh) -> None:
    """Release the process groups of ``mesh``."""
    release_groups(mesh)


def check_size(argument: str, size: object, name: str | None = None) -> None:
    """Check that ``size`` can be the size of a mesh's dimension: a positive integer, or ``name``.

    Raises:
        ConfigurationError: It is neither.
    """
    if (name is not None and size == name) or (isinstance(size, int) and not isinstance(size, bool) and size >= 1):
        return
    other = "" if name is None else f", or {name!r}"
    raise ConfigurationError(f"{argument}={size!r}: must be an integer of at least 1{other}.")


def own_part(whole: Tensor, target: DTensor) -> Tensor:
    """The part of ``whole`` that this process holds of ``target``, which has its shape; a view."""
    shape, offset = local_shape_and_offset(target.shape, target.device_mesh, target.placements)
    return whole[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))]


def put_whole(target: Tensor, whole: Tensor) -> None:
    """Copy ``whole`` into ``target``, which can be sharded; no other process takes part."""
    with torch.no_grad():
        if isinstance(target, DTensor):
            target.to_local().copy_(own_part(whole, target))
        else:
            target.copy_(whole)


def to_whole(value: Tensor, device: torch.device) -> Tensor:
    """``value`` as a full tensor in every process; all processes call it.

    Args:
        value: Sharded or not.
        device: The device for communication.
    """
    if not isinstance(value, DTensor):
        return value
    local = _local(value).to(device)
    return _divided(local, value).full_tensor()


def like(target: Tensor, value: Tensor, device: torch.device) -> Tensor:
    """``value`` sharded like ``target``, of the same shape, and on its device; all processes call it.

    Args:
        target: A sharded or full tensor.
        value: Another one.
        device: The device for communication.
    """
    if not isinstance(target, DTensor):
        return to_whole(value, device)
    place = _local(target).device
    if isinstance(value, DTensor) and value.device_mesh == target.device_mesh and value.placements == target.placements:
        return _divided(_local(value).to(place), target)
    part = own_part(to_whole(value, device), target)
    return _divided(part.to(place, copy=True), target)


def _local(value: DTensor) -> Tensor:
    with torch.no_grad():
        local: Any = value.to_local()
        return getattr(local, "wait", lambda: local)()  # type: ignore[no-any-return]


def _divided(local: Tensor, layout: DTensor) -> DTensor:
    return DTensor.from_local(
        local, layout.device_mesh, layout.placements, run_check=False, shape=layout.shape, stride=layout.stride()
    )


Plan = Mapping[str, ParallelStyle | str]
"""Names of modules, with ``*`` for any, and how each is sharded."""

STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "sequence": SequenceParallel,
}
VALID = f"a mapping of module names to {quoted(STYLES)} or torch's ParallelStyle objects"


def check_plan(plan: object) -> None:
    """Check that ``plan`` is a :data:`Plan`.

    Raises:
        WrongTypeError: It is not a mapping of names to styles.
        ConfigurationError: It is empty, or a style is unknown.
    """
    if not isinstance(plan, Mapping) or not all(isinstance(name, str) for name in plan):
        raise WrongTypeError(f"tensor_parallel_plan={plan!r} must be {VALID}.")
    if not plan:
        raise ConfigurationError(f"tensor_parallel_plan={plan!r} is empty. Give {VALID}.")
    for name, style in plan.items():
        if isinstance(style, str) and style not in STYLES:
            raise ConfigurationError(f"tensor_parallel_plan[{name!r}]={style!r} is unknown. Valid: {quoted(STYLES)}.")
        if not isinstance(style, str | ParallelStyle):
            raise WrongTypeError(f"tensor_parallel_plan[{name!r}]={style!r} has the wrong type. Give {VALID}.")


def find_plan(root: nn.Module, given: Plan | None) -> tuple[nn.Module, Plan]:
    """The plan, and the module that its names are of.

    The one given is about the outermost module that has all the names in it; else the first module with an attribute
    ``tensor_parallel_plan`` says.

    Raises:
        ConfigurationError: There is none, or no module has the names in it.
        WrongTypeError: A model's own attribute is not a plan.
    """
    if given is None:
        for module in root.modules():
            plan: Any = getattr(module, "tensor_parallel_plan", None)
            if plan is not None:
                check_plan(plan)
                return _owner(module, plan), plan
        raise ConfigurationError(
            f"tensor_parallel_plan is missing: neither the strategy nor a part of the model has one. Set it to {VALID}."
        )
    return _owner(root, given), given


def apply_plan(module: nn.Module, plan: Plan, mesh: DeviceMesh) -> None:
    """Shard the layers of ``module`` that ``plan`` names over the one-dimensional ``mesh``, in place.

    Raises:
        ConfigurationError: A style that was given as a string does not divide a layer into equal shards. An object of
            torch may join shards of different sizes again, as ``output_layouts=Replicate()`` does.
    """
    styles = {name: STYLES[style]() if isinstance(style, str) else style for name, style in plan.items()}
    parallelize_module(module, mesh, styles)
    for pattern in (name for name, style in plan.items() if isinstance(style, str)):
        for layer, part in module.named_modules():
            if matches(layer, pattern):
                _check_shards(f"tensor_parallel_plan[{pattern!r}]={plan[pattern]!r}", layer, part)


def _check_shards(given: str, layer: str, part: nn.Module) -> None:
    """Reject shards of different sizes, from which the layer after this one, or a view of its output, cannot go on."""
    for name, parameter in part.named_parameters(recurse=False):
        tensor: object = parameter
        if not isinstance(tensor, DTensor):
            continue
        for place in tensor.placements:
            if not isinstance(place, Shard) or (isinstance(part, nn.Embedding) and place.dim == 0):
                continue  # sharded by rows: each process has whole outputs
            length, processes = tensor.shape[place.dim], tensor.device_mesh.size()
            if length % processes:
                raise ConfigurationError(
                    f"{given}: dimension {place.dim} of {layer}.{name}, of length {length}, does not divide into "
                    f"{processes} equal shards. Use another number of processes, or leave this layer out of the plan."
                )


def _owner(root: nn.Module, plan: Plan) -> nn.Module:
    missing: list[str] = []
    for module in root.modules():
        names = [name for name, _ in module.named_modules()]
        absent = [pattern for pattern in plan if not any(matches(name, pattern) for name in names)]
        if not absent:
            return module
        missing = missing or absent
        if len(absent) < len(missing):
            missing = absent
    raise ConfigurationError(f"tensor_parallel_plan: no module is named {quoted(missing)}. Valid: {VALID}.")


def matches(name: str, pattern: str) -> bool:
    """Whether the dotted ``name`` of a module fits ``pattern``, in which ``*`` matches any one part."""
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


class FollowedParameters:
    """For each parameter before its module was sharded, its sharded form; so optimizers made before can follow."""

    def __init__(self) -> None:
        self._followed = WeakTensorKeyDictionary()
        self._names = WeakTensorKeyDictionary()
        self._hooks: list[RemovableHandle] = []

    def __getstate__(self) -> dict[str, Any]:
        # A started process prepares its own modules; weak dictionaries cannot be pickled.
        return {"_followed": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def record(self, before: Mapping[str, nn.Parameter], module: nn.Module) -> None:
        """Remember what became of the parameters of ``module``.

        Args:
            before: Its parameters by name, duplicates included, before it was sharded.
            module: The module, sharded.
        """
        for name, parameter in module.named_parameters(remove_duplicate=False):
            self._followed[before[name]] = ref(parameter)
            self._names[parameter] = name

    def clear(self) -> None:
        """Forget all."""
        self._followed.clear()
        self._names.clear()
        while self._hooks:
            self._hooks.pop().remove()

    def form_of(self, parameter: nn.Parameter) -> nn.Parameter:
        """The sharded form of ``parameter``; itself, if its module was not sharded."""
        divided = self._followed[parameter]() if parameter in self._followed else None
        return parameter if divided is None else divided

    def follow(self, optimizer: Optimizer, strategy: str, tensor: DeviceMesh | None = None) -> None:
        """Let the groups of ``optimizer`` hold the sharded forms of their parameters.

        Args:
            optimizer: The user's, made before or after its module was sharded.
            strategy: The strategy's name, for errors.
            tensor: The processes that share the work on a batch. Of parameters outside of the plan they must have
                equal gradients, which is looked at before steps 1, 2, 4, 8 and so on.

        Raises:
            ConfigurationError: It cannot step sharded parameters, or has already stepped, or is ``foreach`` or
                ``fused`` but its parameters are on different meshes. In a step: gradients differ.
        """
        for group in optimizer.param_groups:
            followed = [self.form_of(parameter) for parameter in group["params"]]
            for new, old in zip(followed, group["params"], strict=True):
                if new is old or old not in optimizer.state:
                    continue
                entry = optimizer.state.pop(old)
                if entry.get("step", 1) > 0:  # 0: its constructor has made the state, as Adagrad's does
                    raise ConfigurationError(
                        f"optimizer {type(optimizer).__name__}: it has stepped before strategy {strategy!r} divided "
                        "its parameters. Prepare a new optimizer, then load the checkpoint."
                    )
                if not new.is_meta:  # which another process holds
                    optimizer.state[new] = {
                        name: like(new, value, new.device) if getattr(value, "shape", None) == old.shape else value
                        for name, value in entry.items()
                    }
            group["params"] = followed
            meshes = {parameter.device_mesh for parameter in followed if isinstance(parameter, DTensor)}
            if meshes:
                _check_steps_sharded(optimizer, strategy)
            has_plain = any(not isinstance(parameter, DTensor) for parameter in followed)
            if len(meshes) + (has_plain and bool(meshes)) > 1 and (group.get("foreach") or group.get("fused")):
                raise ConfigurationError(
                    f"optimizer {type(optimizer).__name__}: foreach or fused, with some parameters that "
                    "tensor_parallel_plan divides and some that it does not. Set foreach=False and fused=False."
                )
        if tensor is not None:
            steps = count(1)

            def check(*_: object) -> None:
                if (step := next(steps)) & (step - 1) == 0:
                    self._check_equal(optimizer, tensor)

            self._hooks.append(optimizer.register_step_pre_hook(check))

    def _check_equal(self, optimizer: Optimizer, mesh: DeviceMesh) -> None:
        """Refuse parameters of which each process has the gradient by its own shards only: copies would drift apart."""
        own = [one for group in optimizer.param_groups for one in group["params"] if not _is_planned(one)]
        if not own:
            return
        gradients = [_local_gradient(one).float() for one in own]
        sums = torch.stack([torch.stack([one.norm(), one.sum()]) for one in gradients]).to(mesh.device_type)
        most = torch.cat([sums, -sums], 1)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=mesh.get_group())
        apart = (most[:, :2] + most[:, 2:] > 0.01 * most[:, :1]).any(1).tolist()  # by more than rounding
        names = [self._names[one] for one, is_apart in zip(own, apart, strict=True) if is_apart and one in self._names]
        if names:
            raise ConfigurationError(
                f"tensor_parallel_plan: processes have different gradients of {quoted(names[:10])}, which are outside "
                "of the plan but work on shards of a layer in it, as a norm of each head does. Give such a module the "
                "plan SequenceParallel(sequence_dim=DIM, use_local_output=True) of torch.distributed.tensor.parallel, "
                "where DIM is the divided dimension of its input. Put a parameter that has no such module into one."
            )


def _is_planned(parameter: Tensor) -> bool:
    return isinstance(parameter, DTensor) and "tensor" in (parameter.device_mesh.mesh_dim_names or ())


def _local_gradient(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros(1)
    return _local(gradient) if isinstance(gradient, DTensor) else gradient


_NOT_SHARDED = (Adafactor, LBFGS, Rprop)
"""Their steps raise torch's error for a DTensor; that of LBFGS computes each process's own, without an error."""


def _check_steps_sharded(optimizer: Optimizer, strategy: str) -> None:
    kind = next((one.__name__ for one in _NOT_SHARDED if isinstance(optimizer, one)), None)
    if kind is not None:
        raise ConfigurationError(
            f"optimizer {kind}: its step does not work on parameters that strategy {strategy!r} shards. Use another "
            "one, such as AdamW, or strategy='ddp'."
        )
    if isinstance(optimizer, SGD | Adagrad) and any(group.get("fused") for group in optimizer.param_groups):
        raise ConfigurationError(
            f"optimizer {type(optimizer).__name__}: torch has no fused step of it for parameters that strategy "
            f"{strategy!r} shards. Leave out fused=True."
        )
