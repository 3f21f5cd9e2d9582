"""What the guide to GPU training says, in its order, on the CPU.

Tests of a plugin have what is said of it: ``plugins/cuda`` dp and ddp2, which split a batch, ``plugins/horovod``,
``plugins/bagua``. There ``training_step_end`` gets the list of the parts, here the one output. Not as the document:

* several devices without a strategy use ``ddp``, which the document itself recommends over ``ddp_spawn``;
* after ``ddp_spawn`` the module has what was trained, and notebooks have ``ddp_notebook``;
* outputs are a list, so the snippet's ``torch.mean(self.all_gather(outputs))``, which torch refuses, needs a
  ``torch.stack``;
* Horovod scales the learning rate only with ``scale_learning_rate=True``;
* dp takes 16-bit precision.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from python_processes import run_python
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from core import Accelerator, Module, Trainer
from core.errors import ConfigurationError, CoreError, DeviceError, UnknownNameError
from core.strategies import DDPStrategy, SingleDeviceStrategy

SCRIPT = Path(__file__).parent / "scripts" / "guide_two.py"


class FourDevices(Accelerator):
    """Hardware with four devices, which are the CPU."""

    name = "four"

    def is_available(self) -> bool:
        return True

    def auto_device_count(self) -> int:
        return 4

    def get_parallel_devices(self, devices: Any) -> list[torch.device]:
        return [torch.device("cpu", index) for index in devices]

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}


class Small(Module):
    """A linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(module: Module, **arguments: Any) -> Trainer:
    """One step on one process."""
    options = {"max_steps": 1, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(**{"accelerator": "cpu", "devices": 1, **options, **arguments})
    trainer.fit(module, DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=4))
    return trainer


# -- hooks, sampler, metrics: on one process, and with ddp on two ------------------------------------------------------


@pytest.fixture(scope="module", params=[("auto", 1), ("ddp", 2)], ids=["one", "ddp"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process saw."""
    out = tmp_path_factory.mktemp("guide")
    strategy, devices = request.param
    run_python(SCRIPT, strategy, devices, cwd=out, timeout=180, warnings="ignore", env={"OUT": str(out)})
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(devices)]


@pytest.mark.slow
def test_each_process_has_its_part_of_the_data(ranks: list[dict[str, Any]]) -> None:
    """Without a sampler in the script: all items, and none twice."""
    items = [item for rank in ranks for batch in rank["batches"] for item in batch]
    assert sorted(items) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert {len(batch) for rank in ranks for batch in rank["batches"]} == {2}


@pytest.mark.slow
def test_tensors_follow_the_module(ranks: list[dict[str, Any]]) -> None:
    """``self.device``, a registered buffer, and what ``type_as`` makes."""
    assert [rank["devices"] for rank in ranks] == [["cpu"] * 3] * len(ranks)


@pytest.mark.slow
def test_the_end_of_a_training_step(ranks: list[dict[str, Any]]) -> None:
    """It gets what the step returned, with every strategy alike, and its loss is what the epoch's hook gets."""
    steps = 4 // len(ranks)
    for rank in ranks:
        assert rank["parts"] == [[2, 2]] * steps
        assert rank["training"] == [[[]] * steps, False]


@pytest.mark.slow
def test_the_end_of_a_validation(ranks: list[dict[str, Any]]) -> None:
    """The outputs of this process, for each loader a list; each is what the end of the step returned."""
    first, second = zip(*(rank["validation"] for rank in ranks), strict=True)
    assert sorted(item for part in first for item in part) == [1, 5, 9, 13]
    assert sorted(item for part in second for item in part) == [1, 5]


@pytest.mark.slow
def test_a_metric_that_is_reduced_by_hand(ranks: list[dict[str, Any]]) -> None:
    """``all_gather`` of the outputs, whose mean rank 0 alone logs: it is that of all items, times two."""
    assert ranks[0]["tested"] == [{"my_reduced_metric": 7.0}]


@pytest.mark.slow
def test_the_script_runs_once_in_each_process(ranks: list[dict[str, Any]]) -> None:
    """With the variables by which processes find each other."""
    expected = ["LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"]
    assert [rank["variables"] for rank in ranks[1:]] == [expected] * (len(ranks) - 1)


def test_outputs_are_kept_only_for_a_hook() -> None:
    """A step's output is free when the next one has run."""
    alive: list[int] = []

    class Counted(torch.Tensor):
        pass

    class Forgetful(Small):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            import gc

            gc.collect()
            alive.append(sum(type(each) is Counted for each in gc.get_objects()))
            return torch.zeros(3).as_subclass(Counted)

    class Keeping(Forgetful):
        def validation_epoch_end(self, outputs: Any) -> None:
            alive.append(len(outputs))

    loader = DataLoader(TensorDataset(torch.randn(8, 2)), batch_size=2)
    for kind, expected in ((Forgetful, [0, 1, 1, 1]), (Keeping, [0, 1, 2, 3, 4])):
        alive.clear()
        Trainer(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False).validate(
            kind(), loader, verbose=False
        )
        assert alive == expected


def test_the_hooks_have_their_place() -> None:
    """Each epoch's outputs come before the other hook of the epoch's end, and ``None`` is none."""
    calls: list[Any] = []

    class Noting(Small):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return None if batch_idx == 1 else {"loss": super().training_step(batch, batch_idx), "number": batch_idx}

        def training_epoch_end(self, outputs: Any) -> None:
            calls.append([each["number"] for each in outputs])
            self.log("mean", torch.stack([each["loss"] for each in outputs]).mean())

        def on_train_epoch_end(self) -> None:
            calls.append("end")

    loader = DataLoader(TensorDataset(torch.randn(12, 2)), batch_size=4)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=2, **options)  # type: ignore[arg-type]
    trainer.fit(Noting(), loader)
    assert calls == [[0, 2], "end", [0, 2], "end"]
    assert "mean" in trainer.callback_metrics


def test_a_hook_that_does_not_take_outputs() -> None:
    """It is refused before the fit, with what to write."""

    class Wrong(Small):
        def training_epoch_end(self) -> None: ...  # type: ignore[override]

    with pytest.raises(ConfigurationError, match=r"training_epoch_end\(self, outputs\)"):
        fit(Wrong())


# -- devices -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "chosen"),
    [
        (3, [0, 1, 2]),
        (-1, [0, 1, 2, 3]),
        ([0], [0]),
        ([1, 3], [1, 3]),
        ("3", [0, 1, 2]),
        ("1, 3", [1, 3]),
        ("-1", [0, 1, 2, 3]),
        ([0, 1], [0, 1]),
        ("0, 1", [0, 1]),
    ],
    ids=repr,
)
def test_the_table_of_devices(devices: Any, chosen: list[int]) -> None:
    """Each row, and each line above it, on hardware with four devices."""
    assert Trainer(accelerator=FourDevices(), devices=devices).device_ids == chosen


