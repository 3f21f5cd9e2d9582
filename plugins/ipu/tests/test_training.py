"""Training by compiled steps: the losses and weights of a plain loop on the CPU."""

from __future__ import annotations

from typing import Any

import poptorch
import pytest
import torch
from torch import nn
from torch_hal_ipu.strategy import IPUStrategy

from torch_hal import Trainer

from .problem import OPTIONS, Classifier, Losses, MakeOptimizer, apart, by_hand, data, loader


def fit(module: Classifier, strategy: Any = "ipu", items: int = 64, batch_size: int = 16, **options: Any) -> list[Any]:
    """Train for two epochs; the losses that callbacks saw."""
    noted = Losses()
    options = {"accelerator": "ipu", "devices": 1, "max_epochs": 2, "callbacks": [noted], **OPTIONS, **options}
    Trainer(strategy=strategy, **options).fit(module, loader(items, batch_size))
    return noted.losses


@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_are_the_cpus(iterations: int, replicas: int, accumulate: int) -> None:
    """Each call makes ``device_iterations`` steps, each on the mean gradient of its share over replicas and batches."""
    module, plain = Classifier(), Classifier().net
    strategy = IPUStrategy(device_iterations=iterations)
    losses = fit(module, strategy, devices=replicas, accumulate_grad_batches=accumulate)
    expected = by_hand(plain, iterations=iterations, accumulate=accumulate)
    assert [loss is None for loss in losses] == [(i + 1) % accumulate != 0 for i in range(8)]
    calls = [loss for loss in losses if loss is not None]
    assert max(abs(a - b) for a, b in zip(calls, expected, strict=True)) <= 1e-6
    assert apart(module.net, plain) <= 1e-6
    assert module.runs == 1  # compiled, not run


def test_the_end_of_an_epoch(caplog: pytest.LogCaptureFixture) -> None:
    """Fewer items, and fewer batches to add up, are compiled again, says the log; each batch counts with its share."""
    module, plain = Classifier(), Classifier().net
    losses = fit(module, items=72, accumulate_grad_batches=2)
    expected = by_hand(plain, items=72, accumulate=2)
    assert max(abs(a - b) for a, b in zip([x for x in losses if x is not None], expected, strict=True)) <= 1e-6
    assert apart(module.net, plain) <= 1e-6
    assert caplog.text.count("drop_last=True") == 3  # to the end, back, to the end


def test_as_many_items_in_fewer_batches() -> None:
    """Where an epoch ends with one batch of as many items as two had before, it counts as one batch."""
    inputs, labels = data(32).tensors
    batches = [(inputs[begin:end], labels[begin:end]) for begin, end in ((0, 8), (8, 16), (16, 32))]
    module, plain = Classifier(), Classifier().net
    trainer = Trainer(accelerator="ipu", devices=1, max_epochs=1, accumulate_grad_batches=2, **OPTIONS)
    trainer.fit(module, batches)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for group in (batches[:2], batches[2:]):
        optimizer.zero_grad()
        for x, y in group:
            (nn.functional.cross_entropy(plain(x), y) / 2).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert apart(module.net, plain) <= 1e-6


def test_a_batch_that_cannot_be_split(calls: list[str]) -> None:
    """A batch that replicas cannot share is one replica's; one that has no equal part for each step is refused."""
    module, plain = Classifier(), Classifier().net
    losses = fit(module, devices=4, items=69)
    assert max(abs(a - b) for a, b in zip(losses, by_hand(plain, items=69), strict=True)) <= 1e-6
    replicas = [call for call in calls if "replicationFactor" in call]
    assert replicas == ["Options.replicationFactor(4)", "Options.replicationFactor(1)"] * 2
    with pytest.raises(ValueError, match=r"15 items .* multiple of 2; drop_last=True"):
        fit(Classifier(), IPUStrategy(device_iterations=2), devices=2, items=30, batch_size=15)


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, betas=(0.8, 0.99)),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, centered=True),
    "poptorch's": lambda parameters: poptorch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "groups": lambda parameters: _two_groups(list(parameters)),
}


