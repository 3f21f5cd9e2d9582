"""Select parts of a module by class, by size, by the model's own list, or as repeated blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import nn

from torch_hal.errors import ConfigurationError, WrongTypeError, quoted

__all__ = ["Selection", "check_selection", "post_order", "select"]

Selection = str | int | Sequence[type[nn.Module] | str] | Callable[[nn.Module], bool]
"""``"blocks"``, ``"model"``, a number of parameters, classes or their names, or a function of a module."""

ARGUMENTS = ("blocks", "model")
VALID = (
    "'blocks', 'model' (its _no_split_modules), a number of parameters from 1, a list of module classes or their "
    "names, or a function of a module that returns a bool"
)


def check_selection(argument: str, selection: object) -> None:
    """Check that ``selection`` is a :data:`Selection`.

    Raises:
        ConfigurationError: A name is unknown, a number is below 1, or a list is empty.
        WrongTypeError: It has the wrong type.
    """
    if isinstance(selection, str):
        if selection not in ARGUMENTS:
            raise ConfigurationError(f"{argument}={selection!r} is unknown. Valid: {VALID}.")
    elif isinstance(selection, int) and not isinstance(selection, bool):
        if selection < 1:
            raise ConfigurationError(f"{argument}={selection!r} is not a valid number of parameters. Valid: {VALID}.")
    elif isinstance(selection, Sequence):
        if not selection:
            raise ConfigurationError(f"{argument}={selection!r} is empty. Valid: {VALID}.")
        if not all(isinstance(item, str) or _is_module_class(item) for item in selection):
            raise WrongTypeError(f"{argument}={selection!r} has the wrong type. Valid: {VALID}.")
    elif not callable(selection) or _is_module_class(selection):
        raise WrongTypeError(f"{argument}={selection!r} has the wrong type. Valid: {VALID}.")


def select(argument: str, root: nn.Module, selection: Selection) -> list[nn.Module]:
    """The parts of ``root`` that ``selection`` selects, inner ones first; never ``root`` itself or bare containers.

    Raises:
        ConfigurationError: The model does not name its layer classes, or a class is not in it.
    """
    inner = [module for module in post_order(root) if module is not root and _has_forward(module)]
    if isinstance(selection, str):
        return _blocks(root) if selection == "blocks" else _named(argument, inner, _own_list(argument, root))
    if isinstance(selection, int):
        return _by_size(inner, selection)
    if isinstance(selection, Sequence):
        return _named(argument, inner, selection)
    return [module for module in inner if selection(module)]


def post_order(root: nn.Module) -> list[nn.Module]:
    """``root`` and all its submodules once, children before parents: the order in which they were made."""
    found: dict[int, nn.Module] = {}

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if id(child) not in found:
                visit(child)
        found.setdefault(id(module), module)

    visit(root)
    return list(found.values())


def _blocks(root: nn.Module) -> list[nn.Module]:
    """The outermost modules with parameters whose class is repeated in one list, dict or sequence of modules."""
    blocks: dict[int, nn.Module] = {}

    def visit(module: nn.Module) -> None:
        children = [child for child in module.children() if any(True for _ in child.parameters())]
        repeats = isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
        classes = [type(child) for child in children]
        for child in children:
            if repeats and classes.count(type(child)) > 1 and _has_forward(child):
                blocks.setdefault(id(child), child)
            else:
                visit(child)

    visit(root)
    return list(blocks.values())


def _by_size(inner: Iterable[nn.Module], size: int) -> list[nn.Module]:
    """The smallest modules with at least that many parameters."""
    chosen: list[nn.Module] = []
    taken: set[int] = set()
    for module in inner:
        left = {id(parameter): parameter.numel() for parameter in module.parameters() if id(parameter) not in taken}
        if sum(left.values()) >= size:
            chosen.append(module)
            taken |= left.keys()
    return chosen


def _named(argument: str, inner: Iterable[nn.Module], classes: Sequence[type[nn.Module] | str]) -> list[nn.Module]:
    names = {item for item in classes if isinstance(item, str)}
    types = tuple(item for item in classes if not isinstance(item, str))
    inner = list(inner)
    absent = sorted(names - {type(module).__name__ for module in inner})
    absent += [kind.__name__ for kind in types if not any(isinstance(module, kind) for module in inner)]
    if absent:
        there = sorted({type(module).__name__ for module in inner})
        raise ConfigurationError(f"{argument}: the model has no {quoted(absent)}. Valid: {quoted(there)}.")
    return [module for module in inner if type(module).__name__ in names or isinstance(module, types)]


def _own_list(argument: str, root: nn.Module) -> list[str]:
    """The classes in the ``_no_split_modules`` of ``root`` and its parts, without those that do not occur."""
    there = {type(module).__name__ for module in root.modules()}
    said = {name for module in root.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    if not said & there:
        raise ConfigurationError(
            f"{argument}='model': no part of the model has a _no_split_modules that names one of its classes. Valid: "
            f"{VALID}."
        )
    return sorted(said & there)


def _has_forward(module: nn.Module) -> bool:
    return not isinstance(module, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict)


def _is_module_class(item: object) -> bool:
    return isinstance(item, type) and issubclass(item, nn.Module)
