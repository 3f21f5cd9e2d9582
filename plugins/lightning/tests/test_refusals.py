"""What Lightning cannot run is refused by name when the Trainer is made, before any process starts."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from torch_hal.errors import ConfigurationError, UnknownNameError, WrongTypeError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"strategy": "ddp_spawn", "devices": 2},
            "'ddp_spawn' cannot run under Lightning.*it calls a func",
        ),
    ],
)
def test_strategies(arguments: dict[str, Any], message: str) -> None:
    """A strategy that Lightning's contract does not allow."""
    from torch_hal_lightning import Trainer

    with pytest.raises(ConfigurationError, match=message):
        Trainer(accelerator="cpu", **arguments)


@pytest.mark.skipif(importlib.util.find_spec("torch_hal_bagua") is None, reason="torch-hal-bagua is not installed")
def test_replicas_that_differ() -> None:
    """Lightning saves the weights of one process."""
    from torch_hal_lightning import Fabric

    with pytest.raises(ConfigurationError, match="'bagua_decentralized' cannot run under Lightning's Fabric: its proc"):
        Fabric(accelerator="cpu", devices=2, strategy="bagua_decentralized")


def test_other_arguments() -> None:
    """Unknown names, and Lightning's own objects where the Plan decides."""
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from lightning.pytorch.strategies import DDPStrategy
    from torch_hal_lightning import Trainer

    with pytest.raises(UnknownNameError, match="acne"):
        Trainer(accelerator="acne")
    with pytest.raises(WrongTypeError, match="strategy has the wrong type"):
        Trainer(strategy=DDPStrategy())
    with pytest.raises(ConfigurationError, match="LightningEnvironment is a ClusterEnvironment of Lightning"):
        Trainer(accelerator="cpu", plugins=[LightningEnvironment()])
