"""Running the Python of a plugin's README, with a small problem for the names that it leaves to readers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pages_shown import blocks
from python_processes import run_python

__all__ = ["run_readme"]

PROBLEM = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import core
from core import Module, Runtime, Trainer


class Model(Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))

    def forward(self, inputs):
        return self.net(inputs)

    def training_step(self, batch, batch_idx):
        return criterion(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def of_a_run():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


criterion = nn.MSELoss()
loader = DataLoader(TensorDataset(torch.randn(64, 16), torch.randn(64, 16)), batch_size=16)
"""


def run_readme(
    readme: Path, folder: Path, replaced: Mapping[str, str], *, before: str = "", env: Mapping[str, str] | None = None
) -> str:
    """Run a README's Python as one script, which must end with exit code 0.

    Args:
        readme: The page.
        folder: The working directory.
        replaced: What is replaced in the page's Python since this machine lacks it, such as ``{"devices=8":
            "devices=2"}``; the page must have each of them.
        before: What defines further names that the page leaves to its reader.
        env: Environment variables, as for :func:`python_processes.run_program`.

    Returns:
        What it prints.
    """
    script = "\n".join(
        ["module = Model()\nmodel, optimizer = of_a_run()\n" + block.text for block in blocks(readme, "python")]
    )
    for shown, here in replaced.items():
        assert shown in script, f"{readme} does not have {shown!r}"
        script = script.replace(shown, here)
    (folder / "readme.py").write_text(f"{PROBLEM}\n{before}\n{script}", "utf-8")
    return run_python("readme.py", cwd=folder, env={"CORE_ACCELERATOR": "cpu", **(env or {})}).stdout
