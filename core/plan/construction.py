"""Spec -> live object."""

from __future__ import annotations

from typing import Any

from ..discovery.loading import describe
from ..errors import BackendError, CoreError
from ..specs import BackendSpec

__all__ = ["construct"]


def construct(spec: BackendSpec, cls: type[Any], **more: Any) -> Any:
    """Create an instance of ``cls`` with the spec's arguments, and name it after the spec.

    Args:
        spec: The backend's description.
        cls: Its imported target.
        **more: Further constructor arguments.

    Raises:
        CoreError: The class rejects its arguments.
        BackendError: The class raises anything else.
    """
    try:
        part = cls(**more, **spec.init_args)
        part.name = spec.name
    except CoreError:
        raise
    except (Exception, SystemExit) as error:  # a backend's class may raise anything
        arguments = ", ".join(f"{name}={value!r}" for name, value in spec.init_args.items())
        raise BackendError(
            f"{spec.kind} {spec.name!r} is broken: {cls.__qualname__}({arguments}) raises {describe(error)}"
        ) from error
    return part
