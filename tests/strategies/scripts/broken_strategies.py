"""Strategies that break in ways of which the matrix must let none pass; each is a plugin's to an onlooker."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from torch import nn

from core.errors import ConfigurationError
from core.hookspecs import hookimpl
from core.precisions.base import Precision
from core.specs import StrategySpec
from core.strategies import DDPStrategy

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


class Raises(DDPStrategy):
    """torch's own error, once processes are there."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        raise RuntimeError("quantile() input tensor must be either float or double dtype")


class RefusesLate(DDPStrategy):
    """The right words, too late."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        raise ConfigurationError(f"strategy={self.name!r} does not serve precision 'bf16-mixed'. Valid: '32-true'.")


class RefusesWithoutName(DDPStrategy):
    """In time, but nobody can tell what is meant."""

    def connect(self, **parts: Any) -> None:
        raise ConfigurationError("This cannot be done.")


class RaisesEarly(DDPStrategy):
    """In time, but no error of ours."""

    def connect(self, **parts: Any) -> None:
        raise KeyError("bf16-mixed")


class StartsEarly(DDPStrategy):
    """A process before it refuses."""

    def connect(self, **parts: Any) -> None:
        subprocess.Popen(SLEEP, stdin=subprocess.DEVNULL)
        raise ConfigurationError(f"strategy={self.name!r}: not today. Valid: 'ddp'.")


class Apart(DDPStrategy):
    """Each process trains on its own."""

    def configure_ddp(self) -> None:
        pass


class NoNumbers(DDPStrategy):
    """Weights that are no numbers."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        for parameter in module.parameters():
            parameter.data.fill_(float("nan"))
        return super().setup_module(module)


class StandsStill(DDPStrategy):
    """No step is taken."""

    def optimizer_step(self, optimizer: Any, closure: Any = None) -> None:
        pass


class OtherDtype(DDPStrategy):
    """Says bf16-mixed, computes in float32."""

    def setup_environment(self) -> None:
        name, self.precision = self.precision.name, Precision()
        self.precision.name = name
        super().setup_environment()


class Leaves(DDPStrategy):
    """A process that outlives the run, in a session of its own."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        subprocess.Popen(SLEEP, stdin=subprocess.DEVNULL, start_new_session=True)
        return super().setup_module(module)


class Hangs(DDPStrategy):
    """One process waits for what never comes."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        time.sleep(60 * self.global_rank)
        return super().setup_module(module)


BROKEN = (
    Raises,
    RefusesLate,
    RefusesWithoutName,
    RaisesEarly,
    StartsEarly,
    Apart,
    NoNumbers,
    StandsStill,
    OtherDtype,
    Leaves,
    Hangs,
)


@hookimpl
def core_strategies() -> list[StrategySpec]:
    """All of them, under the names of their classes."""
    return [StrategySpec(name=each.__name__, target=f"{__name__}:{each.__name__}") for each in BROKEN]
