"""torch's DistributedDataParallel: a replica in each process, gradients averaged as they become ready."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Unpack
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.distributed.algorithms.join import Join, Joinable
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.hooks import RemovableHandle

from ..errors import ConfigurationError, quoted
from ..utilities.nested import hook_gradients
from ..utilities.torch_private import (
    FixedBuckets,
    accumulates,
    expect_gradients,
    hooks_after_accumulation,
    learns_graph,
    left_out_by_ddp,
)
from .ddp_hooks import CommunicationHook, check_communication_hook, register_communication_hook
from .inputs import ProcessGroupParts
from .manual_gradients import AveragedGradients, ManualGradients
from .parallel import ProcessGroupStrategy
from .process_group import while_alive
from .reductions import check_sendable

_DDP_ARGUMENTS = MappingProxyType(
    {
        name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(DistributedDataParallel).parameters.items()
        if name not in ("module", "device_ids")
    }
)
"""By name, those that this version of torch takes."""


class DDPArguments(ProcessGroupParts, total=False):
    """The arguments that :class:`DDPStrategy` passes on; see :class:`torch.nn.parallel.DistributedDataParallel`."""

    output_device: int | torch.device | None
    dim: int
    broadcast_buffers: bool
    init_sync: bool
    process_group: Any
    bucket_cap_mb: float | None
    find_unused_parameters: bool
    check_reduction: bool
    gradient_as_bucket_view: bool
    static_graph: bool
    delay_all_reduce_named_params: Any
    param_to_hook_all_reduce: Any
    mixed_precision: Any
    device_mesh: Any
    skip_all_reduce_unused_params: bool
    bucket_cap_mb_list: Any
    batched_grad_copy: bool
    forward_sync_buffers: bool


class DDPStrategy(ProcessGroupStrategy):
    """A replica of the module in each process; gradients are averaged while backward computes them.

    Source: Li et al., PyTorch Distributed, VLDB 2020; :class:`torch.nn.parallel.DistributedDataParallel`.

    Args:
        communication_hook: How a bucket of gradients is averaged: a name of
            :data:`core.strategies.COMMUNICATION_HOOKS`, or a function of state (``None``) and bucket.
        communication_options: Options of the hook.
        **others: As in :class:`core.strategies.ProcessGroupStrategy`; and those of ``DistributedDataParallel``, such as
            ``find_unused_parameters``, ``static_graph``, ``gradient_as_bucket_view``, ``bucket_cap_mb``.

    Raises:
        ConfigurationError: An argument is unknown or has an invalid value.
    """

    extra_arguments: ClassVar[Mapping[str, inspect.Parameter]] = _DDP_ARGUMENTS

    _model: nn.Module | None = None
    """The module that is being set up."""
    _last_model: ref[nn.Module] | None = None
    """The module that was set up last. This strategy does not keep it alive."""
    _frozen_check: RemovableHandle | None = None
    """Of that module: rejects parameters that were frozen then and are not any more."""

    def __init__(
        self,
        *,
        communication_hook: str | CommunicationHook | None = None,
        communication_options: Mapping[str, Any] = MappingProxyType({}),
        **others: Unpack[DDPArguments],
    ) -> None:
        arguments: dict[str, Any] = {**others}
        self.ddp_kwargs = {name: arguments.pop(name) for name in others if name in _DDP_ARGUMENTS}
        if not self.ddp_kwargs.get("broadcast_buffers", True):
            self.keeps_buffers_equal = False
        super().__init__(**arguments)
        check_communication_hook(communication_hook, communication_options)
        self.communication_hook = communication_hook
        self.communication_options = dict(communication_options)

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Converted, moved and wrapped; a module without trainable parameters is not wrapped: torch rejects that."""
        self.model = super().setup_module(module)
        converted = self.model
        if any(parameter.requires_grad for parameter in self.model.parameters()):
            self.configure_ddp()
        wrapped, self._model = self.model, None
        if self.world_size > 1:
            self._frozen_check = refuse_unfrozen(self.name, converted, wrapped)
        if self._frozen_check is not None:  # it may be the user's own module that has it
            self.release_at_leave(self._frozen_check.remove)
        self._last_model = ref(wrapped)
        if isinstance(wrapped, DistributedDataParallel):
            self.release_at_leave(while_alive(wrapped, release_from_group))
            if self.world_size > 1:
                self.release_at_leave(while_alive(FirstBackward(self.name, wrapped), FirstBackward.end))
        return wrapped

    @property
    def model(self) -> nn.Module:
        """The module that :meth:`configure_ddp` wraps, and replaces by the wrapped one; afterwards the latter.

        Raises:
            ConfigurationError: No module was set up, or it is no longer in use.
        """
        model = self._model
        if model is None and self._last_model is not None:
            model = self._last_model()
        if model is None:
            raise ConfigurationError(
                "strategy.model: there is none. Read it after a module was prepared, while that module is in use, "
                "such as in a hook."
            )
        return model

    @model.setter
    def model(self, model: nn.Module) -> None:
        self._model = model

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in super().__getstate__().items()
            if name not in ("_last_model", "_frozen_check")
        }

    def configure_ddp(self) -> None:
        """Replace :attr:`model` by its wrapped form; override it to wrap in another way."""
        self.check_sendable(self.model)
        # The sum of two numbers does not depend on their order. A hook may do anything.
        fixed = self.world_size > 2 or self.communication_hook is not None
        self.model = wrap(self.model, fixed=fixed, device_ids=self.ddp_device_ids(), **self.ddp_kwargs)
        if self.communication_hook is not None:
            register_communication_hook(self.model, self.communication_hook, self.communication_options)

    def check_sendable(self, module: nn.Module) -> None:
        """Reject parameters and buffers that ``DistributedDataParallel`` would fail to send from process 0.

        Raises:
            ConfigurationError: The process group's backend does not send their dtype.
        """
        ignored = left_out_by_ddp(module)
        named: dict[str, Any] = {"parameters": module.named_parameters()}
        if self.ddp_kwargs.get("broadcast_buffers", True):
            named["buffers"] = module.named_buffers()
        for kind, tensors in named.items():
            sent = [(name, tensor) for name, tensor in tensors if name not in ignored]
            check_sendable(self.name, kind, sent, self.root_device)

    def ddp_device_ids(self) -> list[int] | None:
        """The argument ``device_ids`` of ``DistributedDataParallel``: the index of the device that the module is on.

        ``None`` where its tensors have none: an accelerator may number devices that torch does not.
        """
        is_there = self.root_device in {parameter.device for parameter in self.model.parameters()}
        index = self.root_device.index if self.moves_modules and is_there else None
        return None if index is None else [index]

    def unwrap_module(self, module: nn.Module) -> nn.Module:
        """The user's own module; see :meth:`Strategy.unwrap_module`."""
        return super().unwrap_module(module.module if isinstance(module, DistributedDataParallel) else module)

    def inference_module(self, module: nn.Module) -> nn.Module:
        """The wrapped module: its forward pass does not need the other processes."""
        return self.unwrap_module(module)

    def no_sync(self, module: nn.Module) -> AbstractContextManager[Any]:
        """A context in which backward does not reduce gradients; the first backward of a static graph always does."""
        if not isinstance(module, DistributedDataParallel) or learns_graph(module):
            return nullcontext()
        return module.no_sync()

    def manual_gradients(self, module: nn.Module) -> ManualGradients:
        """Averaged after each backward pass, since ``DistributedDataParallel`` averages only after a forward pass.

        Raises:
            ConfigurationError: ``communication_hook`` or ``process_group`` is set, which only it would use.
        """
        if not isinstance(module, DistributedDataParallel):
            return super().manual_gradients(module)
        unused = ["communication_hook"] if self.communication_hook is not None else []
        unused += [name for name in ("process_group", "mixed_precision") if self.ddp_kwargs.get(name) is not None]
        if unused:
            raise ConfigurationError(
                f"strategy={self.name!r}: {quoted(unused)} has no effect with manual optimization, where gradients are "
                "averaged after each manual_backward. Leave it out."
            )
        if self._frozen_check is not None:  # here all gradients are averaged
            self._frozen_check.remove()
        return AveragedGradients(self, list(module.parameters()), self.make_backward(), partial(_without_sync, module))

    def accumulation_state(self, module: nn.Module) -> dict[str, Any]:
        """Whether the next forward pass sends the buffers of rank 0 to the others; see :class:`Strategy`."""
        return {"sends": module.require_forward_param_sync} if isinstance(module, DistributedDataParallel) else {}

    def load_accumulation_state(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """See :meth:`accumulation_state`."""
        if isinstance(module, DistributedDataParallel):
            module.require_forward_param_sync = state["sends"]

    def sync_in_backward(self, module: nn.Module, loss: Tensor) -> AbstractContextManager[Any]:
        """See :meth:`Strategy.sync_in_backward`."""
        if not isinstance(module, DistributedDataParallel) or not hasattr(module, "reducer"):
            return nullcontext()  # there is none if delay_all_reduce_named_params has all parameters
        return _forced_sync(module, loss)

    def join_uneven(self, joinables: Sequence[Any]) -> AbstractContextManager[Any]:
        """By torch's ``Join``; gradients are divided by the number of all processes."""
        chosen = [one for one in joinables if isinstance(one, Joinable)]
        return _JoinInDtype(chosen, self.precision.forward_context) if chosen else nullcontext()


class _JoinInDtype(Join):
    """Answers forward passes of other processes in the default dtype in which these ask.

    Args:
        joinables: Modules and optimizers.
        forward_context: Makes the context of forward passes.
    """

    def __init__(self, joinables: list[Joinable], forward_context: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__(joinables)
        self._forward_context = forward_context

    def __exit__(self, *error: Any) -> None:
        with self._forward_context():
            super().__exit__(*error)


def refuse_unfrozen(strategy: str, module: nn.Module, called: nn.Module) -> RemovableHandle | None:
    """Make forward passes reject parameters that were frozen when the strategy noted whose gradients it averages.

    Args:
        strategy: Its name.
        module: Has the parameters.
        called: The module whose forward passes look: that one, or what it is wrapped in.

    Returns:
        What ends it; ``None`` where no parameter is frozen.
    """
    frozen = {name: each for name, each in module.named_parameters() if not each.requires_grad}
    return called.register_forward_pre_hook(partial(_check_frozen, strategy, frozen)) if frozen else None


def _check_frozen(strategy: str, frozen: Mapping[str, nn.Parameter], module: nn.Module, inputs: Any) -> None:
    """Before a forward pass: reject parameters whose gradients would not be averaged."""
    if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in frozen.values()):
        names = [name for name, parameter in frozen.items() if parameter.requires_grad]
        raise ConfigurationError(
            f"strategy={strategy!r}: {len(names)} parameter(s) that were frozen when the model was prepared require "
            f"gradients now: {quoted(names[:5])}. It averages and applies only the gradients of those that were "
            "trainable then. Set requires_grad before fit or prepare: end this fit there, and go on with another; or "
            "begin with trainable parameters, at a learning rate of 0."
        )


class _Note(partial[None]):
    """The hook of :class:`FirstBackward`."""


class FirstBackward:
    """Refuses what uses gradients before they are averaged, or adds to them afterwards: the replicas would drift apart.

    It looks at the first backward pass of a module that averages gradients, and costs nothing from then on.

    Args:
        strategy: Its name.
        module: The module.
    """

    def __init__(self, strategy: str, module: DistributedDataParallel) -> None:
        self._strategy = strategy
        self._added: dict[str, bool] = {}
        """Whether the gradient of a parameter was computed by a backward pass within the backward pass."""
        self._handles = [module.register_forward_pre_hook(self._begin)]

    def end(self) -> None:
        """Look no longer."""
        while self._handles:
            self._handles.pop().remove()

    def _begin(self, module: DistributedDataParallel, inputs: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if self._added:
            self.end()
        elif len(self._handles) == 1:
            parameters = [(name, one) for name, one in module.module.named_parameters() if one.requires_grad]
            # A parameter that two prepared modules share may have the hook of the other one.
            hooked = [
                name
                for name, parameter in parameters
                if not all(isinstance(hook, _Note) for hook in hooks_after_accumulation(parameter))
            ]
            if hooked:
                raise ConfigurationError(
                    f"strategy={self._strategy!r}: {len(hooked)} parameter(s) have a hook of "
                    f"register_post_accumulate_grad_hook: {quoted(hooked[:5])}. It runs before the gradients are "
                    "averaged, so an optimizer that it steps would train another model in each process. Step the "
                    "optimizer after backward. To save the memory of gradients, set strategy='fsdp'."
                )
            if module.require_backward_grad_sync:
                self._handles += [
                    parameter.register_post_accumulate_grad_hook(_Note(self._note, name))
                    for name, parameter in parameters
                ]

    def _note(self, name: str, parameter: Tensor) -> None:
        is_inner = _is_in_checkpoint()
        if name in self._added and (is_inner or self._added[name]):
            raise ConfigurationError(
                f"strategy={self._strategy!r}: {name} is used more than once, in parts of the forward pass that "
                "torch.utils.checkpoint recomputes with use_reentrant=True. Each such part adds to its gradient by "
                "itself, the last ones after it was averaged. Set use_reentrant=False; with a model of transformers: "
                "model.gradient_checkpointing_enable({'use_reentrant': False})."
            )
        self._added[name] = is_inner


def _is_in_checkpoint() -> bool:
    """Whether this is the backward pass that a checkpointed part runs by itself."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not CheckpointFunction.backward.__code__:
        frame = frame.f_back
    return frame is not None


@contextmanager
def _without_sync(module: DistributedDataParallel) -> Iterator[None]:
    """Gradients are left as they are; buffers of rank 0 are sent to the others, as before each forward pass."""
    with module.no_sync():
        module.require_forward_param_sync = True
        yield


@contextmanager
def _forced_sync(module: DistributedDataParallel, loss: Tensor) -> Iterator[None]:
    def begin(gradient: Tensor) -> None:
        expect_gradients(module, loss)

    # At the first gradient: of a loss that does not depend on the module there is none to wait for.
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    handle = register_multi_grad_hook(trained, begin, mode="any")
    try:
        yield
    finally:
        handle.remove()


def wrap(module: nn.Module, *, fixed: bool, **arguments: Any) -> DistributedDataParallel:
    """``module`` in DistributedDataParallel, with ``arguments``.

    Args:
        module: What is wrapped.
        fixed: Whether sums depend on the layout of the buckets. Then it is the same at every step.
        **arguments: Those of DistributedDataParallel.
    """
    is_static = arguments.get("static_graph", False)
    changes = is_static or not arguments.get("find_unused_parameters", False)
    wrapped = (FixedBuckets if fixed and changes else DistributedDataParallel)(module, **arguments)
    if is_static:
        handles: list[RemovableHandle] = []
        handles.append(wrapped.register_forward_hook(partial(_watch_first_backward, handles)))
    return wrapped


def _watch_first_backward(
    handles: Sequence[RemovableHandle], module: DistributedDataParallel, inputs: object, output: Any
) -> None:
    """Until torch has recorded the static graph: refuse to record a pass that computes no gradients of parameters."""
    if not learns_graph(module):
        handles[0].remove()
    else:
        hook_gradients(output, partial(_check_first_backward, module))


def _check_first_backward(module: DistributedDataParallel, gradient: Tensor) -> None:
    if learns_graph(module) and not accumulates(each for each in module.parameters() if each.requires_grad):
        raise ConfigurationError(
            "static_graph=True: torch records the first pass from the model's output backwards, and this one is of "
            "torch.autograd.grad: gradients of the parameters would not be averaged in any step. Leave out "
            "static_graph=True, or call torch.autograd.grad within the model's forward pass."
        )


def release_from_group(module: DistributedDataParallel) -> None:
    """Remove what ``module`` holds of its process group; without gradients it still calls the wrapped module."""
    module.require_forward_param_sync = module.require_backward_grad_sync = False
    for name in ("reducer", "logger", "process_group"):
        delattr(module, name)
