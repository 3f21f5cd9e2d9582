"""What a precision refuses, and what it says then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from core.errors import BackendError, ConfigurationError, WrongTypeError
from core.precisions import DoublePrecision, HalfPrecision, MixedPrecision, Precision


@pytest.mark.parametrize("kind", [HalfPrecision, MixedPrecision])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", torch.float16, torch.bfloat16])
def test_a_16_bit_dtype_is_given_by_name_or_itself(kind: Callable[[Any], Precision], dtype: Any) -> None:
    """Both forms mean the same dtype."""
    assert str(kind(dtype).compute_dtype).endswith(str(dtype).removeprefix("torch."))


@pytest.mark.parametrize("kind", [HalfPrecision, MixedPrecision])
@pytest.mark.parametrize(
    ("dtype", "error"), [("half", ConfigurationError), (torch.float32, ConfigurationError), (16, WrongTypeError)]
)
def test_another_dtype_is_refused(kind: Callable[[Any], Precision], dtype: Any, error: type[Exception]) -> None:
    """The message names what was given and what is valid."""
    with pytest.raises(error, match=f"dtype={dtype!r}.*(float16|torch.dtype)"):
        kind(dtype)


def test_a_scaler_with_bfloat16_is_refused() -> None:
    """bf16-mixed scales no loss, so a scaler for it contradicts the name."""
    with pytest.raises(ConfigurationError, match="'bf16-mixed'"):
        MixedPrecision("bfloat16", scaler=torch.amp.GradScaler("cpu"))


def test_a_scaler_of_another_kind_is_refused() -> None:
    """The message names what was expected."""
    with pytest.raises(WrongTypeError, match=r"scaler=65536.*GradScaler"):
        MixedPrecision("float16", scaler=65536)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_mixed_is_refused_where_torch_has_no_autocast(dtype: str) -> None:
    """The message names the device type and the precisions that can be had there, and never one that cannot."""
    with pytest.raises(BackendError, match=r"device type 'meta'.*Valid: '32-true'"):
        MixedPrecision(dtype).connect("meta")


def test_autocast_that_torch_would_only_warn_of_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch's autocast disables itself with a warning, nothing is computed in another precision in silence."""
    original = torch.autocast.__init__

    def only_bfloat16(self: Any, device_type: str, dtype: torch.dtype, **options: Any) -> None:
        # What torch does on devices whose autocast lacks a dtype: a dtype it does not know stands for that here.
        original(self, device_type, dtype=torch.float64 if dtype is torch.float16 else dtype, **options)

    monkeypatch.setattr(torch.autocast, "__init__", only_bfloat16)
    MixedPrecision("bfloat16").connect("cpu")
    with pytest.raises(BackendError, match=r"(?i)autocast.*Valid: 'bf16-mixed', '32-true'"):
        MixedPrecision("float16").connect("cpu")


@pytest.mark.parametrize("broken", ["missing kernel", "no skip"])
def test_16_mixed_is_refused_where_loss_scaling_does_not_work(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device type without the scaler's kernels, or whose scaler lets infinite gradients through, cannot have it."""

    def unscale(*args: Any, **kwargs: Any) -> dict[torch.device, torch.Tensor]:
        if broken == "missing kernel":
            raise NotImplementedError("_amp_foreach_non_finite_check_and_unscale_ is not there")
        return {torch.device("cpu"): torch.zeros(())}

    monkeypatch.setattr(torch.amp.GradScaler, "_unscale_grads_", unscale)
    with pytest.raises(BackendError, match=r"'16-mixed' is not supported on device type 'cpu': .*Valid: 'bf16-mixed'"):
        MixedPrecision("float16").connect("cpu")


@pytest.mark.parametrize("precision", [DoublePrecision(), HalfPrecision("float16")])
def test_true_is_refused_where_the_device_has_no_such_dtype(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the precision, the device type and torch's reason."""

    def empty(*args: Any, **kwargs: Any) -> None:
        raise TypeError("no such dtype here.")

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(BackendError, match=rf"precision='{precision.name}'.*'cpu'.*no such dtype here"):
        precision.connect("cpu")


def test_mixed_before_it_is_connected_is_refused() -> None:
    """Nothing runs unscaled or without autocast because a call was forgotten."""
    precision = MixedPrecision("float16")
    with pytest.raises(ConfigurationError, match="connect"):
        precision.forward_context()
    with pytest.raises(ConfigurationError, match="connect"):
        precision.backward(torch.ones((), requires_grad=True))
