"""Parts of a module that stay in float32, and optimizer state in float32, against plain torch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from core import Module, Precision, Runtime, Trainer
from core.errors import ConfigurationError, CoreError
from core.precisions import HalfPrecision, MixedPrecision
from core.strategies import SingleDeviceStrategy


class Network(nn.Module):
    """A norm in the middle; ``by_hand`` writes out what a precision does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(torch.relu(self.norm(self.first(inputs))))
        return outputs


class ByHand(Network):
    """In bfloat16 but for the norm, or with autocast but for the norm."""

    def __init__(self, mixed: bool) -> None:
        super().__init__()
        self.mixed = mixed
        if not mixed:
            self.first.bfloat16()
            self.last.bfloat16()

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.mixed:
            hidden = self.norm(self.first(inputs.bfloat16()).float()).bfloat16()
            outputs: Tensor = self.last(torch.relu(hidden)).float()
            return outputs
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.first(inputs)
            with torch.autocast("cpu", enabled=False):
                hidden = self.norm(hidden.float())
            outputs = self.last(torch.relu(hidden))
        return outputs.float()


def batches() -> list[Tensor]:
    return list(torch.randn(5, 8, 6, generator=torch.Generator().manual_seed(1)))


def train(model: nn.Module, optimizer: Any, backward: Any = None) -> None:
    for batch in batches():
        loss = model(batch).square().mean()
        loss.backward() if backward is None else backward(loss)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("mixed", [False, True], ids=["bf16-true", "bf16-mixed"])
@pytest.mark.parametrize("keep", [nn.LayerNorm, "norm", [nn.LayerNorm, "norm"]], ids=["class", "name", "both"])
def test_as_written_out(mixed: bool, keep: Any) -> None:
    """Bit for bit what plain torch does with the conversions written out; afterwards no hook is left."""
    expected = ByHand(mixed)
    train(expected, torch.optim.SGD(expected.parameters(), lr=0.1))
    kind: Any = MixedPrecision if mixed else HalfPrecision
    runtime = Runtime(accelerator="cpu", devices=1, precision=kind("bfloat16", keep_float32=keep))
    network = Network()
    model = runtime.prepare(network)
    assert network.norm.weight.dtype is torch.float32
    assert network.first.weight.dtype is (torch.float32 if mixed else torch.bfloat16)
    train(model, runtime.prepare(torch.optim.SGD(model.parameters(), lr=0.1)), runtime.backward)
    for name, value in expected.state_dict().items():
        assert torch.equal(network.state_dict()[name], value), name
    runtime.teardown()
    assert not network.norm._forward_pre_hooks
    assert not network.norm._forward_hooks


def test_the_context_ends_with_an_error() -> None:
    """What fails within a part leaves autocast and the default dtype as they were."""
    for kind in (HalfPrecision, MixedPrecision):
        runtime = Runtime(accelerator="cpu", devices=1, precision=kind("bfloat16", keep_float32="norm"))
        model = runtime.prepare(Network())
        with pytest.raises(RuntimeError, match="shape"):
            model.norm(torch.ones(2, 3))
        assert torch.get_default_dtype() is torch.float32
        assert not torch.is_autocast_enabled("cpu")
        runtime.teardown()


class Tied(Network):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.LayerNorm(16)
        self.other.weight = self.norm.weight


@pytest.mark.parametrize(
    ("keep", "network", "message"),
    [
        ("nrm", Network, "the module has no part 'nrm'.*'first', 'norm', 'last'"),
        (nn.BatchNorm1d, Network, "no part 'BatchNorm1d'"),
        ("norm", Tied, "parameters 'weight' are shared"),
        (3, Network, "keep_float32=3: 3 is neither"),
        ([nn.LayerNorm, int], Network, "neither a class"),
    ],
    ids=["name", "class", "tied", "type", "types"],
)
def test_what_cannot_be_kept(keep: Any, network: Any, message: str) -> None:
    """It is refused by name."""
    with pytest.raises(CoreError, match=message):
        Runtime(accelerator="cpu", devices=1, precision=HalfPrecision("bfloat16", keep_float32=keep)).prepare(network())


class Engine(SingleDeviceStrategy):
    """Reads only what a precision declares."""

    name = "engine"
    applies_precision = False


