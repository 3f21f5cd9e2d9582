"""What torch-hal does on your GPU, in at most ten minutes: tests, conformance kit, and speed next to others.

    python benchmarks/gpu.py                    # the best accelerator that is present; writes gpu.json and gpu.md
    python benchmarks/gpu.py --dry-run          # all of it in small on the CPU, to see that it works

It needs ``pip install -e . -e plugins/devkit -e plugins/migrate -e plugins/cuda``; Accelerate and Lightning take part
where they are installed. ``nox -s gpu`` installs all of them in a separate environment first. Each part is a process
with a time limit, and a part that fails is a row that says so. Nothing is sent anywhere: to publish the figures, open
a pull request with the table in ``docs/hardware.md``, or an issue with both files.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "benchmarks"
PARTS = ("tests", "kit", "training", "overlap")
HIDING = {"cuda": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}
"""By accelerator: the variable which, if it is empty, hides all devices."""
MODES = ("fp32", "bf16-mixed", "compiled")
PACKAGES = ("torch", "torch-hal", "torch-hal-cuda", "accelerate", "lightning", "triton", "numpy")


@dataclass
class Run:
    """One run of this script.

    Attributes:
        accelerator: The name or alias of the accelerator.
        dry: Everything in small, on a CPU.
        until: When all must be done, by ``time.time()``.
    """

    accelerator: str
    dry: bool
    until: float

    def command(self, share: float, *command: str | Path, cwd: Path = HERE) -> tuple[int | None, str, str]:
        """Run a command with a share of the time that is left: its exit code (``None``: out of time) and output."""
        seconds = max((self.until - time.time()) * share, 1.0)
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
        try:
            done = subprocess.run(
                [sys.executable, *command],
                cwd=cwd,
                env=environ,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return None, _text(error.stdout), _text(error.stderr)
        return done.returncode, done.stdout, done.stderr


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def tests(run: Run) -> dict[str, Any]:
    """The tests of torch-hal-cuda that need a GPU."""
    if importlib.util.find_spec("torch_hal_cuda") is None:
        return {"torch-hal-cuda": {"exit_code": 0, "summary": "not run: it is not installed", "failed": []}}
    arguments = ["-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", "--tb=line", "tests"]
    if run.dry:
        arguments.append("--collect-only")
    code, out, err = run.command(0.4, *arguments, cwd=ROOT / "plugins" / "cuda")
    last = next((line for line in reversed(out.splitlines()) if re.search(r"\d+ \w+|no tests", line)), err[-300:])
    failed = re.findall(r"^(?:FAILED|ERROR) (.*)", out, flags=re.MULTILINE)
    return {"torch-hal-cuda": {"exit_code": code, "summary": last.strip("= "), "failed": failed}}


def kit(run: Run) -> dict[str, Any]:
    """The conformance kit."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "kit.json")
        arguments: list[str] = ["--backend", f"accelerator:{run.accelerator}", "--report", str(report)]
        arguments += ["--tiers", "T0"] if run.dry else []
        arguments += [f"--hide-devices={HIDING[run.accelerator]}="] if run.accelerator in HIDING else []
        code, out, err = run.command(0.35, "-m", "core.conformance", *arguments, cwd=Path(folder))
        found: dict[str, Any] = {"exit_code": code}
        if report.exists():
            found["report"] = json.loads(report.read_text("utf-8"))
        summary = [line for line in out.splitlines() if re.search(r"\d+ passed", line)]
        return found | {"summary": summary[-1].strip("= ") if summary else (err or out)[-300:]}


def training(run: Run) -> list[dict[str, Any]]:
    """Milliseconds a step and tokens a second, by mode and front end; then a network so small that overhead shows."""
    rows: list[dict[str, Any]] = []
    sizes = [("tiny", mode) for mode in MODES] if run.dry else [("tiny", "fp32"), *(("gpt2", mode) for mode in MODES)]
    for number, (size, mode) in enumerate(sizes):
        share = 1 / (len(sizes) - number + (1 if not run.dry else 0))  # the rest is for the overlap
        steps, warmup = (500, 20) if size == "tiny" else (30, 5)
        options: dict[str, Any] = {"accelerator": run.accelerator, "size": size, "mode": mode, "names": []}
        options |= {"steps": 5, "warmup": 1} if run.dry else {"steps": steps, "warmup": warmup}
        if run.dry and mode == "compiled":
            options |= {"names": ["plain torch"], "backend": "aot_eager"}  # a real compiler takes a minute on a CPU
        options["until"] = time.time() + (run.until - time.time()) * share * 0.8
        code, out, err = run.command(share, HERE / "gpu_training.py", json.dumps(options))
        rows += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        if code != 0:
            reason = "no time was left" if code is None else f"exit code {code}: {err.strip()[-300:]}"
            rows.append({"name": "(the others)", "mode": mode, "size": size, "error": reason})
    return rows


def overlap(run: Run) -> dict[str, Any]:
    """How much of the copying a prepared loader hides."""
    options: dict[str, Any] = {"accelerator": run.accelerator}
    options |= (
        {"megabytes": 1, "batches": 4, "width": 64} if run.dry else {"megabytes": 64, "batches": 20, "width": 2048}
    )
    code, out, err = run.command(0.9, HERE / "gpu_overlap.py", json.dumps(options))
    if code != 0:
        return {"error": "no time was left" if code is None else f"exit code {code}: {err.strip()[-300:]}"}
    figures: dict[str, Any] = json.loads(out.splitlines()[-1])
    return figures


