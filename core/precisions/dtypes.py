"""The dtypes of a module: default dtypes, conversions, checks of a device, and parts that stay in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BackendError, ConfigurationError, WrongTypeError, quoted
from ..utilities.nested import map_tensors

_HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class DefaultDtype:
    """A context in which ``dtype`` is torch's default dtype; the previous default is restored at the end."""

    __slots__ = ("_before", "_dtype")

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __enter__(self) -> None:
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.set_default_dtype(self._before)


def half_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The 16-bit dtype that ``dtype`` names.

    Raises:
        ConfigurationError: ``dtype`` is not float16 or bfloat16.
        WrongTypeError: ``dtype`` is neither a string nor a dtype.
    """
    if not isinstance(dtype, str | torch.dtype):
        raise WrongTypeError(f"dtype={dtype!r} must be a torch.dtype or its name, not {type(dtype).__name__}.")
    found = _HALVES.get(dtype) if isinstance(dtype, str) else dtype
    if found is None or found not in _HALVES.values():
        raise ConfigurationError(
            f"dtype={dtype!r} is not a 16-bit dtype. Valid: {quoted(_HALVES)}, or the torch.dtype."
        )
    return found


def to_floating(data: Any, dtype: torch.dtype) -> Any:
    """``data``, any nested structure, with all floating point tensors in ``dtype``."""
    return map_tensors(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, data)


def widen(data: Any, narrow: torch.dtype, wide: torch.dtype) -> Any:
    """``data``, any nested structure, with tensors of dtype ``narrow`` in ``wide``, and all others as they are."""
    return map_tensors(lambda tensor: tensor.to(wide) if tensor.dtype is narrow else tensor, data)


def require_dtype(precision: str, dtype: torch.dtype, device_type: str) -> None:
    """Check that a device of this type supports tensors of ``dtype``.

    Raises:
        BackendError: It does not.
    """
    try:
        torch.empty(1, dtype=dtype, device=device_type)
    except (RuntimeError, TypeError, AssertionError) as error:
        raise BackendError(
            f"precision={precision!r}: device type {device_type!r} does not support {dtype}: {error} Choose a "
            f"precision whose dtype the device supports, such as precision='32-true'."
        ) from error


Parts = str | type[nn.Module] | Sequence[str | type[nn.Module]]
"""Classes of modules, and names as in ``named_modules``, of which the end is enough."""


def read_parts(parts: Parts) -> tuple[str | type[nn.Module], ...]:
    """``parts`` as a tuple.

    Raises:
        WrongTypeError: One is neither a name nor a class of modules.
    """
    chosen = tuple(parts) if isinstance(parts, Sequence | set | frozenset) and not isinstance(parts, str) else (parts,)
    for part in chosen:
        if not isinstance(part, str) and not (isinstance(part, type) and issubclass(part, nn.Module)):
            raise WrongTypeError(
                f"keep_float32={parts!r}: {part!r} is neither a class of torch.nn.Module nor the name of a module."
            )
    return chosen


def find_parts(module: nn.Module, parts: tuple[str | type[nn.Module], ...]) -> list[nn.Module]:
    """The outermost of ``parts`` in ``module``.

    Raises:
        ConfigurationError: ``module`` lacks a part.
    """
    classes = tuple(part for part in parts if isinstance(part, type))
    names = [part for part in parts if isinstance(part, str)]
    found: list[nn.Module] = []
    missing: set[Any] = {*names, *classes}
    inside: set[int] = set()
    for name, one in module.named_modules():
        hits: set[Any] = {given for given in names if name == given or name.endswith(f".{given}")}
        hits |= {kind for kind in classes if isinstance(one, kind)}
        missing -= hits
        if hits and id(one) not in inside:
            found.append(one)
            inside |= {id(inner) for inner in one.modules()}
    if missing:
        shown = [part if isinstance(part, str) else part.__name__ for part in parts if part in missing]
        raise ConfigurationError(
            f"keep_float32: the module has no part {quoted(shown)}. Give names as in named_modules(), or classes. "
            f"Names here: {quoted([name for name, _ in module.named_modules() if name][:20])}."
        )
    return found


class KeptParts:
    """The parts of modules that are kept in float32, with what runs around their forward passes.

    Args:
        parts: Which they are.
        context: The context of their forward passes.
        narrow: The dtype of their floating point outputs; ``None`` leaves them in float32.
    """

    def __init__(
        self,
        parts: tuple[str | type[nn.Module], ...],
        context: Callable[[], AbstractContextManager[Any]],
        narrow: torch.dtype | None,
    ) -> None:
        self._parts, self._context, self._narrow = parts, context, narrow
        self._handles: list[Any] = []

    def convert(self, module: nn.Module, dtype: torch.dtype) -> nn.Module:
        """``module`` in place: its floating point parameters and buffers in ``dtype``, those of the parts in float32.

        Raises:
            ConfigurationError: ``module`` lacks a part, or a part shares a parameter with the rest.
        """
        kept = find_parts(module, self._parts)
        inside = {id(one) for part in kept for one in part.modules()}
        rest = [one for one in module.modules() if id(one) not in inside]
        _check_shared(kept, rest)
        for one in rest:
            _convert(one, dtype)
        for part in kept:
            for one in part.modules():
                _convert(one, torch.float32)
            around = _Around(self._context, self._narrow)
            self._handles.append(part.register_forward_pre_hook(around.before, with_kwargs=True))
            self._handles.append(part.register_forward_hook(around.after, always_call=True))
        return module

    def release(self) -> None:
        """Remove what runs around forward passes."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": []}


class _Around:
    """What runs before and after the forward pass of a part."""

    def __init__(self, context: Callable[[], AbstractContextManager[Any]], narrow: torch.dtype | None) -> None:
        self._context, self._narrow = context, narrow
        self._entered: list[AbstractContextManager[Any]] = []

    def before(self, part: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Enter the context, with inputs in float32."""
        context = self._context()
        context.__enter__()
        self._entered.append(context)
        return to_floating(args, torch.float32), to_floating(kwargs, torch.float32)

    def after(self, part: nn.Module, args: Any, output: Any) -> Any:
        """Leave the context."""
        if self._entered:
            self._entered.pop().__exit__(None, None, None)
        return output if self._narrow is None else map_tensors(partial(_narrowed, self._narrow), output)


def _narrowed(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor.to(dtype) if tensor.dtype is torch.float32 else tensor


def _convert(part: nn.Module, dtype: torch.dtype) -> None:
    """The part's own parameters and buffers, without those of its submodules."""
    part._apply(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, recurse=False)  # type: ignore[no-untyped-call]


def _check_shared(kept: Sequence[nn.Module], rest: Sequence[nn.Module]) -> None:
    outside = {id(parameter) for one in rest for parameter in one.parameters(recurse=False)}
    shared = [name for part in kept for name, own in part.named_parameters() if id(own) in outside]
    if shared:
        raise ConfigurationError(
            f"keep_float32: parameters {quoted(shared)} are shared with parts that are not kept. Keep those too."
        )
