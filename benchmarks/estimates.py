"""Compares what ``torch-hal estimate`` says with the bytes that trainings hold, and writes the table of docs/memory.md.

    python benchmarks/estimates.py --write docs/memory.md
    python benchmarks/estimates.py --models perceptron --strategies fsdp

Runs with plugins/tools and the engines installed, as ``nox -s estimates`` does. Each training takes three steps on the
CPU; torch's profiler says how many bytes its allocator has given out, and the most of the last step counts. What an
engine allocates past torch, such as gloo's buffers, is not in it.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pages import versions, write_between
from processes import run_ranks
from torch_hal_tools.memory_rows import PRECISIONS, STRATEGIES

WORKER = Path(__file__).with_name("estimates_worker.py")
MODELS = ("perceptron", "convolutions", "transformer", "embeddings", "recurrent")
PROCESSES = 2
BAR = 0.1
"""The relative difference up to which an estimate counts as met."""

Figures = dict[str, int]
"""Measured bytes, by model, strategy and precision."""


def measure(cells: list[str], processes: int) -> Figures:
    """The most bytes that process 0 holds in the last step of each training, which follow one another.

    Args:
        cells: Each a model, a strategy and a precision.
        processes: Number of processes.
    """
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "measured.json"
        if printed := run_ranks([WORKER, processes, out, *cells], processes, seconds=3600):
            print(f"{cells[0]} and the next: {printed}", file=sys.stderr)
        figures: Figures = json.loads(out.read_text()) if out.exists() else {}
        return figures


def estimates(model: str) -> dict[str, dict[str, Any]]:
    """What the command says of a model, by strategy and precision."""
    command = [sys.executable, "-m", "core", "estimate", "--devices", str(PROCESSES), "--json"]
    done = subprocess.run([*command, f"{WORKER}:{model}"], check=True, stdout=subprocess.PIPE, text=True)
    return {f"{row['strategy']} {row['precision']}": row for row in json.loads(done.stdout)["rows"]}


def table(estimated: dict[str, dict[str, dict[str, Any]]], figures: Figures, strategies: list[str]) -> str:
    met = sum(abs(_off(estimated, key, measured)) <= BAR for key, measured in figures.items())
    missing = len(estimated) * len(PRECISIONS) * len(strategies) - len(figures)
    left = f" {missing} are not measured yet: their cells have the estimate alone." if missing else ""
    lines = [
        f"Estimated and measured peak, MB, in each of {PROCESSES} processes (`single_device`: in its one); "
        f"{versions('torch', 'deepspeed')}, Python {platform.python_version()}, CPU. "
        f"{met} of {len(figures)} estimates are within {BAR:.0%}; the others are in bold.{left}",
        "",
        f"| model | precision | {' | '.join(f'`{name}`' for name in strategies)} |",
        "|---|---|" + "---|" * len(strategies),
    ]
    for model, rows in estimated.items():
        for precision in PRECISIONS:
            cells = []
            for strategy in strategies:
                key = f"{model} {strategy} {precision}"
                estimate = f"{rows[f'{strategy} {precision}']['peak'] / 1e6:.1f}"
                if key not in figures:
                    cells.append(f"{estimate} / ?")
                    continue
                text = f"{estimate} / {figures[key] / 1e6:.1f}"
                off = _off(estimated, key, figures[key])
                cells.append(f"{text}, {off:+.0%}" if abs(off) <= BAR else f"**{text}, {off:+.0%}**")
            lines.append(f"| {model} | {precision} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _off(estimated: dict[str, dict[str, dict[str, Any]]], key: str, measured: int) -> float:
    model, _, rest = key.partition(" ")
    return float(estimated[model][rest]["peak"] / measured - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS, metavar="MODEL")
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=STRATEGIES, metavar="STRATEGY")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page to write the table to")
    arguments = parser.parse_args()
    figures: Figures = {}
    for strategy in arguments.strategies:
        cells = [f"{model} {strategy} {precision}" for model in arguments.models for precision in PRECISIONS]
        figures |= measure(cells, 1 if strategy == "single_device" else PROCESSES)
    estimated = {model: estimates(model) for model in arguments.models}
    text = table(estimated, figures, arguments.strategies)
    print(text)
    if arguments.write:
        write_between(arguments.write, "estimates", text)


if __name__ == "__main__":
    main()
