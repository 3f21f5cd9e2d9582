"""The published formulas in numpy, for all processes of a run at once; knows nothing of the package or of torch.

A run is given by the weights that all begin with and by each process's own gradients, step by step; what comes out are
each process's weights after each step. Arrays are float32; ``grads[rank][step]`` and ``weights[rank]`` are flat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Exchange = Callable[[Sequence[Array]], Sequence[Array]]
Wrap = Callable[[Sequence[Array], Exchange], Sequence[Array]]
f32 = np.float32


def quantize(x: Array) -> tuple[NDArray[np.uint8], np.float32, np.float32]:
    """MinMaxUInt8: bytes, least and greatest."""
    low, high = x.min(), x.max()
    scale = f32(255) / (high - low + f32(1e-7))
    upper = np.rint(high * scale)
    lower = upper - f32(255)
    return (np.clip(np.rint(x * scale), lower, upper) - lower).astype(np.uint8), low, high


def dequantize(q: NDArray[np.uint8], low: np.float32, high: np.float32) -> Array:
    """What the bytes stand for."""
    scale = f32(255) / (high - low + f32(1e-7))
    lower = np.rint(high * scale) - f32(255)
    x: Array = ((q.astype(f32) + lower) / scale).astype(f32)
    return x


def rounded(x: Array) -> Array:
    """There and back."""
    return dequantize(*quantize(x))


def allreduce(values: Sequence[Array], average: bool = True) -> list[Array]:
    """Every process gets the mean, or the sum."""
    total: Any = np.sum(values, axis=0, dtype=f32)
    result: Array = (total / f32(len(values)) if average else total).astype(f32)
    return [result] * len(values)


def compressed_allreduce(values: Sequence[Array], average: bool = True) -> list[Array]:
    """Scatter-gather: every process averages one part of what all sent it in bytes, and sends that to all in bytes."""
    n = len(values)
    if n == 1:
        return [values[0]]
    length = -(-len(values[0]) // n)
    padded = [np.pad(value, (0, n * length - len(value))) for value in values]
    result = []
    for part in range(n):
        own = np.zeros(length, f32)
        for value in padded:
            own = own + rounded(value[part * length : (part + 1) * length])
        result.append(rounded(own / f32(n) if average else own))
    return [np.concatenate(result)[: len(values[0])]] * n


def by_machine(values: Sequence[Array], local: int, among: Exchange, average: bool = True) -> list[Array]:
    """``among`` for the first process of each machine, which has its machine's mean before; all of it have it after."""
    leaders = [allreduce(values[i : i + local], average)[0] for i in range(0, len(values), local)]
    return [result for result in among(leaders) for _ in range(local)]


def averaged_gradients(w0: Array, grads: Sequence[Sequence[Array]], lr: float, combine: Exchange) -> list[list[Array]]:
    """Plain gradient descent with combined gradients: gradient_allreduce, bytegrad."""
    weights = [w0] * len(grads)
    history = []
    for step in range(len(grads[0])):
        combined = combine([own[step] for own in grads])
        weights = [w - f32(lr) * g for w, g in zip(weights, combined, strict=True)]
        history.append(weights)
    return history


def shift_one_pairs(n: int, exchanges: int) -> list[int]:
    """The peer of each process."""
    half = n // 2
    return [(exchanges + r) % half + half if r < half else (r - half - exchanges) % half for r in range(n)]


def decentralized(
    w0: Array,
    grads: Sequence[Sequence[Array]],
    lr: float,
    interval: int,
    paired: bool,
    wrap: Wrap,
) -> list[list[Array]]:
    """The weights at which gradients were computed are averaged, then the step is taken."""
    weights: Sequence[Array] = [w0] * len(grads)
    exchanges, history = 0, []
    for step in range(len(grads[0])):
        if step % interval == 0:

            def among(values: Sequence[Array], exchanges: int = exchanges) -> Sequence[Array]:
                if not paired or len(values) == 1:
                    return allreduce(values)
                pairs = shift_one_pairs(len(values), exchanges)
                return [(x + values[peer]) / f32(2) for x, peer in zip(values, pairs, strict=True)]

            weights = wrap(weights, among)
            exchanges += 1
        weights = [w - f32(lr) * own[step] for w, own in zip(weights, grads, strict=True)]
        history.append(list(weights))
    return history


def low_precision_decentralized(
    w0: Array, grads: Sequence[Sequence[Array]], lr: float, interval: int, local: int = 1
) -> list[list[Array]]:
    """After the step: the ring of differences in bytes."""
    n = len(grads) // local
    known = [{"W": w0, "L": w0, "R": w0} for _ in range(n)]
    weights, history = [w0] * len(grads), []

    def ring(values: Sequence[Array]) -> list[Array]:
        if n == 1:
            return list(values)
        sent = []
        for x, k in zip(values, known, strict=True):
            sent.append(rounded(x + k["L"] / f32(3) + k["R"] / f32(3) - k["W"] * f32(5) / f32(3)))
        for r, k in enumerate(known):
            k["L"] = k["L"] + sent[(r - 1) % n]
            k["R"] = k["R"] + sent[(r + 1) % n]
            k["W"] = k["W"] + sent[r]
        return [k["W"] for k in known]

    for step in range(len(grads[0])):
        weights = [w - f32(lr) * own[step] for w, own in zip(weights, grads, strict=True)]
        if step % interval == 0:
            weights = by_machine(weights, local, ring)
        history.append(weights)
    return history


def qadam(
    w0: Array,
    grads: Sequence[Sequence[Array]],
    *,
    lr: float,
    warmup: int,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    local: int = 1,
) -> list[list[Array]]:
    """Adam on mean gradients; later with a fixed second moment, and the momentum averaged in bytes."""
    n = len(grads)
    w: Any = w0.astype(np.float64)
    m, v = np.zeros_like(w0), np.zeros(len(w0))
    history = []
    for k in range(1, len(grads[0]) + 1):
        own = [g[k - 1] + f32(weight_decay) * w.astype(f32) for g in grads]
        if k <= warmup:
            g = allreduce(own)[0]
            m = f32(betas[0]) * m + f32(1 - betas[0]) * g
            v = betas[1] * v + (1 - betas[1]) * g.astype(np.float64) ** 2
        else:
            m = by_machine([f32(betas[0]) * m + f32(1 - betas[0]) * g for g in own], local, compressed_allreduce)[0]
        w = w - lr / (1 - betas[0] ** k) * m / (np.sqrt(v) / np.sqrt(1 - betas[1] ** k) + eps)
        history.append([w.astype(f32)] * n)
    return history
