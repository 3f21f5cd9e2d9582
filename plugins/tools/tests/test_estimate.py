"""``torch-hal estimate``: bytes in each process for each strategy and precision, without training."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch_hal_tools.estimate import main

NETS = '''
import torch
from torch import nn
from torch.utils.data import DataLoader

import torch_hal


class Layers(nn.Module):
    def __init__(self, width: int = 256, depth: int = 4, tied: bool = False) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)]
        if tied:
            for layer in layers[1:]:
                layer[0].weight = layers[0][0].weight
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


class Net(torch_hal.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.net = Layers(width)

    def training_step(self, batch, batch_idx):
        (inputs,) = batch
        loss = self.net(inputs).square().mean()
        self.log("loss", loss)
        if loss.item() < 0:
            raise ValueError("never")
        return {"loss": loss}

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}

    def train_dataloader(self):
        return DataLoader(torch.utils.data.TensorDataset(torch.rand(64, 256)), 32)


class Measuring(nn.Module):
    """Computes with values when it is made, which meta tensors have not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, int(torch.linspace(0, 8, 3)[-1].item()))

    def forward(self, x):
        return self.layer(x)


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(40_000, 64)

    def forward(self, x):
        return self.table(x)


class Recurrent(nn.LSTM):
    def __init__(self) -> None:
        super().__init__(192, 256, 2, batch_first=True)


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(4)


def number() -> int:
    return 1
