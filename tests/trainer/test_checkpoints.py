"""ModelCheckpoint, what is in its checkpoints, and which of them are refused."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from core import Callback, CheckpointIO, Trainer
from core.callbacks import ModelCheckpoint
from core.checkpoints import TorchCheckpointIO, is_committed, latest, read_manifest
from core.errors import CheckpointError, ConfigurationError, WrongTypeError

from .regression import Regression, assert_same, loader, quiet


def saving(directory: Path, checkpoint: ModelCheckpoint | None = None, **settings: Any) -> Trainer:
    callbacks = [*settings.pop("callbacks", []), *([] if checkpoint is None else [checkpoint])]
    return quiet(default_root_dir=directory, enable_checkpointing=True, callbacks=callbacks, **settings)


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_a_checkpoint_at_each_epochs_end(tmp_path: Path) -> None:
    """By default in the run's folder, named by epoch and step, the newest kept; the manifest says who wrote them."""
    trainer = saving(tmp_path, max_epochs=3)
    trainer.fit(Regression(), loader())
    directory = tmp_path / "checkpoints" / "version_0"
    assert names(directory) == ["epoch=2-step=21.ckpt"]
    assert isinstance(trainer.checkpoint_callback, ModelCheckpoint)
    assert trainer.checkpoint_callback.best_model_path == str(directory / "epoch=2-step=21.ckpt")
    assert trainer.checkpoint_callback.dirpath == str(directory)
    assert latest(directory) == directory / "epoch=2-step=21.ckpt"
    manifest = read_manifest(directory / "epoch=2-step=21.ckpt")
    assert (manifest.world_size, manifest.strategy) == (1, "single_device")
    assert {"torch", "torch-hal", "python"} <= set(manifest.versions)


