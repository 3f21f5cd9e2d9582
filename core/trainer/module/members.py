"""What a Module knows and can do apart from its steps: its device and rank, freezing, gathering, exporting, loading."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...errors import LONGEST_LIST, BackendError, CheckpointError, ConfigurationError, quoted
from ...hints.argument_checks import check_path
from ...loggers.values import inference
from ...runtime.checkpoint.parts import load_errors
from ...utilities.nested import map_tensors
from .from_checkpoint import ClassOnly, create_from_checkpoint, read_checkpoint
from .hparams_file import read_hparams

if TYPE_CHECKING:
    pass

if TYPE_CHECKING:
    from ..trainer import Trainer

__all__ = ["ModuleMembers"]


class ModuleMembers(nn.Module):
    """The part of a Module that is neither steps nor hooks."""

    trainer: Trainer
    example_input_array: Any = None
    """What :meth:`forward` may be called with: a tensor, a tuple of arguments or a dict of keyword arguments. Graphs
    and exports are traced with it."""
    strict_loading: bool = True
    """Whether the keys of a checkpoint's parameters must be the module's; the default of ``strict=`` where loaded."""

    # -- where it is ---------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The device of the first parameter or buffer; the default device if there are none."""
        for tensors in (self.parameters(), self.buffers()):
            for tensor in tensors:
                return tensor.device
        return torch.empty(0).device

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
            ConfigurationError: ``group`` was given, or shapes differ.
        """
        if group is not None:
            raise ConfigurationError(
                f"all_gather(group={group!r}): gathers from all processes. Use torch.distributed.all_gather for a "
                "group."
            )
        return gather_stacked(self.trainer.runtime.strategy, data, sync_grads)

    # -- loading and exporting -----------------------------------------------------------------------------------

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
                ``core.consolidate`` has written.
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
        saved, name = checkpoint.get("hyper_parameters", {}), checkpoint.get("hparams_name")
        saved = saved if hparams_file is None else read_hparams(hparams_file)
        module: Any = create_from_checkpoint(cls, saved, name, overrides)
        module.configure_model()
        path = os.fspath(checkpoint_path)
        module.on_load_checkpoint(checkpoint)
        if "state_dict" not in checkpoint:
            parts = quoted(sorted(map(str, checkpoint))[:LONGEST_LIST])
            raise CheckpointError(
                f"checkpoint_path={path!r}: has no part 'state_dict', but {parts}. If torch.save wrote "
                "the state of a module, load that: module.load_state_dict(torch.load(path))."
            )
        with load_errors("state_dict", path):
            state = checkpoint["state_dict"]
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
