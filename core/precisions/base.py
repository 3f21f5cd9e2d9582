"""The Precision: a declaration of dtypes, and hooks that apply it in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ..errors import ConfigurationError, WrongTypeError
from ..utilities.nested import map_tensors
from ..utilities.renamed import Renaming
from ..utilities.torch_private import takes_load_hooks
from .gradient_clipping import clip_gradients


class Precision(Renaming):
    """A dtype policy.

    The attributes declare the policy. A Strategy whose engine does mixed precision itself reads only them. The hooks
    apply the policy in plain torch. The base class's hooks are those of 32-bit training; a hook that a subclass does
    not override costs nothing in the loop.
    """

    name: str = "32-true"
    """The name that selects it, as in ``precision="32-true"``."""
    param_dtype: torch.dtype = torch.float32
    """Dtype that parameters are stored in."""
    compute_dtype: torch.dtype = torch.float32
    """Dtype of matrix products and convolutions."""
    reduce_dtype: torch.dtype = torch.float32
    """Dtype in which gradients are reduced over processes."""
    buffer_dtype: torch.dtype = torch.float32
    """Dtype that floating point buffers are stored in."""
    output_dtype: torch.dtype = torch.float32
    """Dtype of the module's floating point outputs."""
    state_dtype: torch.dtype | None = None
    """Dtype of the optimizer's state; ``None`` for the dtype of the parameters. If it is wider, optimizers work on
    copies of the parameters in it."""
    rounding: float = 0.0
    """Largest relative error by which inputs or weights of products are rounded, if more than ``compute_dtype``'s; of
    quantized values, relative to the largest that has the same scale."""
    keep_float32: tuple[str | type[nn.Module], ...] = ()
    """Parts of a module that stay in float32: classes, and names as in ``named_modules``."""
    scales_loss: bool = False
    """Whether the loss is scaled before backward and gradients are unscaled before the step."""

    def connect(self, device_type: str) -> None:
        """Prepare for one type of device, as :meth:`core.Accelerator.autocast_device_type` names it.

        Raises:
            BackendError: This type of device does not support the precision.
        """

    def overrides(self, hook: str) -> bool:
        """Whether this precision overrides the named hook; the loop skips hooks that are not overridden."""
        return getattr(type(self), hook) is not getattr(Precision, hook)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """``module`` with parameters and buffers in the declared dtypes, converted in place where torch can."""
        return module

    def forward_context(self) -> AbstractContextManager[Any]:
        """The context in which a forward pass runs, which may be another one's; it restores what it found."""
        return nullcontext()

    def convert_input(self, data: Any) -> Any:
        """``data``, any nested structure, with floating point tensors in the dtype that a forward pass expects."""
        return data

    def convert_output(self, data: Any) -> Any:
        """``data``, any nested structure, with floating point tensors in ``output_dtype`` or their own wider dtype."""
        return data

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Compute gradients of ``loss``, a scalar."""
        try:
            loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]
        except (RuntimeError, AttributeError) as error:
            check_loss(loss, error, *args, **kwargs)
            raise

    def scale_loss(self, loss: Tensor) -> Tensor:
        """``loss`` as :meth:`backward` computes gradients of it, for a user who calls the tensor's own ``backward``."""
        return loss

    def prepare_optimizer(self, optimizer: Optimizer) -> None:
        """Prepare ``optimizer`` for :meth:`optimizer_step`, before a state is loaded into it."""

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Apply the gradients; returns what ``optimizer.step`` returns."""
        return optimizer.step(closure) if closure is not None else optimizer.step()

    def step_was_skipped(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer's last step was skipped, because gradients of the scaled loss were not finite."""
        return False

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Undo the loss scaling in the optimizer's gradients. Further calls in the same step do nothing."""

    def clip_gradients(
        self, parameters: Iterable[nn.Parameter], clip_value: float, algorithm: str = "norm", norm_type: float = 2.0
    ) -> Tensor | None:
        """Clip gradients in place. They must be unscaled.

        Args:
            parameters: The parameters whose gradients are clipped.
            clip_value: The maximum norm, or the maximum absolute value; at least 0.
            algorithm: ``"norm"`` (of all gradients as one vector) or ``"value"`` (of each element).
            norm_type: Order of the norm.

        Returns:
            The norm before clipping, a scalar; ``None`` for ``"value"``.

        Raises:
            ConfigurationError: ``algorithm`` is unknown, ``clip_value`` is negative, or torch cannot clip them.
        """
        return clip_gradients(parameters, clip_value, algorithm, norm_type)

    def state_dict(self) -> dict[str, Any]:
        """The state to save in a checkpoint: the loss scaler's, or empty."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""

    def teardown(self) -> None:
        """Undo what :meth:`connect` set up."""


def check_applied(strategy: str, precision: Precision, *, parts: bool, state: bool) -> None:
    """Reject what only the hooks of a precision do, if the strategy does not call them.

    Args:
        strategy: The strategy's name.
        precision: The precision.
        parts: Whether the strategy converts modules by the precision.
        state: Whether the user's optimizer steps by the precision, and not one that the strategy made of it.

    Raises:
        ConfigurationError: ``precision`` keeps parts in float32, or has another dtype for the optimizer's state.
    """
    options = ["keep_float32"] if precision.keep_float32 and not parts else []
    options += ["state_dtype"] if precision.state_dtype is not None and not state else []
    if options:
        raise ConfigurationError(
            f"precision={precision.name!r} with {' and '.join(options)}: strategy {strategy!r} does it by itself, "
            "without such a setting. Leave it out, or use another strategy, such as 'ddp'."
        )


def keep_state_dtype(optimizer: Optimizer, dtype: torch.dtype | None) -> list[RemovableHandle]:
    """Let state that is loaded into ``optimizer`` get ``dtype`` where torch would convert it to a narrower parameter's.

    Args:
        optimizer: Its ``load_state_dict`` is followed.
        dtype: As a precision declares it; ``None`` leaves everything to torch.

    Returns:
        What ends it.
    """
    return [] if dtype is None else _follow_loading(optimizer, dtype)


@contextmanager
def state_dtypes_kept(optimizer: Optimizer) -> Iterator[None]:
    """A context in which state that is loaded into ``optimizer`` keeps its dtypes; torch gives it the parameters'."""
    handles = _follow_loading(optimizer, None)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _follow_loading(optimizer: Optimizer, dtype: torch.dtype | None) -> list[RemovableHandle]:
    if not takes_load_hooks(optimizer):  # it wraps another, which it loads by itself
        return []
    loading: dict[str, Any] = {}

    def before(_: Optimizer, state: dict[str, Any]) -> None:
        loading.update(state)

    def after(loaded: Optimizer) -> None:
        saved, groups = loading.pop("state", {}), loading.pop("param_groups", [])
        for group, saved_group in zip(loaded.param_groups, groups, strict=True):
            for parameter, index in zip(group["params"], saved_group["params"], strict=True):
                is_wide = dtype is None or parameter.dtype.itemsize < dtype.itemsize
                own = saved.get(index)  # None for a parameter whose state another process has
                if parameter.is_floating_point() and is_wide and own is not None:
                    convert = partial(_converted, device=parameter.device, dtype=dtype)
                    values = {key: map_tensors(convert, value) for key, value in own.items() if key != "step"}
                    loaded.state[parameter].update(values)

    return [optimizer.register_load_state_dict_pre_hook(before), optimizer.register_load_state_dict_post_hook(after)]


