"""What an IPU cannot do is refused by name, before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_hal_ipu.strategy import IPUStrategy

from torch_hal import Runtime, Trainer
from torch_hal.errors import ConfigurationError, CoreError

from .problem import OPTIONS, Classifier, loader


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": "64-true"}, "64-true.*32-true"),
        ({"precision": "bf16-mixed"}, "bf16-mixed.*32-true"),
        ({"precision": "16-mixed"}, "16-mixed.*32-true"),
        ({"num_nodes": 2}, "'ipu' runs on 1 process; num_nodes=2 asks for 2"),
        ({"strategy": "ddp", "devices": 2}, "collectives.*from one process"),
        ({"devices": 5}, "devices=5 .*available: devices 0 to 3"),
        ({"devices": [1, 3]}, "poptorch itself chooses"),
        ({"devices": 3, "strategy": IPUStrategy(ipus_per_replica=2)}, "ipus_per_replica=2"),
        ({"devices": 1, "compile": True}, "compile=True: strategy 'ipu' compiles whole training steps itself"),
        ({"devices": 2, "sync_batchnorm": True}, "sync_batchnorm=True: poptorch"),
        ({"accelerator": "cpu", "strategy": "ipu"}, "does not support accelerator 'cpu'"),
    ],
    ids=["64", "bf16", "mixed", "nodes", "ddp", "too many", "others", "replicas", "compile", "batch norm", "cpu"],
)
def test_arguments(arguments: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Trainer is not even made."""
    for name, value in (("NODE_RANK", "0"), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(CoreError, match=message):
        Trainer(**{"accelerator": "ipu", **OPTIONS, **arguments})


def test_own_loop() -> None:
    """Your own loop is refused, by the name of the strategy; and another strategy, since nothing runs eagerly."""
    with pytest.raises(ConfigurationError, match=r"'ipu'.*whole training steps"):
        Runtime(accelerator="ipu", devices=1)
    with pytest.raises(ConfigurationError, match=r"'single_device' runs operations one by one.*'ipu'.*compiles"):
        Runtime(accelerator="ipu", strategy="single_device", devices=1)


@pytest.mark.parametrize("argument", ["device_iterations", "ipus_per_replica"])
@pytest.mark.parametrize("value", [0, True, 1.5, "2"])
def test_whole_numbers(argument: str, value: Any) -> None:
    """A value that is not an integer ≥ 1 is refused, by the argument's name."""
    options: dict[str, Any] = {argument: value}
    with pytest.raises(ConfigurationError, match=argument):
        IPUStrategy(**options)


@pytest.mark.parametrize(
    ("make_optimizer", "arguments", "message"),
    [
        (lambda p: torch.optim.Adagrad(p), {}, "cannot run Adagrad"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), {}, "'amsgrad'"),
        (lambda p: torch.optim.SGD(p, 0.1), {"gradient_clip_val": 1.0, "gradient_clip_algorithm": "value"}, "'value'"),
        (lambda p: torch.optim.RMSprop(p), {"gradient_clip_val": 1.0}, "RMSprop.*Use 'norm' with SGD"),
    ],
    ids=["optimizer", "setting", "by value", "no limit"],
)
def test_optimizers(make_optimizer: Any, arguments: dict[str, Any], message: str, calls: list[str]) -> None:
    """An optimizer that poptorch has not, or that cannot limit gradients so, is refused before anything is compiled."""
    with pytest.raises(ConfigurationError, match=message):
        Trainer(accelerator="ipu", devices=1, **OPTIONS, **arguments).fit(Classifier(make_optimizer), loader())
    assert "trainingModel" not in calls


class LogsNumber(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("number", 1.0)
        return super().training_step(batch, batch_idx)


class Skips(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None


class ReturnsNothing(Classifier):
    def test_step(self, batch: Any, batch_idx: int) -> Any:
        return None


def test_steps_that_cannot_be_compiled() -> None:
    """A number logged, a step skipped, nothing to compute: each says what is wrong while it is compiled."""
    trainer = Trainer(accelerator="ipu", devices=1, max_epochs=1, **OPTIONS)
    with pytest.raises(ConfigurationError, match=r"log\('number', 1.0\)"):
        trainer.fit(LogsNumber(), loader())
    with pytest.raises(ConfigurationError, match="cannot skip a batch"):
        trainer.fit(Skips(), loader())
    with pytest.raises(ConfigurationError, match="returned no tensor and logged none"):
        trainer.test(ReturnsNothing(), loader())
    with pytest.raises(ConfigurationError, match="has no tensor with a batch dimension"):
        trainer.test(Classifier(), [[1, 2]])
    assert isinstance(trainer.test(Classifier(), loader())[0]["test_loss"], float)  # nothing is left behind


def test_a_failing_step_gives_the_ipus_back(calls: list[str]) -> None:
    """Where a run ends with an error the executors are destroyed, so that the next run can have the IPUs."""

    class Fails(Classifier):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        Trainer(accelerator="ipu", devices=4, **OPTIONS).fit(Fails(), loader())
    assert calls[-1] == "destroy"
    Trainer(accelerator="ipu", devices=4, max_epochs=1, **OPTIONS).fit(Classifier(), loader())
