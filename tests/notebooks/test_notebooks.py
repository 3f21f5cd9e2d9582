"""A real notebook: its kernel forks the processes of ``ddp_notebook``, and ipywidgets draws the bar."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.exhaustive

SETUP = """
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from core import Module, Trainer


class Net(Module):
    def __init__(self, seconds=0.0):
        super().__init__()
        self.layer, self.seconds = torch.nn.Linear(8, 1), seconds

    def training_step(self, batch, batch_idx):
        Path(f"step-{self.trainer.global_rank}").touch()
        time.sleep(self.seconds)
        loss = (self.layer(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(seconds=0.0):
    inputs = torch.randn(64, 8)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8)
    trainer = Trainer(accelerator="cpu", strategy="ddp_notebook", devices=2, max_epochs=1, default_root_dir=".",
                      logger="csv", log_every_n_steps=1, enable_checkpointing=False)
    trainer.fit(Net(seconds), loader)
    print("steps", trainer.global_step)
"""


class Executed:
    """A notebook after its cells were run in a kernel of their own.

    Args:
        cells: Their code.
        folder: The working directory.
        interrupt: Called with the client in another thread, to interrupt a cell.
    """

    def __init__(self, cells: list[str], folder: Path, interrupt: Any = None) -> None:
        nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
        pytest.importorskip("ipywidgets")
        self.book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        with open(folder / "kernel.err", "wb") as said:
            client = nbclient.NotebookClient(
                self.book,
                timeout=200,
                kernel_name="python3",
                allow_errors=True,
                resources={"metadata": {"path": folder}},
            )
            # The kernel's own stream, where a message that a fork could not send would be dumped.
            thread = threading.Thread(target=interrupt, args=(client,)) if interrupt is not None else None
            if thread is not None:
                thread.start()
            client.execute(stderr=said, env={**os.environ, "OMP_NUM_THREADS": "1"})
            if thread is not None:
                thread.join()
        self.widgets = [*client.widget_state.values()]
        self.kernel_said = (folder / "kernel.err").read_text("utf-8", errors="replace")

    def printed(self, cell: int, name: str) -> str:
        outputs = self.book.cells[cell].outputs
        return "".join(output["text"] for output in outputs if output.get("name") == name)

    def errors(self, cell: int) -> list[str]:
        return [output["ename"] for output in self.book.cells[cell].outputs if output["output_type"] == "error"]

    def bars(self) -> list[dict[str, Any]]:
        return [state for state in self.widgets if state.get("_model_name") == "FloatProgressModel"]


def test_two_runs_on_two_processes(tmp_path: Path) -> None:
    """Each run has one bar, which reaches its end, and says nothing else; the logger writes one file a run."""
    ran = Executed([SETUP, "fit()", "fit()"], tmp_path)
    for cell in (1, 2):
        assert ran.errors(cell) == []
        assert ran.printed(cell, "stdout") == "steps 4\n"
        said = ran.printed(cell, "stderr")
        assert said.count("ddp_notebook on cpu:0-1, 32-true") == 1
        assert "arning" not in said
    assert [(bar["value"], bar["max"], bar["bar_style"]) for bar in ran.bars()] == [(4.0, 4.0, "success")] * 2
    assert "from fork" not in ran.kernel_said
    assert "Traceback" not in ran.kernel_said
    assert len([*tmp_path.rglob("metrics.csv")]) == 2


CHILDREN = """
import os

children = 0
for stat in Path("/proc").glob("[0-9]*/stat"):
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        continue
    children += int(fields[1]) == os.getpid() and fields[0] != "Z"
print(children)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="lists processes in /proc")
def test_an_interrupted_cell_ends_all_ranks(tmp_path: Path) -> None:
    """After Ctrl-C no rank is alive, the cell has failed with KeyboardInterrupt, and the next run works."""

    def interrupt(client: Any) -> None:
        deadline = time.monotonic() + 150
        while not ((tmp_path / "step-0").exists() and (tmp_path / "step-1").exists()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        asyncio.run(client.km.interrupt_kernel())

    ran = Executed([SETUP, CHILDREN, "fit(5.0)", CHILDREN, "fit()"], tmp_path, interrupt)
    assert ran.errors(2) == ["KeyboardInterrupt"], ran.book.cells[2].outputs
    assert ran.printed(3, "stdout") == ran.printed(1, "stdout")
    assert ran.errors(4) == []
    assert ran.printed(4, "stdout") == "steps 4\n"
