"""``python -m core.explain``: the Plan that these words give here, with the reason for each choice."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from core.errors import CoreError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the Plan; 0, or 2 with the error where the words give none."""
    parser = argparse.ArgumentParser(prog="python -m core.explain", description=__doc__)
    for word, meaning in (
        ("accelerator", "hardware, by name"),
        ("strategy", "way of distributing, by name"),
        ("devices", "count, indices, or 'auto'"),
        ("num-nodes", "number of machines"),
        ("precision", "dtype policy, by name"),
        ("checkpoint-io", "checkpoint format, by name"),
        ("cluster-environment", "cluster, by name"),
    ):
        parser.add_argument(f"--{word}", default="auto", help=f"{meaning} (default: auto)")
    parser.add_argument("--json", action="store_true", help="print the Plan as JSON")
    words = vars(parser.parse_args(arguments))
    as_json = words.pop("json")
    from core.plan import Request, resolve

    try:
        plan = resolve(Request.read(**words))
    except CoreError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2
    sys.stdout.write((plan.to_json(indent=2) if as_json else str(plan)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
