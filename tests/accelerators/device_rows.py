"""What ``devices=`` may be and what not: one table for every accelerator, where two devices are there."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import torch

__all__ = ["ACCEPTED", "NOT_THERE", "REFUSED"]


class _Count(enum.IntEnum):
    TWO = 2


ACCEPTED: list[tuple[Any, list[int]]] = [
    (1, [0]),
    (2, [0, 1]),
    ("1", [0]),
    ("2", [0, 1]),
    (" 2 ", [0, 1]),
    ("02", [0, 1]),
    (_Count.TWO, [0, 1]),
    (np.int64(2), [0, 1]),
    ([0], [0]),
    ([1], [1]),
    ([1, 0], [1, 0]),
    ((0, 1), [0, 1]),
    ([np.int32(1)], [1]),
    ("1,", [1]),
    ("0,", [0]),
    ("0,1", [0, 1]),
    ("1, 0", [1, 0]),
    (" 1 , 0 , ", [1, 0]),
]
"""The value, and the indices that it means."""

REFUSED: list[Any] = [
    0,
    -2,
    True,
    False,
    1.5,
    1.0,
    float("nan"),
    2j,
    None,
    "",
    " ",
    "0",
    "-2",
    "-1,",
    "1-3",
    "abc",
    "AUTO",
    "auto,",
    "cpu",
    "cuda:1",
    "1,,2",
    ",",
    ",1",
    "1 0",
    "1;0",
    "[1, 0]",
    "[]",
    "+1",
    "1.0",
    "1e0",
    "0x1",
    "1_0",
    "0,0",
    "\N{ARABIC-INDIC DIGIT TWO}",
    "\N{ARABIC-INDIC DIGIT ONE},",
    "1,\N{DEVANAGARI DIGIT ZERO}",
    "\N{FULLWIDTH DIGIT ONE}",
    "1\N{NO-BREAK SPACE}",
    "1\0",
    "9" * 5000,
    "9" * 5000 + ",",
    b"1",
    [],
    (),
    [0, 0],
    [1, True],
    [False],
    [None],
    [1.0],
    ["1"],
    [-1],
    [[0, 1]],
    [(0,)],
    [0, [1]],
    {0, 1},
    frozenset({1}),
    {0: 1},
    {"devices": 1},
    range(2),
    iter([1]),
    object(),
    np.float64(1.0),
    np.bool_(True),
    np.array([0, 1]),
    torch.tensor(1),
    torch.device("cpu"),
    10**30,
    [10**30],
    list(range(100_000)),
]
"""Outside the grammar, or more than any machine has."""

NOT_THERE: list[Any] = [3, "3", [2], "2,", [0, 2], (1, 7), 4096, "4096"]
"""In the grammar, but beyond the second device."""
