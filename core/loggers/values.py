"""Values that are logged: tensors become numbers, and files take numbers and text."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import BackendError, WrongTypeError


def as_mapping(name: str, values: Any) -> Mapping[str, Any]:
    """``values`` as a mapping: itself, a dataclass's fields, or an object's attributes.

    Raises:
        WrongTypeError: It is neither.
    """
    if isinstance(values, Mapping):
        return values
    if dataclasses.is_dataclass(values) and not isinstance(values, type):
        return {field.name: getattr(values, field.name) for field in dataclasses.fields(values)}
    if name == "params" and hasattr(values, "__dict__") and not isinstance(values, type):
        return dict(vars(values))
    raise WrongTypeError(f"{name}: {values!r} of type {type(values).__name__} is not a mapping of names to values.")


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with each tensor, array and numpy scalar of one element as a number; recurses into mappings."""
    return {str(name): _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return plain(value)
    elements = value.numel() if hasattr(value, "numel") else getattr(value, "size", None)
    return value.item() if elements == 1 and hasattr(value, "item") else value


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``values`` with the values of nested mappings under names such as ``outer/inner``."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            result.update(flat(value, f"{prefix}{name}/"))
        else:
            result[f"{prefix}{name}"] = value
    return result


def scalars(logger: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """``values``, flat.

    Raises:
        WrongTypeError: A value is not a number, text or ``None``.
    """
    result = flat(values)
    for name, value in result.items():
        if value is not None and not isinstance(value, bool | int | float | str):
            raise WrongTypeError(
                f"metrics[{name!r}]: {logger} writes numbers and text, not an object of type {type(value).__name__}. "
                "Log its mean, or one value for each element."
            )
    return result


def numbers(logger: str, values: Mapping[str, Any]) -> dict[str, float]:
    """Like :func:`scalars`, but text is rejected as well, and ``None``, a value that there is not yet, is left out."""
    result = {name: value for name, value in scalars(logger, values).items() if value is not None}
    for name, value in result.items():
        if isinstance(value, str):
            raise WrongTypeError(f"metrics[{name!r}]: {logger} writes numbers, not {value!r}. Log it as a parameter.")
    return result


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replace ``path`` by ``values`` as JSON; objects that JSON does not know are written as their text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(json.dumps(values, indent=2, default=str) + "\n", encoding="utf-8")
    unfinished.replace(path)


def import_package(package: str, module: str, logger: str) -> Any:
    """The module ``module`` of a logger's library.

    Raises:
        BackendError: The library is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise BackendError(f"{logger}: importing {module} failed: {error}. Repair that installation.") from error
        raise BackendError(
            f"{logger}: the package {package!r} is not installed. Run: pip install {package.replace('_', '-')}"
        ) from error
    except ImportError as error:
        raise BackendError(f"{logger}: importing {module} failed: {error}. Repair that installation.") from error


@contextmanager
def inference(model: Any) -> Iterator[None]:
    """``model`` in evaluation mode and without gradients; afterwards each part is as it was."""
    import torch

    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training
