"""Measures the bytes that each process of a mesh holds, and compares the losses with one process's.

    python benchmarks/meshes.py --write docs/strategies.md
    python benchmarks/meshes.py --only tensor=4

Runs with torch-hal-parallel installed, as ``nox -s meshes`` does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from meshes_worker import BATCH, LENGTH, MICROBATCHES, WIDTH, parameters_of
from pages import write_between

from core.errors import ConfigurationError

MESHES: Sequence[Mapping[str, Any]] = (
    {},
    {"data": 2},
    {"tensor": 2},
    {"pipeline": 2},
    {"context": 2},
    {"data": 4},
    {"tensor": 4},
    {"pipeline": 4},
    {"pipeline": 4, "schedule": "GPipe"},
    {"context": 4},
    {"data": 2, "tensor": 2},
    {"data": 2, "pipeline": 2},
    {"data": 2, "context": 2},
    {"tensor": 2, "pipeline": 2},
    {"tensor": 2, "context": 2},
    {"expert": 2},
)
CLOSE = 1e-5
"""The largest difference of a loss from one process's."""
KINDS = ("parameters", "gradients", "optimizer", "activations")

Found = Mapping[str, Any]
"""``losses``, and ``held``: for each process its bytes by kind."""


def run(mesh: Mapping[str, Any]) -> Found | None:
    """What the processes of a mesh found; ``None`` if it is refused."""
    processes = prod(size for size in mesh.values() if isinstance(size, int))
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "found.json"
        worker = [sys.executable, str(Path(__file__).with_name("meshes_worker.py")), json.dumps(mesh), str(processes)]
        done = subprocess.run([*worker, str(out)], capture_output=True, text=True, timeout=600, check=False)
        if done.returncode == 0:
            found: Found = json.loads(out.read_text())
            return found
    if ConfigurationError.__name__ in done.stderr and "expert" in mesh:
        return None
    raise SystemExit(f"{title(mesh)}: exit code {done.returncode}\n{done.stderr}")


def title(mesh: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={size!r}" for name, size in mesh.items()) or "one process"


def table(found: Mapping[str, Found | None]) -> str:
    one = found["one process"]
    assert one is not None
    whole = sum(one["held"][0].values())
    lines = [
        f"A transformer of eight layers with {parameters_of() / 1e6:.1f} million parameters in float32, {BATCH} texts "
        f"of {LENGTH} tokens a step for all processes together, width {WIDTH}; Adam. A pipeline has {MICROBATCHES} "
        f"microbatches. MB of the process that holds the most; torch {torch.__version__}, CPU. Not run on GPUs.",
        "",
        "| mesh | parameters | gradients | optimizer | activations | together | of one process's | loss, off by |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, result in found.items():
        if result is None:
            lines.append(f"| `{name}` | refused: torch 2.13 has none | | | | | | |")
            continue
        most = max(result["held"], key=lambda held: sum(held.values()))
        together, off = sum(most.values()), difference(result, one)
        cells = [f"{size / 1e6:.1f}" for size in (*(most[kind] for kind in KINDS), together)]
        compared = ["", ""] if result is one else [f"{together / whole:.0%}", f"{off:.0e}" if off else "0"]
        shown = name if result is one else f"`{name}`"
        lines.append(f"| {' | '.join([shown, *cells, *compared])} |")
    return "\n".join(lines)


def difference(found: Found, expected: Found) -> float:
    """The largest difference between two runs' losses."""
    pairs: zip[tuple[float, float]] = zip(found["losses"], expected["losses"], strict=True)
    return max(abs(a - b) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="MESH", help="such as 'data=2, tensor=2'")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="where the table belongs")
    options = parser.parse_args()
    known = {title(mesh): mesh for mesh in MESHES}
    unknown = set(options.only or ()) - known.keys()
    if unknown:
        parser.error(f"--only: unknown: {'; '.join(sorted(unknown))}. Known: {'; '.join(known)}")
    chosen = ["one process", *(name for name in options.only or known if name != "one process")]
    found: dict[str, Found | None] = {}
    for name in chosen:
        found[name] = run(known[name])
        print(table(found).splitlines()[-1], flush=True)
    if options.write:
        write_between(options.write, "meshes", table(found))
    one = found["one process"]
    wrong = [name for name, result in found.items() if result and one and difference(result, one) > CLOSE]
    if wrong:
        raise SystemExit(f"losses differ from one process's by more than {CLOSE:g}: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