RUNS: dict[str, Callable[[Run], Any]] = {"tests": tests, "kit": kit, "training": training, "overlap": overlap}


_DEVICE = """
import json, torch
from core import Runtime
runtime = Runtime(accelerator={!r}, devices=1)
kind = runtime.device.type
module = torch.get_device_module(kind) if kind != "cpu" else None
name = module.get_device_name(runtime.device) if hasattr(module, "get_device_name") else kind
print(json.dumps(dict(accelerator=runtime.plan.accelerator.name, device=name, cuda=torch.version.cuda)))
"""


def machine(run: Run) -> dict[str, Any]:
    """What the figures were measured on."""
    exit_code, out, err = run.command(0.3, "-c", _DEVICE.format(run.accelerator))
    if exit_code != 0:
        raise SystemExit(
            f"--accelerator {run.accelerator}: {err.strip().splitlines()[-1] if err.strip() else 'no answer'}"
        )
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found | {"python": platform.python_version(), "system": platform.platform(), "versions": versions}


def table(result: dict[str, Any]) -> str:
    """The result for readers, as Markdown."""
    on = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in on["versions"].items())
    lines = [f"## {on['device']}", "", f"{versions}; Python {on['python']}; {result['seconds']:.0f} s in all.", ""]
    if result["dry_run"]:
        lines += ["**A dry run: small, and on the CPU. The figures mean nothing.**", ""]
    for name, part in result.get("tests", {}).items():
        lines.append(f"* tests of {name} that need a GPU: {part['summary'] or 'no answer'}")
    if "kit" in result:
        lines.append(f"* conformance kit: {result['kit']['summary']}")
    if overlapped := result.get("overlap"):
        shown = overlapped.get("error") or (
            f"copying {overlapped['copy_milliseconds']:.2f} ms a batch of {overlapped['batch_megabytes']} MiB, "
            f"computing {overlapped['compute_milliseconds']:.2f}, one after another "
            f"{overlapped['one_after_another_milliseconds']:.2f}, with a prepared loader "
            f"{overlapped['prepared_loader_milliseconds']:.2f}: "
            f"{overlapped['hidden_fraction']:.0%} hidden"
            if overlapped["hidden_fraction"] is not None
            else "nothing is copied on a CPU"
        )
        lines.append(f"* host to device: {shown}")
    if rows := result.get("training"):
        lines += ["", "| network | mode | front end | ms a step | over plain torch | tokens a second | peak memory |"]
        lines.append("|---|---|---|---|---|---|---|")
        lines += [_row(row, rows) for row in rows]
    return "\n".join(lines) + "\n"


def _row(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    start = f"| {row['size']} | {row['mode']} | {row['name']} |"
    if "error" in row:
        return f"{start} {row['error'].replace('|', '/')} | | | |"
    same = [other for other in rows if (other["size"], other["mode"]) == (row["size"], row["mode"])]
    base = next(
        (other["milliseconds"] for other in same if other["name"] == "plain torch" and "error" not in other), None
    )
    over = "" if base is None else f"{(row['milliseconds'] - base) * 1e3:+.0f} µs"
    memory = f"{row['peak_memory_bytes'] / 2**30:.2f} GiB" if "peak_memory_bytes" in row else ""
    return f"{start} {row['milliseconds']:.3f} | {over} | {row['tokens_per_second']:,.0f} | {memory} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts; returns the exit code: 0, or 1 if a test or the kit failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accelerator", default="auto", metavar="NAME", help="default: the best that is present")
    parser.add_argument(
        "--parts", default=",".join(PARTS), metavar="NAMES", help=f"of {', '.join(PARTS)}; default: all"
    )
    parser.add_argument("--minutes", type=float, default=10.0, metavar="M", help="time limit of all (default: 10)")
    parser.add_argument("--out", default="gpu", metavar="STEM", help="writes STEM.json and STEM.md (default: gpu)")
    parser.add_argument("--dry-run", action="store_true", help="everything in small, on the CPU")
    options = parser.parse_args(arguments)
    parts = options.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"--parts {','.join(unknown)}: unknown. Valid: {', '.join(PARTS)}.")
    if importlib.util.find_spec("core") is None:
        tools = "-e plugins/devkit -e plugins/migrate"
        parser.error(f"torch-hal is not installed. Run: pip install -e . {tools} -e plugins/cuda")
    began = time.time()
    run = Run("cpu" if options.dry_run else options.accelerator, options.dry_run, began + 60 * options.minutes)
    result: dict[str, Any] = {"schema": 1, "dry_run": run.dry, "machine": machine(run)}
    if result["machine"]["accelerator"] == "cpu" and not run.dry:
        parser.error("there is no accelerator here but the CPU. For a trial: --dry-run")
    run.accelerator = result["machine"]["accelerator"]
    for part in (part for part in PARTS if part in parts):
        sys.stderr.write(f"{part} … ({time.time() - began:.0f} s)\n")
        result[part] = RUNS[part](run)
    result["seconds"] = time.time() - began
    Path(f"{options.out}.json").write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    text = table(result)
    Path(f"{options.out}.md").write_text(text, "utf-8")
    sys.stdout.write(f"{text}\nwritten: {options.out}.json, {options.out}.md\n")
    wrong = [part for part in result.get("tests", {}).values() if part["exit_code"] not in (0, 5)]
    return 1 if wrong or result.get("kit", {}).get("exit_code", 0) != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