def _converted(tensor: Tensor, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)


# -- errors about the loss, for which backward cannot compute gradients ----------------------------------------------

SECOND_TIME = "backward through the graph a second time"
"""In torch's error."""


class LossError(ConfigurationError):
    """Backward cannot compute gradients for a loss."""

    of_step = ""
    """The message if the Trainer called backward for the result of ``training_step``."""


def _error(fault: str, of_step: str = "") -> LossError:
    error = LossError(f"backward: {fault}")
    error.of_step = f"training_step: {of_step or fault}"
    return error


def check_tensor(loss: Any, cause: BaseException | None = None) -> None:
    """Raise an error for a loss that is no tensor.

    Raises:
        WrongTypeError: It is not.
    """
    if not isinstance(loss, Tensor):
        raise WrongTypeError(
            f"backward: the loss is {loss!r:.100} of type {type(loss).__name__}: must be a scalar tensor. Pass what "
            "the criterion returned, without .item() or float()."
        ) from cause


def check_loss(loss: Any, cause: BaseException | None, gradient: Any = None, *args: Any, **kwargs: Any) -> None:
    """Raise an error that names the fault, if it is one of the loss itself.

    Args:
        loss: What backward was called for.
        cause: What that raised.
        gradient: The gradient that was passed, which a loss of several elements needs.
        *args: Not used.
        **kwargs: Not used.

    Raises:
        WrongTypeError: It is not a tensor.
        LossError: It has several elements, does not depend on a parameter, or has been through backward before.
    """
    check_tensor(loss, cause)
    if not loss.requires_grad:
        raise _error(
            f"the loss, a tensor of shape {tuple(loss.shape)}, does not depend on a parameter that requires "
            "gradients. Remove .detach(), .item(), torch.no_grad() or torch.tensor(...) from its computation, or set "
            "requires_grad of the parameters."
        ) from cause
    if loss.numel() != 1 and gradient is None:
        raise _error(
            f"the loss has the shape {tuple(loss.shape)}: must be a scalar. Reduce it, for example with loss.mean()."
        ) from cause
    if SECOND_TIME in str(cause):
        detach = "If it uses a tensor of an earlier step, keep that as tensor.detach()."
        raise _error(
            "it was called before for this loss or a part of it, which has freed what it needs. Call it once for each "
            f"step. {detach}",
            "backward was called before for the loss that it returned, or a part of it. Remove loss.backward(): the "
            f"Trainer calls it; or set self.automatic_optimization = False in __init__ to do so yourself. {detach}",
        ) from cause
