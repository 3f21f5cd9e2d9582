"""The DataModule: data with everything that creates it."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ...checkpoints.foreign import is_lightnings
from ...errors import WrongTypeError
from ...utilities.nested import map_tensors
from .hparams import ClassOnly, HyperParameters, create_from_checkpoint, read_checkpoint, read_hparams

if TYPE_CHECKING:
    from ..trainer import Trainer


class DataHooks:
    """The methods that create the data of a run; Module and DataModule both have them."""

    prepare_data_per_node: bool = True
    """Whether :meth:`prepare_data` runs once on each machine, rather than once in the whole run."""

    def prepare_data(self) -> None:
        """Download or convert the data, in one process of each machine. Do not set attributes: others lack them."""

    def setup(self, stage: str) -> None:
        """Load the data, in every process, before anything else of the run.

        Args:
            stage: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.
        """

    def teardown(self, stage: str) -> None:
        """Release what :meth:`setup` has created, in every process, at the end of the run unless it failed."""

    def train_dataloader(self) -> Any:
        """The loader of training batches."""

    def val_dataloader(self) -> Any:
        """The loader of validation batches; ``None`` for no validation."""

    def test_dataloader(self) -> Any:
        """The loader of test batches."""

    def predict_dataloader(self) -> Any:
        """The loader of batches to predict."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Override it to change each batch, in every stage, before it is moved to the device.

        Of this hook and the two below, an override in the DataModule replaces that in the Module.

        Args:
            batch: As the loader yields it.
            dataloader_idx: The number of the loader, if an evaluation reads several one after another; otherwise 0.

        Returns:
            The batch to move.
        """
        return batch

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Override it to move batches of your own classes; by default, every tensor in ``batch`` is moved.

        Args:
            batch: What :meth:`on_before_batch_transfer` returned. By default tensors are found in mappings, lists,
                tuples and dataclass instances.
            device: This process's device.
            dataloader_idx: As in :meth:`on_before_batch_transfer`.

        Returns:
            The batch on ``device``.
        """
        return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Override it to change each batch on the device, such as to augment it.

        Args:
            batch: The batch on the device.
            dataloader_idx: As in :meth:`on_before_batch_transfer`.

        Returns:
            The batch for the step.
        """
        return batch


class DataModule(DataHooks, HyperParameters):
    """Data with everything that creates it, apart from any Module; pass it as ``datamodule=``.

    ::

        class Digits(DataModule):
            def prepare_data(self):
                download("digits")

            def setup(self, stage):
                self.train, self.val = random_split(read("digits"), [0.9, 0.1])

            def train_dataloader(self):
                return DataLoader(self.train, batch_size=32, shuffle=True)

            def val_dataloader(self):
                return DataLoader(self.val, batch_size=32)

        trainer.fit(module, datamodule=Digits())

    ``state_dict`` and ``load_state_dict`` put a state into the checkpoints of ``fit``.
    """

    trainer: Trainer | None = None
    """The Trainer that is using it; ``None`` if none is."""

    @classmethod
    def from_datasets(
        cls,
        train_dataset: Any = None,
        val_dataset: Any = None,
        test_dataset: Any = None,
        predict_dataset: Any = None,
        batch_size: int = 1,
        num_workers: int = 0,
        **arguments: Any,
    ) -> Self:
        """Create one that reads data sets; only that for training is shuffled, unless it is iterable-style.

        Args:
            train_dataset: A ``Dataset``, or a list or dict of them for several loaders.
            val_dataset: The same for validation.
            test_dataset: The same for test.
            predict_dataset: The same for prediction.
            batch_size: Of each loader, and passed to the constructor if it has such an argument.
            num_workers: Likewise.
            **arguments: Of the constructor.

        Raises:
            WrongTypeError: One of them is not a ``Dataset``.
        """
        parameters = inspect.signature(cls).parameters
        takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
        own = {"batch_size": batch_size, "num_workers": num_workers}
        datamodule = cls(**arguments, **{name: own[name] for name in own if takes_any or name in parameters})
        given = {"train": train_dataset, "val": val_dataset, "test": test_dataset, "predict": predict_dataset}
        for kind, datasets in given.items():
            if datasets is not None:
                _check_datasets(f"{kind}_dataset", datasets)
                # Not a closure, so that it can be sent to spawned processes.
                setattr(datamodule, f"{kind}_dataloader", partial(_loaders, datasets, kind == "train", own))
        return datamodule

    def on_exception(self, exception: BaseException) -> None:
        """Called in every process that fails, after the callbacks' hook, when ``exception`` ends the run."""

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state that :meth:`state_dict` returned."""

    @ClassOnly
    def load_from_checkpoint(
        cls,  # noqa: N805
        checkpoint_path: str | os.PathLike[str],
        map_location: Any = None,
        hparams_file: str | os.PathLike[str] | None = None,
        **overrides: Any,
    ) -> Any:
        """Create one with the hyperparameters in a checkpoint, and load its state.

        Args:
            checkpoint_path: The checkpoint.
            map_location: The device of tensors in its state; the CPU by default.
            hparams_file: As of :meth:`core.Module.load_from_checkpoint`.
            **overrides: Arguments of the constructor, in place of those in the checkpoint.

        Raises:
            CheckpointError: The checkpoint is absent or damaged.
            ConfigurationError: The constructor needs an argument that is in neither.
        """
        checkpoint = read_checkpoint(checkpoint_path, map_location)
        saved, name = checkpoint.get("datamodule_hyper_parameters", {}), checkpoint.get("datamodule_hparams_name")
        saved = copy.deepcopy(saved) if hparams_file is None else read_hparams(hparams_file)
        datamodule: DataModule = create_from_checkpoint(cls, saved, name, overrides)  # type: ignore[arg-type]
        theirs = type(datamodule).__qualname__ if is_lightnings(checkpoint) else "datamodule"
        state = checkpoint.get("datamodule", checkpoint.get(theirs))
        if state is not None:
            datamodule.load_state_dict(copy.deepcopy(state))
        return datamodule

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "trainer"}


def _check_datasets(argument: str, datasets: Any) -> None:
    """Check that each is a Dataset.

    Raises:
        WrongTypeError: One is not.
    """
    several = list(datasets.values()) if isinstance(datasets, Mapping) else datasets
    for one in several if isinstance(several, list | tuple) else [several]:
        if not isinstance(one, Dataset):
            raise WrongTypeError(
                f"{argument}: must be a torch Dataset, or a list or dict of them, not an object of type "
                f"{type(one).__name__}."
            )


def _loaders(datasets: Any, shuffle: bool, options: Mapping[str, Any]) -> Any:
    """The loader of each data set, in the same list or dict."""
    if isinstance(datasets, Mapping):
        return {name: _loaders(one, shuffle, options) for name, one in datasets.items()}
    if isinstance(datasets, list | tuple):
        return [_loaders(one, shuffle, options) for one in datasets]
    return DataLoader(datasets, shuffle=shuffle and not isinstance(datasets, IterableDataset), **options)
