"""The command line of a training script: ``CLI(MyModule, MyData)``.

It needs jsonargparse: ``pip install 'torch-hal[cli]'``.
"""

from __future__ import annotations

from ..utilities.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .command_line import CLI, SaveConfigCallback
    from .parser import ArgumentParser

__all__ = ["ArgumentParser", "CLI", "SaveConfigCallback"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ArgumentParser": "torch_hal.cli.parser",
        "CLI": "torch_hal.cli.command_line",
        "SaveConfigCallback": "torch_hal.cli.command_line",
    },
)
