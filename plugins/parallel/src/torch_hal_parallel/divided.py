"""How a model was divided: a later run over an equal mesh uses it as it is."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from torch_hal.errors import ConfigurationError
from torch_hal_parallel.context import SequenceSplit
from torch_hal_parallel.gradients import Line

__all__ = ["Divided", "division_of", "record"]

KEY = "_parallel_over"
"""Where it is noted in the model's ``__dict__``."""


@attrs.define
class Divided:
    """How a model is divided, which it stays after the run.

    Args:
        over: The sizes of the mesh's dimensions, by name.
        how: The arguments that say which layers and parts each process has, by name.
        mesh: That of sharded parameters, if there are any.
        split: Splits sequences, if they are.
    """

    over: dict[str, int]
    how: dict[str, object]
    mesh: DeviceMesh | None = None
    split: SequenceSplit | None = None

    def take_up(
        self, over: Mapping[str, int], how: Mapping[str, object], mesh: DeviceMesh, lines: Mapping[str, Line]
    ) -> None:
        """Connect the model to the process groups of this run.

        Raises:
            ConfigurationError: This run would divide it in another way.
        """
        if self.over != over:
            self._refuse(f"over {self.over}, but the processes of this run form {dict(over)}")
        for name, value in how.items():
            if self.how[name] != value:
                self._refuse(f"with {name}={self.how[name]!r:.200}, but this run has {name}={value!r:.200}")
        if self.mesh is not None:
            # Shards know their groups by name, and a mesh that is made in the same way has groups of the same names.
            self.mesh._get_root_mesh()._pg_registry.update(mesh._get_root_mesh()._pg_registry)
        if self.split is not None:
            self.split.line = lines["context"]

    def _refuse(self, text: str) -> None:
        raise ConfigurationError(
            f"module: an earlier run has divided it {text}. Create a new module, and load a checkpoint."
        )


def record(model: nn.Module, divided: Divided) -> None:
    """Note on ``model`` how it is divided."""
    model.__dict__[KEY] = divided


def division_of(model: nn.Module) -> Divided | None:
    """How an earlier run, or an earlier call in this one, has divided ``model``."""
    divided: Divided | None = model.__dict__.get(KEY)
    return divided
