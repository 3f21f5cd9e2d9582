"""Communication hooks of DistributedDataParallel by name: how a bucket of gradients is averaged over processes."""

# Not "from __future__ import annotations": DistributedDataParallel compares a hook's annotations with the classes.

import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ..errors import ConfigurationError, nearest, quoted
from ..utilities.torch_private import GradBucket
from .time_limits import CALLBACKS_SECONDS, wait_until

CommunicationHook = Callable[[Any, GradBucket], Future[Tensor]]
"""``hook(state, bucket)`` returns a future of the averaged bucket, a flat tensor."""

COMMUNICATION_HOOKS = ("allreduce", "bf16_compress", "fp16_compress", "power_sgd")
"""``allreduce``: the mean, as without a hook. ``bf16_compress``, ``fp16_compress``: the mean of 16-bit copies, half the
bytes. ``power_sgd``: low-rank approximations with error feedback (Vogels et al., PowerSGD, NeurIPS 2019), one
bucket after another; options are those of torch's ``PowerSGDState``, and ``wrapper``, ``"bf16_compress"`` or
``"fp16_compress"``, for 16-bit copies of the gradients."""


def check_communication_hook(hook: str | CommunicationHook | None, options: Mapping[str, Any]) -> None:
    """Check the arguments ``communication_hook`` and ``communication_options``.

    Raises:
        ConfigurationError: The hook is unknown, or it takes no options and some are given.
    """
    if isinstance(hook, str) and hook not in COMMUNICATION_HOOKS:
        raise ConfigurationError(
            f"communication_hook={hook!r}: unknown. Valid: {quoted(COMMUNICATION_HOOKS)}, or a function of state and "
            f"bucket.{nearest(hook, COMMUNICATION_HOOKS)}"
        )
    if hook is not None and not isinstance(hook, str) and not callable(hook):
        raise ConfigurationError(
            f"communication_hook={hook!r}: must be one of {quoted(COMMUNICATION_HOOKS)}, or a function of state and "
            "bucket."
        )
    if options and hook != "power_sgd":
        raise ConfigurationError(
            f"communication_options={dict(options)!r}: communication_hook={hook!r} takes no options. Leave them out "
            "or set communication_hook='power_sgd'."
        )
    if options.get("wrapper") not in (None, *_WRAPPERS):
        raise ConfigurationError(
            f"communication_options={dict(options)!r}: wrapper must be one of {quoted(_WRAPPERS)}."
        )


def register_communication_hook(
    module: DistributedDataParallel, hook: str | CommunicationHook, options: Mapping[str, Any]
) -> None:
    """Make ``hook`` average the gradients of ``module``.

    Raises:
        ConfigurationError: The hook does not take one of the options, or not its value.
    """
    if not isinstance(hook, str):
        module.register_comm_hook(None, lambda state, bucket: hook(state, bucket))  # torch rejects other annotations
    elif hook in _SENT_AS:
        module.register_comm_hook(_SENT_AS[hook], _mean)
    else:
        _register_power_sgd(module, options)


_SENT_AS = {"allreduce": None, "bf16_compress": torch.bfloat16, "fp16_compress": torch.float16}
"""The dtype in which a hook sends gradients; ``None`` for their own."""


def _mean(dtype: torch.dtype | None, bucket: GradBucket) -> Future[Tensor]:
    # Not torch's own hooks: it rejects that of bfloat16 except with certain vendors' collectives.
    gradients = bucket.buffer()
    sent = gradients.to(dtype or gradients.dtype).div_(dist.get_world_size())

    def receive(future: Future[list[Tensor]]) -> Tensor:
        received = future.value()[0]
        return gradients if received is gradients else gradients.copy_(received)

    work = cast(dist.Work, dist.all_reduce(sent, async_op=True))
    return cast(Future[Tensor], work.get_future().then(receive))


_WRAPPERS = {"bf16_compress": "bf16_compress_wrapper", "fp16_compress": "fp16_compress_wrapper"}
"""Torch's functions for them."""


def _register_power_sgd(module: DistributedDataParallel, options: Mapping[str, Any]) -> None:
    # Importing it takes the better part of a second.
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

    average = power_sgd.powerSGD_hook
    if (wrapper := options.get("wrapper")) is not None:
        average = getattr(default_hooks, _WRAPPERS[wrapper])(average)
    own = {option: value for option, value in options.items() if option != "wrapper"}
    try:
        state = power_sgd.PowerSGDState(process_group=None, **own)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"communication_options={dict(options)!r}: {error}.") from error

    def one_after_another(state: Any, bucket: GradBucket) -> Future[Tensor]:
        group = dist.group.WORLD
        held = sys.getrefcount(group)
        reduced: Future[Tensor] = average(state, bucket)
        # A bucket's later collectives begin when its first is done. With two buckets in flight, processes would begin
        # them in different orders, and mix up the buckets' numbers.
        reduced.wait()
        # Its callbacks hold the group. If one of the group's own threads drops it last, the process aborts.
        wait_until(lambda: sys.getrefcount(group) <= held, CALLBACKS_SECONDS, pause=0.0)
        return reduced

    module.register_comm_hook(state, one_after_another)
