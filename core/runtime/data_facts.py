"""How loaders are read, in the names that scripts written for Accelerate read."""

from __future__ import annotations

import attrs

from core.data import DataSettings

__all__ = ["DataFacts"]


class DataFacts:
    """How prepared loaders are read, each setting under its name."""

    _data_settings: DataSettings

    @property
    def dataloader_config(self) -> DataSettings:
        """The settings of loaders."""
        return self._data_settings

    @property
    def split_batches(self) -> bool:
        """As :attr:`core.data.DataSettings.split_batches`; likewise the next five."""
        return self._data_settings.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        """Whether process 0 alone reads the data."""
        return self._data_settings.dispatch_batches

    @property
    def even_batches(self) -> bool:
        """Whether every process has the same number of batches; if set, for loaders that are prepared later."""
        return self._data_settings.even_batches

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        self._data_settings = attrs.evolve(self._data_settings, even_batches=value)

    @property
    def use_seedable_sampler(self) -> bool:
        """Whether the order depends on a seed and the epoch alone."""
        return self._data_settings.use_seedable_sampler

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether iterable data is read through torchdata's ``StatefulDataLoader``."""
        return self._data_settings.use_stateful_dataloader

    @property
    def non_blocking(self) -> bool:
        """Whether batches are copied to the device without waiting."""
        return self._data_settings.non_blocking
