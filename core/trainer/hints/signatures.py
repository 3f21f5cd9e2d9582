"""Hooks that cannot be called as the Trainer calls them: refused before a run begins, and not after an epoch of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ...errors import ConfigurationError

__all__ = ["check_signatures"]

_OTHERS = (
    *("setup", "teardown", "prepare_data", "configure_optimizers", "configure_callbacks", "configure_model"),
    *("configure_gradient_clipping", "lr_scheduler_step", "optimizer_step", "optimizer_zero_grad"),
    *("training_epoch_end", "validation_epoch_end", "test_epoch_end"),
    *("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader", "state_dict"),
)
"""What the Trainer calls besides the ``on_…``. Steps may leave out an argument; they are checked elsewhere."""


def check_signatures(argument: str, given: Any, base: type[Any]) -> None:
    """Check that each hook that ``given`` overrides takes the arguments of the one in ``base``.

    Args:
        argument: What the user passed ``given`` as.
        given: A module, a callback or a DataModule.
        base: The class that declares the hooks.

    Raises:
        ConfigurationError: A hook cannot be called.
    """
    kind = type(given)
    for name in dir(base):
        declared, own = getattr(base, name), getattr(kind, name, None)
        if not (name.startswith("on_") or name in _OTHERS) or own in (None, declared) or not callable(declared):
            continue
        parameters = list(inspect.signature(declared).parameters.values())[1:]
        arguments = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        if len(arguments) == len(parameters) and (signature := _signature(getattr(given, name, None))) is not None:
            _check(f"{argument}: {kind.__name__}.{name}", signature, name, arguments)


def _signature(hook: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(hook) if isinstance(hook, Callable) else None  # type: ignore[arg-type]
    except ValueError:  # not every callable has one
        return None


def _check(subject: str, signature: inspect.Signature, name: str, arguments: list[str]) -> None:
    # The number of the loader is passed by name, and only to hooks of evaluation that have it.
    is_evaluation = name.endswith(("_batch_start", "_batch_end")) and not name.startswith("on_train_")
    own = {"dataloader_idx": 0} if "dataloader_idx" in signature.parameters and is_evaluation else {}
    given = [each for each in arguments if each != "dataloader_idx" or not is_evaluation]
    try:
        signature.bind(*given, **own)
    except TypeError as error:
        raise ConfigurationError(
            f"{subject}{signature} is called with ({', '.join(given)}): {error}. Define it as "
            f"{name}({', '.join(['self', *arguments])})."
        ) from None
