"""Tries torch backends of other people, as the package index has them, with no plugin: a row of docs/hardware.md each.

Usage: ``python benchmarks/devices_of_others.py FOLDER [NAME …]``; each gets an environment in FOLDER, on the torch
of this interpreter. ``nox -s strangers`` does it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from datetime import UTC, datetime
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "hardware.md"
BEGIN, END = (
    "<!-- devices of others: written by benchmarks/devices_of_others.py -->",
    "<!-- end of devices of others -->",
)
LIMIT = 300
"""Seconds for each attempt: some backends compile each operation."""


@attrs.frozen
class Device:
    """A torch backend on the package index."""

    package: str
    module: str
    """What is imported to add the device type."""
    device_type: str
    setup: str = ""
    """Code that has to run after the import."""
    dependencies: bool = True
    """Whether pip installs what the package requires, beyond torch."""


DEVICES = [
    Device("torchax[cpu]==0.0.13", "torchax", "jax", setup="torchax.enable_globally()"),
    Device("tinygrad==0.14.0", "tinygrad.nn.torch", "tiny"),
    Device(
        "torch-mojo-backend==0.3.1", "torch_mojo_backend", "mojo", setup="torch_mojo_backend.register_mojo_devices()"
    ),
    Device("torch-npu==2.13.0", "torch_npu", "npu", dependencies=False),
    Device("intel-extension-for-pytorch==2.8.0", "intel_extension_for_pytorch", "xpu", dependencies=False),
    Device("torch-openreg", "torch_openreg", "openreg", dependencies=False),
]

DATA = """
import torch
from torch import nn
torch.manual_seed(0)
inputs = torch.randn(32, 4)
targets = inputs.sum(1, keepdim=True)
def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
def losses_of(device):
    module, found = net().to(device), []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(5):
        loss = nn.functional.mse_loss(module(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found
expected = losses_of("cpu")
def check(found):
    assert len(found) == 5 and max(abs(a - b) for a, b in zip(found, expected)) < 1e-3, (found, expected)
"""

ATTEMPTS = {
    "import": "import torch\nimport added\ntorch.ones(2, device=TYPE)\n",
    "a plain loop": DATA + "import added\ncheck(losses_of(TYPE))\n",
    "listed": "",
    "Runtime": DATA
    + """
from core import Runtime
runtime = Runtime(accelerator=TYPE, devices=1, import_modules="added")
module = net()
module, optimizer = runtime.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
found = []
for _ in range(5):
    loss = nn.functional.mse_loss(module(inputs.to(runtime.device)), targets.to(runtime.device))
    optimizer.zero_grad()
    runtime.backward(loss)
    optimizer.step()
    found.append(loss.item())
assert runtime.device.type == TYPE
check(found)
""",
    "Trainer": DATA
    + """
from core import Module, Trainer
from torch.utils.data import DataLoader, TensorDataset
found = []
class Fitted(Module):
    def __init__(self):
        super().__init__()
        self.net = net()
    def training_step(self, batch, batch_idx):
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        found.append(loss.item())
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
Trainer(accelerator=TYPE, devices=1, import_modules="added", max_epochs=5, logger=False, enable_progress_bar=False,
        enable_checkpointing=False).fit(Fitted(), DataLoader(TensorDataset(inputs, targets), batch_size=32))
check(found)
""",
}
"""By name, the code; ``listed`` runs a listing that probes."""


def main() -> int:
    """Write the page."""
    folder, names = Path(sys.argv[1]).absolute(), sys.argv[2:]
    chosen = [device for device in DEVICES if not names or re.split(r"[\[=]", device.package)[0] in names]
    rows = [_row(device, _tried(device, folder / device.module)) for device in chosen]
    head = f"| package | device type | {' | '.join(ATTEMPTS)} | torch | date | what stands in the way |"
    table = "\n".join([BEGIN, "", head, "|" + "---|" * (len(ATTEMPTS) + 5), *rows, "", END])
    page = PAGE.read_text("utf-8")
    PAGE.write_text(page.partition(BEGIN)[0] + table + page.partition(END)[2], "utf-8")
    return 0


def _tried(device: Device, folder: Path) -> dict[str, str]:
    """By attempt, an empty text or the error's line; ``install`` where that fails."""
    python = _environment(folder)
    options = () if device.dependencies else ("--no-deps",)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options, device.package]
    installed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1800)
    if installed.returncode:
        return {"install": _error_of(installed.stderr)}
    (folder / "added.py").write_text(f"import {device.module}\n{device.setup}\n", "utf-8")
    environ = {**os.environ, "PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    found = {}
    for name, code in ATTEMPTS.items():
        if name == "listed":
            command = [python, "-m", "core.list", "--probe", "--json", "--kind", "accelerator"]
            environ |= {"CORE_IMPORT": "added", "CORE_PROBE_TIMEOUT": "120"}
        else:
            command = [python, "-c", f"TYPE = {device.device_type!r}\n{code}"]
        try:
            done = subprocess.run(
                command, env=environ, cwd=folder, check=False, capture_output=True, text=True, timeout=LIMIT
            )
        except subprocess.TimeoutExpired:
            found[name] = f"takes longer than {LIMIT} s"
            continue
        found[name] = _error_of(done.stderr) if done.returncode else ""
        if name == "listed" and not done.returncode:
            names = {row["name"]: row for row in json.loads(done.stdout)["backends"]}
            row = names.get(device.device_type, {"state": "not listed", "reason": ""})
            found[name] = "" if row["state"] == "available" else f"{row['state']}: {row['reason']}"
    return found


def _environment(folder: Path) -> str:
    """An environment that also has the packages of this interpreter's."""
    if not (folder / "bin").exists():
        venv.create(folder, with_pip=True)
        paths = [path for path in sys.path if path.endswith("site-packages")] or [sysconfig.get_path("purelib")]
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "of_the_project.pth").write_text("\n".join([*paths, str(ROOT)]) + "\n", "utf-8")
    return str(folder / "bin" / "python")


def _error_of(text: str) -> str:
    """The line that names the exception, or the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("[notice]")]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return re.sub(r"/[^\s'\"]*/", "…/", (named or lines)[-1])[:200] if lines else "no message"


def _row(device: Device, found: dict[str, str]) -> str:
    import torch

    if "install" in found:
        cells, why = ["-"] * len(ATTEMPTS), f"not installable: {found['install']}"
    else:
        cells = ["no" if error else "yes" for error in found.values()]
        failed = next((name for name, error in found.items() if error), "")
        whose = "the package, also without torch-hal" if failed in ("import", "a plain loop") else "torch-hal"
        why = f"{whose}: {failed}: `{found[failed]}`" if failed else ""
    date = datetime.now(UTC).date().isoformat()
    texts = [f"`{device.package}`", f"`{device.device_type}`", *cells, torch.__version__, date, why.replace("|", "\\|")]
    return "| " + " | ".join(texts) + " |"


if __name__ == "__main__":
    sys.exit(main())