def test_engines_refuse_what_is_not_declared() -> None:
    """A strategy whose engine converts modules itself refuses both by name."""
    for options in ({"keep_float32": "norm"}, {"state_dtype": "float32"}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(options))}.*strategy 'engine'"):
            Trainer(accelerator="cpu", strategy=Engine(), precision=HalfPrecision("bfloat16", **options), logger=False)
    wide = HalfPrecision("bfloat16", state_dtype="float32")
    with pytest.raises(ConfigurationError, match="with state_dtype: strategy 'ddp_sharded'"):
        Trainer(accelerator="cpu", devices=2, strategy="ddp_sharded", precision=wide, logger=False)


def by_hand_in_float32(steps: int) -> Network:
    """A bfloat16 model, stepped by Adam on float32 copies."""
    model = Network().bfloat16()
    copies = [nn.Parameter(parameter.detach().float()) for parameter in model.parameters()]
    optimizer = torch.optim.Adam(copies, lr=1e-4)
    for batch in batches()[:steps]:
        model(batch.bfloat16()).float().square().mean().backward()
        for parameter, own in zip(model.parameters(), copies, strict=True):
            assert parameter.grad is not None
            own.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for parameter, own in zip(model.parameters(), copies, strict=True):
                parameter.copy_(own)
                parameter.grad = None
    return model


def prepared() -> tuple[Runtime, Any, Any]:
    runtime = Runtime(accelerator="cpu", devices=1, precision=HalfPrecision("bfloat16", state_dtype="float32"))
    model = runtime.prepare(Network())
    return runtime, model, runtime.prepare(torch.optim.Adam(model.parameters(), lr=1e-4))


def run(runtime: Runtime, model: Any, optimizer: Any, given: list[Tensor]) -> None:
    for batch in given:
        runtime.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def test_float32_state() -> None:
    """Bit for bit Adam on float32 copies, also from a saved state; without it, small updates are lost."""
    expected = by_hand_in_float32(5)
    runtime, model, optimizer = prepared()
    run(runtime, model, optimizer, batches()[:3])
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    run(runtime, model, optimizer, batches()[3:])
    for name, value in expected.state_dict().items():
        assert value.dtype is torch.bfloat16
        assert torch.equal(model.state_dict()[name], value), name
    for state in optimizer.state_dict()["state"].values():
        assert {value.dtype for value in state.values()} == {torch.float32}
    runtime.teardown()

    runtime, model, optimizer = prepared()
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    run(runtime, model, optimizer, batches()[3:])
    for name, value in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    runtime.teardown()


def test_state_dtype_is_declared() -> None:
    """In each precision; another than float32, or a closure, is refused."""
    assert Precision.state_dtype is None
    assert HalfPrecision("bfloat16", state_dtype=torch.bfloat16).state_dtype is None
    assert HalfPrecision("bfloat16", state_dtype=torch.float32).state_dtype is torch.float32
    with pytest.raises(ConfigurationError, match="state_dtype='float64': must be"):
        HalfPrecision("bfloat16", state_dtype="float64")
    runtime, _, optimizer = prepared()
    with pytest.raises(ConfigurationError, match="step was given a closure"):
        optimizer.step(lambda: None)
    runtime.teardown()


class Fitted(Module):
    """The network in a Trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network()

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = self.network(batch).square().mean()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-4)


def test_resumed(tmp_path: Path) -> None:
    """A Trainer's checkpoint has the float32 values: a resumed run ends like the uninterrupted one, bit for bit."""

    def fit(epochs: int, ckpt_path: Path | None = None) -> tuple[Fitted, Trainer]:
        precision = HalfPrecision("bfloat16", keep_float32="norm", state_dtype="float32")
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            precision=precision,
            max_epochs=epochs,
            barebones=True,
        )
        module = Fitted()
        trainer.fit(module, DataLoader(torch.cat(batches()), batch_size=8), ckpt_path=ckpt_path)  # type: ignore[arg-type]
        return module, trainer

    whole, _ = fit(3)
    _, first = fit(1)
    first.save_checkpoint(tmp_path / "one")
    resumed, _ = fit(3, tmp_path / "one")
    assert resumed.network.norm.weight.dtype is torch.float32
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name
