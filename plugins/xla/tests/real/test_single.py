"""One device, in both front ends."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_hal.random
from torch_hal import Runtime, Trainer
from torch_hal.errors import ConfigurationError

from ..problem import OPTIONS, Classifier, furthest, loader, net, plain_losses, sgd

ONE: dict[str, Any] = {"accelerator": "xla", "devices": 1}


@pytest.mark.parametrize("strategy", ["auto", "xla"])
@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (2, 0.5)])
def test_trainer_equals_the_cpu(strategy: str, accumulate: int, clip: float | None) -> None:
    """Batches and parameters live on the device, and the losses are those of a plain loop on the CPU."""
    module = Classifier()
    trainer = Trainer(**ONE, strategy=strategy, accumulate_grad_batches=accumulate, gradient_clip_val=clip, **OPTIONS)
    trainer.fit(module, loader())
    assert furthest(module.losses, plain_losses(net(), accumulate=accumulate, clip=clip)) <= 1e-6
    assert module.seen == {"xla:0", "float32"}


def test_validation_equals_the_cpu() -> None:
    """Evaluation, which torch_xla cannot do in inference mode, gives the CPU's loss."""
    module = Classifier(norm=False)
    trainer = Trainer(**ONE, **OPTIONS)
    trainer.fit(module, loader(), loader(32))
    plain = net(norm=False)
    plain_losses(plain)
    with torch.no_grad():
        batches = [nn.functional.cross_entropy(plain(inputs), labels) for inputs, labels in loader(32)]
    assert float(trainer.callback_metrics["val_loss"]) == pytest.approx(float(sum(batches) / len(batches)), abs=1e-6)


def test_each_step_is_run_as_one() -> None:
    """From the second on, a step is one execution of a graph that is there already: nothing ends it before its mark."""
    import torch_xla.debug.metrics as metrics
    import torch_xla.runtime as xr

    def counts() -> tuple[int, int]:
        return xr.get_num_cached_compilation_graph(), (metrics.metric_data("ExecuteTime") or [0])[0]

    model = net()
    with Runtime(**ONE) as runtime:
        model, optimizer, batches = runtime.prepare(model, sgd(model), loader())
        seen = []
        for inputs, labels in batches:
            runtime.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
            runtime.strategy.accelerator.synchronize(runtime.device)
            seen.append(counts())
    graphs, runs = zip(*seen, strict=True)
    assert len(set(graphs[2:])) == 1
    assert [after - before for before, after in pairwise(runs[2:])] == [1] * (len(runs) - 3)


def test_bfloat16_autocast() -> None:
    """XLA's own autocast compute in bfloat16: near the CPU's losses under its autocast, other than in float32."""
    module = Classifier()
    Trainer(**ONE, precision="bf16-mixed", **OPTIONS).fit(module, loader())
    assert module.seen == {"xla:0", "bfloat16"}
    by_cpu = plain_losses(net(), autocast=True)
    assert furthest(module.losses[:1], by_cpu[:1]) < 2e-3
    assert furthest(module.losses, by_cpu) < 0.05
    assert furthest(module.losses, plain_losses(net())) > 1e-5


def test_all_in_bfloat16() -> None:
    """Parameters and computation in bfloat16 train near to the CPU's losses in float32."""
    module = Classifier()
    Trainer(**ONE, precision="bf16-true", **OPTIONS).fit(module, loader())
    assert furthest(module.losses, plain_losses(net())) < 0.05


@pytest.mark.parametrize("precision", ["16-mixed", "16-true"])
def test_float16_is_refused(precision: str) -> None:
    """What computes in float16 is refused by name, with the reason."""
    with pytest.raises(ConfigurationError, match="compute in bfloat16"):
        Trainer(**ONE, precision=precision)


def test_random_state() -> None:
    """The device's generator is put back exactly, over step marks, and also when the state is taken within a step."""
    import torch_xla

    with Runtime(**ONE) as runtime:
        runtime.launch()
        accelerator, device = runtime.strategy.accelerator, runtime.device

        def draw() -> list[float]:
            drawn = [torch.rand(3, device=device)]
            torch_xla.sync()
            drawn.append(torch.rand(3, device=device))
            return [number for tensor in drawn for number in tensor.tolist()]

        torch.rand(3, device=device)  # gathered, not run
        state = torch_hal.random.get_rng_state(accelerator, device)
        first = draw()
        torch_hal.random.set_rng_state(state, accelerator, device)
        assert draw() == first
        assert draw() != first


def test_seeding_reaches_the_device() -> None:
    """After the same ``seed_everything`` a run draws the same numbers on the device, after another one others."""

    def drawn(seed: int) -> list[float]:
        torch_hal.random.seed_everything(seed)
        with Runtime(**ONE) as runtime:
            runtime.launch()
            numbers: list[float] = torch.rand(3, device=runtime.device).tolist()
        return numbers

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_checkpoint(tmp_path: Path) -> None:
    """A checkpoint has all tensors on the host, and what is loaded from it is on the device as it was."""
    path = tmp_path / "checkpoint"
    model = net()
    with Runtime(**ONE) as runtime:
        optimizer = torch.optim.Adam(model.parameters())
        model, optimizer, batches = runtime.prepare(model, optimizer, loader())
        for inputs, labels in batches:
            runtime.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
        runtime.save({"model": model, "optimizer": optimizer, "tensor": torch.ones(2, device=runtime.device)}, path)
        before = [parameter.cpu().clone() for parameter in model.parameters()]
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        rest = runtime.load(path, {"model": model, "optimizer": optimizer})
        assert all(map(torch.equal, before, [parameter.cpu() for parameter in model.parameters()]))
        assert {parameter.device for parameter in model.parameters()} == {runtime.device}
        assert rest["tensor"].device.type == "cpu"
    shard = torch.load(path, weights_only=True)  # as where no torch_xla is
    devices = {tensor.device.type for state in shard["optimizer"]["state"].values() for tensor in state.values()}
    assert devices | {tensor.device.type for tensor in shard["model"].values()} == {"cpu"}


class Dropping(Classifier):
    """Draws on the device in each step, and writes a checkpoint after the first epoch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.net.append(nn.Dropout(0.25))
        self._path = path

    def on_train_epoch_end(self) -> None:
        """Write the checkpoint."""
        if self.current_epoch == 0:
            self.trainer.save_checkpoint(self._path)


def test_resume_is_exact(tmp_path: Path) -> None:
    """A run that goes on from a checkpoint draws and computes, to the bit, what the uninterrupted one does."""
    torch_hal.random.seed_everything(3)
    whole = Dropping(tmp_path / "half")
    Trainer(**ONE, **OPTIONS).fit(whole, loader())
    torch_hal.random.seed_everything(4)
    rest = Dropping(tmp_path / "none")
    Trainer(**ONE, **OPTIONS).fit(rest, loader(), ckpt_path=tmp_path / "half")
    assert [float(loss) for loss in whole.losses[8:]] == [float(loss) for loss in rest.losses]
