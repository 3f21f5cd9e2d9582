"""plugins and barebones, which stand for other arguments; arguments that are refused; what the Trainer says runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from core import Callback, Module, Trainer
from core.callbacks import Checkpoint
from core.checkpoints.torch_io import TorchCheckpointIO
from core.environments import LocalEnvironment
from core.errors import ConfigurationError, CoreError, DeviceError, UnknownNameError, WrongTypeError
from core.precisions import Precision

from .regression import Regression, loader, quiet


def cpu(**arguments: Any) -> Trainer:
    return Trainer(accelerator="cpu", devices=1, **arguments)


def test_plugins_are_sorted_by_kind() -> None:
    """Objects and names become what the argument of their kind would have."""
    io, environment = TorchCheckpointIO(), LocalEnvironment()
    trainer = quiet(plugins=[io, "bf16-mixed", environment])
    assert trainer.strategy.checkpoint_io is io
    assert trainer.strategy.cluster_environment is environment
    assert trainer.precision == "bf16-mixed"
    assert quiet(plugins="sharded").plan.checkpoint_io.name == "sharded"
    assert quiet(plugins=trainer.precision_plugin).precision_plugin is trainer.precision_plugin


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"plugins": "bf16-mixed", "precision": "16-mixed"}, ConfigurationError, "precision='16-mixed'"),
        ({"plugins": ["bf16-mixed", "64-true"]}, ConfigurationError, "'64-true' is a precision, and plugins has"),
        ({"plugins": ["sharded", "sharded"]}, ConfigurationError, "'sharded' is a checkpoint_io"),
        ({"plugins": "shraded"}, UnknownNameError, "Did you mean 'sharded'"),
        ({"plugins": [object()]}, WrongTypeError, "is not a plugin. Pass a Precision, a CheckpointIO"),
        ({"plugins": TorchCheckpointIO}, WrongTypeError, "is a class: create an object"),
        ({"barebones": 1}, WrongTypeError, "barebones=1: must be True or False"),
        ({"auto_select_gpus": 1}, WrongTypeError, "auto_select_gpus=1: must be True or False"),
        ({"auto_select_gpus": True, "devices": 2}, DeviceError, "accelerator 'cpu' cannot tell which devices"),
        ({"auto_select_gpus": True, "devices": [1]}, DeviceError, "devices must be a number of them"),
        ({"auto_select_gpus": True, "devices": "auto"}, DeviceError, "devices must be a number of them"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], error: type[CoreError], said: str) -> None:
    """Each names the argument and what to do."""
    with pytest.raises(error, match=said):
        quiet(**arguments)


def test_barebones_leaves_out_everything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No callbacks, no files, no sanity check; the same parameters as with them."""
    monkeypatch.chdir(tmp_path)
    seen: list[str] = []

    class Sees(Callback):
        def on_sanity_check_start(self, trainer: Any, module: Any) -> None:
            seen.append("sanity")

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            seen.append("validation")

    trainer = cpu(barebones=True, max_epochs=1, callbacks=[Sees()])
    assert [type(callback) for callback in trainer.callbacks] == [Sees]
    trainer.fit(Regression(), loader(), loader())
    assert seen == ["validation"]
    assert trainer.loggers == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable_checkpointing", True),
        ("enable_progress_bar", True),
        ("enable_model_summary", True),
        ("logger", "csv"),
        ("num_sanity_val_steps", 2),
        ("log_every_n_steps", 50),
        ("fast_dev_run", True),
        ("detect_anomaly", True),
        ("profiler", "simple"),
        ("callbacks", Checkpoint()),
    ],
)
def test_barebones_contradicts_what_it_leaves_out(name: str, value: Any) -> None:
    """Also with a value that is the default elsewhere."""
    said = "enable_checkpointing=False, but" if name == "callbacks" else f"barebones=True and {name}="
    with pytest.raises(ConfigurationError, match=said):
        cpu(barebones=True, **{name: value})


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
def test_checkpoints_are_read_with_weights_only(stage: str) -> None:
    """True and None are what happens; False is refused before anything runs."""
    run = getattr(quiet(max_epochs=1), stage)
    run(Regression(), loader(), weights_only=True)
    run(Regression(), loader(), weights_only=None)
    with pytest.raises(ConfigurationError, match="weights_only=False: a checkpoint that is read so can run any code"):
        run(Regression(), loader(), weights_only=False)
    with pytest.raises(WrongTypeError, match="weights_only='no': must be True or None"):
        run(Regression(), loader(), weights_only="no")


