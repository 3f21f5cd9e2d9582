"""torch's DistributedDataParallel: a replica in each process, gradients averaged as they become ready."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from core.accelerators.base import Accelerator
from core.checkpoints.base import CheckpointIO
from core.environments.base import ClusterEnvironment
from core.errors import ConfigurationError, nearest, quoted
from core.precisions.base import Precision
from core.strategies.communication import CommunicationHook, check_communication_hook, register_communication_hook
from core.strategies.parallel import ParallelStrategy

__all__ = ["DDPStrategy"]

_DDP_ARGUMENTS = frozenset(inspect.signature(DistributedDataParallel).parameters) - {"module", "device_ids"}


class DDPStrategy(ParallelStrategy):
    """A replica of the module in each process; gradients are averaged while backward computes them.

    Source: Li et al., PyTorch Distributed, VLDB 2020; :class:`torch.nn.parallel.DistributedDataParallel`.

    Args:
        accelerator: The hardware, as an object or by name.
        cluster_environment: Who this process is, as an object or by name.
        checkpoint_io: How checkpoints are written, as an object or by name.
        precision_plugin: The dtype policy, as an object or by name.
        process_group_backend: The ``torch.distributed`` backend; the accelerator's own where none is named.
        timeout: How long a collective may wait for the other processes.
        start_method: As in :class:`core.strategies.ParallelStrategy`.
        communication_hook: How a bucket of gradients is averaged: a name of
            :data:`core.strategies.COMMUNICATION_HOOKS`, or a function of state (``None``) and bucket.
        communication_options: What the hook takes.
        **ddp_kwargs: Passed to ``DistributedDataParallel``, such as ``find_unused_parameters``, ``static_graph``,
            ``gradient_as_bucket_view``, ``bucket_cap_mb``.
    """

    model: nn.Module
    """In :meth:`configure_ddp`: the module to wrap, to be replaced by the wrapped one."""

    def __init__(
        self,
        accelerator: Accelerator | str | None = None,
        cluster_environment: ClusterEnvironment | str | None = None,
        checkpoint_io: CheckpointIO | str | None = None,
        precision_plugin: Precision | str | None = None,
        *,
        process_group_backend: str | None = None,
        timeout: timedelta = timedelta(minutes=30),
        start_method: str = "script",
        communication_hook: str | CommunicationHook | None = None,
        communication_options: Mapping[str, Any] = MappingProxyType({}),
        **ddp_kwargs: Any,
    ) -> None:
        super().__init__(
            accelerator,
            cluster_environment,
            checkpoint_io,
            precision_plugin,
            process_group_backend=process_group_backend,
            timeout=timeout,
            start_method=start_method,
        )
        unknown = sorted(set(ddp_kwargs) - _DDP_ARGUMENTS)
        if unknown:
            raise ConfigurationError(
                f"{quoted(unknown)}: no argument of DDPStrategy or DistributedDataParallel. Valid: "
                f"{quoted(sorted(_DDP_ARGUMENTS))}.{nearest(unknown[0], _DDP_ARGUMENTS)}"
            )
        check_communication_hook(communication_hook, communication_options)
        self.communication_hook = communication_hook
        self.communication_options = dict(communication_options)
        self.ddp_kwargs = ddp_kwargs

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Converted, moved and wrapped; a module without trainable parameters is not wrapped, as torch refuses it."""
        self.model = super().setup_module(module)
        if any(parameter.requires_grad for parameter in self.model.parameters()):
            self.configure_ddp()
        wrapped: nn.Module = self.__dict__.pop("model")
        if self._group is not None and isinstance(wrapped, DistributedDataParallel):
            self._group.release_at_leave(partial(release_from_group, wrapped))
        return wrapped

    def configure_ddp(self) -> None:
        """Replace :attr:`model` by its wrapped form; a documented seam for subclasses."""
        self.model = DistributedDataParallel(self.model, device_ids=self.ddp_device_ids(), **self.ddp_kwargs)
        if self.communication_hook is not None:
            register_communication_hook(self.model, self.communication_hook, self.communication_options)

    def ddp_device_ids(self) -> list[int] | None:
        """What ``DistributedDataParallel`` takes as ``device_ids``: the device's index where it has one."""
        index = self.root_device.index
        return None if index is None else [index]

    def unwrap_module(self, module: nn.Module) -> nn.Module:
        """The module within."""
        return module.module if isinstance(module, DistributedDataParallel) else module

    def inference_module(self, module: nn.Module) -> nn.Module:
        """The module within: a forward pass alone needs nothing of the other processes."""
        return self.unwrap_module(module)

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        """Backward within leaves gradients unreduced; a static graph's first reduces them, for torch to learn it."""
        if not isinstance(module, DistributedDataParallel) or _learns_graph(module):
            return nullcontext()
        return module.no_sync()


def _learns_graph(module: DistributedDataParallel) -> bool:
    """Whether the next backward pass shows ``module`` its static graph: torch asserts that it reduces gradients."""
    return module.static_graph and not module._static_graph_delay_allreduce_enqueued


def release_from_group(module: DistributedDataParallel) -> None:
    """Cut ``module`` from its process group: it still passes calls on to the module within where gradients are off."""
    module.require_forward_param_sync = module.require_backward_grad_sync = False
    for name in ("reducer", "logger", "process_group"):
        delattr(module, name)
