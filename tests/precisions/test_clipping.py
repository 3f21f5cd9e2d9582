"""Limiting gradients, against the formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from core.errors import ConfigurationError
from core.precisions import FullPrecision


def parameters() -> list[nn.Parameter]:
    """Two parameters with gradients (3, 4) and (12), and one without; the norm of all is 13."""
    made = [nn.Parameter(torch.zeros(size)) for size in (2, 1, 5)]
    made[0].grad = torch.tensor([3.0, -4.0])
    made[1].grad = torch.tensor([12.0])
    return made


def gradients(given: list[nn.Parameter]) -> list[float]:
    return [value for parameter in given if parameter.grad is not None for value in parameter.grad.tolist()]


@pytest.mark.parametrize(("norm_type", "norm"), [(2.0, 13.0), (1.0, 19.0), (math.inf, 12.0)])
def test_norm_is_of_all_gradients_as_one_vector(norm_type: float, norm: float) -> None:
    """Gradients shrink by one factor to the limit; the norm of before is returned."""
    given = parameters()
    returned = FullPrecision().clip_gradients(given, 2.0, norm_type=norm_type)
    assert returned is not None
    assert returned.item() == pytest.approx(norm)
    assert gradients(given) == pytest.approx([value * 2 / norm for value in (3, -4, 12)], rel=1e-5)
    assert given[2].grad is None


def test_gradients_under_the_limit_stay() -> None:
    """Clipping never makes gradients larger."""
    given = parameters()
    FullPrecision().clip_gradients(iter(given), 14.0)
    assert gradients(given) == [3.0, -4.0, 12.0]


def test_value_limits_each_element() -> None:
    """Every element ends within the limit on both sides, and no norm is returned."""
    given = parameters()
    assert FullPrecision().clip_gradients(given, 3.5, algorithm="value") is None
    assert gradients(given) == [3.0, -3.5, 3.5]


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_no_gradients_are_no_error(algorithm: str) -> None:
    """Frozen modules, and no parameters at all, can be clipped."""
    FullPrecision().clip_gradients([nn.Parameter(torch.zeros(1))], 1.0, algorithm)
    FullPrecision().clip_gradients(iter(()), 1.0, algorithm)


@pytest.mark.parametrize(("kind", "algorithm"), [("sparse", "norm"), ("sparse", "value"), ("complex", "value")])
def test_gradients_that_torch_does_not_clip(kind: str, algorithm: str) -> None:
    """The message says which can be clipped."""
    parameter = nn.Parameter(torch.ones(3, dtype=torch.complex64 if kind == "complex" else torch.float32))
    parameter.grad = parameter.detach().clone() if kind == "complex" else parameter.detach().to_sparse()
    with pytest.raises(ConfigurationError, match=f"not clipped by {algorithm}: .* sparse=False, or clip the other"):
        FullPrecision().clip_gradients([parameter], 1.0, algorithm)


def test_another_algorithm_is_refused() -> None:
    """The message names what was given and both valid ones, and no gradient changes."""
    given = parameters()
    with pytest.raises(ConfigurationError, match=r"algorithm='bogus'.*'norm', 'value'"):
        FullPrecision().clip_gradients(given, 1.0, "bogus")
    assert gradients(given) == [3.0, -4.0, 12.0]


@pytest.mark.parametrize("limit", [-1.0, math.nan])
def test_a_limit_that_is_none_is_refused(limit: float) -> None:
    """A negative one would turn gradients around, and nan would erase them."""
    with pytest.raises(ConfigurationError, match=f"clip_value={limit}"):
        FullPrecision().clip_gradients(parameters(), limit)
