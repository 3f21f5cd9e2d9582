"""The config of a run, saved next to its checkpoints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..callbacks import Callback
from ..checkpoints import committed_file, local_copy, store_of
from ..errors import ConfigurationError

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer


class SaveConfigCallback(Callback):
    """Saves the config of ``fit`` in the directory of the checkpoints, in process 0.

    ``python train.py fit --config FILE`` repeats the run. Without checkpoints, the file is in the logger's directory,
    or in ``default_root_dir``. A run that continues from a checkpoint keeps the earlier configs: it saves
    ``config-1.yaml``, ``config-2.yaml``, ….

    Args:
        config: The config, as YAML.
        filename: The name of the file.
        overwrite: Whether an existing file with another config may be replaced.
        continues: Whether the run continues from a checkpoint.
    """

    def __init__(
        self, config: str, *, filename: str = "config.yaml", overwrite: bool = False, continues: bool = False
    ) -> None:
        if not filename or os.path.basename(filename) != filename:
            raise ConfigurationError(f"filename={filename!r}: must be the name of a file, without directories.")
        self.config = config
        self.filename = filename
        self.overwrite = overwrite
        self.continues = continues

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Save the config, unless the run is only to find errors (``fast_dev_run``)."""
        if stage == "fit" and trainer.is_global_zero and not trainer.settings.fast_dev_run:
            self.save_config(trainer, pl_module)

    def save_config(self, trainer: Trainer, module: Any) -> None:
        """Write the file; a subclass may also pass the config to a logger. Process 0 calls it.

        Raises:
            ConfigurationError: The file exists with another config.
        """
        with committed_file(self._path(trainer)) as file:
            file.write_text(self.config, encoding="utf-8")

    def _path(self, trainer: Trainer) -> str:
        checkpoints = trainer.checkpoint_callback
        saved_in = None if checkpoints is None else checkpoints.directory(trainer)
        folder = saved_in or trainer.log_dir or trainer.default_root_dir
        path, (stem, suffix) = os.path.join(folder, self.filename), os.path.splitext(self.filename)
        numbered = (os.path.join(folder, f"{stem}-{number}{suffix}") for number in range(1, 1_000_000))
        while self.continues and self._is_other(path):
            path = next(numbered)
        if self._is_other(path) and not self.overwrite:
            raise ConfigurationError(
                f"{path} exists, with the config of another run. Choose another --trainer.default_root_dir, remove the "
                "file, or set CLI(save_config_kwargs={'overwrite': True})."
            )
        return path

    def _is_other(self, path: str) -> bool:
        if not store_of(path).exists():
            return False
        with local_copy(path) as file:
            return file.read_text("utf-8") != self.config
