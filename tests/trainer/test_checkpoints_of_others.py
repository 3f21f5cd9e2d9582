"""Checkpoints of Lightning, and weights of other libraries, written here by plain torch in their layout."""

from __future__ import annotations

import io
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from python_processes import run_python
from torch import nn
from torch.optim import lr_scheduler

from core import DataModule, Trainer
from core.callbacks import BaseFinetuning, EarlyStopping, ModelCheckpoint, WeightAveraging
from core.convert import convert
from core.errors import CheckpointError

from .regression import Regression, assert_same, dataset, loader, quiet

BATCHES = 7


class Net(Regression):
    """Without random numbers, which checkpoints of Lightning do not hold."""

    def __init__(self, width: int = 16, **more: Any) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 1))
        self.seen: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.seen.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer, scheduler = made(self)
        return [optimizer], [scheduler]


def made(module: nn.Module) -> tuple[Any, Any]:
    optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
    return optimizer, lr_scheduler.StepLR(optimizer, 1, 0.5)


def progress(**counts: int) -> dict[str, Any]:
    return {"total": dict(counts), "current": dict(counts)}


def loops(started: int, processed: int, completed: int, batch: int = BATCHES) -> dict[str, Any]:
    """The part of a checkpoint of Lightning, after ``batch`` of the newest epoch that has begun."""
    total = (started - 1) * BATCHES + batch
    batches = {
        "total": {"ready": total, "started": total, "processed": total, "completed": total},
        "current": {"ready": batch, "started": batch, "processed": batch, "completed": batch},
        "is_last_batch": batch == BATCHES,
    }
    epochs = progress(ready=started, started=started, processed=processed, completed=completed)
    return {"fit_loop": {"epoch_progress": epochs, "epoch_loop.batch_progress": batches}}


def trained(epochs: int = 4, cut: int = 2) -> tuple[list[float], Net, dict[str, Any]]:
    """Plain torch: the losses of all epochs, the module at the end, and what Lightning saves after ``cut`` of them."""
    torch.manual_seed(4)
    module = Net(width=8)
    optimizer, scheduler = made(module)
    losses, saved = [], {}
    for epoch in range(epochs):
        if epoch == cut:
            saved = {
                "epoch": cut - 1,
                "global_step": cut * BATCHES,
                "pytorch-lightning_version": "2.6.6",
                "state_dict": OrderedDict({name: value.clone() for name, value in module.state_dict().items()}),
                "loops": loops(cut, cut, cut - 1),
                "callbacks": {},
                "optimizer_states": [torch.load(_bytes(optimizer.state_dict()), weights_only=True)],
                "lr_schedulers": [dict(scheduler.state_dict())],
                "hparams_name": "kwargs",
                "hyper_parameters": {"width": 8},
            }
        for batch in loader():
            loss = module.loss(batch)
            losses.append(loss.item())
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        scheduler.step()
    return losses, module, saved


