"""Values that a seed draws: nested objects, tensors, and orders of calls; the same in every process."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

__all__ = ["EMPTY", "SEEDS", "checkpoint", "same", "tensor", "value"]

SEEDS = range(6)

EMPTY: tuple[Any, ...] = (None, False, 0, "", [], {}, ())
"""Objects that are false."""

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.complex64)
_LETTERS = "aZ0 _./\\%ä\n\U0001f600"


def value(draw: Random, depth: int = 3) -> Any:
    """A picklable object: nested dicts, lists and tuples of plain values, of very different sizes."""
    kind = draw.randrange(11 if depth else 8)
    if kind == 0:
        return draw.choice([None, True, False, 0, 1, 0.0, -0.0, "", b""])
    if kind <= 2:
        return draw.randrange(-(2 ** draw.choice([3, 40, 62])), 2 ** draw.choice([3, 40, 62]))
    if kind <= 4:
        return draw.uniform(-1, 1) * 10.0 ** draw.randrange(-300, 300)
    if kind <= 6:
        return "".join(draw.choices(_LETTERS, k=draw.choice([1, 5, 300])))
    if kind == 7:
        return draw.randbytes(draw.choice([1, 9, 2000]))
    parts = [value(draw, depth - 1) for _ in range(draw.randrange(5))]
    if kind == 8:
        return parts
    return tuple(parts) if kind == 9 else {_key(draw, number): part for number, part in enumerate(parts)}


def _key(draw: Random, number: int) -> str | int:
    return number if draw.random() < 0.5 else f"{number}{''.join(draw.choices(_LETTERS, k=3))}"


def tensor(draw: Random, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of any shape and layout in memory, with whole numbers of both signs."""
    dtype = draw.choice(_DTYPES) if dtype is None else dtype
    shape = [draw.randrange(4) if draw.random() < 0.2 else draw.randrange(1, 5) for _ in range(draw.randrange(4))]
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    made = torch.randint(-9, 10, shape, generator=generator, dtype=torch.int64).to(dtype)
    if made.dim() > 1 and draw.random() < 0.4:
        return made.transpose(0, 1)
    if made.dim() and draw.random() < 0.3:
        return made.repeat_interleave(2, 0)[::2]
    return made


def checkpoint(draw: Random) -> dict[str, Any]:
    """A checkpoint: drawn values, and drawn tensors in dicts, lists and tuples, of which some share their memory."""
    whole = torch.arange(24.0, dtype=draw.choice([torch.float32, torch.float64]))
    first, second = sorted(draw.sample(range(20), 2))
    return {
        "values": [value(draw) for _ in range(6)],
        "tensors": {f"{number}": tensor(draw) for number in range(5)},
        "mixed": (draw.randrange(99), [tensor(draw), {"inner": (tensor(draw), value(draw))}]),
        "trained": [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2), requires_grad=False)],
        "leaf": torch.zeros(2, requires_grad=True),
        "views": {"left": whole[: first + 4], "right": whole[first : second + 4], "whole": whole},
    }


def same(found: Any, expected: Any, place: str = "") -> str:
    """Where two nested values differ in type, order, dtype, shape or any bit; empty if they do not."""
    if type(found) is not type(expected):
        return f"{place or 'it'} is a {type(found).__name__}. Expected: {type(expected).__name__}"
    if isinstance(expected, Tensor):
        kinds = [(one.dtype, one.shape, one.requires_grad) for one in (found, expected)]
        equal = kinds[0] == kinds[1] and _bits(found) == _bits(expected)
        return "" if equal else f"{place} is {found}. Expected: {expected}"
    if isinstance(expected, dict):
        if [*found] != [*expected]:
            return f"{place or 'it'} has the keys {[*found]}. Expected: {[*expected]}"
        return next(filter(None, (same(found[key], expected[key], f"{place}[{key!r}]") for key in expected)), "")
    if isinstance(expected, list | tuple):
        if len(found) != len(expected):
            return f"{place or 'it'} has {len(found)} parts. Expected: {len(expected)}"
        pairs = zip(found, expected, strict=True)
        return next(filter(None, (same(one, other, f"{place}[{i}]") for i, (one, other) in enumerate(pairs))), "")
    return "" if repr(found) == repr(expected) else f"{place} is {found!r:.200}. Expected: {expected!r:.200}"


def _bits(given: Tensor) -> list[int]:
    plain = given.detach().cpu().resolve_conj().clone(memory_format=torch.contiguous_format)
    flat: list[int] = plain.flatten().view(torch.uint8).tolist()
    return flat
