"""The network that `gpu.py` trains: a decoder of GPT-2's size and shape, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

__all__ = ["SIZES", "Decoder", "Size", "batches"]


@dataclass(frozen=True)
class Size:
    """How large the network and its batches are."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    batch: int

    @property
    def tokens(self) -> int:
        """Tokens of a batch."""
        return self.batch * self.length


SIZES = {
    "gpt2": Size(layers=12, width=768, heads=12, vocabulary=50257, length=1024, batch=8),
    "tiny": Size(layers=2, width=64, heads=2, vocabulary=256, length=32, batch=4),
}
"""``gpt2`` has 124 million parameters; a step of ``tiny`` is so short that the time of the front end shows."""


class Block(nn.Module):
    """Attention to earlier tokens, then a network for each token."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.before_attention, self.before_network = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.attention, self.joined = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
        self.network = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """The next layer's input."""
        batch, length, width = hidden.shape
        parts = self.attention(self.before_attention(hidden)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.joined(attended.transpose(1, 2).reshape(batch, length, width))
        result: Tensor = hidden + self.network(self.before_network(hidden))
        return result


class Decoder(nn.Module):
    """Token ids, one more than the length, to the loss of predicting each from those before it."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(size.vocabulary, size.width), nn.Embedding(size.length, size.width)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """The loss."""
        inputs, targets = ids[:, :-1], ids[:, 1:]
        hidden = self.tokens(inputs) + self.places(torch.arange(inputs.shape[1], device=ids.device))
        logits = self.head(self.norm(self.blocks(hidden)))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def batches(size: Size, count: int) -> list[Tensor]:
    """``count`` batches of token ids on the host: the same for all."""
    generator = torch.Generator().manual_seed(0)
    shape = (size.batch, size.length + 1)
    distinct = [torch.randint(size.vocabulary, shape, generator=generator) for _ in range(min(count, 8))]
    return [distinct[index % len(distinct)] for index in range(count)]