def _bytes(content: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    buffer.seek(0)
    return buffer


def resumed(saved: dict[str, Any], path: Path, *, module: Net | None = None, **settings: Any) -> tuple[Net, Trainer]:
    torch.save(saved, path / "l.ckpt")
    module = module or Net(width=8)
    trainer = quiet(max_epochs=4, default_root_dir=path, **settings)
    trainer.fit(module, loader(), loader(), ckpt_path=path / "l.ckpt")
    return module, trainer


@pytest.mark.parametrize(
    ("position", "left_out"),
    [
        (loops(2, 2, 1), ""),  # a ModelCheckpoint at the end of an epoch
        (loops(2, 2, 2), ""),  # trainer.save_checkpoint after fit
        (
            loops(2, 1, 1),
            "Left out, since it came after the save: validation and hooks that follow the last batch of epoch 1",
        ),
    ],
)
def test_a_fit_of_lightning_goes_on(
    position: dict[str, Any], left_out: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From the end of an epoch, with the losses and weights of plain torch that was not interrupted."""
    losses, whole, saved = trained()
    module, trainer = resumed({**saved, "loops": position}, tmp_path)
    assert module.seen == losses[2 * BATCHES :]
    assert_same(module, whole)
    assert (trainer.current_epoch, trainer.global_step) == (4, 4 * BATCHES)
    assert "written by Lightning 2.6.6. Restored: weights, optimizers, schedulers, epoch 2 and step 14. " in caplog.text
    assert "Not restored, since the checkpoint does not contain it: random number generators" in caplog.text
    assert left_out in caplog.text
    assert left_out or "Left out" not in caplog.text


def test_a_converted_checkpoint_of_lightning_goes_on(tmp_path: Path) -> None:
    """One file of ours, from which a run resumes as from Lightning's own."""
    _, whole, saved = trained()
    torch.save(saved, tmp_path / "l.ckpt")
    module = Net(width=8)
    trainer = quiet(max_epochs=4, default_root_dir=tmp_path)
    trainer.fit(module, loader(), loader(), ckpt_path=convert(tmp_path / "l.ckpt", tmp_path / "x.ckpt"))
    assert_same(module, whole)
    assert trainer.global_step == 4 * BATCHES


class Maximum(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adamax(self.parameters(), lr=0.02)
        return [optimizer], [lr_scheduler.StepLR(optimizer, 1, 0.5)]


def test_another_optimizer_than_lightnings(tmp_path: Path) -> None:
    """The file does not name Adam; the entries of its state do not suit Adamax, which torch finds in the first step."""
    *_, saved = trained()
    with pytest.raises(
        CheckpointError, match=r"Adamax is not .*state has 'exp_avg'.* and not .*'exp_inf'.*weights alone"
    ):
        resumed(saved, tmp_path, module=Maximum(width=8))


ON_TWO = """
import pathlib, sys, torch
from core import Module, Trainer

class Net(Module):
    def __init__(self):
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.mse_loss(self.network(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)

data = torch.load("data.pt")
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=4)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
module, trainer = Net(), Trainer(accelerator="cpu", devices=2, max_epochs=3, **quiet)
trainer.fit(module, loader, ckpt_path="l.ckpt")
torch.save(module.state_dict(), f"{trainer.global_rank}.pt")
"""


@pytest.mark.slow
def test_two_processes_go_on(tmp_path: Path) -> None:
    """Each process has the weights of plain torch, which averages the gradients of both processes' batches."""
    network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    data = dataset(24).tensors

    def train_an_epoch() -> None:
        for start in range(0, 24, 8):
            optimizer.zero_grad()
            for batch in (slice(start, start + 4), slice(start + 4, start + 8)):
                torch.autograd.backward(nn.functional.mse_loss(network(data[0][batch]), data[1][batch]) / 2)
            optimizer.step()

    train_an_epoch()
    state = {f"network.{name}": value for name, value in network.state_dict().items()}
    epoch = {"epoch_progress": progress(started=1, processed=1, completed=0)}
    batches = {**progress(ready=3, processed=3), "is_last_batch": True}
    saved = {"state_dict": state, "optimizer_states": [optimizer.state_dict()], "lr_schedulers": [], "global_step": 3}
    loop = {"fit_loop": {**epoch, "epoch_loop.batch_progress": batches}}
    torch.save({**saved, "loops": loop, "pytorch-lightning_version": "2.6.6"}, tmp_path / "l.ckpt")
    torch.save(data, tmp_path / "data.pt")
    (tmp_path / "train.py").write_text(ON_TWO, "utf-8")
    run_python("train.py", cwd=tmp_path)
    for _ in range(2):
        train_an_epoch()
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        for name, value in network.state_dict().items():
            assert torch.equal(found[f"network.{name}"], value), f"{rank} {name}"


def test_states_of_callbacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """EarlyStopping is restored. The warning lists the states that are not: ModelCheckpoint's, and unknown ones."""
    *_, saved = trained()
    stopping = {"wait_count": 2, "stopped_epoch": 0, "best_score": torch.tensor(1e-9), "patience": 3}
    saved["callbacks"] = {
        "EarlyStopping{'monitor': 'error', 'mode': 'min'}": stopping,
        "ModelCheckpoint{'monitor': 'error', 'mode': 'min'}": {"best_model_path": "x.ckpt"},
        "Pruning": {"amount": 1},
    }
    best = ModelCheckpoint(tmp_path / "new", monitor="error")
    _, trainer = resumed(saved, tmp_path, callbacks=[EarlyStopping("error"), best], enable_checkpointing=True)
    assert trainer.current_epoch == 3  # the third check without a better score
    assert "logged metrics, ModelCheckpoint, Pruning." in caplog.text
    assert best.best_model_path.startswith(str(tmp_path / "new"))


class Plateau(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "error"}}


def test_a_scheduler_whose_step_lightning_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lightning steps ReduceLROnPlateau after it has saved, and leaves that step out when it resumes."""
    *_, saved = trained()
    module = Plateau(width=8)
    saved["lr_schedulers"] = [module.configure_optimizers()["lr_scheduler"]["scheduler"].state_dict()]
    resumed(saved, tmp_path, module=module)
    assert "the step of ReduceLROnPlateau after epoch 1, whose metric is not in it" in caplog.text
    caplog.clear()
    resumed({**saved, "loops": loops(2, 2, 2)}, tmp_path, module=Plateau(width=8))
    assert "ReduceLROnPlateau" not in caplog.text


class Unfreezing(BaseFinetuning):
    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.network[0], train_bn=False)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        """Nothing is unfrozen."""


@pytest.mark.parametrize(
    ("change", "callback", "message"),
    [
        ({"loops": loops(3, 2, 2, 4)}, None, "within epoch 2, after batch 4 of it.*load its weights before"),
        ({"loops": loops(3, 3, 3, 4)}, None, "within epoch 2, after batch 4 of it"),  # max_steps has ended it
        ({"loops": {}}, None, "its part 'loops' has another form"),
        ({"optimizer_states": None}, None, "save_weights_only=True.*Net.load_from_checkpoint"),
        ({"optimizer_states": []}, None, r"has 0 optimizer\(s\), but configure_optimizers returned 1"),
        ({"averaging_state": {}}, None, "its weights are the average"),
        ({"callbacks": {"WeightAveraging": {"latest_update_step": 3}}}, WeightAveraging, "with WeightAveraging"),
        ({"callbacks": {"Unfreezing": {0: []}}}, Unfreezing, "written it with Unfreezing"),
        ({"lr_schedulers": []}, None, "its part 'lr_schedulers' could not be loaded"),
    ],
)
def test_what_cannot_go_on(change: dict[str, Any], callback: Any, message: str, tmp_path: Path) -> None:
    """The error says which part, and what to do."""
    *_, saved = trained()
    content = {name: value for name, value in {**saved, **change}.items() if value is not None}
    with pytest.raises(CheckpointError, match=message):
        resumed(content, tmp_path, callbacks=[] if callback is None else [callback()])


def test_hyperparameters_and_the_datamodule(tmp_path: Path) -> None:
    """Arguments that Lightning calls ``kwargs`` are each their own; a DataModule's state is under its class's name."""

    class Data(DataModule):
        at = 0

        def train_dataloader(self) -> Any:
            return loader()

        def test_dataloader(self) -> Any:
            return loader()

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.at = state["at"]

    _, _, saved = trained()
    saved["hyper_parameters"] |= {"_instantiator": "lightning.pytorch.cli.instantiate_module"}
    saved[Data.__qualname__] = {"at": 3}
    torch.save(saved, tmp_path / "l.ckpt")
    found = Net.load_from_checkpoint(tmp_path / "l.ckpt")
    assert found.hparams == {"width": 8}
    assert torch.equal(found.state_dict()["network.0.weight"], saved["state_dict"]["network.0.weight"])
    assert Data.load_from_checkpoint(tmp_path / "l.ckpt").at == 3
    for stage in ("fit", "test"):
        data = Data()
        trainer = quiet(max_epochs=3)
        getattr(trainer, stage)(Net(width=8), datamodule=data, ckpt_path=tmp_path / "l.ckpt")
        assert data.at == 3


def weights_forms(state: dict[str, Any], path: Path) -> dict[str, Path]:
    """The same weights in each form of others, by name."""
    from torch.distributed.checkpoint.state_dict_saver import save

    names = ("lightning.ckpt", "weights.pth", "old.pth", "parts.pt", "ddp.bin", "compiled.pt")
    files = {name: path / name for name in names}
    torch.save({"state_dict": state, "pytorch-lightning_version": "1.9.0"}, files["lightning.ckpt"])
    torch.save(state, files["weights.pth"])
    torch.save(state, files["old.pth"], _use_new_zipfile_serialization=False)
    torch.save({"model": state, "optimizer": {"state": {}}, "epoch": 3}, files["parts.pt"])
    torch.save(OrderedDict({f"module.{name}": value for name, value in state.items()}), files["ddp.bin"])
    compiled = {name.replace("network.", "network._orig_mod."): value for name, value in state.items()}
    torch.save(compiled, files["compiled.pt"])
    for name, content in (("flat", state), ("nested", {"model": state, "step": 3}), ("app", {"state_dict": state})):
        save(dict(content), checkpoint_id=path / f"dcp-{name}", no_dist=True)
        files[f"dcp-{name}"] = path / f"dcp-{name}"
    return files


@pytest.mark.filterwarnings("ignore")
def test_weights_of_others_are_evaluated(tmp_path: Path) -> None:
    """Each form is loaded by ``load_from_checkpoint`` and by the stages of evaluation; ``fit`` refuses each by name."""
    torch.manual_seed(3)
    module = Net()
    (truth,) = quiet().test(module, loader(), verbose=False)
    for name, path in weights_forms(module.state_dict(), tmp_path).items():
        assert_same(Net.load_from_checkpoint(path), module)
        assert quiet().test(Net(), loader(), ckpt_path=path, verbose=False) == [truth], name
        with pytest.raises(CheckpointError, match="load_from_checkpoint"):
            quiet(max_epochs=1).fit(Net(), loader(), ckpt_path=path)


def test_keys_of_another_module(tmp_path: Path) -> None:
    """Missing and unexpected keys are an error that names them; ``strict=False`` leaves them."""
    state = Net().state_dict()
    state["network.9.weight"] = state.pop("network.3.weight")
    torch.save(state, tmp_path / "w.pt")
    for load in (
        lambda: Net.load_from_checkpoint(tmp_path / "w.pt"),
        lambda: quiet().test(Net(), loader(), ckpt_path=tmp_path / "w.pt"),
    ):
        with pytest.raises(CheckpointError, match=r"(?s)Missing.*network\.3\.weight.*Unexpected.*network\.9\.weight"):
            load()
    assert isinstance(Net.load_from_checkpoint(tmp_path / "w.pt", strict=False), Net)


def test_the_log_of_a_checkpoint_of_ours_is_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The warning is only for those of others."""
    trainer = quiet(max_epochs=1)
    trainer.fit(Net(), loader())
    trainer.save_checkpoint(tmp_path / "c")
    quiet(max_epochs=2).fit(Net(), loader(), ckpt_path=tmp_path / "c")
    assert "anew" not in caplog.text
