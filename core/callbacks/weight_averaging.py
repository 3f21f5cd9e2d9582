"""Averages of the weights over the steps of a run, on :mod:`torch.optim.swa_utils`."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..errors import ConfigurationError
from ..hints.argument_checks import check_count
from ..strategies.own_buffers import share_buffers
from .base import Callback

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

__all__ = ["EMAWeightAveraging", "WeightAveraging"]


class WeightAveraging(Callback):
    """Keeps the average of the weights; validation uses it, and after ``fit`` the module has it.

    A checkpoint's ``state_dict`` is the average, so that evaluation uses it; a resumed run also finds the weights that
    it trains. By default each step counts the same; override :meth:`should_update` to choose steps.

    Args:
        device: Where the average is kept; by default where the module is.
        use_buffers: Whether buffers are averaged too; otherwise the average has those of the module.
        **kwargs: Further arguments of :class:`torch.optim.swa_utils.AveragedModel`, such as ``avg_fn``.

    Raises:
        ConfigurationError: The strategy shards the module.
    """

    def __init__(self, device: torch.device | str | int | None = None, use_buffers: bool = True, **kwargs: Any) -> None:
        self._device = torch.device(device) if isinstance(device, str) else device
        self._use_buffers = use_buffers
        self._kwargs = kwargs
        self._average: AveragedModel | None = None
        self._is_swapped = False
        self._step = 0
        self._epoch = -1

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        """Whether the average takes the weights as they are now; by default after each optimizer step.

        Args:
            step_idx: The number of the optimizer step that has ended, from 0; ``None`` at the end of an epoch.
            epoch_idx: The number of the epoch that has ended, from 0; ``None`` after a step.
        """
        del epoch_idx
        return step_idx is not None

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Begin a new average."""
        self._average, self._is_swapped = None, False
        if stage == "fit":
            self._average = AveragedModel(pl_module, use_buffers=self._use_buffers, **self._arguments())
            self._step, self._epoch = 0, -1

    def _arguments(self) -> dict[str, Any]:
        return self._kwargs

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Move the average to its device, in the precision of the module.

        Raises:
            ConfigurationError: The strategy shards the module.
        """
        average = self._average
        assert average is not None
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
        """Take the weights of a checkpoint that another callback wrote before this one had taken those of its step."""
        self._take_step(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Take the weights, after an optimizer step."""
        self._take_step(trainer, pl_module)

    def _take_step(self, trainer: Trainer, module: Any) -> None:
        step = trainer.global_step
        if step > self._step and self.should_update(step_idx=step - 1):
            assert self._average is not None
            self._average.update_parameters(module)
            self._step = step

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Take the weights, at the end of an epoch."""
        epoch = trainer.current_epoch
        if epoch > self._epoch and self.should_update(epoch_idx=epoch):
            assert self._average is not None
            self._average.update_parameters(pl_module)
            self._epoch = epoch

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Give the module the average."""
        if self._average is not None and self._average.n_averaged > 0:
            with torch.no_grad():
                for own, mean in zip(_tensors(pl_module), _tensors(self._average.module), strict=True):
                    own.data.copy_(mean.data)
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
        """Leave the module the weights that were trained."""
        if self._is_swapped:
            self._swap(pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Write the average as ``state_dict``, and the weights that are trained as ``current_model_state``."""
        if self._average is None:
            return
        state = self._average.state_dict()
        own = checkpoint["current_model_state"] = checkpoint["state_dict"]
        if self._average.n_averaged > 0:
            inner = {name.removeprefix("module."): value for name, value in state.items() if name.startswith("module.")}
            kept = {name: inner[name] for name in own}
            trained, average = (kept, own) if self._is_swapped else (own, kept)  # it is saved within a validation
            checkpoint |= {"current_model_state": trained, "state_dict": average}
        checkpoint["averaging_state"] = {name: value for name, value in state.items() if not name.startswith("module.")}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Continue both."""
        if self._average is None or "averaging_state" not in checkpoint:
            return
        inner = {f"module.{name}": value for name, value in checkpoint["state_dict"].items()}
        self._average.load_state_dict({**inner, **checkpoint["averaging_state"]})
        trainer.strategy.load_module_state(pl_module, checkpoint["current_model_state"])

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
