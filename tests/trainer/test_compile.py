"""Trainer(compile=...), and modules that torch.compile has returned."""

from __future__ import annotations

import copy
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from declared import PREFIX
from packaging.version import Version
from torch import nn

from core import Callback, Trainer
from core.errors import ConfigurationError, CoreError
from core.strategies import SingleDeviceStrategy
from core.strategies.time_limits import wait_until
from core.trainer.step import compilation

from .regression import Regression, assert_same, loader, network, quiet

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # torch 2.6 starts processes that outlive a test

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's compiler raises warnings, and catches them

EAGER: dict[str, Any] = {"backend": "eager"}
"""Traced, and run as it is: compiling to machine code takes minutes."""


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Nothing that another test has compiled."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Logging(Regression):
    """Logs in each step, and notes whether torch's compiler traces it."""

    traced = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if torch.compiler.is_compiling():
            self.traced = True
        loss = self.loss(batch)
        self.log("loss", loss, on_epoch=True)
        return {"loss": loss * 2}


def both(module: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    module.network = network()
    return module, copy.deepcopy(module)


def train(module: Any, **settings: Any) -> Trainer:
    torch.manual_seed(1)
    trainer = quiet(max_epochs=2, **settings)
    trainer.fit(module, loader(), loader())
    return trainer


def test_compiled_steps_are_the_module_s(caplog: pytest.LogCaptureFixture) -> None:
    """Same parameters and logged values as without, names as they were, and what it took is logged."""
    plain, compiled = both(Logging())
    expected = train(plain)
    with caplog.at_level(logging.INFO, "torch_hal.trainer.step.compilation"):
        trainer = train(compiled, compile=EAGER)
    assert compiled.traced
    assert_same(plain, compiled)
    assert trainer.callback_metrics == expected.callback_metrics
    messages = [record.getMessage() for record in caplog.records]
    assert sum(message.startswith("compile: validation_step took") for message in messages) == 1
    assert "log" not in vars(compiled)
    assert compiled._step_modules[0]._compiled_call_impl is None


@pytest.mark.parametrize("at", [2, 9])
def test_a_compiled_run_resumes_exactly(at: int, tmp_path: Path) -> None:
    """Bit for bit, within the first epoch and the second, with dropout; the checkpoint is the module's own."""

    class Save(Callback):
        def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if trainer.global_step == at and not (tmp_path / "c").exists():
                trainer.save_checkpoint(tmp_path / "c")

    torch.manual_seed(0)  # of some others, the parameters grow until they are not finite
    first, second = Logging(), Logging()
    whole = quiet(max_epochs=2, compile=EAGER, callbacks=Save())
    whole.fit(first, loader(shuffle=True), loader())
    torch.compiler.reset()  # as in another process
    torch.manual_seed(9)
    resumed = quiet(max_epochs=2, compile=EAGER)
    resumed.fit(second, loader(shuffle=True), loader(), ckpt_path=tmp_path / "c")
    assert first.traced
    assert second.traced
    assert_same(first, second)
    assert resumed.callback_metrics == whole.callback_metrics
    plain = quiet(max_epochs=2)
    plain.fit(Logging(), loader(shuffle=True), loader(), ckpt_path=tmp_path / "c")
    assert plain.global_step == whole.global_step


def test_what_it_took_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr if no log shows messages of level INFO: a line for each step that was compiled."""
    train(both(Logging())[0], compile=EAGER)
    lines = sorted(line for line in capsys.readouterr().err.splitlines() if line.startswith("compile: "))
    assert [line.split()[1] for line in lines] == ["training_step", "validation_step"]
    number = r"[\d.]+"
    for line in lines:
        assert re.fullmatch(
            rf"compile: \w+ took {number} s to compile at its .* of its 14 calls took {number} ms", line
        )


def test_a_long_compilation_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """While a step compiles: this compiler waits for the message. No thread is left."""
    monkeypatch.setattr(compilation, "PROGRESS_SECONDS", 0.01)
    messages: list[str] = []

    def slow(graph: Any, inputs: Any) -> Any:
        end = time.monotonic() + 60
        while not messages and time.monotonic() < end:
            time.sleep(0.01)
            messages.extend(one for one in caplog.messages if "compiling" in one)
        return graph.forward

    with caplog.at_level(logging.INFO, "torch_hal.trainer.step.compilation"):
        train(both(Logging())[0], compile={"backend": slow})
    assert re.fullmatch(r"compile: training_step has been compiling for \d+ s", messages[0])
    assert wait_until(lambda: all(one.name != "core-compile" for one in threading.enumerate()), 60.0)


@pytest.mark.skipif(
    Version(torch.__version__) < Version("2.7"), reason=f"{PREFIX}torch 2.6 compiles a step with self.log in each run"
)
def test_nothing_is_compiled_again() -> None:
    """In later epochs, and in later runs of the same module."""
    module = both(Logging())[0]
    train(module, compile=EAGER)
    with torch.compiler.set_stance("fail_on_recompile"):
        train(module, compile=EAGER)


def test_a_compiled_module() -> None:
    """What torch.compile returns is trained as compiled, its original in place; the original alone is not compiled."""
    plain, original = both(Logging())
    train(plain)
    train(torch.compile(original, **EAGER))
    assert original.traced
    assert_same(plain, original)
    original.traced = False
    torch.compiler.reset()
    train(original)
    assert not original.traced


class Plain(nn.Module):
    """No Module of core's."""

    def __init__(self) -> None:
        super().__init__()
        self.network: Any = None
        self.traced = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if torch.compiler.is_compiling():
            self.traced = True
        return nn.functional.mse_loss(self.network(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.network(batch[0])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05)


@pytest.mark.parametrize("given", [False, True])
def test_plain_modules(given: bool) -> None:
    """They can be compiled in both ways too."""
    plain, compiled = both(Plain())
    train(plain)
    if given:
        train(torch.compile(compiled, **EAGER))
    else:
        train(compiled, compile=EAGER)
    assert compiled.traced
    assert_same(plain, compiled)


class Manual(Regression):
    automatic_optimization = False


@pytest.mark.parametrize(
    ("settings", "module", "message"),
    [
        ({"compile": {"backnd": "eager"}}, Regression, r"compile has no argument 'backnd'\. Did you mean 'backend'"),
        ({"compile": "max-autotune"}, Regression, r"compile='max-autotune': must be True, False, None, or a dict"),
        ({"compile": True}, Manual, r"compile=True: Manual has automatic_optimization=False.*self\.network\.compile"),
        ({}, lambda: torch.compile(Manual()), r"module=torch\.compile\(\.\.\.\): Manual has automatic_opt"),
        ({"compile": True}, lambda: torch.compile(Regression()), "already compiled"),
        ({"strategy": "ddp_spawn"}, lambda: torch.compile(Regression()), r"sends the module.*Trainer\(compile=True\)"),
    ],
    ids=["argument", "type", "manual", "given manual", "twice", "spawn"],
)
def test_what_cannot_be_compiled(settings: dict[str, Any], module: Any, message: str) -> None:
    """It is refused before anything runs."""
    with pytest.raises(CoreError, match=message):
        quiet(devices=2 if "strategy" in settings else 1, **settings).fit(module(), loader())


def test_a_strategy_that_cannot() -> None:
    """It is refused by name when the Trainer is made, and when a compiled module comes."""

    class Whole(SingleDeviceStrategy):
        name = "whole"
        supports_custom_loop = False

    with pytest.raises(ConfigurationError, match="compile=True: strategy 'whole' compiles whole training steps itself"):
        quiet(strategy=Whole(), compile=True)
    compiled: Any = torch.compile(Regression())
    with pytest.raises(ConfigurationError, match="'whole' compiles whole"):
        quiet(strategy=Whole()).fit(compiled, loader())


class Part(Regression):
    """A module that compiles a part of itself, or does not."""

    def __init__(self, compiled: bool = True) -> None:
        super().__init__()
        self.save_hyperparameters()
        if compiled:
            self.network: Any = torch.compile(self.network, **EAGER)


def test_weights_of_a_module_that_compiled_a_part(tmp_path: Path) -> None:
    """They load into the same module without the compilation, whose names of parameters are others."""
    module = Part()
    trainer = quiet(max_epochs=1)
    trainer.fit(module, loader())
    trainer.save_checkpoint(tmp_path / "c")
    plain = Part.load_from_checkpoint(tmp_path / "c", compiled=False)
    assert "network.0.weight" in plain.state_dict()
    for parameter, expected in zip(plain.parameters(), module.parameters(), strict=True):
        assert torch.equal(parameter, expected)
