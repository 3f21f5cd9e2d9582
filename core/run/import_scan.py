"""A look at a script's imports: if it imports core at once, its processes start with SIGINT blocked."""

from __future__ import annotations

import ast
from pathlib import Path

from .options import Options

__all__ = ["imports_core"]

_NAMES = ("core", "torch_hal")


def imports_core(options: Options) -> bool:
    """Whether the script that ``options`` names has an import of core that is always run; false if that is unknown.

    A script that never imports core would not see Ctrl-C. It keeps Python's own handling.
    """
    script = Path(options.script)
    if options.is_module or options.is_program or any(_is_other(script.parent / name) for name in _NAMES):
        return False
    try:
        body = ast.parse(script.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    names = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in body if isinstance(node, ast.ImportFrom) and not node.level]
    return any(name.partition(".")[0] in _NAMES for name in names)


def _is_other(package: Path) -> bool:
    """Whether a script next to it imports ``package`` in place of the installed one."""
    return package.exists() or package.with_suffix(".py").exists()
