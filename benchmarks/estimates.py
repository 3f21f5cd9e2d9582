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
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pages import write_between
from torch_hal_tools.memory_rows import PRECISIONS, STRATEGIES

HERE = Path(__file__).parent
MODELS = ("perceptron", "convolutions", "transformer", "embeddings", "recurrent")
PROCESSES = 2
BAR = 0.1
"""The relative difference up to which an estimate counts as met."""

Figures = dict[str, int]
"""Measured bytes, by model, strategy and precision."""


def measure(cells: list[str], processes: int, seconds: float) -> Figures:
    """The most bytes that process 0 holds in the last step of each training, which follow one another.

    Args:
        cells: Each a model, a strategy and a precision.
        processes: Number of processes.
        seconds: After which the rest is given up.
    """
    with socket.socket() as free, tempfile.TemporaryDirectory() as directory:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        out = Path(directory) / "measured.json"
        command = [sys.executable, str(HERE / "estimates_worker.py"), str(processes), str(out), *cells]
        running = [
            subprocess.Popen(
                command,
                env=os.environ | _ranks(rank, processes, port),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for rank in range(processes)
        ]
        end, printed = time.monotonic() + seconds, ""
        try:
            for process in running:
                printed = process.communicate(timeout=max(end - time.monotonic(), 1))[0].decode()
        except subprocess.TimeoutExpired:
            printed = f"not finished after {seconds:.0f} s"
        finally:
            for process in running:
                process.kill()
                process.wait()
        if any(process.returncode for process in running):
            print(f"{cells[0]} and the next: {printed[-3000:]}", file=sys.stderr)
        figures: Figures = json.loads(out.read_text()) if out.exists() else {}
        return figures


def _ranks(rank: int, processes: int, port: int) -> dict[str, str]:
    common = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if processes == 1:
        return common
    return common | {
        "RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(processes),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def estimates(model: str) -> dict[str, dict[str, Any]]:
    """What the command says of a model, by strategy and precision."""
    command = [sys.executable, "-m", "core", "estimate", "--devices", str(PROCESSES), "--json"]
    done = subprocess.run(
        [*command, f"{HERE / 'estimates_worker.py'}:{model}"], check=True, stdout=subprocess.PIPE, text=True
    )
    return {f"{row['strategy']} {row['precision']}": row for row in json.loads(done.stdout)["rows"]}


def table(estimated: dict[str, dict[str, dict[str, Any]]], figures: Figures, strategies: list[str]) -> str:
    """The table, as Markdown."""
    met = sum(abs(_off(estimated, key, measured)) <= BAR for key, measured in figures.items())
    missing = len(estimated) * len(PRECISIONS) * len(strategies) - len(figures)
    left = f" {missing} are not measured yet: their cells have the estimate alone." if missing else ""
    lines = [
        f"Estimated and measured peak, MB, in each of {PROCESSES} processes (`single_device`: in its one); torch "
        f"{version('torch')}, deepspeed {version('deepspeed')}, Python {platform.python_version()}, CPU. "
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
    """Estimate, measure, compare and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS, metavar="MODEL")
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=STRATEGIES, metavar="STRATEGY")
    parser.add_argument("--figures", type=Path, help="file of measurements; its runs are not repeated")
    parser.add_argument(
        "--seconds", type=float, default=3600, help="for all measurements; what is left is not measured"
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page to write the table to")
    arguments = parser.parse_args()
    known = arguments.figures and arguments.figures.exists()
    kept: Figures = json.loads(arguments.figures.read_text()) if known else {}
    figures: Figures = {}
    end = time.monotonic() + arguments.seconds
    for strategy in arguments.strategies:
        cells = [f"{model} {strategy} {precision}" for model in arguments.models for precision in PRECISIONS]
        left = [cell for cell in cells if cell not in kept]
        if left and time.monotonic() < end:
            kept |= measure(left, 1 if strategy == "single_device" else PROCESSES, end - time.monotonic())
            if arguments.figures:
                arguments.figures.write_text(json.dumps(kept, indent=1))
        figures |= {cell: kept[cell] for cell in cells if cell in kept}
    estimated = {model: estimates(model) for model in arguments.models}
    for cell, measured in figures.items():
        model, _, rest = cell.partition(" ")
        print(f"{cell}: {estimated[model][rest]['peak'] / 1e6:.1f} estimated, {measured / 1e6:.1f} measured")
    text = table(estimated, figures, arguments.strategies)
    print(text)
    if arguments.write:
        write_between(arguments.write, "estimates", text)


if __name__ == "__main__":
    main()
