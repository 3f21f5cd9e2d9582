"""Which module ``validate``, ``test`` and ``predict`` run, and with which weights."""

from __future__ import annotations

import logging
import os
from typing import Any

from torch import nn

from core.errors import ConfigurationError
from core.logging import show
from core.trainer.plain import as_module

__all__ = ["evaluated"]

logger = logging.getLogger(__name__)


def evaluated(
    trainer: Any, stage: str, model: nn.Module | None, ckpt_path: str | os.PathLike[str] | None
) -> tuple[Any, str | os.PathLike[str] | None]:
    """``model`` as a Module, and the checkpoint to load.

    Without ``model``, the module of the trainer's last fit; its best checkpoint unless ``ckpt_path`` names another.

    Raises:
        ConfigurationError: There is no module, or no best checkpoint.
    """
    if model is not None:
        return as_module(model), ckpt_path
    last = None if trainer._finished is None else trainer._finished.module
    if last is None:
        raise ConfigurationError(
            f"{stage}: no fit of this trainer has ended, so it has no module. Pass one: trainer.{stage}(model, ...)."
        )
    if ckpt_path is None:
        best = getattr(trainer.checkpoint_callback, "best_model_path", "")
        if not best:
            raise ConfigurationError(
                f"{stage}: without a model, the best checkpoint of the last fit is loaded, and no ModelCheckpoint of "
                f"this trainer has written one. Pass the model as it is now: trainer.{stage}(model, ...)."
            )
        ckpt_path = "best"
        if trainer.is_global_zero:
            show(logger, f"{stage}: no model was passed, so the best checkpoint of the last fit is loaded: {best}")
    return last, ckpt_path
