"""How a model is laid out over IPUs."""

from __future__ import annotations

import copy
import enum
from typing import TypeVar

import torch
from stand_ins import calls

__all__ = ["Options", "OutputMode"]


class OutputMode(enum.Enum):
    """Which parts' results a call returns."""

    Default = 0
    All = 1
    Sum = 2
    Final = 3


class _Freezable:
    frozen = False

    def _set(self, call: str, **values: object) -> None:
        if self.frozen:
            raise AttributeError(f"{call}: options cannot be changed once a model was made with them")
        calls.append(call)
        self.__dict__.update(values)


_T = TypeVar("_T", bound="_Training")
_O = TypeVar("_O", bound="Options")


class _Training(_Freezable):
    """Options of training alone; each setter returns them."""

    gradient_accumulation = 1

    def gradientAccumulation(self: _T, gradient_accumulation: int) -> _T:  # noqa: N802
        """How many parts of a batch are added up before a step."""
        self._set(
            f"Options.Training.gradientAccumulation({gradient_accumulation})",
            gradient_accumulation=gradient_accumulation,
        )
        return self


class Options(_Freezable):
    """Each setter returns the options, so that calls can be chained."""

    device_iterations = 1
    replication_factor = 1
    output_mode = OutputMode.Default

    def __init__(self) -> None:
        calls.append("Options")
        self.Training = _Training()

    def deviceIterations(self: _O, device_iterations: int) -> _O:  # noqa: N802
        """How many steps one call runs."""
        self._set(f"Options.deviceIterations({device_iterations})", device_iterations=device_iterations)
        return self

    def replicationFactor(self: _O, replication_factor: int) -> _O:  # noqa: N802
        """How many copies of the model work on a step."""
        self._set(f"Options.replicationFactor({replication_factor})", replication_factor=replication_factor)
        return self

    def outputMode(self: _O, output_mode: OutputMode) -> _O:  # noqa: N802
        """Whose results are returned: of all parts, their sum, or each replica's last."""
        self._set(f"Options.outputMode({output_mode.name})", output_mode=output_mode)
        return self

    def randomSeed(self: _O, random_seed: int) -> _O:  # noqa: N802
        """The seed of the devices' generators, and of the host's."""
        self._set(f"Options.randomSeed({random_seed})")
        torch.manual_seed(random_seed)
        return self

    def autoRoundNumIPUs(self: _O, auto_round_num_ipus: bool = True) -> _O:  # noqa: N802
        """Take more IPUs than the model needs, where their number must be a power of two."""
        self._set(f"Options.autoRoundNumIPUs({auto_round_num_ipus})")
        return self

    def useIpuId(self: _O, ipu_id: int) -> _O:  # noqa: N802
        """The device to use."""
        self._set(f"Options.useIpuId({ipu_id})")
        return self

    def enableExecutableCaching(self: _O, path: str) -> _O:  # noqa: N802
        """Where compiled models are kept."""
        self._set(f"Options.enableExecutableCaching({path})")
        return self

    def clone(self) -> Options:
        """A copy that can be changed."""
        clone = copy.copy(self)
        clone.Training = copy.copy(self.Training)
        clone.frozen = clone.Training.frozen = False
        return clone

    def _freeze(self) -> None:
        self.frozen = self.Training.frozen = True