def test_what_runs_before_during_and_after_a_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """One process is rank 0 of one; the module is known from the start of its run."""
    trainer = cpu(max_epochs=1, barebones=True, limit_val_batches=1)
    facts = (trainer.world_size, trainer.global_rank, trainer.local_rank, trainer.node_rank, trainer.num_nodes)
    assert facts == (1, 0, 0, 0, 1)
    assert (trainer.num_devices, trainer.device_ids, trainer.precision) == (1, [0], "32-true")
    assert isinstance(trainer.precision_plugin, Precision)
    assert trainer.accelerator is trainer.strategy.accelerator
    assert (trainer.lightning_module, trainer.model, trainer.enable_validation) == (None, None, False)
    during: list[Any] = []

    class Sees(Regression):
        def on_train_start(self) -> None:
            found: Any = self.trainer
            during.append((found.lightning_module is self, found.model is self, found.enable_validation))
            found.print("training", end="!")

    module = Sees()
    trainer.fit(module, loader(), loader())
    trainer.fit(module, loader())
    assert during == [(True, True, True), (True, True, False)]
    assert capsys.readouterr().out == "training!" * 2
    assert trainer.lightning_module is module


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_interrupted(error: type[BaseException]) -> None:
    """It is true from on_exception on, until the next run."""
    during: list[bool] = []

    class Sees(Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            during.append(trainer.interrupted)

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            during.append(trainer.interrupted)

    class Fails(Regression):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise error

    trainer = quiet(max_epochs=1, callbacks=[Sees()])
    with pytest.raises(error):
        trainer.fit(Fails(), loader())
    during.append(trainer.interrupted)
    trainer.fit(Regression(), loader())
    assert [*during, trainer.interrupted] == [False, True, True, False, False]


class Ranks(Module):
    """Predicts what its process says about itself."""

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        trainer: Any = self.trainer
        assert trainer.lightning_module is self
        return torch.tensor([trainer.global_rank, trainer.local_rank, trainer.node_rank, trainer.world_size])


@pytest.mark.slow
def test_ranks_of_three_processes() -> None:
    """Each of them has its own."""
    trainer = quiet(devices=3, strategy="ddp_fork")
    assert (trainer.num_devices, trainer.device_ids, trainer.world_size) == (3, [0, 1, 2], 3)
    module = Ranks()
    got = trainer.predict(module, loader(20))
    assert [row.tolist() for row in got] == [[rank, rank, 0, 3] for rank in range(3)]
    assert trainer.lightning_module is module


def test_the_module_has_the_dtype_that_it_was_trained_in() -> None:
    """In the calling process too: what others trained is not rounded to the dtype that it had before."""
    module = Regression()
    quiet(max_epochs=1, precision="64-true", strategy="ddp_fork", devices=2).fit(module, loader())
    for parameter in module.parameters():
        assert parameter.dtype is torch.float64
        assert not torch.equal(parameter, parameter.float().double())


class PartlySaved(Regression):
    """Its checkpoints have no backbone, and no count."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.backbone = torch.nn.BatchNorm1d(6, affine=False)
        self.register_buffer("count", torch.zeros(()), persistent=False)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        found = super().state_dict(*args, **kwargs)
        return {name: value for name, value in found.items() if not name.startswith("backbone")}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.count += 1
        return super().training_step([self.backbone(batch[0]), batch[1]], batch_idx)


def test_what_a_state_dict_leaves_out_comes_back_from_the_processes() -> None:
    """The module in the calling process is that of process 0, and not only what a checkpoint of it has."""
    module: Any = PartlySaved()
    before = module.network[0].weight.detach().clone()
    trainer = quiet(max_epochs=2, strategy="ddp_fork", devices=2)
    trainer.fit(module, loader(batch_size=10))
    assert module.backbone.num_batches_tracked == module.count == trainer.global_step == 6
    assert module.backbone.running_mean.any()
    assert not torch.equal(module.network[0].weight, before)


class LateHead(Regression):
    """It gets a head in a hook that a subclass names."""

    def add_head(self, *args: Any) -> None:
        if not hasattr(self, "head"):
            self.head = torch.nn.Linear(6, 1)

    def forward(self, inputs: Any) -> Any:
        return super().forward(inputs) + (self.head(inputs) if hasattr(self, "head") else 0)


@pytest.mark.parametrize(("hook", "begins"), [("setup", False), ("on_train_end", True)])
def test_parts_that_only_the_processes_have(hook: str, begins: bool) -> None:
    """An error says where to create them; before the first step, if they are known then."""
    module = type("Late", (LateHead,), {hook: LateHead.add_head})()
    with pytest.raises(CoreError, match=r"(?s)in configure_model, which .*['\"]head\.bias") as caught:
        quiet(max_epochs=1, strategy="ddp_fork", devices=2).fit(module, loader())
    assert isinstance(caught.value, ConfigurationError) is begins  # an error in a process is a LaunchError
