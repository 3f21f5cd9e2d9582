"""Averages of the weights over the steps or epochs of a run, on :mod:`torch.optim.swa_utils`.

Source: Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization, UAI 2018.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from ..errors import ConfigurationError
from ..hints.argument_checks import check_count
from ..logging import get_logger
from ..strategies.own_buffers import share_buffers
from ..utilities.torch_private import BatchNorm, mark_stepped
from .base import Callback

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

logger = get_logger(__name__)


class WeightAveraging(Callback):
    """Keeps the average of the weights; validation uses it, and after ``fit`` the module has it.

    A checkpoint's ``state_dict`` is the average, so that evaluation uses it; a resumed run also finds the weights that
    it trains. By default each step counts the same; override :meth:`should_update` to choose steps.

    Args:
        device: Where the average is kept; by default where the module is.
        use_buffers: Whether buffers are averaged too; otherwise the average has those of the module.
        **kwargs: Further arguments of :class:`torch.optim.swa_utils.AveragedModel`, such as ``avg_fn``.

    Raises:
        ConfigurationError: The strategy shards the module, or its processes train different weights.
    """

    further_weights = ("current_model_state",)

    def __init__(self, device: torch.device | str | int | None = None, use_buffers: bool = True, **kwargs: Any) -> None:
        self._device = torch.device(device) if isinstance(device, str) else device
        self._use_buffers = use_buffers
        self._kwargs = kwargs
        self._average: AveragedModel | None = None
        self._is_swapped = False
        self._step: int | None = None
        """The number of steps when :meth:`should_update` was asked last; ``None`` before training."""
        self._epoch = -1

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Whether the average takes the weights as they are now; by default after each optimizer step.

        A batch of a module that steps its optimizers itself may take several: if any of them counts, the average takes
        the weights after the batch, once.

        Args:
            step_idx: The number of the optimizer step that has ended, from 0; ``None`` at the end of an epoch.
            epoch_idx: The number of the epoch that has ended, from 0; ``None`` after a step.
        """
        return step_idx is not None

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Begin a new average."""
        self._average, self._is_swapped = None, False
        if stage == "fit":
            self._average = AveragedModel(pl_module, use_buffers=self._use_buffers, **self._arguments())
            self._step, self._epoch = None, -1

    def _arguments(self) -> dict[str, Any]:
        return self._kwargs

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Move the average to its device, in the precision of the module.

        Raises:
            ConfigurationError: The strategy shards the module, or its processes train different weights.
        """
        self._place_average(trainer, pl_module)

    def _place_average(self, trainer: Trainer, pl_module: Any) -> None:
        average = self._average
        assert average is not None
        if trainer.world_size > 1 and not trainer.strategy.keeps_replicas_equal:
            raise ConfigurationError(
                f"{type(self).__name__}: with strategy {trainer.strategy.name!r} the processes train different "
                "weights, so each would compute another average, and a checkpoint would contain process 0's only. Use "
                "a strategy that keeps the weights equal, such as 'ddp'."
            )
        parameters, means = dict(pl_module.named_parameters()), dict(average.module.named_parameters())
        for name, mean in means.items():
            own = parameters.get(name)  # missing or on meta in a process without the layer, as of a pipeline
            if own is None or own.is_meta or own.shape != mean.shape or type(own.data) is not torch.Tensor:
                raise ConfigurationError(
                    f"{type(self).__name__}: strategy {trainer.strategy.name!r} has divided the parameter {name!r} of "
                    "the module among the processes, so it cannot be averaged here. Use a strategy in which each "
                    "process has the whole module: 'ddp'."
                )
        for own, mean in zip(_tensors(pl_module), _tensors(average.module), strict=True):
            mean.data = mean.data.to(own.device if self._device is None else self._device, own.dtype)
        average.n_averaged.data = average.n_averaged.to(pl_module.device if self._device is None else self._device)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Average the loaded weights if another callback wrote the checkpoint before this one averaged them."""
        self._take_step(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Take the weights, after an optimizer step."""
        self._take_step(trainer, pl_module)

    def _take_step(self, trainer: Trainer, module: Any) -> None:
        # A batch of a module that steps its optimizers itself may take several steps.
        after = trainer.global_step
        before, self._step = after if self._step is None else self._step, after
        if any(self.should_update(step_idx=step) for step in range(before, after)):
            self._update(module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Take the weights, at the end of an epoch."""
        epoch = trainer.current_epoch
        if epoch > self._epoch and self.should_update(epoch_idx=epoch):
            self._update(pl_module)
            self._epoch = epoch

    def _update(self, module: nn.Module) -> None:
        assert self._average is not None
        for own, mean in zip(module.buffers(), self._average.module.buffers(), strict=True):
            if own.shape != mean.shape:  # as of an observer for quantization, which gets its size in a forward pass
                mean.data = own.detach().to(mean.device, copy=True)
        self._average.update_parameters(module)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Give the module the average."""
        if self._average is not None and self._average.n_averaged > 0:
            with torch.no_grad():
                for own, mean in zip(_tensors(pl_module), _tensors(self._average.module), strict=True):
                    if own.shape == mean.shape:
                        own.data.copy_(mean.data)
                    else:
                        own.data = mean.data.to(own.device)
            share_buffers(trainer.strategy, pl_module)
        self._average = None

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Evaluate with the average."""
        self._swap(pl_module)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Go on with the weights that are trained."""
        if self._is_swapped:
            self._swap(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Give the module the trained weights back."""
        if self._is_swapped:
            self._swap(pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Write the average as ``state_dict``, and the weights that are trained as ``current_model_state``."""
        if self._average is None:
            return
        inner, checkpoint["averaging_state"] = _parts(self._average)
        own = checkpoint["current_model_state"] = checkpoint["state_dict"]
        if self._average.n_averaged > 0:
            kept = {name: inner[name] for name in own}
            trained, average = (kept, own) if self._is_swapped else (own, kept)  # it is saved within a validation
            checkpoint |= {"current_model_state": trained, "state_dict": average}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Continue both."""
        if not self._has_average(checkpoint, "averaging_state"):
            return
        self._load_average(trainer, pl_module, checkpoint["state_dict"], checkpoint["averaging_state"])
        trainer.strategy.load_module_state(pl_module, checkpoint["current_model_state"])

    def _has_average(self, checkpoint: dict[str, Any], key: str) -> bool:
        if self._average is None or key in checkpoint:
            return self._average is not None
        if self._step is not None or self._epoch >= 0:
            logger.warning(
                "%s: the checkpoint was written after the end of its fit, when the module had the average alone. So "
                "this fit trains the averaged weights, and begins a new average. To go on exactly, resume from a "
                "checkpoint that was written during the fit, as by ModelCheckpoint(save_last=True)",
                type(self).__name__,
            )
        return False

    def _load_average(self, trainer: Trainer, module: Any, weights: dict[str, Any], rest: dict[str, Any]) -> None:
        self._place_average(trainer, module)  # what is copied into another dtype loses digits
        assert self._average is not None
        inner = {f"module.{name}": value for name, value in weights.items()}
        self._average.load_state_dict({**inner, **rest}, strict=module.strict_loading)

    def state_dict(self) -> dict[str, Any]:
        """When the average was updated last."""
        return {"latest_update_step": self._step, "latest_update_epoch": self._epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self._step, self._epoch = state_dict["latest_update_step"], state_dict["latest_update_epoch"]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_average": None}

    def _swap(self, module: nn.Module) -> None:
        if self._average is None or not self._average.n_averaged > 0:
            return
        self._is_swapped = not self._is_swapped
        with torch.no_grad():
            for own, mean in zip(_tensors(module), _tensors(self._average.module), strict=True):
                kept = mean.data.to(own.device, copy=True)
                if own.shape != mean.shape:
                    own.data, mean.data = kept, own.data.to(mean.device)
                    continue
                mean.data.copy_(own.data)
                own.data.copy_(kept)


class EMAWeightAveraging(WeightAveraging):
    """Keeps an exponential moving average of the weights.

    Args:
        device: As in :class:`WeightAveraging`.
        use_buffers: As in :class:`WeightAveraging`.
        decay: How much of the average stays at each update.
        update_every_n_steps: The number of optimizer steps from one update to the next.
        update_starting_at_step: The first step, from 0, that counts.
        update_starting_at_epoch: The first epoch, from 0, at whose end the average is updated too; ``None`` for none.
        **kwargs: As in :class:`WeightAveraging`.
    """

    def __init__(
        self,
        device: torch.device | str | int | None = None,
        use_buffers: bool = True,
        decay: float = 0.999,
        update_every_n_steps: int = 1,
        update_starting_at_step: int | None = None,
        update_starting_at_epoch: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_count("update_every_n_steps", update_every_n_steps, 1)
        check_count("update_starting_at_step", update_starting_at_step, 0, optional=True)
        check_count("update_starting_at_epoch", update_starting_at_epoch, 0, optional=True)
        if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 <= decay <= 1:
            raise ConfigurationError(f"decay={decay!r}: must be a number from 0 to 1.")
        super().__init__(device, use_buffers, **kwargs)
        self.decay = decay
        self.update_every_n_steps = update_every_n_steps
        self.update_starting_at_step = update_starting_at_step
        self.update_starting_at_epoch = update_starting_at_epoch

    def _arguments(self) -> dict[str, Any]:
        # Not before: the function cannot be sent to processes that are spawned.
        average: Any = get_ema_multi_avg_fn(self.decay)  # type: ignore[no-untyped-call]
        return {"multi_avg_fn": average, **self._kwargs}

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Whether the arguments ``update_...`` name this step or epoch."""
        if step_idx is not None:
            return step_idx >= (self.update_starting_at_step or 0) and step_idx % self.update_every_n_steps == 0
        start = self.update_starting_at_epoch
        return start is not None and epoch_idx is not None and epoch_idx >= start


def _tensors(module: nn.Module) -> Any:
    return chain(module.parameters(), module.buffers())


def _parts(average: AveragedModel) -> tuple[dict[str, Any], dict[str, Any]]:
    """The averaged weights by their names in the module, and the rest of the average's state."""
    state = average.state_dict()
    inner = {name.removeprefix("module."): value for name, value in state.items() if name.startswith("module.")}
    return inner, {name: value for name, value in state.items() if not name.startswith("module.")}


AVERAGE, REST = "swa_average", "swa_state"
"""The keys of a checkpoint for the average and for the rest of its state."""


class StochasticWeightAveraging(WeightAveraging):
    """Averages the weights at the end of each of the last epochs; after ``fit`` the module has the average.

    From the first of these epochs on, the learning rate goes to ``swa_lrs`` and stays there, and the module's own
    schedulers are no longer stepped. Validation and checkpoints during the run use the weights that are trained. At the
    end, one more pass over the training batches of all processes, without gradients, recomputes the running statistics
    of the averaged module's batch norm layers. A resumed run continues exactly.

    Args:
        swa_lrs: The learning rate to go to, > 0; or one for each parameter group.
        swa_epoch_start: The first epoch, counted from 1, at whose end weights are averaged; or a fraction of
            ``max_epochs``.
        annealing_epochs: The number of epochs in which the learning rate goes there.
        annealing_strategy: ``"cos"`` or ``"linear"``.
        avg_fn: ``avg_fn(average, weights, number)`` returns the new average of a parameter; by default each epoch
            counts the same.
        device: Where the average is kept; by default where the module is.

    Raises:
        ConfigurationError: An argument is out of range; or, in ``fit``, there is not one optimizer, a fraction was
            given without ``max_epochs``, the strategy shards the module, lets its processes differ or runs the whole
            step, or a module with batch norm layers optimizes manually.
    """

    idle_hooks = frozenset({"on_train_batch_end", "on_validation_epoch_start", "on_validation_epoch_end"})
    further_weights = (AVERAGE,)

    def __init__(
        self,
        swa_lrs: float | Sequence[float],
        swa_epoch_start: int | float = 0.8,
        annealing_epochs: int = 10,
        annealing_strategy: str = "cos",
        avg_fn: Callable[[Tensor, Tensor, Tensor | int], Tensor] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        rates: list[Any] = list(swa_lrs) if isinstance(swa_lrs, Sequence) else [swa_lrs]
        if not rates or any(isinstance(rate, bool | str) or not rate > 0 for rate in rates):
            raise ConfigurationError(f"swa_lrs={swa_lrs!r}: must be a number > 0, or a list of such numbers.")
        if isinstance(swa_epoch_start, float):
            if not 0 <= swa_epoch_start <= 1:
                raise ConfigurationError(f"swa_epoch_start={swa_epoch_start!r}: a fraction must be from 0.0 to 1.0.")
        else:
            check_count("swa_epoch_start", swa_epoch_start, 1)
        check_count("annealing_epochs", annealing_epochs, 0)
        if annealing_strategy not in ("cos", "linear"):
            raise ConfigurationError(f"annealing_strategy={annealing_strategy!r}: must be 'cos' or 'linear'.")
        super().__init__(device, use_buffers=False, **({} if avg_fn is None else {"avg_fn": avg_fn}))
        self._rates: Any = rates if isinstance(swa_lrs, Sequence) else swa_lrs
        self._given_start = swa_epoch_start
        self._annealing: dict[str, Any] = {"anneal_epochs": annealing_epochs, "anneal_strategy": annealing_strategy}
        self._scheduler: SWALR | None = None
        self._scheduler_state: dict[str, Any] | None = None
        self.swa_start = 0
        """The first epoch, from 0, at whose end weights are averaged."""

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """At the end of the last epochs."""
        return epoch_idx is not None and epoch_idx >= self.swa_start

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Begin a new average.

        Raises:
            ConfigurationError: See the class.
        """
        if stage != "fit":
            return
        start = self._given_start
        if isinstance(start, float):
            if trainer.max_epochs < 0:
                raise ConfigurationError(
                    f"swa_epoch_start={start}: is a fraction of max_epochs, which has no limit. Set max_epochs, or "
                    "give the number of an epoch."
                )
            start = int(trainer.max_epochs * start)
        self.swa_start = max(start - 1, 0)
        if not trainer.strategy.supports_custom_loop:
            raise ConfigurationError(
                f"StochasticWeightAveraging: strategy {trainer.strategy.name!r} runs whole training steps, whose "
                "learning rate it cannot change. Use another strategy."
            )
        self._scheduler = self._scheduler_state = None
        super().setup(trainer, pl_module, stage)

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Check that there is one optimizer, and move the average to its device.

        Raises:
            ConfigurationError: There are several or none, the strategy shards the module or lets its processes differ,
                or the module has batch norm layers and optimizes manually.
        """
        if len(trainer.optimizers) != 1:
            raise ConfigurationError(
                f"StochasticWeightAveraging: the module has {len(trainer.optimizers)} optimizers, and it works with "
                "one. Average in a callback of your own, with torch.optim.swa_utils."
            )
        if not pl_module.automatic_optimization and batch_norms(pl_module):
            raise ConfigurationError(
                f"StochasticWeightAveraging: {type(pl_module).__name__} has batch norm layers, whose statistics are "
                "computed by one more pass of training_step without gradients, and automatic_optimization=False, so "
                "training_step calls backward. Use core.callbacks.EMAWeightAveraging, which averages statistics."
            )
        super().on_fit_start(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Continue the schedule of the learning rate, in a resumed run."""
        if self._scheduler_state is not None:
            rates = [group["lr"] for group in trainer.optimizers[0].param_groups]
            scheduler = self._schedule(trainer)
            scheduler.load_state_dict(self._scheduler_state)
            mark_stepped(scheduler.optimizer)  # in the run that wrote the checkpoint
            for group, rate in zip(trainer.optimizers[0].param_groups, rates, strict=True):
                group["lr"] = rate

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Begin the schedule of the learning rate."""
        if trainer.current_epoch >= self.swa_start and self._scheduler is None:
            self._schedule(trainer)

    def _schedule(self, trainer: Trainer) -> SWALR:
        scheduler = self._scheduler = SWALR(trainer.optimizers[0], self._rates, **self._annealing)
        trainer.running_fit(type(self).__name__).step_each_epoch(scheduler)
        return scheduler

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Give the module the average, with its own statistics of batches."""
        has_average = self._average is not None and bool(self._average.n_averaged > 0)
        super().on_train_end(trainer, pl_module)
        self._scheduler = self._scheduler_state = None
        if has_average:
            update_batch_norms(trainer, pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the average."""
        if self._average is not None:
            checkpoint[AVERAGE], checkpoint[REST] = _parts(self._average)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Continue the average."""
        if self._has_average(checkpoint, AVERAGE):
            self._load_average(trainer, pl_module, checkpoint[AVERAGE], checkpoint[REST])

    def state_dict(self) -> dict[str, Any]:
        """When the average was updated last, and where the schedule of the learning rate is."""
        state = super().state_dict()
        if self._scheduler is None:
            return {**state, "scheduler": None}
        # Torch 2.6 puts a function in it, which a checkpoint cannot have; the constructor makes it again.
        scheduler = self._scheduler.state_dict()
        return {**state, "scheduler": {name: value for name, value in scheduler.items() if not callable(value)}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        super().load_state_dict(state_dict)
        self._scheduler_state = state_dict["scheduler"]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_scheduler": None}


def batch_norms(module: nn.Module) -> list[BatchNorm]:
    """The layers of ``module`` that keep statistics of batches."""
    return [one for one in module.modules() if isinstance(one, BatchNorm) and one.running_mean is not None]


def update_batch_norms(trainer: Trainer, module: nn.Module) -> None:
    """Like :func:`torch.optim.swa_utils.update_bn`, with the training step and the batches of all processes."""
    layers = batch_norms(module)
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    try:
        trainer.running_fit("update_batch_norms").run_forward()
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
    if trainer.world_size > 1:
        for layer in layers:
            for running in (layer.running_mean, layer.running_var):
                assert running is not None
                running.copy_(trainer.strategy.reduce(running))
