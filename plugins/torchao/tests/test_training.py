"""Training by each precision, against plain torch with torchao; checkpoints, and the quantized model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import python_processes
import torch
from torch import nn

from torch_hal import Module, Runtime, Trainer
from torch_hal.callbacks import ModelCheckpoint

from .problem import (
    NAMES,
    base_config,
    batches,
    by_hand,
    largest_difference,
    loader,
    network,
    optimizer_of,
    prepare_by_hand,
)

pytest.importorskip("torchao", reason="torchao is not installed; run nox -s torchao")
from torch_hal_torchao import Float8Precision, QATPrecision

HERE = Path(__file__).parent


class Lesson(Module):
    """The network with its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if not self.losses:
            torch.manual_seed(11)
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.net(inputs)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer_of(self.net)


def trainer(precision: Any, folder: Path, **options: Any) -> Trainer:
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return Trainer(accelerator="cpu", devices=1, precision=precision, default_root_dir=folder, **quiet, **options)


@pytest.mark.parametrize("name", NAMES)
def test_trainer_is_torchao_by_hand(name: str, tmp_path: Path) -> None:
    """Losses and weights after a fit, with dropout, are bit for bit those of a plain loop with torchao."""
    losses, net = by_hand(name)
    lesson = Lesson()
    trainer(name, tmp_path, max_epochs=1, enable_checkpointing=False).fit(lesson, loader())
    assert lesson.losses == losses
    assert largest_difference(lesson.net, net) == 0.0


@pytest.mark.parametrize("recipe", ["rowwise", "rowwise_with_gw_hp"])
def test_recipes_are_torchao_by_hand(recipe: str) -> None:
    """An own loop with another recipe has bit for bit the weights of a plain loop with torchao's recipe."""
    _, net = by_hand("fp8-mixed", recipe)
    own = network()
    with Runtime(accelerator="cpu", devices=1, precision=Float8Precision(recipe)) as runtime:
        prepared, optimizer = runtime.prepare(own, optimizer_of(own))
        data = batches()
        torch.manual_seed(11)
        for inputs, labels in data:
            runtime.backward(nn.functional.cross_entropy(prepared(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
    assert largest_difference(own, net) == 0.0


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script says on two processes, by precision."""
    out = tmp_path_factory.mktemp("two")
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    return python_processes.run_script(HERE / "scripts" / "two.py", out, env={"PYTHONPATH": path})


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_are_torchao_by_hand(name: str, on_two: dict[str, Any]) -> None:
    """On two processes, losses are those of a plain loop in which each half of a batch has its own scales."""
    losses, net = by_hand(name, parts=2)
    assert on_two[name]["losses"] == pytest.approx(losses, abs=1e-6)
    weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    assert (torch.tensor(on_two[name]["weights"]) - weights).abs().max() < 1e-5
    assert on_two[name]["equal"]


@pytest.mark.parametrize("name", NAMES)
def test_resumed_is_uninterrupted(name: str, tmp_path: Path) -> None:
    """A fit that is resumed in the middle ends bit for bit as the uninterrupted one; its checkpoint is float32."""
    whole = Lesson()
    trainer(name, tmp_path / "a", max_epochs=1, enable_checkpointing=False).fit(whole, loader())
    saving = ModelCheckpoint(dirpath=tmp_path / "saved", every_n_train_steps=3, save_top_k=-1, filename="{step}")
    trainer(name, tmp_path / "b", max_steps=3, callbacks=[saving]).fit(Lesson(), loader())
    (saved,) = (tmp_path / "saved").iterdir()
    resumed = Lesson()
    resumed.losses = [0.0]  # the generators are those of the checkpoint
    trainer(name, tmp_path / "c", max_epochs=1, enable_checkpointing=False).fit(resumed, loader(), ckpt_path=saved)
    assert resumed.losses[1:] == whole.losses[3:]
    assert largest_difference(resumed.net, whole.net) == 0.0
    plain = Lesson.load_from_checkpoint(saved)
    assert {parameter.dtype for parameter in plain.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", NAMES)
def test_layers_are_torchs_after_the_run(name: str, tmp_path: Path) -> None:
    """After the run, the user's layers are the same objects, of torch's class, with their hooks."""
    lesson, calls = Lesson(), []
    layers = [lesson.net[0], lesson.net[3]]
    layers[0].register_forward_hook(lambda layer, _, output: calls.append(type(layer).__name__))
    attributes = [set(vars(layer)) for layer in layers]
    trainer(name, tmp_path, max_epochs=1, enable_checkpointing=False).fit(lesson, loader())
    assert set(calls) == {"Float8Linear" if name == "fp8-mixed" else "FakeQuantizedLinear"}
    assert [lesson.net[0], lesson.net[3]] == layers
    assert [type(layer) for layer in layers] == [nn.Linear, nn.Linear]
    assert [set(vars(layer)) for layer in layers] == attributes
    plain = network().eval()
    plain.load_state_dict(lesson.net.state_dict())
    inputs = batches()[0][0]
    assert torch.equal(lesson.net.eval()(inputs), plain(inputs))


@pytest.mark.parametrize("name", NAMES[1:])
def test_quantized_model_is_torchaos(name: str, tmp_path: Path) -> None:
    """``quantize`` gives bit for bit the model of torchao's convert step; it predicts what the Trainer did."""
    from torchao.quantization import quantize_
    from torchao.quantization.qat import QATConfig

    _, net = by_hand(name)
    lesson = Lesson()
    fitted = trainer(name, tmp_path, max_epochs=1, enable_checkpointing=False)
    fitted.fit(lesson, loader())
    predicted = torch.cat(fitted.predict(lesson, [batch[0] for batch in batches()]))
    quantize_(net.eval(), QATConfig(base_config(name), step="convert"))
    precision = fitted.strategy.precision
    assert isinstance(precision, QATPrecision)
    quantized = precision.quantize(lesson.net)
    inputs = torch.cat([batch[0] for batch in batches()])
    assert torch.equal(quantized(inputs), net(inputs))
    assert torch.equal(quantized(inputs), predicted)
    assert type(quantized[0].weight) is type(net[0].weight)  # type: ignore[index]
    assert type(lesson.net[0].weight) is nn.Parameter


@pytest.mark.parametrize("name", NAMES[1:])
def test_quantized_in_the_run(name: str) -> None:
    """In a run, ``quantize`` gives a copy too, and leaves the module in training."""
    net = network()
    with Runtime(accelerator="cpu", devices=1, precision=name) as runtime:
        prepared = runtime.prepare(net)
        quantized = runtime.strategy.precision.quantize(net)  # type: ignore[attr-defined]
        by_torchao = network()
        prepare_by_hand(name, by_torchao)
        inputs = batches()[0][0]
        assert torch.equal(prepared.eval()(inputs), by_torchao.eval()(inputs))
    assert torch.equal(quantized(inputs), by_torchao(inputs))


def test_converting_draws_no_random_numbers() -> None:
    """Preparing a module leaves torch's generator as it is, so that dropout is the same as without."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for name in NAMES:
        with Runtime(accelerator="cpu", devices=1, precision=name) as runtime:
            runtime.prepare(network())
    assert torch.equal(torch.get_rng_state(), before)
