"""README's Python, on Lightning itself and a simulated card."""

from __future__ import annotations

from pathlib import Path

from readme_blocks import run_readme

README = Path(__file__).parents[1] / "README.md"
MODULE = """
import lightning


class LightningNet(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 16)

    training_step = Model.training_step
    forward = Model.forward
    configure_optimizers = Model.configure_optimizers


lightning_module = LightningNet()
"""


def test_readme_runs(tmp_path: Path) -> None:
    """README's Python trains on two cards."""
    run_readme(README, tmp_path, {"max_epochs=10": "max_epochs=1"}, before=MODULE, env={"ACME_DEVICES": "2"})
