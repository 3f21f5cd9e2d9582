"""Recognizing models of the PEFT library."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["is_peft_model"]


def is_peft_model(model: Any) -> bool:
    """Whether ``model``, prepared or not, is a ``peft.PeftModel``; without that library no model is one."""
    peft: Any = sys.modules.get("peft")  # a model of a library that was not imported cannot exist
    while not hasattr(peft, "PeftModel") or not isinstance(model, peft.PeftModel):
        if peft is None or not hasattr(model, "module"):
            return False
        model = model.module  # what torch's own wrappers wrap
    return True
