"""The Module: a model together with its training, validation, test and prediction steps."""

from __future__ import annotations

import copy
import importlib.util
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...checkpoints.foreign import compiled_alike, is_foreign, weights_for
from ...errors import LONGEST_LIST, BackendError, CheckpointError, ConfigurationError, WrongTypeError, quoted
from ...hints.argument_checks import check_path, suggest_arguments
from ...loggers.base import Logger
from ...loggers.values import inference
from ...runtime.checkpoint.process_state import load_errors
from ...runtime.checks import used_by_with
from ...utilities.nested import map_tensors
from ...utilities.torch_private import copied_where_kept
from ..member_checks import refuse_assignments
from .datamodule import DataHooks
from .hooks import ModuleHooks, overridden
from .hparams import ClassOnly, HyperParameters, create_from_checkpoint, read_checkpoint, read_hparams

if TYPE_CHECKING:
    from ..trainer import Trainer

CUSTOM_STEP = ("optimizer_step", "optimizer_zero_grad", "backward", "configure_gradient_clipping")
"""The methods of a Module that change parts of the Trainer's step."""
UNSENT = ("_trainer", "_last_trainer", "_step_modules", "_given_compiler")
"""Attributes that copies and pickles of a Module lack."""


@refuse_assignments
class Module(nn.Module, ModuleHooks, DataHooks, HyperParameters):
    """A model together with its steps; a plain :class:`torch.nn.Module` in every other respect."""

    example_input_array: Any = None
    """What :meth:`forward` may be called with: a tensor, a tuple of arguments or a dict of keyword arguments. Graphs
    and exports are traced with it."""
    strict_loading: bool = True
    """Whether the keys of a checkpoint's parameters must be the module's: the default of ``strict=`` in
    :meth:`load_state_dict` and :meth:`load_from_checkpoint`, and what ``ckpt_path`` does."""

    automatic_optimization: bool = True
    """Whether the Trainer computes gradients and steps the optimizer. Set it to ``False`` in ``__init__`` to do so in
    ``training_step``, with any number of optimizers."""

    _trainer: Trainer | None = None
    """Runs the module now."""
    _last_trainer: weakref.ref[Trainer] | None = None
    """A weak reference to the Trainer of the last run, if there was one: the module does not keep it alive."""
    _step_modules: tuple[nn.Module, ...] = ()
    """Its StepModule, once there is one; in a tuple, since torch would take it for a submodule otherwise."""

    _given_compiler: Any = None
    """A function that compiles another as ``torch.compile`` compiled this module; ``None`` if it was not compiled."""

    # -- steps, and what a run is made of --------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Compute the loss of one training batch.

        Returns:
            The loss, a scalar tensor; or a mapping with the loss under ``"loss"``; or ``None`` to skip the batch, if
            one process trains.
        """
        raise NotImplementedError

    def training_step_end(self, output: Any) -> Any:
        """Turn the output of :meth:`training_step` into the loss; by default ``output`` itself.

        It runs outside of the module that the strategy wraps, once for each batch.

        Args:
            output: What :meth:`training_step` returned. If one process splits a batch over several devices, a list of
                what it returned for each part, with tensors on the first device.

        Returns:
            See :meth:`training_step`.
        """
        return output

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """Evaluate one validation batch, without gradients; logged values are averaged over the epoch."""
        raise NotImplementedError

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        """Evaluate one test batch, without gradients; logged values are averaged over the epoch."""
        raise NotImplementedError

    def validation_step_end(self, output: Any) -> Any:
        """Turn the output of :meth:`validation_step` into what hooks get; by default ``output`` itself."""
        return output

    def test_step_end(self, output: Any) -> Any:
        """Turn the output of :meth:`test_step` into what hooks get; by default ``output`` itself."""
        return output

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """Predict one batch, without gradients; by default ``self(batch)``."""
        return self(batch)

    def configure_model(self) -> None:
        """Create layers that ``__init__`` leaves out, such as large ones, in each process of the run.

        It is called once in each ``fit``, ``validate``, ``test`` and ``predict``, after ``setup`` and before the
        strategy sets the module up; before :meth:`load_from_checkpoint` loads parameters; and, where ``fit`` has
        started the processes, in the process that called it. So create only what is not there yet::

            def configure_model(self):
                if self.network is None:
                    self.network = build()
        """

    def configure_callbacks(self) -> Any:
        """Create callbacks of this module's, which join the Trainer's before each stage.

        Returns:
            A :class:`core.Callback`, or a list of them. One replaces those of the Trainer of exactly its class.
        """
        return []

    def configure_optimizers(self) -> Any:
        """Create optimizers, and optionally learning rate schedulers.

        Returns:
            An optimizer; ``[optimizer], [scheduler]``; or ``{"optimizer": …, "lr_scheduler": …}``. A scheduler may be
            given as a mapping with ``scheduler``, ``interval`` (``"epoch"`` or ``"step"``), ``frequency``, ``name``;
            and with ``monitor`` and ``strict`` if its ``step`` takes a metric, as that of ReduceLROnPlateau. With
            ``automatic_optimization = False`` also a list of several of these. ``None`` if nothing is optimized.
        """
        raise NotImplementedError

    # -- the Trainer -----------------------------------------------------------------------------------------------

    @property
    def trainer(self) -> Trainer:
        """The :class:`core.Trainer` that is running this module, or was the last to do so and still exists.

        Raises:
            ConfigurationError: There is none.
        """
        trainer = self._newest_trainer
        if trainer is None:
            raise ConfigurationError(
                f"{type(self).__name__}.trainer: no Trainer is running this module. Use trainer, log() and "
                "optimizers() in steps and hooks, which fit, validate, test and predict call."
            )
        return trainer

    @trainer.setter
    def trainer(self, trainer: Trainer) -> None:
        """Take the facts of ``trainer`` while no Trainer is running this module, for example in its tests."""
        self._trainer = trainer

    @property
    def current_epoch(self) -> int:
        """:attr:`trainer`'s running epoch, from 0, or number of completed epochs after its ``fit``; 0 without one."""
        trainer = self._newest_trainer
        return 0 if trainer is None else int(trainer.current_epoch)

    @property
    def global_step(self) -> int:
        """Optimizer steps that :attr:`trainer` has taken so far; 0 without one."""
        trainer = self._newest_trainer
        return 0 if trainer is None else int(trainer.global_step)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in UNSENT}

    # -- logging ---------------------------------------------------------------------------------------------------

    @partial(suggest_arguments, owner="Module.log")
    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[..., Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Log a value, in a step or in a hook between the start and the end of an epoch or stage.

        The value is published as ``name``. If the values of steps and of the epoch are both recorded, they are
        published as ``name_step`` and ``name_epoch``, and ``name`` is the newest of both. A value that is logged in a
        hook before the first or after the last step of an epoch belongs to the epoch.

        Args:
            name: The metric's name. A name has the same options in all steps of a stage.
            value: A number or a scalar tensor; it is copied, and stays on its device until it is read. Or an object
                with ``update``, ``compute`` and ``reset``, such as a ``torchmetrics.Metric``, that is an attribute of
                the module: its value in the step is what it returned when it was called, its value in the epoch is
                ``compute()``, and it is reset at the epoch's end.
            prog_bar: Show it in the progress bar.
            logger: Send it to the loggers; ``None`` means ``True``.
            on_step: Record the value of each step; by default only in training.
            on_epoch: Record the value of the epoch over all processes; by default only outside of training steps.
            reduce_fx: How the values of an epoch are reduced: ``mean`` (weighted by batch size), ``sum``, ``min`` or
                ``max``, or torch's function of this name. Sums and means of 16-bit values are computed in 32 bits.
            enable_graph: Only ``False``: values are logged without their graph.
            sync_dist: In training, reduce the value of a step over all processes, by name: every process logs it. They
                exchange values when these are read, not in each step; see ``docs/logging.md``. The value of an epoch
                is always reduced over all processes. In evaluation, where processes may take different numbers of
                steps, the value of a step is this process's own.
            sync_dist_group: Only ``None``: values are reduced over all processes.
            add_dataloader_idx: Whether to append ``/dataloader_idx_<n>`` to the name if a stage has several loaders.
            batch_size: The value's weight in the mean; by default the first dimension of the first tensor in the
                batch that has one.
            metric_attribute: Where in the module the metric object is, such as ``"metrics.accuracy"``; found if left
                out.
            rank_zero_only: Whether only process 0 calls this, or is to be recorded.

        Raises:
            ConfigurationError: The value is not a scalar, the reduction is unknown, no epoch or stage is running, an
                option contradicts another one or an earlier call, or ``on_step=True`` outside of the steps. Raised at
                the next exchange, in every process: with ``sync_dist=True``, not all have logged the same names.
        """
        if enable_graph or sync_dist_group is not None:
            raise _refused(name, enable_graph, sync_dist_group)
        self.trainer.metric_log.log(
            name,
            value,
            prog_bar=prog_bar,
            logger=logger,
            on_step=on_step,
            on_epoch=on_epoch,
            reduce_fx=reduce_fx,
            sync_dist=sync_dist,
            add_dataloader_idx=add_dataloader_idx,
            batch_size=batch_size,
            metric_attribute=metric_attribute,
            rank_zero_only=rank_zero_only,
        )

    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **options: Any) -> None:
        """Call :meth:`log` for each item of ``dictionary``: a mapping, or a ``torchmetrics.MetricCollection``."""
        if not callable(getattr(dictionary, "items", None)):
            raise WrongTypeError(f"log_dict: {dictionary!r} is not a mapping of names to values.")
        # The items of a MetricCollection share state, which need not be copied.
        shares = {"copy_state": False} if getattr(dictionary, "_enable_compute_groups", False) else {}
        for name, value in dictionary.items(**shares):
            self.log(name, value, *args, **options)

    @property
    def logger(self) -> Logger | None:
        """The Trainer's first logger; ``None`` if there is none, or no Trainer."""
        trainer = self._newest_trainer
        return None if trainer is None else trainer.logger

    @property
    def loggers(self) -> list[Logger]:
        """The Trainer's loggers; empty without a Trainer."""
        trainer = self._newest_trainer
        return [] if trainer is None else trainer.loggers

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Call the built-in ``print``, in process 0 only."""
        self.trainer.print(*args, **kwargs)

    @property
    def _newest_trainer(self) -> Trainer | None:
        """The Trainer that runs this module or ran it last, if it still exists; ``None`` otherwise."""
        running: Trainer | None
        running, last = getattr(self, "_trainer", None), getattr(self, "_last_trainer", None)
        return last() if running is None and last is not None else running

    # -- where it is ---------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The device of the first parameter or buffer; the default device if there are none."""
        for tensors in (self.parameters(), self.buffers()):
            for tensor in tensors:
                return tensor.device
        return torch.empty(0).device

    @property
    def on_gpu(self) -> bool:
        """Whether the device is not the CPU."""
        return self.device.type != "cpu"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first parameter or buffer of floating point numbers; torch's default if there are none."""
        for tensors in (self.parameters(), self.buffers()):
            for tensor in tensors:
                if tensor.is_floating_point():
                    return tensor.dtype
        return torch.get_default_dtype()

    @property
    def global_rank(self) -> int:
        """The number of this process among all; 0 if no Trainer is running this module."""
        trainer = getattr(self, "_trainer", None)
        return 0 if trainer is None else int(trainer.strategy.global_rank)

    @property
    def local_rank(self) -> int:
        """The number of this process on its machine; 0 if no Trainer is running this module."""
        trainer = getattr(self, "_trainer", None)
        return 0 if trainer is None else int(trainer.strategy.local_rank)

    # -- parameters ----------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Let no parameter have gradients, and put the module in evaluation mode."""
        self.requires_grad_(False)
        self.eval()

    def unfreeze(self) -> None:
        """Let every parameter have gradients, and put the module in training mode."""
        self.requires_grad_(True)
        self.train()

    def all_gather(self, data: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """Gather tensors from all processes; every process calls it.

        Args:
            data: A tensor, or a nested structure of tensors of the same shapes in each process.
            group: Only ``None``: all processes.
            sync_grads: Whether gradients flow back through the result to the processes that the parts came from.

        Returns:
            ``data`` with a new first dimension of one item for each process; as it is if there is one process.

        Raises:
            ConfigurationError: ``group`` was given; shapes differ; or, in a step of an evaluation, another process has
                no batch left. Gather at the end of the epoch then.
        """
        if group is not None:
            raise ConfigurationError(
                f"all_gather(group={group!r}): gathers from all processes. Use torch.distributed.all_gather for a "
                "group."
            )
        return gather_stacked(self.trainer.runtime.strategy, data, sync_grads)

    # -- loading and exporting -----------------------------------------------------------------------------------

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool | None = None, assign: bool = False) -> Any:
        """Load parameters and buffers, as :meth:`torch.nn.Module.load_state_dict` does.

        Args:
            state_dict: What ``state_dict`` returned.
            strict: Whether its keys must be the module's; :attr:`strict_loading` by default.
            assign: As in torch.
        """
        return super().load_state_dict(state_dict, self.strict_loading if strict is None else strict, assign)

    @ClassOnly
    def load_from_checkpoint(
        cls,  # noqa: N805
        checkpoint_path: str | os.PathLike[str],
        map_location: Any = None,
        hparams_file: str | os.PathLike[str] | None = None,
        strict: bool | None = None,
        **overrides: Any,
    ) -> Any:
        """Create a module with the hyperparameters in a checkpoint, and load its parameters.

        Args:
            checkpoint_path: A checkpoint that a Trainer has written with any strategy, or one file of it that
                ``core.convert`` has written; or weights of another library, such as a file of Lightning's.
            map_location: The device of the module; the CPU by default.
            hparams_file: A file with hyperparameters, in place of those in the checkpoint: YAML, JSON, or a CSV table
                with the columns ``key`` and ``value``.
            strict: Whether the keys of the parameters must be the module's; :attr:`strict_loading` by default.
            **overrides: Arguments of the constructor, in place of those in the checkpoint.

        Raises:
            CheckpointError: The checkpoint is absent, damaged, or from another module.
            ConfigurationError: The constructor needs an argument that is in neither, or the class is Module itself.
            WrongTypeError: The constructor does not have one of the overrides.
        """
        if cls.__module__ == "torch_hal.trainer.module.module":
            raise ConfigurationError(
                "load_from_checkpoint: called on core.Module, the base class, which has no layers. Call it on the "
                "class of your module: MyModule.load_from_checkpoint(path)."
            )
        checkpoint = read_checkpoint(checkpoint_path, map_location)
        saved, name = copy.deepcopy(checkpoint.get("hyper_parameters", {})), checkpoint.get("hparams_name")
        saved = saved if hparams_file is None else read_hparams(hparams_file)
        module: Any = create_from_checkpoint(cls, saved, name, overrides)
        module.configure_model()
        path = os.fspath(checkpoint_path)
        if overridden(module, ModuleHooks, "on_load_checkpoint") is not None:
            checkpoint = copy.deepcopy(checkpoint)  # the hook may keep all of it
            module.on_load_checkpoint(checkpoint)
        if "state_dict" not in checkpoint:
            parts = quoted(sorted(map(str, checkpoint))[:LONGEST_LIST])
            raise CheckpointError(
                f"checkpoint_path={path!r}: has no part 'state_dict', but {parts}. Load the part with the weights: "
                "module.load_state_dict(torch.load(path, weights_only=True)[...])."
            )
        with load_errors("state_dict", path):
            adapt = weights_for if is_foreign(checkpoint) else compiled_alike
            state = copied_where_kept(module, adapt(module, checkpoint["state_dict"]))
            module.load_state_dict(state, strict=module.strict_loading if strict is None else strict)
        device = next((tensor.device for tensor in state.values() if isinstance(tensor, torch.Tensor)), None)
        return module if device is None else module.to(device)

    def to_onnx(self, file_path: str | os.PathLike[str] | None = None, input_sample: Any = None, **options: Any) -> Any:
        """Export :meth:`forward` with :func:`torch.onnx.export`, in evaluation mode.

        Args:
            file_path: The file to write; ``None`` to return the program only.
            input_sample: What to call the module with; :attr:`example_input_array` by default.
            **options: Arguments of :func:`torch.onnx.export`.

        Raises:
            BackendError: The packages ``onnx`` and ``onnxscript`` are not installed.
            ConfigurationError: There is no input.
        """
        for package in ("onnx", "onnxscript"):
            if importlib.util.find_spec(package) is None:
                raise BackendError(f"to_onnx: the package {package!r} is not installed. Run: pip install {package}")
        check_path("file_path", file_path)
        with self._exported("to_onnx", input_sample) as (args, kwargs):
            return torch.onnx.export(
                self, args, None if file_path is None else str(Path(file_path)), kwargs=kwargs, **options
            )

    def export(self, input_sample: Any = None, **options: Any) -> Any:
        """Export :meth:`forward` with :func:`torch.export.export`, in evaluation mode.

        Args:
            input_sample: What to call the module with; :attr:`example_input_array` by default.
            **options: Arguments of :func:`torch.export.export`.

        Returns:
            The ``torch.export.ExportedProgram``; :func:`torch.export.save` writes it.

        Raises:
            ConfigurationError: There is no input.
        """
        with self._exported("export", input_sample) as (args, kwargs):
            return torch.export.export(self, args, kwargs, **options)

    def to_torchscript(self, *args: Any, **kwargs: Any) -> Any:
        """TorchScript is deprecated.

        Raises:
            ConfigurationError: Always; it names :meth:`export`.
        """
        raise ConfigurationError(
            "to_torchscript: TorchScript is deprecated in torch. Use torch.export: program = module.export(inputs); "
            "torch.export.save(program, 'model.pt2')."
        )

    @contextmanager
    def _exported(self, method: str, sample: Any) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        """The arguments to trace with, on the module's device; the module in evaluation mode and without a Trainer."""
        sample = self.example_input_array if sample is None else sample
        if sample is None:
            raise ConfigurationError(
                f"{method}: there are no inputs to trace with. Pass input_sample, or set self.example_input_array."
            )
        sample = map_tensors(lambda tensor: tensor.to(self.device), sample)
        with inference(self):
            if isinstance(sample, dict):
                yield (), sample
            else:
                yield (sample if isinstance(sample, tuple) else (sample,)), {}

    # -- what the running fit has --------------------------------------------------------------------------------

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """The optimizers of the running fit: one, or a list of several.

        Args:
            use_pl_optimizer: Return optimizers whose ``step`` goes through the precision and the strategy, calls the
                hooks and counts as a step of the run. Each is an instance of the class of its ``optimizer``, which is
                the one without all this.
        """
        found = self._fit_loop("optimizers").controls.optimizers
        chosen = list(found) if use_pl_optimizer else [one.optimizer for one in found]
        return chosen[0] if len(chosen) == 1 else chosen

    def lr_schedulers(self) -> Any:
        """The learning rate schedulers of the running fit: one, a list of several, or ``None``."""
        found = [schedule.scheduler for schedule in self._fit_loop("lr_schedulers").optimization.schedules]
        return None if not found else found[0] if len(found) == 1 else found

    # -- manual optimization -------------------------------------------------------------------------------------

    def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients of ``loss`` and reduce them over processes, with ``automatic_optimization = False``.

        Every process must call it equally often.

        Args:
            loss: A scalar.
            *args: As of :meth:`torch.Tensor.backward`.
            **kwargs: As of :meth:`torch.Tensor.backward`, such as ``retain_graph=True``.

        Raises:
            ConfigurationError: The Trainer calls backward, or no fit is running.
        """
        self._fit_loop("manual_backward").controls.backward(loss, *args, **kwargs)

    def toggle_optimizer(self, optimizer: Optimizer) -> None:
        """Turn ``requires_grad`` off for all parameters of other optimizers that are not also in this one.

        Call :meth:`untoggle_optimizer` afterwards.
        """
        self._fit_loop("toggle_optimizer").controls.toggle(optimizer)

    def untoggle_optimizer(self, optimizer: Optimizer) -> None:
        """Restore ``requires_grad`` as it was before :meth:`toggle_optimizer`."""
        self._fit_loop("untoggle_optimizer").controls.untoggle(optimizer)

    @used_by_with("self.toggled_optimizer(optimizer)")
    @contextmanager
    def toggled_optimizer(self, optimizer: Optimizer) -> Iterator[None]:
        """:meth:`toggle_optimizer` as a context."""
        self.toggle_optimizer(optimizer)
        try:
            yield
        finally:
            self.untoggle_optimizer(optimizer)

    def clip_gradients(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients of an optimizer's parameters in place; scaled gradients are unscaled first.

        Args:
            optimizer: Whose gradients are clipped.
            gradient_clip_val: The largest norm or value; the Trainer's by default, and nothing if that is ``None``.
            gradient_clip_algorithm: ``"norm"`` or ``"value"``; the Trainer's by default.

        Raises:
            ConfigurationError: An argument contradicts the Trainer's, or the strategy cannot clip in this way.
        """
        self._fit_loop("clip_gradients").controls.clip(optimizer, gradient_clip_val, gradient_clip_algorithm)

    # -- parts of the Trainer's step, for overriding -------------------------------------------------------------

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Override it to change how the Trainer steps the optimizer.

        Args:
            epoch: The running epoch.
            batch_idx: The number of the batch in the epoch.
            optimizer: As :meth:`optimizers` returns it.
            optimizer_closure: Runs the training step, clears gradients and runs backward. Pass it to
                ``optimizer.step``, or call it.
        """
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
        """Override it to change how the Trainer clears gradients before backward."""
        optimizer.zero_grad()

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Override it to change how gradients of ``loss``, which is scaled if the precision needs it, are computed."""
        loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Override it to clip gradients in another way, such as with :meth:`clip_gradients`; called before each step.

        Args:
            optimizer: Whose step follows.
            gradient_clip_val: The Trainer's.
            gradient_clip_algorithm: The Trainer's.
        """
        self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Override it to change how the Trainer steps a scheduler.

        Args:
            scheduler: The scheduler.
            metric: The value that it monitors; ``None`` if it monitors none.
        """
        if metric is None:
            scheduler.step()
        else:
            scheduler.step(metric)

    def _fit_loop(self, name: str) -> Any:
        return self.trainer.running_fit(f"{type(self).__name__}.{name}")


def _refused(name: str, enable_graph: bool, sync_dist_group: Any) -> ConfigurationError:
    if enable_graph:
        return ConfigurationError(
            f"log({name!r}, enable_graph=True): a value is logged without its graph. Return what is to be "
            "differentiated from the step."
        )
    return ConfigurationError(
        f"log({name!r}, sync_dist_group={sync_dist_group!r}): values are reduced over all processes. Reduce it over "
        "the group with torch.distributed.all_reduce, and log the result."
    )


def gather_stacked(strategy: Any, data: Any, sync_grads: bool) -> Any:
    """``data`` of all processes along a new first dimension."""
    if strategy.world_size == 1:
        return data

    def gather(tensor: torch.Tensor) -> torch.Tensor:
        if not sync_grads:
            return strategy.all_gather(tensor.detach())  # type: ignore[no-any-return]
        gathered: torch.Tensor = _GatherWithGradients.apply(tensor, strategy)  # type: ignore[no-untyped-call]
        return gathered

    return map_tensors(gather, data)


class _GatherWithGradients(torch.autograd.Function):
    """Gathers forward; backward, each process gets the sum of the gradients of its own part."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, strategy: Any) -> torch.Tensor:
        context.strategy = strategy
        gathered: torch.Tensor = strategy.all_gather(tensor.detach())
        return gathered

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:  # the signature of the base class
        total = context.strategy.reduce(gradients[0].contiguous(), "sum")
        return total[context.strategy.global_rank], None
