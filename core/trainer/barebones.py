"""The argument ``barebones``: a run with nothing but the training itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import ConfigurationError, WrongTypeError

__all__ = ["without_extras"]

OFF: Mapping[str, Any] = {
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": False,
    "num_sanity_val_steps": 0,
}
"""What ``barebones`` turns off, and how."""

CONTRADICTIONS: Mapping[str, Any] = {
    "log_every_n_steps": None,
    "fast_dev_run": False,
    "detect_anomaly": False,
    "profiler": None,
}
"""Arguments that ask for what ``barebones`` leaves out, and their defaults."""


def without_extras(barebones: bool, **given: Any) -> dict[str, Any]:
    """The arguments in :data:`OFF`: turned off by ``barebones``, otherwise as the user gave them.

    Args:
        barebones: The argument.
        **given: Those in :data:`OFF` and :data:`CONTRADICTIONS`.

    Raises:
        WrongTypeError: ``barebones`` is neither true nor false.
        ConfigurationError: An argument asks for what is left out.
    """
    if not isinstance(barebones, bool):
        raise WrongTypeError(f"barebones={barebones!r}: must be True or False.")
    if not barebones:
        return {name: given[name] for name in OFF}
    for name, value in given.items():
        allowed = (None, OFF[name]) if name in OFF else (CONTRADICTIONS[name],)
        if not any(value is one or (type(value) is type(one) and value == one) for one in allowed):
            raise ConfigurationError(
                f"barebones=True and {name}={value!r}: a barebones run has no checkpoints, logger, progress bar, model "
                "summary, sanity check, profiler or other tools to find errors. Remove one of the two."
            )
    return dict(OFF)
