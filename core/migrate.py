"""``python -m core.migrate``: the verb ``migrate``, which the package torch-hal-migrate provides."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .commands.verbs import run_verb

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None, program: str = "python -m core.migrate") -> int:
    """Run the verb; returns its exit code, or 2 if its package is not installed."""
    return run_verb("migrate", arguments, program)


if __name__ == "__main__":
    sys.exit(main())
