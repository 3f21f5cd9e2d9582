"""Training a part of a module first, and the rest later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import CheckpointError, ConfigurationError
from ..hints.argument_checks import check_count
from ..utilities.torch_private import BatchNorm
from .base import Callback

if TYPE_CHECKING:
    from ..trainer.trainer import Trainer

logger = logging.getLogger(__name__)

Modules = nn.Module | Iterable[Any]


def multiplicative(epoch: int) -> float:
    """The learning rate doubles in each epoch."""
    return 2.0


class BaseFinetuning(Callback):
    """Freezes parts of a module before training, and adds them to the optimizer later.

    ::

        class Unfreeze(BaseFinetuning):
            def freeze_before_training(self, module):
                self.freeze(module.backbone)

            def finetune_function(self, module, epoch, optimizer):
                if epoch == 10:
                    self.unfreeze_and_add_param_group(module.backbone, optimizer)

    The optimizer gets only the trainable parameters in ``configure_optimizers``:
    ``Adam(filter(lambda parameter: parameter.requires_grad, self.parameters()))``. A resumed run has the same groups of
    parameters.
    """

    def __init__(self) -> None:
        self._groups: list[list[dict[str, Any]]] = []
        """The parameter groups of each optimizer, with names in place of parameters."""

    # -- what a subclass defines ---------------------------------------------------------------------------------

    def freeze_before_training(self, pl_module: Any) -> None:
        """Freeze what is not trained at first; called in ``setup`` of ``fit``, before the optimizers are created."""
        raise NotImplementedError

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Optimizer) -> None:
        """Unfreeze what is due; called at the start of each epoch for each optimizer."""
        raise NotImplementedError

    # -- what it calls ---------------------------------------------------------------------------------------------

    @staticmethod
    def flatten_modules(modules: Modules) -> list[nn.Module]:
        """All modules in ``modules`` that have their own parameters or no children."""
        if isinstance(modules, nn.Module):
            found: Iterable[nn.Module] = modules.modules()
        else:
            found = (part for each in modules for part in BaseFinetuning.flatten_modules(each))
        return [part for part in found if not list(part.children()) or list(part.parameters(recurse=False))]

    @staticmethod
    def filter_params(modules: Modules, train_bn: bool = True, requires_grad: bool = True) -> Iterator[nn.Parameter]:
        """The parameters whose ``requires_grad`` is as given, without those of batch norm if ``train_bn`` is true."""
        for part in BaseFinetuning.flatten_modules(modules):
            if isinstance(part, BatchNorm) and not train_bn:
                continue
            yield from (each for each in part.parameters(recurse=False) if each.requires_grad == requires_grad)

    @staticmethod
    def make_trainable(modules: Modules) -> None:
        """Train the parameters of ``modules``."""
        for part in BaseFinetuning.flatten_modules(modules):
            if isinstance(part, BatchNorm):
                part.track_running_stats = True
            for parameter in part.parameters(recurse=False):
                parameter.requires_grad = True

    @staticmethod
    def freeze_module(module: nn.Module) -> None:
        """Do not train the parameters of this module itself, nor the statistics of a batch norm."""
        if isinstance(module, BatchNorm):
            module.track_running_stats = False
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad = False

    @staticmethod
    def freeze(modules: Modules, train_bn: bool = True) -> None:
        """Do not train the parameters of ``modules``; those of batch norm only if ``train_bn`` is true."""
        for part in BaseFinetuning.flatten_modules(modules):
            if isinstance(part, BatchNorm) and train_bn:
                BaseFinetuning.make_trainable(part)
            else:
                BaseFinetuning.freeze_module(part)

    @staticmethod
    def filter_on_optimizer(optimizer: Optimizer, params: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """The parameters in ``params`` that the optimizer does not have yet."""
        there = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return [parameter for parameter in params if id(parameter) not in there]

    @staticmethod
    def unfreeze_and_add_param_group(
        modules: Modules,
        optimizer: Optimizer,
        lr: float | None = None,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
    ) -> None:
        """Train ``modules`` from now on, as a new group of the optimizer.

        Args:
            modules: A module, or several.
            optimizer: The optimizer.
            lr: The learning rate; by default that of the first group, divided by ``initial_denom_lr``.
            initial_denom_lr: See ``lr``.
            train_bn: Whether batch norm was trained before.
        """
        BaseFinetuning.make_trainable(modules)
        rate = float(optimizer.param_groups[0]["lr"]) / initial_denom_lr if lr is None else lr
        added = BaseFinetuning.filter_params(modules, train_bn=train_bn, requires_grad=True)
        new = BaseFinetuning.filter_on_optimizer(optimizer, added)
        if new:
            optimizer.add_param_group({"params": new, "lr": rate})

    # -- hooks -----------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Freeze what is not trained at first.

        Raises:
            ConfigurationError: There are several processes, of which each averages the gradients of those parameters
                only that are trainable from the beginning.
        """
        if stage == "fit":
            if trainer.strategy.world_size > 1:
                raise ConfigurationError(
                    f"{type(self).__name__}: the processes average the gradients of those parameters only that are "
                    "trainable when fit starts. Set devices=1, or call fit once for each stage: freeze parameters "
                    "before the first one, and unfreeze them before the second."
                )
            self._groups, self._trainable, self._untracked = [], [], []
            self.freeze_before_training(pl_module)

    def before_optimizers_load(self, pl_module: Any, optimizers: Sequence[Any], state: dict[str, Any]) -> None:
        """Give the optimizers the groups that they had, so that their state fits.

        Raises:
            CheckpointError: The module lacks a parameter.
        """
        named = dict(pl_module.named_parameters())
        for optimizer, groups in zip(optimizers, state["groups"], strict=False):
            for group in groups[len(optimizer.param_groups) :]:
                try:
                    parameters = [named[name] for name in group["params"]]
                except KeyError as error:
                    raise CheckpointError(
                        f"{type(self).__name__}: the checkpoint has trained parameter {error}, which the module lacks."
                    ) from error
                optimizer.add_param_group({**group, "params": parameters})
        trainable = set(state["trainable"])
        for name, parameter in named.items():
            parameter.requires_grad = name in trainable
        for name, part in pl_module.named_modules():
            if isinstance(part, BatchNorm):
                part.track_running_stats = name not in state["untracked"]

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Unfreeze what is due."""
        optimizers = trainer.optimizers
        for optimizer in optimizers:
            self.finetune_function(pl_module, trainer.current_epoch, optimizer)
        names = {id(parameter): name for name, parameter in pl_module.named_parameters()}
        self._trainable = [name for name, parameter in pl_module.named_parameters() if parameter.requires_grad]
        self._untracked = [
            name
            for name, part in pl_module.named_modules()
            if isinstance(part, BatchNorm) and not part.track_running_stats
        ]
        self._groups = [
            [{**group, "params": [names[id(each)] for each in group["params"]]} for group in optimizer.param_groups]
            for optimizer in optimizers
        ]

    _trainable: list[str] = []  # noqa: RUF012  replaced, never changed
    _untracked: list[str] = []  # noqa: RUF012
    """The batch norms whose statistics are frozen."""

    def state_dict(self) -> dict[str, Any]:
        """The groups of parameters, and what is frozen."""
        return {"groups": self._groups, "trainable": list(self._trainable), "untracked": list(self._untracked)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self._groups, self._trainable = state_dict["groups"], list(state_dict["trainable"])
        self._untracked = list(state_dict["untracked"])


class BackboneFinetuning(BaseFinetuning):
    """Trains ``module.backbone`` from a given epoch on, with a learning rate that grows to that of other layers.

    Args:
        unfreeze_backbone_at_epoch: The epoch, from 0.
        lambda_func: By the epoch, what the backbone's rate is multiplied by at the start of each further epoch.
        backbone_initial_ratio_lr: The backbone's first rate, as a part of that of the rest.
        backbone_initial_lr: The backbone's first rate, in place of the part.
        should_align: Whether the rate of the rest is the limit.
        initial_denom_lr: As in :meth:`BaseFinetuning.unfreeze_and_add_param_group`.
        train_bn: Whether batch norm of the backbone is trained from the beginning.
        verbose: Log the rates at level INFO.
        rounding: The digits of logged rates.
    """

    def __init__(
        self,
        unfreeze_backbone_at_epoch: int = 10,
        lambda_func: Callable[[int], float] = multiplicative,
        backbone_initial_ratio_lr: float = 0.1,
        backbone_initial_lr: float | None = None,
        should_align: bool = True,
        initial_denom_lr: float = 10.0,
        train_bn: bool = True,
        verbose: bool = False,
        rounding: int = 12,
    ) -> None:
        super().__init__()
        check_count("unfreeze_backbone_at_epoch", unfreeze_backbone_at_epoch, 0)
        self.unfreeze_backbone_at_epoch = unfreeze_backbone_at_epoch
        self.lambda_func = lambda_func
        self.backbone_initial_ratio_lr = backbone_initial_ratio_lr
        self.backbone_initial_lr = backbone_initial_lr
        self.should_align = should_align
        self.initial_denom_lr = initial_denom_lr
        self.train_bn = train_bn
        self.verbose = verbose
        self.rounding = rounding
        self.previous_backbone_lr: float | None = None
        """The backbone's rate in the last epoch."""

    def freeze_before_training(self, pl_module: Any) -> None:
        """Freeze the backbone.

        Raises:
            ConfigurationError: The module has none.
        """
        if not isinstance(getattr(pl_module, "backbone", None), nn.Module):
            raise ConfigurationError(
                f"BackboneFinetuning: {type(pl_module).__name__} has no module 'backbone'. Define it in __init__, or "
                "derive from BaseFinetuning."
            )
        self.previous_backbone_lr = None
        self.freeze(pl_module.backbone, train_bn=self.train_bn)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Optimizer) -> None:
        """Add the backbone, then let its rate grow."""
        rate = float(optimizer.param_groups[0]["lr"])
        if epoch == self.unfreeze_backbone_at_epoch:
            first = self.backbone_initial_lr
            own = rate * self.backbone_initial_ratio_lr if first is None else first
            self.unfreeze_and_add_param_group(
                pl_module.backbone, optimizer, own, train_bn=self.train_bn, initial_denom_lr=self.initial_denom_lr
            )
        elif epoch > self.unfreeze_backbone_at_epoch and self.previous_backbone_lr is not None:
            own = self.lambda_func(epoch + 1) * self.previous_backbone_lr
            own = rate if self.should_align and own > rate else own
            with torch.no_grad():
                optimizer.param_groups[-1]["lr"] = own
        else:
            return
        self.previous_backbone_lr = own
        if self.verbose:
            logger.info("learning rates: %s, backbone %s", round(rate, self.rounding), round(own, self.rounding))

    def state_dict(self) -> dict[str, Any]:
        """The groups of parameters, and the backbone's rate."""
        return {**super().state_dict(), "previous_backbone_lr": self.previous_backbone_lr}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        super().load_state_dict(state_dict)
        self.previous_backbone_lr = state_dict["previous_backbone_lr"]
