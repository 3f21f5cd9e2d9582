"""A module that stands in for ``horovod.torch`` where nothing is to be reduced."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def fake_horovod(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Puts a module in the place of ``horovod.torch``, with the given attributes."""

    def put(**attributes: Any) -> Any:
        parent, module = ModuleType("horovod"), ModuleType("horovod.torch")
        started = SimpleNamespace(yes=False)
        given: dict[str, Any] = {
            "is_initialized": lambda: started.yes,
            "init": lambda: setattr(started, "yes", True),
            "shutdown": lambda: setattr(started, "yes", False),
            "size": lambda: 1,
            "rank": lambda: 0,
            "local_rank": lambda: 0,
            "Compression": SimpleNamespace(none=None, fp16=None),
            **attributes,
        }
        for name, value in given.items():
            setattr(module, name, value)
        monkeypatch.setitem(sys.modules, "horovod", parent)
        monkeypatch.setitem(sys.modules, "horovod.torch", module)
        return module

    return put
