"""Real notebooks: those of the examples, and the processes and the bar of ``ddp_notebook``.

``python tests/notebooks/test_notebooks.py`` runs the examples and writes what they print into their files.
"""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

EXAMPLES = Path(__file__).parents[2] / "examples" / "notebooks"

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
        cells: Their code, or a notebook.
        folder: The working directory.
        interrupt: Called with the client in another thread, to interrupt a cell.
    """

    def __init__(self, cells: Any, folder: Path, interrupt: Any = None) -> None:
        nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
        pytest.importorskip("ipywidgets")
        if isinstance(cells, list):
            cells = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        self.book = cells
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
        outputs = self.book.cells[cell].get("outputs", ())
        return "".join(output["text"] for output in outputs if output.get("name") == name)

    def errors(self, cell: int) -> list[str]:
        return [output["ename"] for output in self.book.cells[cell].outputs if output["output_type"] == "error"]

    def bars(self) -> list[dict[str, Any]]:
        return [state for state in self.widgets if state.get("_model_name") == "FloatProgressModel"]


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
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


def example(name: str) -> Any:
    """A notebook of the examples, as its file has it."""
    return pytest.importorskip("nbformat").read(EXAMPLES / f"{name}.ipynb", as_version=4)


def shown(book: Any) -> list[Any]:
    """What each cell of code shows a reader: its text, and each picture."""
    return [[*texts_and_pictures(cell.outputs)] for cell in book.cells if cell.cell_type == "code"]


def texts_and_pictures(outputs: Any) -> Iterator[str]:
    for output in outputs:
        if output.get("name") == "stdout":
            yield output.text
        elif "image/png" in output.get("data", {}):
            yield "a picture"
        elif output.output_type == "error":
            yield f"{output.ename}: {output.evalue}"


def run_example(name: str, folder: Path, kept: str) -> dict[str, Any]:
    """Run a notebook of the examples: it shows what its file says. ``kept`` is an expression of its variables."""
    pytest.importorskip("matplotlib")
    book, stored = example(name), shown(example(name))
    book.cells.append(pytest.importorskip("nbformat").v4.new_code_cell(f'torch.save({kept}, "kept.pt")'))
    ran = Executed(book, folder)
    decimals = re.compile(r"\d\.\d+")  # another kind of CPU rounds, and draws, in another way
    assert decimals.sub("0.0", str(shown(ran.book))) == decimals.sub("0.0", str([*stored, []]))
    assert "arning" not in "".join(ran.printed(cell, "stderr") for cell in range(len(book.cells)))
    return {**torch.load(folder / "kept.pt", weights_only=True), "shown": shown(ran.book)}


def trained(layer: torch.nn.Linear, inputs: Tensor, targets: Tensor) -> list[Tensor]:
    """The parameters after four epochs of batches of 8, in plain torch."""
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(4):
        for begin in range(0, len(inputs), 8):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(layer(inputs[begin : begin + 8]), targets[begin : begin + 8])
            torch.autograd.backward(loss)
            optimizer.step()
    return [value.detach() for value in layer.parameters()]


def zeros(inputs: int, bias: bool) -> torch.nn.Linear:
    layer = torch.nn.Linear(inputs, 1, bias)
    for value in layer.parameters():
        torch.nn.init.zeros_(value)
    return layer


@pytest.mark.slow
def test_first_model(tmp_path: Path) -> None:
    """The accuracy that is logged and printed is that of the weights; the file has each value, the picture is one."""
    kept = run_example(
        "first_model",
        tmp_path,
        "{'weights': [*model.parameters()], 'data': validation.dataset.tensors, 'path': str(logger.path)}",
    )
    weight, bias, weight2, bias2 = (value.detach() for value in kept["weights"])
    points, labels = kept["data"]
    scores = torch.relu(points @ weight.T + bias) @ weight2.T + bias2
    accuracy = (scores.argmax(1) == labels).double().mean().item()
    assert accuracy > 0.95
    assert [f"160 steps, accuracy {accuracy:.2f}\n"] in kept["shown"]
    with open(tmp_path / kept["path"], encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    assert float([row["accuracy"] for row in rows if row["accuracy"]][-1]) == pytest.approx(accuracy)
    assert [len([row for row in rows if row[name]]) for name in ("loss", "accuracy")] == [40, 20]
    assert (tmp_path / kept["path"]).with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    """Both front ends train to the weights of one process with all samples of a step."""
    kept = run_example(
        "two_processes", tmp_path, "{'trainer': model.layer.weight, 'runtime': weights, 'data': data.tensors}"
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        other = torch.nn.Linear(4, 1)
    torch.testing.assert_close(kept["trainer"].detach(), trained(zeros(4, bias=False), *kept["data"])[0])
    torch.testing.assert_close(kept["runtime"], trained(other, *kept["data"])[0][0])


@pytest.mark.slow
def test_own_hardware(tmp_path: Path) -> None:
    """The invented cards train to the weights of plain torch."""
    kept = run_example("own_hardware", tmp_path, "{'weights': [*model.parameters()], 'data': loader.dataset.tensors}")
    for weight, truth in zip(kept["weights"], trained(zeros(3, bias=True), *kept["data"]), strict=True):
        torch.testing.assert_close(weight.detach(), truth)


@pytest.mark.slow
def test_resume(tmp_path: Path) -> None:
    """The resumed run has the losses and the weights of the uninterrupted one, from the step of its checkpoint on."""
    names = ("whole", "broken", "resumed")
    runs = ", ".join(f"'{name}': [{name}.losses, [*{name}.parameters()]]" for name in names)
    kept = run_example("resume", tmp_path, f"{{{runs}}}")
    (whole, weights), (broken, _), (resumed, resumed_weights) = (kept[name] for name in names)
    assert [*whole] == [*range(24)]
    assert [*broken.items()] == [*whole.items()][:13]
    assert [*resumed.items()] == [*whole.items()][12:]
    assert len(set(whole.values())) == 24
    assert all(torch.equal(*pair) for pair in zip(weights, resumed_weights, strict=True))


def write(name: str) -> None:
    """Run a notebook of the examples, and write what it shows into its file."""
    book = example(name)
    with tempfile.TemporaryDirectory() as folder:
        ran = Executed(example(name), Path(folder))
    for cell, done in zip(book.cells, ran.book.cells, strict=True):
        if cell.cell_type == "code":
            cell.outputs = [output for output in done.outputs if [*texts_and_pictures([output])]]
            for output in cell.outputs:
                output.pop("execution_count", None)
                if "data" in output:
                    picture = with_few_colours(output.data["image/png"])
                    output.update(output_type="display_data", metadata={}, data={"image/png": picture})
    pytest.importorskip("nbformat").write(book, EXAMPLES / f"{name}.ipynb")


def with_few_colours(png: str) -> str:
    """A smaller picture: base64 in and out."""
    from PIL import Image

    smaller = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").quantize(16).save(smaller, "PNG", optimize=True)
    return base64.b64encode(smaller.getvalue()).decode()


if __name__ == "__main__":
    for file in EXAMPLES.glob("*.ipynb"):
        write(file.stem)
