"""The generator of the package of a new backend: the verb ``new-plugin`` of torch-hal.

Importing this package imports no torch.
"""

from __future__ import annotations

from torch_hal_devkit.new_plugin.package import write_package

__all__ = ["write_package"]
