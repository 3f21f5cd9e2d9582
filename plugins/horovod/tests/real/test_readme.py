"""README's Python, on Horovod itself."""

from __future__ import annotations

from pathlib import Path

from readme_blocks import run_readme

README = Path(__file__).parents[2] / "README.md"


def test_readme_runs(tmp_path: Path) -> None:
    """On one process, which needs no launcher, README's Python trains and accumulates."""
    loss = "model, optimizer = of_a_run()\nruntime = Runtime(strategy='horovod')\n"
    loss += "model, optimizer = runtime.prepare(model, optimizer)\nloss = model(torch.ones(2, 16)).mean()\n"
    begin = "with runtime.no_sync(model):"
    run_readme(README, tmp_path, {begin: loss + begin, "max_epochs=10": "max_epochs=1, devices=1"})
