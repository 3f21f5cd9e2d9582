"""The conformance kit's suite of strategies on ``bagua_qadam``, which takes no optimizer but its own."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch_hal_bagua import QAdamOptimizer
from torch_hal_devkit import BackendUnderTest, StrategySuite


def qadam(net: nn.Module) -> torch.optim.Optimizer:
    """Through its warm-up, and beyond it."""
    return QAdamOptimizer(net.parameters(), lr=0.01, warmup_steps=4, eps=1e-3)


class TestQAdam(StrategySuite):
    """On one process, and on two."""

    @pytest.fixture
    def backend(self) -> BackendUnderTest:
        """The strategy."""
        return BackendUnderTest.find("strategy", "bagua_qadam", os.environ)

    @pytest.fixture
    def optimizer(self) -> str:
        """Its own."""
        return "conformance_qadam:qadam"
