"""dp on two simulated devices, compared with plain loops on the CPU."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torch_hal import Runtime, Trainer
from torch_hal.errors import ConfigurationError

from .conftest import needs_compiler
from .problem import BATCH, EPOCHS, OPTIONS, Classifier, batches, by_hand, loader, make_net

pytestmark = needs_compiler


class Losses:
    """A logger of each step's values."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def log_metrics(self, metrics: Any, step: int) -> None:
        """Keep those of a step."""
        if "loss_step" in metrics:
            self.steps.append({name: float(value) for name, value in metrics.items()})

    def losses(self) -> list[float]:
        """By step."""
        return [values["loss_step"] for values in self.steps]


def _fit(module: Any, items: int = 48, **arguments: Any) -> tuple[Trainer, Losses]:
    logger = Losses()
    arguments = {"accelerator": "acme", "strategy": "dp", "devices": 2, **arguments}
    trainer = Trainer(**arguments, **{**OPTIONS, "logger": logger}, log_every_n_steps=1)
    trainer.fit(module, loader(items))
    return trainer, logger


def _assert_same(module: nn.Module, expected: nn.Module, tolerance: float = 1e-6) -> None:
    for name, value in expected.state_dict().items():
        assert (module.state_dict()[name].cpu() - value).abs().max() <= tolerance, name


@pytest.mark.parametrize("items", [48, 45, 41], ids=["even", "5 in the last batch", "1 in the last batch"])
def test_two_devices_equal_the_plain_loop(items: int) -> None:
    """Every batch is split over both devices, and losses, metrics and parameters are those of a plain loop."""
    module = Classifier()
    trainer, logger = _fit(module, items)
    net, losses = by_hand(items)
    assert max(abs(a - b) for a, b in zip(logger.losses(), losses, strict=True)) <= 1e-6
    _assert_same(module.net, net)
    last = items % BATCH or BATCH
    parts = [f"acme:{number} acme:{number} {BATCH // 2} float32" for number in (0, 1)]
    assert sorted(module.seen[:2]) == parts
    assert len(module.seen) == EPOCHS * (2 * (-(-items // BATCH)) - (last == 1))
    assert {parameter.device for parameter in module.parameters()} == {torch.device("acme:0")}
    whole = losses[len(losses) // 2 :]
    mean = sum(loss * size for loss, size in zip(whole, [BATCH] * (len(whole) - 1) + [last], strict=True)) / items
    assert abs(float(trainer.callback_metrics["loss_epoch"]) - mean) <= 1e-6


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"accumulate_grad_batches": 2}, {"accumulate": 2}),
        ({"gradient_clip_val": 0.1}, {"clip": 0.1}),
        ({"precision": "bf16-mixed"}, {"autocast": torch.bfloat16}),
    ],
    ids=str,
)
def test_options_of_the_step(arguments: dict[str, Any], expected: dict[str, Any]) -> None:
    """Accumulation and clipping act on the whole batch's gradient; autocast reaches every device."""
    module = Classifier()
    _, logger = _fit(module, **arguments)
    net, losses = by_hand(**expected)
    losses = losses[expected.get("accumulate", 1) - 1 :: expected.get("accumulate", 1)]
    # Under autocast, matrix products of parts and of the whole may round differently.
    tolerance = 1e-2 if "precision" in arguments else 1e-6
    assert max(abs(a - b) for a, b in zip(logger.losses(), losses, strict=True)) <= tolerance
    _assert_same(module.net, net, tolerance)
    dtype = "bfloat16" if "precision" in arguments else "float32"
    assert {line.split()[-1] for line in module.seen} == {dtype}
    assert {line.split()[0] for line in module.seen} == {"acme:0", "acme:1"}


def test_scaled_losses() -> None:
    """Under 16-mixed the loss is scaled once, and gradients of both devices are unscaled with it."""
    runs = []
    for devices in (1, 2):
        module = Classifier()
        _, logger = _fit(module, devices=devices, precision="16-mixed")
        assert {line.split()[-1] for line in module.seen} == {"float16"}
        runs.append(logger.losses())
    assert len(set(runs[0])) > 8
    assert max(abs(a - b) for a, b in zip(*runs, strict=True)) <= 1e-2


def test_what_is_logged_is_the_whole_batchs() -> None:
    """Sums are summed and means weighted over the parts, so that metrics are those of one device."""
    metrics = []
    for arguments in ({"devices": 1}, {"devices": 2}):
        trainer, logger = _fit(Classifier(), 45, **arguments)
        metrics.append(
            [*logger.losses(), *(float(trainer.callback_metrics[name]) for name in ("loss_epoch", "correct"))]
        )
    assert metrics[0] == pytest.approx(metrics[1], abs=1e-6)


