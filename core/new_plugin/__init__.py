"""``torch-hal new-plugin``, also ``python -m core.new_plugin``: write the package of a new backend.

Importing this package imports no torch.
"""

from __future__ import annotations

from .package import write_package

__all__ = ["write_package"]
