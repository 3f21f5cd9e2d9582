"""validate, test and predict on one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from core import Callback, Module, Trainer
from core.errors import ConfigurationError

from .regression import ITEMS, Regression, assert_same, dataset, loader, quiet


def errors_by_numpy(module: Regression) -> tuple[np.ndarray[Any, Any], Any]:
    """Outputs and mean squared error over all items, computed by numpy in float64 from the parameters."""
    first: Any = module.network[0]
    last: Any = module.network[3]
    weights = [tensor.detach().double().numpy() for tensor in (first.weight, first.bias, last.weight, last.bias)]
    inputs, targets = (tensor.double().numpy() for tensor in dataset().tensors)
    outputs = np.maximum(inputs @ weights[0].T + weights[1], 0) @ weights[2].T + weights[3]
    return outputs, ((outputs - targets) ** 2).mean()


@pytest.mark.parametrize(("stage", "metric"), [("validate", "error"), ("test", "test_error")])
@pytest.mark.parametrize("batch_size", [8, 50, 64])
def test_metrics_are_means_over_items(stage: str, metric: str, batch_size: int) -> None:
    """A smaller last batch counts with its size; dropout is off; floats come back, and stand in callback_metrics."""
    module = Regression()
    trainer = quiet()
    (result,) = getattr(trainer, stage)(module, loader(batch_size))
    _, expected = errors_by_numpy(module)
    assert set(result) == {metric}
    assert type(result[metric]) is float
    assert result[metric] == pytest.approx(expected, rel=1e-6)
    assert float(trainer.callback_metrics[metric]) == result[metric]


def test_predictions_keep_the_order_of_the_batches() -> None:
    """One output a batch, in the loader's order, without gradients."""
    module = Regression()
    outputs = quiet().predict(module, loader())
    expected, _ = errors_by_numpy(module)
    assert [len(output) for output in outputs] == [8] * 6 + [2]
    assert not any(output.requires_grad for output in outputs)
    np.testing.assert_allclose(torch.cat(outputs).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_predictions_may_be_any_structure() -> None:
    """Structures, and what holds no tensors, come back as they were returned."""

    class Structured(Regression):
        def predict_step(self, batch: Any, batch_idx: int) -> Any:
            return {"output": [self(batch[0])], "index": batch_idx, "none": None}

    outputs = quiet().predict(Structured(), loader(25))
    assert [output["output"][0].shape for output in outputs] == [(25, 1), (25, 1)]
    assert [(output["index"], output["none"]) for output in outputs] == [(0, None), (1, None)]


def test_predict_calls_the_module_unless_a_step_says_otherwise() -> None:
    """Without a ``predict_step``, a batch is what ``forward`` takes."""

    class Doubling(Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs * 2

    outputs = quiet().predict(Doubling(), [torch.ones(2), torch.zeros(1)])
    assert torch.equal(torch.cat(outputs), torch.tensor([2.0, 2.0, 0.0]))


class Watching(Regression):
    """Notes modes and gradients in each step and hook; part of it is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.9))
        self.seen: dict[str, set[tuple[bool, bool, bool, bool]]] = {}

    def note(self, where: str) -> None:
        facts = (self.training, self.frozen[0].training, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        self.seen.setdefault(where, set()).add(facts)

    def on_fit_start(self) -> None:
        self.frozen.eval()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.note("training_step")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.note("validation_step")

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        self.note("test_step")

    def on_validation_start(self) -> None:
        self.note("on_validation_start")

    def on_validation_end(self) -> None:
        self.note("on_validation_end")

    def on_train_epoch_end(self) -> None:
        self.note("on_train_epoch_end")


EVALUATING = (False, False, False, True)
BETWEEN = (False, False, False, False)
TRAINING = (True, False, True, False)


def test_modes_and_gradients_in_each_stage() -> None:
    """Training mode with gradients in training, but for what on_fit_start froze; else evaluation mode without.

    A hook of evaluation that calls the module, for example to draw samples, keeps no graph.
    """
    module = Watching()
    quiet(max_epochs=2).fit(module, loader(), loader())
    assert module.seen == {
        "training_step": {TRAINING},
        "validation_step": {EVALUATING},
        "on_validation_start": {BETWEEN},
        "on_validation_end": {BETWEEN},
        "on_train_epoch_end": {TRAINING},
    }


class FrozenBefore(Watching):
    def on_fit_start(self) -> None:
        """Nothing is frozen here."""


def test_fit_leaves_each_part_in_its_mode(caplog: pytest.LogCaptureFixture) -> None:
    """What is in evaluation mode before fit stays in it, as in Lightning; a warning says so."""
    module = FrozenBefore()
    module.frozen.eval()
    quiet(max_epochs=2).fit(module, loader(), loader())
    assert module.seen["training_step"] == {TRAINING}
    (warning,) = [record.getMessage() for record in caplog.records if "evaluation mode" in record.getMessage()]
    assert "3 submodule(s) are in evaluation mode, and stay in it: 'frozen', 'frozen.0', 'frozen.1'" in warning


class FreezesByEpoch(FrozenBefore):
    """Evaluation mode in every second epoch, set at its start."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Sequential(nn.Dropout(0.2))

    def on_train_epoch_start(self) -> None:
        self.frozen.train(self.current_epoch % 2 == 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss((self.frozen(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


class SaveIn(Callback):
    def __init__(self, path: Path, hook: str) -> None:
        self.path = path
        self.hook = hook

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.hook == "batch" and (trainer.current_epoch, batch_idx) == (2, 3):
            trainer.save_checkpoint(self.path)

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        if self.hook == "validation" and trainer.current_epoch == 2:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("hook", ["batch", "validation"])
def test_a_resumed_epoch_has_the_modes_of_its_start(hook: str, tmp_path: Path) -> None:
    """Parts that the epoch's first hook has frozen; saved after a batch, and in a validation within the epoch."""
    modules = []
    for callbacks, ckpt_path in (([SaveIn(tmp_path / "c", hook)], None), ([], tmp_path / "c")):
        torch.manual_seed(4)
        module = FreezesByEpoch()
        trainer = quiet(max_epochs=4, val_check_interval=4, callbacks=callbacks)
        trainer.fit(module, loader(), loader(), ckpt_path=ckpt_path)
        modules.append(module)
    assert_same(*modules)


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_evaluation_leaves_each_part_in_its_mode(stage: str, precision: str) -> None:
    """Also when it ends with an error: a frozen part stays frozen, the others go on training."""
    module = Watching()
    module.frozen.eval()
    modes = [part.training for part in module.modules()]
    trainer = quiet(precision=precision)
    getattr(trainer, stage)(module, loader())
    assert [part.training for part in module.modules()] == modes
    with pytest.raises(ConfigurationError, match="loader is empty"):
        getattr(trainer, stage)(module, [])
    assert [part.training for part in module.modules()] == modes


@pytest.mark.parametrize("stage", ["validation", "test", "predict"])
def test_a_module_that_puts_itself_in_evaluation_mode(stage: str) -> None:
    """A part stays in training mode if its hook says so; afterwards all are in their modes before the other hook."""
    module: Any = Regression()
    seen = []
    module.noise = nn.Dropout()
    in_class = getattr(module, f"on_{stage}_model_eval")

    def own() -> None:
        in_class()
        module.noise.train()

    def note() -> None:
        seen.append((module.training, module.noise.training, module.network.training))

    for name, hook in (("model_eval", own), ("start", note), ("end", note), ("model_train", note)):
        setattr(module, f"on_{stage}_{name}", hook)
    module.network.eval()
    verb = {"validation": "validate"}.get(stage, stage)
    getattr(quiet(), verb)(module, loader())
    assert seen == [(False, True, False), (False, True, False), (True, True, False)]


def test_evaluation_changes_nothing_of_the_module() -> None:
    """Parameters, buffers, gradients and the random numbers that the step does not draw are as before."""
    module = Watching()
    module.train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    batches = list(loader())
    state = torch.get_rng_state()
    quiet().validate(module, batches)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


STEPS = {"validate": "validation_step", "test": "test_step", "predict": "predict_step"}


class TooShort(BatchSampler):
    """Says that it has fewer batches than it has."""

    def __len__(self) -> int:
        return super().__len__() - 2


@pytest.mark.parametrize("limit", [None, 5, 3])
def test_batches_beyond_the_length_are_evaluated(limit: int | None) -> None:
    """Without a limit the loader's end counts, not what its batch sampler says."""
    data = DataLoader(dataset(), batch_sampler=TooShort(SequentialSampler(dataset()), 8, False))
    outputs = quiet(**({} if limit is None else {"limit_predict_batches": limit})).predict(Regression(), data)
    assert outputs is not None
    assert len(outputs) == (limit or 7)


@pytest.mark.parametrize("stage", STEPS)
def test_limits(stage: str) -> None:
    """At most so many batches, of the stage that the limit names, and no more are read."""
    read: list[int] = []

    class Rows(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return super().__getitem__(index)  # type: ignore[no-untyped-call]

    short = {"validate": "limit_val_batches", "test": "limit_test_batches", "predict": "limit_predict_batches"}
    indices: list[int] = []

    class Counting(Regression):
        pass

    def step(self: Any, batch: Any, batch_idx: int) -> None:
        indices.append(batch_idx)

    setattr(Counting, STEPS[stage], step)
    data = DataLoader(Rows(*dataset().tensors), batch_size=8)
    for name in short.values():
        read.clear()
        indices.clear()
        getattr(quiet(**{name: 3}), stage)(Counting(), data)
        limited = name == short[stage]
        assert indices == list(range(3 if limited else 7))
        assert len(read) == (24 if limited else ITEMS)


@pytest.mark.parametrize("stage", STEPS)
def test_outputs_reach_the_callbacks(stage: str) -> None:
    """Each step's output, batch and index, in order."""
    found: list[tuple[Any, int, int]] = []

    def note(self: Any, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        found.append((outputs, len(batch[0]), batch_idx))

    recorder = type("Recorder", (Callback,), {f"on_{STEPS[stage].removesuffix('_step')}_batch_end": note})()

    module = Regression()
    step: Callable[..., Any] = lambda batch, batch_idx: f"output {batch_idx}"  # noqa: E731
    for name in STEPS.values():
        module.__dict__[name] = step
    getattr(quiet(callbacks=recorder), stage)(module, loader(20))
    assert found == [(f"output {index}", size, index) for index, size in enumerate([20, 20, 10])]


def test_a_user_may_evaluate_with_the_parameters_of_a_checkpoint(tmp_path: Any) -> None:
    """``ckpt_path`` gives the module the checkpoint's parameters, and nothing else of the run."""
    trained = Regression()
    trainer = quiet(max_epochs=2, default_root_dir=tmp_path, enable_checkpointing=True)
    trainer.fit(trained, loader())
    expected = quiet().validate(trained, loader())
    path = tmp_path / "checkpoints" / "version_0" / "epoch=1-step=14.ckpt"
    for ckpt_path, directory in ((path, None), ("last", tmp_path)):
        module, other = Regression(), quiet(default_root_dir=directory)
        assert other.validate(module, loader()) != expected
        assert other.validate(module, loader(), ckpt_path=ckpt_path) == expected
        assert (other.current_epoch, other.global_step) == (0, 0)


def test_results_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each name and a column for each loader, unless verbose=False; nothing where nothing is logged."""

    class Logs(Regression):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("error", 0.125 * (1 + dataloader_idx))

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("loss", 2.0)

        def predict_step(self, batch: Any, batch_idx: int) -> None:
            pass

    trainer = quiet()
    trainer.validate(Logs(), [loader(), loader()])
    trainer.test(Logs(), loader())
    assert [line.split() for line in capsys.readouterr().out.splitlines() if "---" not in line] == [
        ["validate", "loader", "0", "loader", "1"],
        ["error", "0.125", "0.25"],
        ["test", "value"],
        ["loss", "2"],
    ]
    trainer.test(Logs(), loader(), verbose=False)
    trainer.predict(Logs(), loader())
    assert capsys.readouterr().out == ""


class Forces(Regression):
    """Its validation differentiates by the inputs."""

    with_gradients = True

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        with torch.set_grad_enabled(self.with_gradients):
            inputs = batch[0].clone().requires_grad_()
            (force,) = torch.autograd.grad(self(inputs).sum(), inputs)
        self.log("force", force.abs().sum())


class WithoutGradients(Forces):
    with_gradients = False


@pytest.mark.parametrize("stage", ["fit", "validate"])
@pytest.mark.parametrize("make", [Forces, WithoutGradients])
def test_gradients_in_an_evaluation(make: type[Forces], stage: str) -> None:
    """They need two things, which the error says."""

    def run(**settings: Any) -> float:
        trainer = quiet(max_epochs=1, **settings)
        loaders = (loader(), loader()) if stage == "fit" else (loader(),)
        getattr(trainer, stage)(make(), *loaders)
        return float(trainer.callback_metrics["force"])

    with pytest.raises(RuntimeError, match="does not require grad") as raised:
        run()
    notes = "\n".join(raised.value.__notes__)
    assert "Trainer(inference_mode=False)" in notes
    assert "torch.enable_grad()" in notes
    if make is Forces:
        assert run(inference_mode=False) > 0
