"""Spec -> live object."""

from __future__ import annotations

from typing import Any

from core.discovery.loading import describe
from core.errors import BackendError, CoreError
from core.specs import BackendSpec

__all__ = ["construct"]


def construct(spec: BackendSpec, cls: type[Any], **more: Any) -> Any:
    """An instance of ``cls``, which ``spec`` is about, with the arguments and under the name that the spec gives.

    Args:
        spec: The backend's description.
        cls: Its target, imported.
        **more: Further arguments for the class.

    Raises:
        CoreError: The class refuses what it is called with.
    """
    try:
        part = cls(**more, **spec.init_args)
        part.name = spec.name
    except CoreError:
        raise
    except (Exception, SystemExit) as error:  # a backend's class may raise anything; it is the cause shown
        arguments = ", ".join(f"{name}={value!r}" for name, value in spec.init_args.items())
        raise BackendError(
            f"{spec.kind} {spec.name!r} is broken: {cls.__qualname__}({arguments}) raises {describe(error)}"
        ) from error
    return part
