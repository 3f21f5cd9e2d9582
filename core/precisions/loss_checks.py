"""Loss checks: the error messages for a loss that backward cannot compute gradients for."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..errors import ConfigurationError, WrongTypeError

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
