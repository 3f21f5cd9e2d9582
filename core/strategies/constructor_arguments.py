"""The constructor arguments that all strategies have in common, in one place."""

# Not "from __future__ import annotations": the fields' types are shown in the signatures of strategies.

import inspect
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypedDict

from ..accelerators.base import Accelerator
from ..checkpoints.base import CheckpointIO
from ..environments.base import ClusterEnvironment
from ..errors import ConfigurationError, nearest, quoted
from ..precisions.base import Precision

__all__ = [
    "AllArguments",
    "ProcessGroupParts",
    "StrategyParts",
    "keyword_parameters",
    "requested_parts",
    "signature",
]


class StrategyParts(TypedDict, total=False):
    """The arguments that every strategy takes: the parts it is composed of, each as an object or by name.

    A strategy's constructor takes them as ``**parts: Unpack[StrategyParts]`` and passes them to ``super().__init__``.
    """

    accelerator: Accelerator | str | None
    """The hardware."""
    cluster_environment: ClusterEnvironment | str | None
    """Tells a process its rank, the world size, and the main address and port."""
    checkpoint_io: CheckpointIO | str | None
    """How checkpoints are written and read."""
    precision: Precision | str | None
    """The dtype policy."""
    precision_plugin: Precision | str | None
    """Lightning's name for ``precision``; one of the two."""


class ProcessGroupParts(StrategyParts, total=False):
    """The arguments that every strategy over a process group takes."""

    process_group_backend: str | None
    """The ``torch.distributed`` backend; the accelerator's own unless given."""
    timeout: timedelta
    """How long a collective may wait for the other processes."""
    start_method: str
    """How processes are started that nothing else has started."""


def requested_parts(cls: type[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The parts that the user passed to the constructor of ``cls``, by kind; those that are ``None`` are left out.

    Raises:
        ConfigurationError: An argument is unknown, or both ``precision`` and ``precision_plugin`` are given.
    """
    if unknown := sorted(arguments.keys() - StrategyParts.__annotations__.keys()):
        valid = signature(cls).parameters
        remedy = nearest(unknown[0], valid) or f" Valid: {quoted(sorted(valid))}."
        raise ConfigurationError(f"{cls.__name__}: unknown argument {quoted(unknown)}.{remedy}")
    parts = {kind: part for kind, part in arguments.items() if part is not None}
    if "precision_plugin" in parts:
        if "precision" in parts:
            raise ConfigurationError(
                f"{cls.__name__}: precision={parts['precision']!r} and precision_plugin={parts['precision_plugin']!r} "
                "are two names for one argument. Set one of them."
            )
        parts["precision"] = parts.pop("precision_plugin")
    return parts


class AllArguments:
    """The ``__signature__`` of strategies, made when that of a class is read: few are."""

    def __get__(self, strategy: object, cls: type[Any]) -> inspect.Signature:
        return signature(cls)


def signature(cls: type[Any]) -> inspect.Signature:
    """The signature of ``cls``, a strategy, with every argument that its constructor takes.

    These are the constructor's own; if it has a ``**``, also the ``extra_arguments`` of its class, and the arguments of
    the next class in the method resolution order that has a constructor.
    """
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        constructor = base.__dict__.get("__init__")
        if constructor is None or base is object:
            continue
        parameters = [*inspect.signature(constructor).parameters.values()][1:]
        further = {one.name: one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
        passes_on = any(one.kind == one.VAR_KEYWORD for one in parameters)
        if passes_on:
            further.update(base.__dict__.get("extra_arguments", {}))
        if found:  # those of a base class are passed on by name
            further = {name: one.replace(kind=one.KEYWORD_ONLY) for name, one in further.items()}
        found = {**found, **{name: one for name, one in further.items() if name not in found}}
        if not passes_on:
            break
    return inspect.Signature([*found.values()])


def keyword_parameters(fields: Mapping[str, Any]) -> dict[str, inspect.Parameter]:
    """Keyword-only parameters with these names and types, ``None`` by default."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    return {name: inspect.Parameter(name, keyword, default=None, annotation=type_) for name, type_ in fields.items()}
