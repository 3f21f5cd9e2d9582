"""``python -m core.new_plugin``: a complete package for a backend of one's own, to be filled in.

Importing this package imports no torch.
"""

from __future__ import annotations

from core.new_plugin.package import write_package

__all__ = ["write_package"]
