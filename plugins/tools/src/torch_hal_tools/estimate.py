"""The verb ``torch-hal estimate``: show how much memory a training needs on each device."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import attrs

from torch_hal.commands.verb_parser import VerbParser, one_of
from torch_hal.errors import CoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .memory_rows import Row

__all__ = ["main"]

_COLUMNS = (
    "STRATEGY",
    "PRECISION",
    "DEVICES",
    "PARAMETERS",
    "GRADIENTS",
    "OPTIMIZER",
    "BUCKETS",
    "ACTIVATIONS",
    "PEAK",
)


def main(arguments: Sequence[str] | None = None, program: str = "python -m torch_hal_tools.estimate") -> int:
    """Print the table; returns the exit code: 0, or 2 if there is no model to be found.

    Args:
        arguments: The command line without the program's name; this process's own by default.
        program: How the user called this command, for messages.
    """
    from .memory_rows import PRECISIONS, STRATEGIES, estimate
    from .model_source import find_source, read_batch, read_values

    parser = VerbParser(
        program,
        description="Show the bytes that each process of a training holds, for each strategy and precision: "
        "parameters, gradients, optimizer state, buckets, activations, and the most at any time of a step. A class is "
        "made without memory, and steps are taken without any. A script runs until it calls Trainer.fit or "
        "Runtime.prepare.",
        epilog="examples:\n"
        f"  {program} --devices 8 train.py\n"
        f"  {program} my_package.nets:Net --init width=4096 --batch 8x4096",
        starts_script=True,
    )
    parser.add_argument("--devices", metavar="N", type=int, default=2, help="number of processes (default: 2)")
    parser.add_argument(
        "--strategy", metavar="NAME", action="append", type=one_of(STRATEGIES), help="only this one; may be repeated"
    )
    parser.add_argument(
        "--precision", metavar="NAME", action="append", type=one_of(PRECISIONS), help="only this one; may be repeated"
    )
    parser.add_argument(
        "--init", metavar="NAME=VALUE", action="append", default=[], help="an argument of the class; may be repeated"
    )
    parser.add_argument(
        "--batch",
        metavar="SIZES[:DTYPE]",
        action="append",
        default=[],
        help="a tensor of a batch, such as 32x784 or 32:int64; may be repeated (default: of the loader)",
    )
    parser.add_argument(
        "--optimizer", metavar="NAME", default="Adam", help="of torch.optim, if the model makes none (default: Adam)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "target", metavar="SCRIPT|MODULE:CLASS", help="a script, file.py:Class, or package.module:Class"
    )
    parser.add_argument("arguments", metavar="ARGUMENT", nargs="...", help="of the script")
    options = parser.read(arguments)
    if options.devices < 1:
        parser.error(f"argument --devices: {options.devices} is not a number from 1")
    try:
        source = find_source(options.target, read_values(options.init), options.arguments, read_batch(options.batch))
        rows = estimate(
            source,
            options.devices,
            options.strategy or STRATEGIES,
            options.precision or list(PRECISIONS),
            options.optimizer,
        )
    except CoreError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 2
    for note in source.notes:
        sys.stderr.write(f"{program}: {note}\n")
    if options.json:
        facts = {"schema": 1, "notes": source.notes, "rows": [attrs.asdict(row) for row in rows]}
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
    else:
        sys.stdout.write(_text(rows))
    return 0


def _text(rows: Sequence[Row]) -> str:
    lines = [list(_COLUMNS), *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines if column < len(line)) for column in range(len(_COLUMNS))]
    shown = []
    for line in lines:
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=False))
        ]
        shown.append("  ".join([*cells, *line[len(_COLUMNS) :]]).rstrip())
    return "\n".join(shown) + "\n"


def _cells(row: Row) -> list[str]:
    """The cells of a row; a remark after the last column."""
    begin = [row.strategy, row.precision, str(row.devices)]
    if row.problem:
        return [*begin, *[""] * 6, row.problem]
    figures = (row.parameters, row.gradients, row.optimizer, row.buckets, row.activations)
    peak = f"{'' if row.activations is not None else '> '}{_size(row.peak)}"
    return [*begin, *map(_size, figures), peak, *(["by formula"] if row.source == "formula" else [])]


def _size(size: float | None) -> str:
    if size is None:
        return "?"
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}" if size < 100 else f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


if __name__ == "__main__":
    sys.exit(main())