class Joining(Classifier):
    """Computes its loss from the outputs of both devices."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Outputs of a part."""
        return {"logits": self(batch[0]), "labels": batch[1], "size": len(batch[1])}

    def training_step_end(self, output: Any) -> Any:
        """The loss of the whole batch."""
        self.seen.append(" ".join(f"{part['size']} {part['logits'].device}" for part in output))
        logits, labels = (torch.cat([part[name] for part in output]) for name in ("logits", "labels"))
        loss = nn.functional.cross_entropy(logits, labels)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss


def test_the_end_of_a_step_sees_the_whole_batch() -> None:
    """``training_step_end`` gets a list of all parts' outputs, on the first device; its loss is trained on as it is."""
    module = Joining()
    _, logger = _fit(module, 45)
    net, losses = by_hand(45)
    assert module.seen[0] == "4 acme:0 4 acme:0"
    assert module.seen[5] == "3 acme:0 2 acme:0"
    assert max(abs(a - b) for a, b in zip(logger.losses(), losses, strict=True)) <= 1e-6
    _assert_same(module.net, net)


class Snippet(Classifier):
    """As in the document on GPU training."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Outputs of a part."""
        return self(batch[0])

    def training_step_end(self, outputs: Any) -> Any:
        """The code of the document, unchanged."""
        outputs = torch.cat(outputs, dim=1)
        softmax = nn.functional.softmax(outputs, dim=1)
        return softmax.mean()


def test_the_documents_end_of_a_step() -> None:
    """It joins the parts along the second dimension; its gradients reach the replicas."""
    module = Snippet()
    _fit(module)
    before, after = make_net().state_dict(), module.net.state_dict()
    assert any(not torch.equal(after[name].cpu(), value) for name, value in before.items())


class Vectors(Classifier):
    """Gives a loss for each item."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Of a part."""
        return nn.functional.cross_entropy(self(batch[0]), batch[1], reduction="none")


def test_a_loss_that_is_no_scalar_is_refused() -> None:
    """A training step whose loss is not a scalar is refused: its mean might not be what is meant."""
    with pytest.raises(ConfigurationError, match=r"loss: of shape \(8,\).*scalar from training_step"):
        _fit(Vectors())


def test_batch_norm_over_the_parts_is_refused() -> None:
    """Each device normalizes its part of the batch, which one device does not."""
    with pytest.raises(ConfigurationError, match=r"sync_batchnorm=True: strategy 'dp'.*use strategy='ddp'"):
        Trainer(accelerator="acme", strategy="dp", devices=2, sync_batchnorm=True)


def test_compile_is_refused() -> None:
    """The copies of the module would not be compiled."""
    with pytest.raises(ConfigurationError, match=r"compile=True: strategy 'dp' copies the module.*use strategy='ddp'"):
        Trainer(accelerator="acme", strategy="dp", devices=2, compile=True)


class Skipping(Classifier):
    """Skips every batch, or one part of it."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """None, on the first devices."""
        return None if batch[0].device.index < self.parts else super().training_step(batch, batch_idx)


def test_skipped_batches() -> None:
    """A batch that every part skips trains nothing, and is refused if all are; so is one that only some skip."""
    module = Skipping(2)
    with pytest.raises(ConfigurationError, match="returned None for every batch"):
        _fit(module)
    _assert_same(module.net, make_net(), 0)
    with pytest.raises(ConfigurationError, match="part 0: NoneType; part 1: Tensor"):
        _fit(Skipping(1))


class Misnamed(Classifier):
    """Logs what cannot be logged."""

    def __init__(self, value: Any, **options: Any) -> None:
        super().__init__()
        self.value, self.options = value, options

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Logs, then trains."""
        self.log("value", self.value, **self.options)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Misnamed(torch.ones(3)), r"log\('value'\): the value is a tensor of shape \(3,\)"),
        (Misnamed("text"), r"log\('value'\): the value 'text'"),
        (Misnamed(1, reduce_fx="median"), r"log\('value'\): unknown reduce_fx='median'"),
    ],
    ids=["vector", "text", "reduction"],
)
def test_what_cannot_be_logged(module: Misnamed, said: str) -> None:
    """Values and reductions that one device refuses are refused with the same message."""
    with pytest.raises(ConfigurationError, match=said):
        _fit(module)


