"""Write docs/everywhere.md: every front end on a device that core does not name, against the CPU.

A plugin for a simulated card is installed, and nothing else knows it. Needs Lightning, Accelerate, Transformers, TRL
and Ray; run it by ``nox -s everywhere``. Arguments: names of front ends (default: all), ``--write`` to write the page.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from everywhere_fronts import FRONTS, PRECISIONS, language_reference, mlp_reference

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "everywhere.md"
LANGUAGE = ("Transformers Trainer", "TRL SFTTrainer")
TOLERANCE = {"32-true": 1e-5, "bf16-mixed": 5e-3}
"""Relative. On two processes in bfloat16 gradients of half batches are rounded, and the reference has one batch."""
COMPUTED_IN = {"32-true": "float32", "bf16-mixed": "bfloat16"}

HEAD = """\
# Every front end

A vendor publishes one plugin, and its device works by name in the front ends that people already
have. The table is made by `nox -s everywhere` with a simulated card, `acme`, that neither torch-hal nor any of the
libraries names: the loss of the trained weights over all samples, on one card and on two, and in brackets the CPU's by
a hand-written loop (for language models, by Transformers' own Trainer), in one process with batches as large as those
of all cards together.

| front end | how |
|---|---|
| core.Trainer, core.Runtime | `Trainer(accelerator="acme", devices=2)` |
| Lightning's Trainer and Fabric | `from torch_hal_lightning import Trainer, Fabric` |
| Accelerate | `from torch_hal_accelerate import Accelerator` |
| Transformers' Trainer, TRL's SFTTrainer | `torch_hal_accelerate.activate(accelerator="acme", devices=2)` |
| the same, script unchanged | `torch-hal run --accelerator acme --devices 2 -m torch_hal_accelerate train.py` |
| Ray Train | `core.Runtime(...)` in a `TorchTrainer`, with `scaling_config(2, "acme")` of `torch_hal_ray` |
| torchrun with a plain loop | `plan.devices` and `plan.process_group_backend` of `core.plan.resolve(...)` |
| `torch-hal run` | `torch-hal run --accelerator acme --devices 2 train.py` |

"""


def train(name: str, devices: int) -> dict[str, dict[str, Any]]:
    """Run one front end; losses and dtypes by precision."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "result.json")
        script = (str(HERE / "everywhere_fronts.py"), name, str(devices), str(out))
        command: tuple[str, ...] = (sys.executable, *script)
        if name == "torch-hal run":
            command = (sys.executable, "-m", "core.run", "--accelerator", "acme", "--devices", str(devices), *script)
        if name == "torchrun, plain loop":
            launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(devices))
            command = (sys.executable, "-m", *launcher, *script)
        env = {**os.environ, "ACME_DEVICES": "2", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode or not out.exists():
            raise SystemExit(f"{name} on {devices}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        results: dict[str, dict[str, Any]] = json.loads(out.read_text())
        return results


def main() -> None:
    """Train everywhere, compare, and print or write the page."""
    names = [name for name in sys.argv[1:] if not name.startswith("-")] or list(FRONTS)
    columns = [(devices, precision) for devices in (1, 2) for precision in PRECISIONS]
    references = {
        (is_language, *column): (language_reference if is_language else mlp_reference)(*column)
        for is_language in sorted({name in LANGUAGE for name in names})
        for column in columns
    }
    titles = [f"{devices} x {precision}" for devices, precision in columns]
    lines = [f"| front end | {' | '.join(titles)} |", "|---" * (len(columns) + 1) + "|"]
    wrong: list[str] = []
    for name in names:
        cells = []
        results = {devices: train(name, devices) for devices in (1, 2)}
        for devices, precision in columns:
            loss, expected = results[devices][precision]["loss"], references[name in LANGUAGE, devices, precision]
            cells.append(f"{loss:.7f} ({expected:.7f})")
            if (computed := results[devices][precision]["computed"]) != [f"acme {COMPUTED_IN[precision]}"]:
                wrong.append(f"{name}, {devices} x {precision}: a linear layer computed in {computed}")
            if abs(loss - expected) > TOLERANCE[precision] * abs(expected):
                wrong.append(f"{name}, {devices} x {precision}: {loss} instead of {expected}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
        sys.stdout.write(lines[-1] + "\n")
        sys.stdout.flush()
    tolerances = " and ".join(f"{value:g} in {name}" for name, value in TOLERANCE.items())
    table = (
        "\n".join(lines)
        + f"""

The script fails beyond a relative difference of {tolerances}, and wherever a linear layer
of the trained model did not compute on the card in float32 or bfloat16, respectively. The loss is computed in float64.
With models as small as these, bf16-mixed changes it in the fifth to seventh digit only: TRL's on one card is the same
to seven digits by chance, while weights differ by up to 0.003.
"""
    )
    if wrong:
        raise SystemExit("\n".join(wrong))
    if "--write" in sys.argv:
        PAGE.write_text(HEAD + table, encoding="utf-8")
    else:
        sys.stdout.write(table)


if __name__ == "__main__":
    main()