def test_old_ones_go_only_after_the_new_one_is_committed(tmp_path: Path) -> None:
    """Whenever one is removed, a newer one is there whole."""
    events: list[str] = []

    class Watched(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            super().save_checkpoint(checkpoint, path, storage_options)
            events.append(f"saved {os.path.basename(path)}")

        def remove_checkpoint(self, path: Any) -> None:
            newest = latest(os.path.dirname(path))
            assert newest is not None
            assert is_committed(newest)
            assert newest.name != os.path.basename(path)
            events.append(f"removed {os.path.basename(path)}")
            super().remove_checkpoint(path)

    checkpoint = ModelCheckpoint(tmp_path)
    saving(tmp_path, checkpoint, max_epochs=3, checkpoint_io=Watched()).fit(Regression(), loader())
    first, second, third = (f"epoch={epoch}-step={7 * epoch + 7}.ckpt" for epoch in range(3))
    assert events == [f"saved {first}", f"saved {second}", f"removed {first}", f"saved {third}", f"removed {second}"]


def test_a_save_that_fails_removes_nothing(tmp_path: Path) -> None:
    """The error is raised where fit was called, and the last good checkpoint stays."""

    class Full(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            if os.path.basename(path) == "epoch=1.ckpt":
                raise CheckpointError("no space")
            super().save_checkpoint(checkpoint, path, storage_options)

    checkpoint = ModelCheckpoint(tmp_path, "{epoch}")
    with pytest.raises(CheckpointError, match="no space"):
        saving(tmp_path, checkpoint, max_epochs=3, checkpoint_io=Full()).fit(Regression(), loader())
    assert names(tmp_path) == ["epoch=0.ckpt"]


def test_a_resumed_run_goes_on_keeping_its_own_alone(tmp_path: Path) -> None:
    """Of a run in another directory, which it is resumed from, it removes nothing."""
    first, second = tmp_path / "first", tmp_path / "second"
    newest: dict[str, Any] = {"filename": "{epoch}", "monitor": "step", "mode": "max"}
    saving(first, ModelCheckpoint(first, save_top_k=2, **newest), max_epochs=2).fit(Regression(), loader())
    again = saving(first, ModelCheckpoint(first, save_top_k=2, **newest), max_epochs=3)
    again.fit(Regression(), loader(), ckpt_path="last")
    assert names(first) == ["epoch=1.ckpt", "epoch=2.ckpt"]
    other = saving(second, ModelCheckpoint(second, **newest), max_epochs=5)
    other.fit(Regression(), loader(), ckpt_path=first / "epoch=2.ckpt")
    assert names(first) == ["epoch=1.ckpt", "epoch=2.ckpt"]
    assert names(second) == ["epoch=4.ckpt"]


def test_what_is_in_a_checkpoint(tmp_path: Path) -> None:
    """torch alone reads it, with ``weights_only=True``; the state dict is the user's own module's."""
    module = Regression()
    saving(tmp_path, max_epochs=1, precision="16-mixed").fit(module, loader(shuffle=True))
    path = tmp_path / "checkpoints" / "version_0" / "epoch=0-step=7.ckpt"
    content = torch.load(path, weights_only=True)
    assert (content["progress"]["epoch"], content["progress"]["step"]) == (1, 7)
    assert (content["epoch"], content["global_step"]) == (0, 7)  # as the name, and as in Lightning
    own = module.state_dict()
    assert content["state_dict"].keys() == own.keys()
    assert all(torch.equal(content["state_dict"][name], value) for name, value in own.items())
    (optimizer,) = content["optimizer_states"]
    assert optimizer.keys() == module.configure_optimizers().state_dict().keys()
    assert content["core"]["precision"] == "16-mixed"


def test_a_users_own_format_of_one_file(tmp_path: Path) -> None:
    """A CheckpointIO that writes a single file serves saving, resuming and removing."""

    class OneFile(CheckpointIO):
        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            torch.save(checkpoint, path)

        def load_checkpoint(self, path: Any, map_location: Any = None) -> Any:
            return torch.load(path, map_location, weights_only=True)

        def remove_checkpoint(self, path: Any) -> None:
            os.remove(path)

    one = ModelCheckpoint(tmp_path, filename="{epoch}")
    saving(tmp_path, one, max_epochs=2, checkpoint_io=OneFile()).fit(Regression(), loader())
    assert names(tmp_path) == ["epoch=1.ckpt"]
    trainer = saving(tmp_path, ModelCheckpoint(tmp_path), max_epochs=3, checkpoint_io=OneFile())
    trainer.fit(Regression(), loader(), ckpt_path=tmp_path / "epoch=1.ckpt")
    assert trainer.global_step == 21


class Whenever(Callback):
    """Writes a checkpoint in one hook of epoch 1."""

    def __init__(self, hook: str, path: Path) -> None:
        self.hook, self.path = hook, path

    def _save(self, hook: str, trainer: Trainer) -> None:
        if hook == self.hook and trainer.current_epoch == 1:
            trainer.save_checkpoint(self.path)

    def on_train_epoch_start(self, trainer: Trainer, module: Any) -> None:
        self._save("on_train_epoch_start", trainer)

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._save(f"on_train_batch_end {batch_idx}", trainer)

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        self._save("on_validation_end", trainer)

    def on_train_epoch_end(self, trainer: Trainer, module: Any) -> None:
        self._save("on_train_epoch_end", trainer)


@pytest.mark.parametrize(
    ("hook", "epochs_left"), [("on_train_epoch_start", 2), ("on_validation_end", 1), ("on_train_epoch_end", 1)]
)
def test_checkpoints_written_by_the_user_between_epochs(hook: str, epochs_left: int, tmp_path: Path) -> None:
    """Each goes on with the epoch that had not begun, wherever between two epochs' batches it was written."""
    quiet(max_epochs=2, callbacks=Whenever(hook, tmp_path / "mine")).fit(Regression(), loader(), loader())
    trainer = quiet(max_epochs=3)
    trainer.fit(Regression(), loader(), ckpt_path=tmp_path / "mine")
    assert trainer.global_step == 21
    begun: list[int] = []

    class Count(Callback):
        def on_train_epoch_start(self, trainer: Trainer, module: Any) -> None:
            begun.append(trainer.current_epoch)

    quiet(max_epochs=3, callbacks=Count()).fit(Regression(), loader(), ckpt_path=tmp_path / "mine")
    assert begun == list(range(3 - epochs_left, 3))


def test_a_step_limit_at_an_epochs_end_is_no_break_within_it(tmp_path: Path) -> None:
    """Fourteen steps are two whole epochs: the fit goes on from there."""
    saving(tmp_path, max_steps=14).fit(Regression(), loader())
    trainer = quiet(max_epochs=3, default_root_dir=tmp_path)
    trainer.fit(Regression(), loader(), ckpt_path="last")
    assert (trainer.current_epoch, trainer.global_step) == (3, 21)


def test_saving_where_no_fit_has_run(tmp_path: Path) -> None:
    """Refused, as there is nothing to save."""
    with pytest.raises(ConfigurationError, match="no fit has been run"):
        quiet().save_checkpoint(tmp_path / "a")


def test_saving_after_fit(tmp_path: Path) -> None:
    """The run goes on from there, bit for bit as one that did not end."""
    whole, first, second = Regression(), Regression(), Regression()
    second.load_state_dict(first.state_dict())
    whole.load_state_dict(first.state_dict())
    torch.manual_seed(1)
    quiet(max_epochs=4).fit(whole, loader(shuffle=True), loader())
    torch.manual_seed(1)
    trainer = quiet(max_epochs=2)
    trainer.fit(first, loader(shuffle=True), loader())
    trainer.save_checkpoint(tmp_path / "new folder" / "x.ckpt")
    torch.manual_seed(2)
    resumed = quiet(max_epochs=4)
    resumed.fit(second, loader(shuffle=True), loader(), ckpt_path=tmp_path / "new folder" / "x.ckpt")
    assert_same(second, whole)
    assert (resumed.current_epoch, resumed.global_step) == (4, 28)


def test_saving_only_the_weights(tmp_path: Path) -> None:
    """They serve evaluation; a fit cannot go on from them, and says so. During fit and after it."""
    module, checkpoint = Regression(), ModelCheckpoint(tmp_path / "in", save_weights_only=True)
    trainer = saving(tmp_path, checkpoint, max_epochs=1)
    trainer.fit(module, loader())
    trainer.save_checkpoint(tmp_path / "after.ckpt", weights_only=True)
    for path in (Path(checkpoint.best_model_path), tmp_path / "after.ckpt"):
        content = TorchCheckpointIO().load_checkpoint(path)
        assert sorted(content) == [
            *("core", "epoch", "global_step", "progress", "pytorch-lightning_version", "state_dict")
        ]
        assert quiet().validate(Regression(), loader(), ckpt_path=path) == quiet().validate(module, loader())
        with pytest.raises(CheckpointError, match="saved with weights_only=True"):
            quiet(max_epochs=2).fit(Regression(), loader(), ckpt_path=path)


def test_the_state_of_callbacks_that_are_not_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning names them."""
    saving(tmp_path, ModelCheckpoint(tmp_path), max_epochs=1).fit(Regression(), loader())
    quiet(max_epochs=2).fit(Regression(), loader(), ckpt_path=tmp_path / "epoch=0-step=7.ckpt")
    assert "callbacks that this run lacks" in caplog.text
    assert "ModelCheckpoint(monitor=None" in caplog.text


class Wider(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.network[0] = torch.nn.Linear(6, 17)
        self.network[3] = torch.nn.Linear(17, 1)


class Scheduled(Regression):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


class PartlyTrained(Regression):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.network[0].parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (Wider, {}, "'state_dict' could not be loaded.*size mismatch for network.0.weight"),
        (Scheduled, {}, "'lr_schedulers' could not be loaded"),
        (PartlyTrained, {}, "'optimizer_states' could not be loaded"),
        (Regression, {"generator": torch.Generator()}, "'loaders' could not be loaded.*has 0 generator.*the loader 1"),
    ],
)
def test_checkpoints_of_something_else(module: Any, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    """A checkpoint that does not fit is a CheckpointError that names it and the part."""
    saving(tmp_path, max_epochs=1).fit(Regression(), loader())
    path = str(tmp_path / "checkpoints" / "version_0" / "epoch=0-step=7.ckpt")
    with pytest.raises(CheckpointError, match=f"(?s){path}.*{message}"):
        quiet(max_epochs=2).fit(module(), loader(**options), ckpt_path=path)


def test_a_checkpoint_of_another_number_of_processes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A fit goes on from it, and says both numbers; its parameters serve evaluation, of which nothing is to be said."""
    saving(tmp_path, max_epochs=1).fit(Regression(), loader())
    path, io = tmp_path / "checkpoints" / "version_0" / "epoch=0-step=7.ckpt", TorchCheckpointIO()
    content = io.load_checkpoint(path)
    caplog.clear()
    content["processes"] = content["processes"] * 2
    io.save_checkpoint(content, path)
    assert quiet().validate(Regression(), loader(), ckpt_path=path)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    trainer = quiet(max_epochs=2)
    trainer.fit(Regression(), loader(), ckpt_path=path)
    assert (trainer.current_epoch, trainer.global_step) == (2, 14)
    assert "written by 2 process(es), but this run has 1" in caplog.text
    assert "resume on 2 process(es)" in caplog.text


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
def test_what_is_no_checkpoint_of_a_trainer(stage: str, tmp_path: Path) -> None:
    """Absent paths, other files, other checkpoints and no paths at all are refused by name in every stage."""
    foreign, other = tmp_path / "foreign.pt", tmp_path / "other"
    torch.save({"epoch": 3}, foreign)
    TorchCheckpointIO().save_checkpoint({"weights": torch.ones(1)}, other)
    run = getattr(quiet(max_epochs=1, default_root_dir=tmp_path), stage)
    for path, message in (
        (tmp_path / "absent", "absent"),
        (foreign, "foreign.pt.*: the checkpoint has no .*'state_dict'.* a Trainer has written"),
        (other, "other.*: the checkpoint has no .*'state_dict'.* a Trainer has written"),
        ("last", "ckpt_path='last': there is no committed checkpoint in .*checkpoints"),
    ):
        with pytest.raises(CheckpointError, match=message):
            run(Regression(), loader(), ckpt_path=path)
    with pytest.raises(WrongTypeError, match="ckpt_path=5: must be a path"):
        run(Regression(), loader(), ckpt_path=5)