class Extremes(Classifier):
    """Logs in all the ways there are."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Of a part."""
        items = batch[0][:, 0]
        for reduce_fx in ("min", "max", "sum"):
            value = getattr(items, reduce_fx)()
            self.log(reduce_fx, value, reduce_fx=reduce_fx, on_epoch=True, on_step=False)
        self.log("weighted", items.mean(), batch_size=10 * len(items), on_epoch=True, on_step=False)
        for half in items.chunk(2):
            self.log("twice", half.mean(), batch_size=len(half), on_epoch=True, on_step=False)
        self.log("count", len(items), reduce_fx="sum", on_epoch=True, on_step=False)
        return super().training_step(batch, batch_idx)


def test_every_way_of_logging() -> None:
    """Minimum, maximum, sum, weighted mean and several values of one name are what they are over all items."""
    trainer, _ = _fit(Extremes())
    items = torch.cat([inputs[:, 0] for inputs, _ in batches()])
    expected: dict[str, Any] = {
        "min": items.min(),
        "max": items.max(),
        "sum": items.sum(),
        "weighted": items.mean(),
        "twice": items.mean(),
        "count": len(items),
    }
    assert {name: float(trainer.callback_metrics[name]) for name in expected} == pytest.approx(
        {name: float(value) for name, value in expected.items()}, abs=1e-5
    )


class Saving(Classifier):
    """Writes a checkpoint after its first epoch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def on_train_epoch_end(self) -> None:
        """Write it."""
        if self.current_epoch == 0:
            self.trainer.save_checkpoint(self.path)


def test_a_checkpoint_serves_another_strategy(tmp_path: Path) -> None:
    """A checkpoint has the module's own names: another strategy goes on from it, to the end of the plain loop."""
    _fit(Saving(tmp_path / "checkpoint"))
    module = Classifier()
    Trainer(accelerator="cpu", **OPTIONS).fit(module, loader(), ckpt_path=tmp_path / "checkpoint")
    assert len(module.seen) == 6
    _assert_same(module.net, by_hand()[0])


def test_evaluation_is_not_split() -> None:
    """Evaluation sees whole batches, on the first device."""
    module = Classifier()
    trainer, _ = _fit(module)
    module.seen.clear()
    trainer.validate(module, loader())
    assert module.seen == [f"acme:0 {BATCH}"] * 6
    net, _ = by_hand()
    with torch.no_grad():
        expected = sum(float(nn.functional.cross_entropy(net(inputs), labels)) for inputs, labels in batches()) / 6
    assert abs(float(trainer.callback_metrics["val_loss"]) - expected) <= 1e-6


def test_one_device_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """On one device the module is not wrapped; that dp is discouraged is said once a run."""
    with caplog.at_level(logging.WARNING), Runtime(accelerator="acme", strategy="dp", devices=1) as runtime:
        net = nn.Linear(2, 2)
        assert runtime.prepare(net) is net
    assert caplog.text.count("'dp' is discouraged") == 1
    assert "Use strategy='ddp', which is faster" in caplog.text


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_your_own_loop(precision: str) -> None:
    """In your own loop the model takes whole batches and gives whole outputs; the loss is computed from these."""
    net = make_net()
    with Runtime(accelerator="acme", strategy="dp", devices=2, precision=precision) as runtime:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        model, optimizer, prepared = runtime.prepare(net, optimizer, loader(45))
        losses = []
        for _ in range(EPOCHS):
            for inputs, labels in prepared:
                output = model(inputs)
                assert (len(output), output.device, output.dtype) == (len(inputs), runtime.device, torch.float32)
                loss = nn.functional.cross_entropy(output, labels)
                runtime.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        assert runtime.unwrap_model(model) is net
        assert runtime.num_processes == 1
    expected_net, expected = by_hand(45)
    tolerance = 1e-6 if precision == "32-true" else 5e-2
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) <= tolerance
    if precision == "32-true":
        _assert_same(net, expected_net)


@pytest.mark.parametrize("arguments", [{"num_nodes": 2}, {"devices": 3}])
def test_arguments_that_it_does_not_support(arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Several machines, and devices that are not there, are refused before anything starts."""
    for name, value in {"NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ConfigurationError if "num_nodes" in arguments else ValueError, match=r"strategy=.dp.|devices=3"
    ):
        Trainer(**{"accelerator": "acme", "strategy": "dp", "devices": 2, **arguments}, **OPTIONS)
