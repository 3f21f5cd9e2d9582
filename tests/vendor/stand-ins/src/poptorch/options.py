"""How a model is laid out over IPUs."""

from __future__ import annotations

from stand_ins import calls

__all__ = ["Options"]


class _Training:
    """Options of training alone."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.gradient_accumulation = 1

    def gradientAccumulation(self, gradient_accumulation: int) -> Options:  # noqa: N802
        """How many parts of a batch are added up before a step."""
        calls.append(f"Options.Training.gradientAccumulation({gradient_accumulation})")
        self.gradient_accumulation = gradient_accumulation
        return self._options


class Options:
    """Each setter returns the options, so that calls can be chained."""

    def __init__(self) -> None:
        calls.append("Options")
        self.device_iterations = 1
        self.replication_factor = 1
        self.seed: int | None = None
        self.Training = _Training(self)

    def deviceIterations(self, device_iterations: int) -> Options:  # noqa: N802
        """How many steps one call runs."""
        calls.append(f"Options.deviceIterations({device_iterations})")
        self.device_iterations = device_iterations
        return self

    def replicationFactor(self, replication_factor: int) -> Options:  # noqa: N802
        """How many copies of the model work on a step."""
        calls.append(f"Options.replicationFactor({replication_factor})")
        self.replication_factor = replication_factor
        return self

    def randomSeed(self, random_seed: int) -> Options:  # noqa: N802
        """The seed of the devices' generators."""
        calls.append(f"Options.randomSeed({random_seed})")
        self.seed = random_seed
        return self