'''
P = 4 * (256 * 257) * 4
"""Bytes of the parameters of four layers in float32."""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with models, in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "nets.py"
    path.write_text(NETS, "utf-8")
    return path


def rows_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of the JSON, by strategy and precision."""
    assert main([*arguments[:-1], "--json", arguments[-1]]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    return {(row["strategy"], row["precision"]): row for row in rows}


def test_state_is_exact(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parameters, gradients and Adam's state by arithmetic, for each strategy on four processes."""
    rows = rows_of(capsys, "--devices", "4", "--batch", "32x256", "nets.py:Layers")
    assert len(rows) == 7 * 3
    for strategy, parameters, gradients, optimizer in (
        ("single_device", P, P, 2 * P),
        ("ddp", P, P, 2 * P),
        ("ddp_sharded", P, P, P / 2),
        ("fsdp", P / 4, P / 4, P / 2),
        ("deepspeed_stage_1", P, P, P / 2),
        ("deepspeed_stage_2", P, P / 4, P / 2),
        ("deepspeed_stage_3", P / 4, P / 4, P / 2),
    ):
        row = rows[strategy, "32-true"]
        found = row["parameters"], row["gradients"], row["optimizer"]
        assert found == pytest.approx((parameters, gradients, optimizer), rel=0.01), strategy
        assert row["peak"] > sum(found)
    assert rows["ddp", "bf16-true"]["parameters"] == P / 2
    assert rows["ddp", "bf16-mixed"]["parameters"] == P
    assert rows["ddp", "bf16-true"]["activations"] < rows["ddp", "32-true"]["activations"]
    assert {row["source"] for (name, _), row in rows.items() if name.startswith("deepspeed")} == {"formula"}
    # What ZeRO's paper says of 16 bits: 2 + 2 bytes an element, and 12 for the optimizer, which are divided.
    assert rows["deepspeed_stage_1", "bf16-true"]["optimizer"] == pytest.approx(12 / 4 * P / 4, rel=0.01)


def test_the_peak_is_what_torchs_allocator_gives_out(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Within 10 %, as torch's profiler measures it; oneDNN's buffers, which depend on the threads, are small here."""
    one = ("--strategy", "single_device", "--init", "width=512")
    rows = rows_of(capsys, "--batch", "256x512", *one, "nets.py:Layers")
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4)])
    for precision, row in rows.items():
        peak = measured_peak(layers, torch.rand(256, 512), precision[1])
        assert row["peak"] == pytest.approx(peak, rel=0.1), precision


def test_the_peak_of_an_lstm(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of what oneDNN keeps for the backward pass, torch's shape function says nothing."""
    asked = ("--batch", "16x50x192", "--strategy", "single_device", "--precision", "32-true", "nets.py:Recurrent")
    row = rows_of(capsys, *asked)["single_device", "32-true"]
    peak = measured_peak(nn.LSTM(192, 256, 2, batch_first=True), torch.rand(16, 50, 192), "32-true")
    assert row["peak"] == pytest.approx(peak, rel=0.1)


def test_the_peak_while_gradients_are_divided(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In copies of one large table, on two processes: what benchmarks/estimates.py measures on the engines."""
    table = 40_000 * 64 * 4
    rows = rows_of(capsys, "--batch", "8x4:int64", "--precision", "32-true", "--devices", "2", "nets.py:Table")
    for strategy, copies in (
        ("fsdp", 1 / 2 + 2 / 2 + 1 / 2 + 3),  # its gradient, that copied for the operation, and gloo's copy
        ("deepspeed_stage_1", 1 + 2 / 2 + 1 + 1),
        ("deepspeed_stage_2", 1 + 2 / 2 + 1 + 1),
        ("deepspeed_stage_3", 1 / 2 + 2 / 2 + 1 / 2 + 3 + 1),
    ):
        assert rows[strategy, "32-true"]["peak"] == pytest.approx(copies * table, rel=0.02), strategy


def measured_peak(model: nn.Module, inputs: torch.Tensor, precision: str) -> int:
    """The most bytes of two steps of a model with Adam, written by hand."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        dtype = torch.bfloat16 if precision == "bf16-true" else torch.float32
        model = copy.deepcopy(model).to(dtype)
        batch = inputs.to(dtype, copy=True)  # inputs stays: the profiler may count what is freed that it did not see
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
                output = model(batch)
                loss = (output[0] if isinstance(output, tuple) else output).float().mean()
            del output
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    now = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def test_a_module_brings_its_optimizer_and_its_data(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``configure_optimizers`` and ``train_dataloader``; ``log`` and ``item`` do not need a run."""
    rows = rows_of(capsys, "--precision", "32-true", "nets.py:Net")
    assert rows["single_device", "32-true"]["optimizer"] == P
    assert rows["single_device", "32-true"]["activations"] >= 32 * 256 * 4
    assert rows["fsdp", "32-true"]["problem"] == ""


def test_shared_parameters_count_once(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As torch stores them."""
    one = ("--strategy", "single_device", "--precision", "32-true", "--batch", "2x256", "--init")
    rows = rows_of(capsys, *one, "tied=True", "nets.py:Layers")
    assert rows["single_device", "32-true"]["parameters"] == 256 * 256 * 4 + 4 * 256 * 4


def test_a_model_larger_than_the_machine(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """40 billion parameters: nothing is allocated."""
    given = ("--devices", "8", "--init", "width=32768", "--init", "depth=37", "--batch", "1x32768")
    rows = rows_of(capsys, *given, "--precision", "bf16-true", "nets.py:Layers")
    whole = 37 * 32768 * 32769 * 2
    assert rows["ddp", "bf16-true"]["parameters"] == whole
    assert rows["fsdp", "bf16-true"]["parameters"] == pytest.approx(whole / 8, rel=0.01)


FIT = """
import torch_hal
from nets import Net

if __name__ == "__main__":
    print("a script may print")
    torch_hal.Trainer(accelerator="cpu", max_epochs=1).fit(Net())
    raise SystemExit("it is not trained")
"""
PREPARE = """
import sys
import torch
import torch_hal
from nets import Layers

model = Layers(int(sys.argv[1]))
runtime = torch_hal.Runtime(accelerator="cpu")
model, optimizer = runtime.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
raise SystemExit("it is not trained")
"""


def test_a_script_runs_until_it_would_train(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``fit`` tells the module and the data; of ``prepare`` the step is not known, which is said."""
    Path("train.py").write_text(FIT, "utf-8")
    assert rows_of(capsys, "train.py") == rows_of(capsys, "nets.py:Net")
    Path("own_loop.py").write_text(PREPARE, "utf-8")
    assert main(["--json", "--precision", "32-true", "--strategy", "ddp", "own_loop.py", "256"]) == 0
    printed = capsys.readouterr()
    (row,) = json.loads(printed.out)["rows"]
    assert (row["parameters"], row["gradients"], row["optimizer"], row["activations"]) == (P, P, 0, None)
    assert "activations are not known" in printed.err
    assert main(["--strategy", "ddp", "--precision", "32-true", "own_loop.py", "256"]) == 0
    assert "> " in capsys.readouterr().out


def test_a_class_that_needs_values_is_made_in_memory(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the reader is told."""
    assert main(["--strategy", "single_device", "--batch", "4x8", "nets.py:Measuring"]) == 0
    assert "made in memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.py"], "is not a file"),
        (["nets.py:Layer"], "Did you mean 'Layers'"),
        (["nowhere.at_all:Net"], "cannot be imported"),
        (["nets.py:number"], "must make a torch.nn.Module"),
        (["nets.py:Lazy"], "lazy parameters"),
        (["--init", "wide=3", "nets.py:Layers"], "unexpected keyword argument 'wide'"),
        (["--init", "3", "nets.py:Layers"], "NAME=VALUE"),
        (["--batch", "3x", "nets.py:Layers"], "write sizes and a dtype"),
        (["--batch", "3:float33", "nets.py:Layers"], "write sizes and a dtype"),
        (["--batch", "3x5", "nets.py:Layers"], "the step fails"),
        (["--optimizer", "Adm", "nets.py:Layers"], "Did you mean 'Adam'"),
        (["empty.py"], "it trains nothing"),
        (["failing.py"], "ZeroDivisionError"),
        (["leaving.py"], "exit code 3"),
    ],
)
def test_what_cannot_be_estimated(
    nets: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    """Exit code 2, and one line that names what was given."""
    for name, text in (("empty.py", ""), ("failing.py", "1 / 0"), ("leaving.py", "raise SystemExit(3)")):
        Path(name).write_text(text, "utf-8")
    assert main(arguments, "torch-hal estimate") == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert not printed.out


@pytest.mark.parametrize("arguments", [["--devices", "0", "a.py"], ["--strategy", "dpp", "a.py"], []])
def test_wrong_options(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main(arguments, "torch-hal estimate")
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("torch-hal estimate: ")


def test_the_verb_in_a_process_of_its_own(nets: Path) -> None:
    """A table, with nothing on stderr."""
    command = [sys.executable, "-m", "torch_hal_tools.estimate", "nets.py:Net"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    heading, *lines = done.stdout.splitlines()
    assert heading.split() == [
        *("STRATEGY", "PRECISION", "DEVICES", "PARAMETERS", "GRADIENTS", "OPTIMIZER", "BUCKETS", "ACTIVATIONS", "PEAK")
    ]
    assert len(lines) == 21
    assert lines[0].split()[:4] == ["single_device", "32-true", "1", "1.05"]