def _two_groups(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    groups = [{"params": parameters[:2], "lr": 0.05}, {"params": parameters[2:], "momentum": 0.5}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    """torch's optimizers run as poptorch's of the same name and settings; poptorch's own are taken as they are."""
    module, plain = Classifier(OPTIMIZERS[name]), Classifier().net
    fit(module)
    by_hand(plain, make_optimizer=OPTIMIZERS[name])
    assert apart(module.net, plain) <= 1e-6


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_learning_rate_of_a_scheduler(interval: str, calls: list[str]) -> None:
    """What a scheduler changes is handed to the compiled step before the next one, and only then."""

    class Scheduled(Classifier):
        def configure_optimizers(self) -> Any:
            optimizer = self.make_optimizer(self.parameters())
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": interval}}

    module, plain = Scheduled(), Classifier().net
    fit(module)
    by_hand(plain, learning_rate=lambda call: 0.1 * 0.5 ** (call if interval == "step" else call // 4))
    assert apart(module.net, plain) <= 1e-6
    assert calls.count("setOptimizer") == (7 if interval == "step" else 1)


def test_gradient_norm_is_limited() -> None:
    """``gradient_clip_val`` is done by the compiled optimizer, on the step's mean gradient."""
    module, plain = Classifier(), Classifier().net
    fit(module, devices=2, gradient_clip_val=0.1)
    by_hand(plain, clip=0.1)
    assert apart(module.net, plain) <= 1e-6


def test_buffers_and_half_precision() -> None:
    """16-true trains parameters of float16; what a step counts in buffers is kept."""
    module = Classifier()
    module.net.insert(1, nn.BatchNorm1d(12))
    losses = fit(module, precision="16-true")
    assert next(module.parameters()).dtype == torch.float16
    assert dict(module.named_buffers())["net.1.num_batches_tracked"] == 8
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("accumulate", "sizes"), [(1, [16, 16, 16, 16, 8]), (2, [32, 32, 8])])
def test_what_a_step_logs(accumulate: int, sizes: list[int]) -> None:
    """Tensors that a compiled step logs are results of each call, averaged over its parts; an epoch's mean is exact."""
    module, noted = Classifier(), Losses()
    arguments = {"accumulate_grad_batches": accumulate, "max_epochs": 1, "callbacks": [noted], **OPTIONS}
    trainer = Trainer(accelerator="ipu", devices=4, **arguments)
    trainer.fit(module, loader(72))
    metrics = trainer.callback_metrics
    losses = [loss for loss in noted.losses if loss is not None]
    assert metrics["loss_step"] == pytest.approx(losses[-1])
    weighted = sum(loss * size for loss, size in zip(losses, sizes, strict=True)) / 72
    assert metrics["loss_epoch"] == pytest.approx(weighted, abs=1e-6)
    assert 0 <= metrics["accuracy_epoch"] <= 1


def test_the_calls_of_a_fit(calls: list[str]) -> None:
    """Two epochs of two steps on two IPUs: what poptorch is asked, in order."""
    fit(Classifier(), IPUStrategy(device_iterations=2, executable_cache="cache"), devices=2, items=32)
    assert [call for call in calls if call != "ipuHardwareIsAvailable"] == [
        "Options",
        "Options.deviceIterations(2)",
        "Options.replicationFactor(2)",
        "Options.outputMode(All)",
        "Options.enableExecutableCaching(cache)",
        "Options.Training.gradientAccumulation(1)",
        "trainingModel",
        "compile",
        "identity_loss",
        *["step"] * 4,
        "detachFromDevice",
        "destroy",
    ]


def test_options_of_the_users_own(calls: list[str]) -> None:
    """``configure_options`` sees the options before this strategy's own are set; one index pins the IPU."""
    seen: list[bool] = []

    def configure(options: Any, training: bool) -> None:
        seen.append(training)
        options.autoRoundNumIPUs(True)

    fit(Classifier(), IPUStrategy(configure_options=configure), devices=[2])
    assert seen == [True]
    assert calls.index("Options.autoRoundNumIPUs(True)") < calls.index("Options.deviceIterations(1)")
    assert "Options.useIpuId(2)" in calls
