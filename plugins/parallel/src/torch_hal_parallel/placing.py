"""Placing a model on the mesh: finding it, rank 0's values, and which parts stay in this process."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ParallelStyle

import torch_hal
from torch_hal.errors import ConfigurationError, quoted

__all__ = ["bring", "check_alone", "find_model", "inside", "plan_for_present"]


def find_model(module: nn.Module, name: str | None) -> tuple[nn.Module, str]:
    """The model that is spread over processes, in what the front end prepares; and its name in the user's module.

    Args:
        module: What is prepared: the user's model, or what the Trainer makes of a Module.
        name: The user's choice; ``None`` for the module itself, or in a Module its only child with parameters.

    Raises:
        ConfigurationError: There is no such submodule, or a Module has several and none was chosen.
    """
    inner = getattr(module, "module", None)
    owner = inner if isinstance(inner, torch_hal.Module) else module
    if name is not None:
        try:
            return owner.get_submodule(name), name
        except AttributeError:
            names = quoted(sorted(child for child, _ in owner.named_children())[:10])
            raise ConfigurationError(
                f"model={name!r}: {type(owner).__name__} has no such module. It has {names}."
            ) from None
    if not isinstance(owner, torch_hal.Module):
        return owner, ""
    children = {child: part for child, part in owner.named_children() if any(True for _ in part.parameters())}
    if len(children) != 1:
        raise ConfigurationError(
            f"model is missing: {type(owner).__name__} has the modules {quoted(sorted(children)[:10])} with "
            "parameters. Name the one that is spread over processes, as model='name'."
        )
    ((chosen, part),) = children.items()
    return part, chosen


def check_alone(module: nn.Module, model: nn.Module, name: str, size: int, pipelined: nn.Module | None) -> None:
    """Refuse a pipeline that is not all that trains.

    Args:
        module: What is prepared.
        model: The part of it that is a pipeline.
        name: Its name in the user's module.
        size: The number of processes of the pipeline.
        pipelined: What the run has as a pipeline already.

    Raises:
        ConfigurationError: It has parameters outside of ``model``, or there is another pipeline.
    """
    if pipelined is not None and pipelined is not model:
        raise ConfigurationError(
            f"pipeline={size}: a second module was prepared. Only one module of a run can be a pipeline."
        )
    inner = {id(parameter) for parameter in model.parameters()}
    others = [own for own, parameter in module.named_parameters() if id(parameter) not in inner]
    if others:
        raise ConfigurationError(
            f"pipeline={size}: the module has parameters outside of its model {name!r}: {', '.join(others[:10])}. "
            "Move them into the model."
        )


def bring(
    module: nn.Module,
    device: torch.device,
    present: Callable[[nn.Module], bool],
    share: Callable[[Tensor], None],
    kept: Container[int] = (),
) -> None:
    """Give ``module`` the values of rank 0, on the device; parts that other processes hold get none, on ``meta``.

    Every process calls it. Parameters are replaced, not moved: an optimizer that was made before holds them until it
    follows.

    Args:
        module: With all its parameters in every process.
        device: Of this process.
        present: Whether this process holds the own tensors of a module.
        share: Overwrites a tensor with that of rank 0; every process calls it.
        kept: The ids of modules that stay as they are, since an earlier run has brought them.

    Raises:
        ConfigurationError: It is on ``meta``.
    """
    parts = {name: part for name, part in module.named_modules() if id(part) not in kept}
    on_meta = [
        f"{name}.{own}".lstrip(".")
        for name, part in parts.items()
        for own, parameter in part.named_parameters(recurse=False)
        if parameter.is_meta
    ]
    if on_meta:
        raise ConfigurationError(
            f"module: the parameters {quoted(on_meta[:10])} are on 'meta'. Create the model on the CPU, or use "
            "strategy='fsdp', which initializes such models."
        )
    taken: dict[int, nn.Parameter] = {}

    def value(tensor: Tensor, is_present: bool) -> Tensor:
        here = tensor.detach().to(device, copy=True).contiguous()
        share(here)
        return here if is_present else torch.empty_like(here, device="meta")

    for part in parts.values():
        is_present = present(part)
        for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) not in taken:
                taken[id(parameter)] = nn.Parameter(value(parameter, is_present), parameter.requires_grad)
            part._parameters[name] = taken[id(parameter)]
        for name, buffer in part.named_buffers(recurse=False, remove_duplicate=False):
            part._buffers[name] = value(buffer, is_present)


def plan_for_present(
    owner: nn.Module, plan: dict[str, ParallelStyle | str], matches: Callable[[str, str], bool], absent: Container[int]
) -> dict[str, ParallelStyle | str]:
    """``plan`` with the names of modules in this process, instead of patterns."""
    names = [name for name, module in owner.named_modules() if name and id(module) not in absent]
    return {name: style for pattern, style in plan.items() for name in names if matches(name, pattern)}


def inside(parts: Iterator[nn.Module]) -> set[int]:
    """The ids of ``parts`` and of all modules in them."""
    return {id(module) for part in parts for module in part.modules()}
