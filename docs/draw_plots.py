"""Draws the plots of the site from the tables that benchmarks have written: ``draw_pictures.py`` calls it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from svg import Picture, bars

__all__ = ["plots"]

ROOT = Path(__file__).parents[1]


def plots() -> Iterator[tuple[str, Picture]]:
    """Each plot with its name."""
    strategies = ROOT / "docs" / "strategies.md"
    processes = ("1 process", "2 processes", "4 processes")
    rows = [(label(row[0]), [number(value) for value in row[2:5]]) for row in table(strategies, "memory")]
    yield "memory", bars("Held by each process: parameters, gradients, Adam's state", "MB", processes, rows)
    rows = [(label(row[0]), [number(row[2]), number(row[5])]) for row in table(strategies, "traffic")]
    rows = [row for row in rows if row[1][0] is not None]
    yield "traffic", bars("Sent by each process in a step", "MB", processes[1:], rows)
    rows = [(label(row[0]), [number(row[1])]) for row in table(ROOT / "docs" / "checkpoints.md", "async saves")]
    yield "async-save", bars("Training waits for a checkpoint of 500 MB", "seconds", ("",), rows)
    performance = ROOT / "docs" / "performance.md"
    rows = [(row[0], [float(row[2])]) for row in table(performance, "overhead") if row[0] != "plain loop"]
    yield "overhead", bars("Beyond the loop written by hand", "microseconds a step", ("",), rows)
    rows = [(row[0], [number(row[1])]) for row in table(performance, "listing")]
    yield "listing", bars("A listing at 500 installed distributions", "milliseconds, median", ("",), rows)
    network = (ROOT / "plugins" / "bagua" / "README.md").read_text("utf-8").partition("link rate 100mbit")[2]
    rows = [(name, [float(value) / 1000]) for name, value in re.findall(r"^\| ([^|]+) \| (\d+) \|", network, re.M)[:9]]
    yield (
        "slow-network",
        bars("A step on four machines, 100 Mbit/s, 42 MB of parameters", "seconds, median", ("",), rows),
    )
    grown: dict[str, list[float | None]] = {}
    for n, _, _, _, asked, *_ in table(ROOT / "docs" / "scale.md", "requests"):
        grown.setdefault(f"{n} ranks", []).append(number(asked.replace(",", "")))
    phases = ("start", "notes", "teardown")
    yield "requests", bars("Asked of the store by all ranks together", "requests", phases, list(grown.items()))
    rows = [
        (f"{row[0]} processes", [number(row[1]), number(row[2]), number(row[3])])
        for row in table(ROOT / "docs" / "scale.md", "processes")
        if len(row) == 6
    ]
    yield "processes", bars("With real processes on one machine", "seconds", ("start", "save", "save_state"), rows)
    rows = [
        (f"{row[0]} checkpoints", [number(row[3]), number(row[4])])
        for row in table(performance, "saves")
        if len(row) == 5 and row[0][0].isdigit()
    ]
    yield "many-checkpoints", bars("In a folder with many checkpoints", "milliseconds", ("latest", "save"), rows)


def table(page: Path, name: str) -> list[list[str]]:
    """The rows of the table between the comments ``name:begin`` and ``name:end`` of a page."""
    text = page.read_text("utf-8").partition(f"<!-- {name}:begin -->")[2].partition(f"<!-- {name}:end -->")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def label(cell: str) -> str:
    """A row's name, short."""
    text = (
        cell.replace("`", "").replace("checkpoint_io=", "").replace("'", "").replace("parameters released", "released")
    )
    text = re.sub(
        r"\w+=\"?(\w+)\"?", lambda found: found[1] if found[1] not in ("True", "False", "0") else found[0], text
    )
    text = text.replace("ddp, ddp_spawn, ddp_fork, ddp_notebook", "ddp").replace(
        "deepspeed_stage_2, deepspeed", "deepspeed_stage_2"
    )
    text = text.replace("gradient_as_bucket_view=True", "views of buckets").replace(
        "reshard_after_forward=False", "no reshard"
    )
    text = text.replace("bagua, bagua_gradient_allreduce", "bagua_gradient_allreduce").replace(" of rank 1", "")
    return text.replace("low_precision_decentralized", "low_precision_dec…") if len(text) > 36 else text


def number(cell: str) -> float | None:
    """A value of a table; the sum where device and host are given apart."""
    values = re.findall(r"[\d.]+", cell)
    return sum(map(float, values)) if values else None