def test_no_devices() -> None:
    """Zero devices are an error; the document's table has no row for them."""
    with pytest.raises(DeviceError, match="devices=0"):
        Trainer(accelerator=FourDevices(), devices=0)


def test_a_backend_of_the_process_group() -> None:
    """The argument chooses it, and without it the hardware does."""
    for backend in ("gloo", "fake"):
        trainer = Trainer(strategy=DDPStrategy(process_group_backend=backend), accelerator="cpu", devices=2)
        assert trainer.plan.process_group_backend == backend
    assert Trainer(strategy="ddp", accelerator="cpu", devices=2).plan.process_group_backend == "gloo"


# -- modes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dp", "ddp2", "horovod", "bagua"])
def test_a_mode_of_a_plugin(name: str) -> None:
    """Where the plugin is not installed, the error has the command that installs it."""
    with pytest.raises(CoreError) as caught:  # dp and ddp2 need a GPU, if they are installed, and the others a launcher
        Trainer(accelerator="cpu", strategy=name)
    if isinstance(caught.value, UnknownNameError):
        said = f"strategy='{name}': the plugin is not installed. Run: pip install torch-hal-"
        assert said in str(caught.value)


def test_several_devices_without_a_mode() -> None:
    """They use ``ddp``, of which the Plan says why."""
    trainer = Trainer(accelerator="cpu", devices=2)
    assert trainer.plan.strategy.name == "ddp"
    assert "several processes" in trainer.plan.strategy.reason


def test_a_batch_that_the_strategy_moves(caplog: pytest.LogCaptureFixture) -> None:
    """The module's way to move it is not called, and a warning says so."""

    class Splits(SingleDeviceStrategy):
        moves_batches = True

    class Moves(Small):
        def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
            raise AssertionError

    with caplog.at_level(logging.WARNING):
        fit(Moves(), strategy=Splits())
    assert "Moves: transfer_batch_to_device is not called" in caplog.text


def test_an_own_way_to_connect_and_to_wrap() -> None:
    """``init_dist_connection`` and ``configure_ddp`` of a derived strategy are the ones that are called."""
    called = []

    class Own(DDPStrategy):
        def init_dist_connection(self) -> None:
            called.append("init_dist_connection")
            super().init_dist_connection()

        def configure_ddp(self) -> None:
            called.append("configure_ddp")
            super().configure_ddp()

    fit(Small(), strategy=Own())
    assert called == ["init_dist_connection", "configure_ddp"]
