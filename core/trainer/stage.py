"""The stages of a Trainer: what the steps, hooks and loaders of each are called."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs

__all__ = ["STAGES", "Stage"]


@attrs.frozen(kw_only=True)
class Stage:
    """One of the Trainer's four methods that run a Module."""

    name: str
    """The Trainer's method."""
    step: str
    """The Module's step."""
    hooks: str
    """How the names of its hooks begin."""
    kind: str
    """The kind of its loaders, as in ``val_dataloader`` and ``limit_val_batches``."""
    loader: str
    """What its loader is called in messages."""
    argument: str = "dataloaders"
    """The argument for its loaders."""

    @property
    def epoch_end(self) -> str:
        """The Module's hook that gets what the steps of an epoch returned; predictions are returned instead."""
        return f"{self.step.removesuffix('_step')}_epoch_end"

    @property
    def limit(self) -> str:
        """The Trainer's argument that limits its batches."""
        return f"limit_{self.kind}_batches"


STAGES: Mapping[str, Stage] = MappingProxyType(
    {
        stage.name: stage
        for stage in (
            Stage(
                name="fit",
                step="training_step",
                hooks="on_train",
                kind="train",
                loader="training",
                argument="train_dataloaders",
            ),
            Stage(name="validate", step="validation_step", hooks="on_validation", kind="val", loader="validation"),
            Stage(name="test", step="test_step", hooks="on_test", kind="test", loader="test"),
            Stage(name="predict", step="predict_step", hooks="on_predict", kind="predict", loader="prediction"),
        )
    }
)
"""By the name of the Trainer's method."""
