"""Activation checkpointing: the parts of a model that recompute their forward pass in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from torch import nn
from torch.utils.checkpoint import checkpoint as checkpoint_by_torch

from torch_hal.errors import ConfigurationError, WrongTypeError, quoted
from torch_hal_deepspeed.config import Config
from torch_hal_deepspeed.library import part

__all__ = ["Parts", "check_parts", "recompute"]

Parts: TypeAlias = Sequence[type[nn.Module] | str]
_MARK = "_recomputed_by_deepspeed"


def check_parts(parts: object) -> None:
    """Check that ``parts`` names module classes.

    Raises:
        WrongTypeError: It is not a list of module classes or of their names.
    """
    valid = "a list of module classes or of their names"
    if not isinstance(parts, list | tuple | set | frozenset) or not parts:
        raise WrongTypeError(f"activation_checkpointing={parts!r} must be {valid}, or None.")
    for item in parts:
        if not isinstance(item, str) and not (isinstance(item, type) and issubclass(item, nn.Module)):
            raise WrongTypeError(f"activation_checkpointing: {item!r} is not a module class or its name. Give {valid}.")


def recompute(module: nn.Module, parts: Parts, config: Config) -> None:
    """Let these parts of ``module`` recompute their forward pass.

    Under stage 3 torch's function does it: DeepSpeed's own frees sharded parameters before the recomputed part has used
    them (0.19.8). It has none of the options of ``config["activation_checkpointing"]``.

    Raises:
        ConfigurationError: A class has no instance in ``module``, or the config has options under stage 3.
    """
    checkpoint = _checkpoint_function(config)
    for wanted in parts:
        found = [item for item in module.modules() if _is_a(item, wanted)]
        if not found:
            names = sorted({type(item).__name__ for item in module.modules()})
            raise ConfigurationError(
                f"activation_checkpointing: no {wanted if isinstance(wanted, str) else wanted.__name__!r} in "
                f"{type(module).__name__}. Valid: {quoted(names)}."
            )
        for item in found:
            if not hasattr(item, _MARK):
                setattr(item, _MARK, True)
                item.forward = _recomputed(checkpoint, item.forward)


def _checkpoint_function(config: Config) -> Callable[..., Any]:
    if config["zero_optimization"]["stage"] == 3:
        if options := {name for name, value in config.get("activation_checkpointing", {}).items() if value}:
            raise ConfigurationError(
                f"config['activation_checkpointing'] sets {quoted(sorted(options))}, which stage=3 does not support. "
                "Remove them, or set stage=2 or less."
            )
        return partial(checkpoint_by_torch, use_reentrant=False)
    checkpointing = part("runtime.activation_checkpointing.checkpointing")
    checkpointing.configure(None, deepspeed_config=config)
    function: Callable[..., Any] = checkpointing.non_reentrant_checkpoint
    return function


def _is_a(module: nn.Module, wanted: type[nn.Module] | str) -> bool:
    return type(module).__name__ == wanted if isinstance(wanted, str) else isinstance(module, wanted)


def _recomputed(checkpoint: Callable[..., Any], forward: Callable[..., Any]) -> Callable[..., Any]:
    def forward_kept_by_its_inputs(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            return checkpoint(lambda *inputs: forward(*inputs, **kwargs), *args)
        return checkpoint(forward, *args)

    return forward_kept_by_its_inputs
