"""The base classes of callbacks: of all, of those that write checkpoints, and of those made from functions.

A Callback has the hooks of a Module, with the trainer and the module as their first two arguments. A hook that is not
overridden is never called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError, WrongTypeError, nearest, quoted
from ..hints.argument_checks import suggest_arguments_of

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer


class Callback:
    """Acts at the hooks of a run, next to the Module. Every hook gets the trainer and the module first.

    By default the hooks do nothing. A hook that is overridden may name its parameters as it likes; that of a batch of
    evaluation may leave out ``dataloader_idx``, the number of the loader.
    """

    idle_hooks: frozenset[str] = frozenset()
    """Names of hooks that this class overrides but this object does not need; they are not called."""

    further_weights: tuple[str, ...] = ()
    """Keys of a checkpoint under which this callback keeps weights of the module besides ``state_dict``. What
    ``on_load_checkpoint`` of the module does to ``state_dict``, it does to them, too."""

    _logs_to: Any = None
    """The module whose run this callback takes part in; ``None`` if no Trainer is running it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        suggest_arguments_of(cls)

    @property
    def state_key(self) -> str:
        """The name of this callback's state in checkpoints. Override it where objects differ by their arguments."""
        return type(self).__qualname__

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        """Like :meth:`core.Module.log`, while a Trainer is running this callback; in the hooks of the same names.

        Raises:
            ConfigurationError: No Trainer is running.
        """
        if self._logs_to is None:
            raise ConfigurationError(f"{type(self).__name__}.log({name!r}): no Trainer is running this callback.")
        self._logs_to.log(name, value, *args, **options)

    def log_dict(self, dictionary: Any, **options: Any) -> None:
        """Like :meth:`core.Module.log_dict`; see :meth:`log`."""
        for name, value in dictionary.items():
            self.log(name, value, **options)

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Called in every process before anything is prepared, after the DataModule's ``setup``, before the module's.

        Args:
            trainer: The trainer.
            pl_module: The module.
            stage: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.
        """

    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Called at the end of the run, unless it failed."""

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_fit_start`."""

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_fit_end`."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_train_epoch_start`."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_train_epoch_end`. The epoch's metrics are in ``trainer.callback_metrics``."""

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> int | None:
        """See :meth:`core.Module.on_train_batch_start`."""

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """See :meth:`core.Module.on_train_batch_end`."""

    def on_sanity_check_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Called in ``fit`` before the batches of validation that only check that validation works."""

    def on_sanity_check_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Called after them."""

    def on_before_zero_grad(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        """See :meth:`core.Module.on_before_zero_grad`."""

    def on_before_backward(self, trainer: Trainer, pl_module: Any, loss: Any) -> None:
        """See :meth:`core.Module.on_before_backward`."""

    def on_after_backward(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_after_backward`."""

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, optimizer: Any) -> None:
        """See :meth:`core.Module.on_before_optimizer_step`."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_train_start`."""

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_train_end`."""

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_validation_start`."""

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_validation_epoch_start`."""

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """See :meth:`core.Module.on_validation_batch_start`."""

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """See :meth:`core.Module.on_validation_batch_end`."""

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_validation_epoch_end`. The epoch's metrics are in ``trainer.callback_metrics``."""

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_validation_end`."""

    def on_test_start(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_test_start`."""

    def on_test_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_test_epoch_start`."""

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """See :meth:`core.Module.on_test_batch_start`."""

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """See :meth:`core.Module.on_test_batch_end`."""

    def on_test_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_test_epoch_end`. The epoch's metrics are in ``trainer.callback_metrics``."""

    def on_test_end(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_test_end`."""

    def on_predict_start(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_predict_start`."""

    def on_predict_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_predict_epoch_start`."""

    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """See :meth:`core.Module.on_predict_batch_start`."""

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """See :meth:`core.Module.on_predict_batch_end`."""

    def on_predict_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_predict_epoch_end`."""

    def on_predict_end(self, trainer: Trainer, pl_module: Any) -> None:
        """See :meth:`core.Module.on_predict_end`."""

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Called when ``exception`` ends the run, before it is raised to the caller."""

    def before_optimizers_load(self, pl_module: Any, optimizers: Sequence[Any], state: dict[str, Any]) -> None:
        """Called when a fit is resumed, before the states of the optimizers are loaded.

        Args:
            pl_module: The module, with the weights of the checkpoint.
            optimizers: The optimizers as ``configure_optimizers`` made them.
            state: What this callback's :meth:`state_dict` returned.
        """

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Called in every process before ``checkpoint`` is written; may add to it."""

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Called in every process after ``checkpoint`` was read and loaded, when a fit is resumed."""

    def state_dict(self) -> dict[str, Any]:
        """The callback's state for a checkpoint."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state that :meth:`state_dict` returned."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_") or name in ("setup", "teardown"))
"""The hooks of a callback, by name."""


class Checkpoint(Callback):
    """A callback that writes checkpoints. It is called after all others, so its checkpoints contain what they did."""

    _given_dirpath: str | None = None
    """The directory that the user named; by default each run has its own."""

    def directory(self, trainer: Trainer) -> str | None:
        """The directory that the running or the last ``fit`` writes to; ``None`` if none has been run."""
        folder: str | None = self._given_dirpath or trainer.run.folder
        return folder


class LambdaCallback(Callback):
    """Calls a function at each given hook, with the hook's arguments.

    ::

        LambdaCallback(on_train_epoch_end=lambda trainer, module: print(trainer.callback_metrics))

    Args:
        **hooks: By the name of a hook, the function. ``None`` is ignored.

    Raises:
        ConfigurationError: There is no such hook, or nothing is given.
        WrongTypeError: A value is not callable.
    """

    def __init__(self, **hooks: Callable[..., Any] | None) -> None:
        given = {name: function for name, function in hooks.items() if function is not None}
        for name, function in given.items():
            if name not in HOOKS:
                raise ConfigurationError(
                    f"LambdaCallback: {name!r} is not a hook.{nearest(name, HOOKS)} Valid: {quoted(HOOKS)}."
                )
            if not callable(function):
                raise WrongTypeError(f"{name}={function!r}: must be a function with the arguments of the hook.")
        if not hooks:
            raise ConfigurationError(
                "LambdaCallback: got no function. Give one for a hook, such as on_train_epoch_end=lambda trainer, "
                "module: ..."
            )
        for name, function in given.items():
            setattr(self, name, function)


# -- the position of a run, which several callbacks ask for ------------------------------------------------------------


def is_training(trainer: Trainer) -> bool:
    """Whether a ``fit`` is running, and not only its sanity check."""
    return trainer.run.fit_loop is not None and not trainer.sanity_checking


def is_long_enough(trainer: Trainer) -> bool:
    """Whether the running ``fit`` has trained for ``min_epochs`` and ``min_steps``, so that it may stop."""
    return trainer.running_fit("is_long_enough").is_long_enough


def validates_once_in_each_epoch(trainer: Trainer) -> bool:
    """Whether validation runs exactly once at the end of every epoch, or never."""
    interval = trainer.val_check_interval  # 1 is after each batch
    once = trainer.check_val_every_n_epoch == 1 and isinstance(interval, float) and interval == 1.0
    return once or not trainer.enable_validation


def has_validated_in_epoch(trainer: Trainer, default: bool = False) -> bool:
    """Whether validation has run in this epoch; ``default`` where the fit has none."""
    return trainer.progress.validated >= 0 if trainer.enable_validation else default


def validates_next(trainer: Trainer) -> bool:
    """Whether a validation follows the newest batch; every process calls it."""
    return trainer.run.fit_loop is not None and trainer.run.fit_loop.validates_next()
