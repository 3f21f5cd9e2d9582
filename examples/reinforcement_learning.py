"""Reinforcement learning: a policy learns to balance a pole on a cart, by policy gradients (REINFORCE).

The data set yields positions to start from; a training step plays an episode from each, with the present policy.

Run it as ``python examples/reinforcement_learning.py --devices 2``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from command_line import arguments, trainer_arguments
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from core import Module, Trainer, seed_everything

LONGEST = 100
"""Steps of an episode."""


def push(state: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Push each cart to the right or the left for 0.04 s.

    Args:
        state: The position and speed of each cart, in m and m/s, and the angle and speed of its pole, in rad and
            rad/s; shape ``(n, 4)``.
        right: Whether each is pushed to the right; shape ``(n,)``.

    Returns:
        The state afterwards; and whether each pole stands, and its cart is on the track.
    """
    x, speed, angle, turning = state.unbind(1)
    sine, cosine = angle.sin(), angle.cos()
    thrust = (20.0 * right - 10.0 + 0.05 * turning.square() * sine) / 1.1
    spin = (9.8 * sine - cosine * thrust) / (0.5 * (4 / 3 - 0.1 * cosine.square() / 1.1))
    pull = thrust - 0.05 * spin * cosine / 1.1
    state = torch.stack([x + 0.04 * speed, speed + 0.04 * pull, angle + 0.04 * turning, turning + 0.04 * spin], 1)
    return state, (state[:, 0].abs() < 2.4) & (state[:, 2].abs() < 0.21)


class Starts(IterableDataset[Tensor]):
    """States to start from, near rest.

    Args:
        count: How many.
        seed: What they depend on.
    """

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed

    def __iter__(self) -> Iterator[Tensor]:
        source = torch.Generator().manual_seed(self.seed)
        for _ in range(self.count):
            yield torch.rand(4, generator=source) / 10 - 0.05


class Player(Module):
    """A policy: the log-odds of a push to the right."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))

    def forward(self, states: Tensor) -> Any:
        return self.policy(states)

    @torch.no_grad()
    def play(self, state: Tensor, draws: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """The states, pushes and rewards of each step; a fallen pole has no more rewards."""
        steps, stands = [], torch.ones(len(state), dtype=torch.bool, device=state.device)
        for _ in range(LONGEST):
            odds = self(state).float()
            right = torch.bernoulli(odds.sigmoid()) if draws else (odds > 0).float()
            before = state
            state, stands_still = push(state, right)
            stands = stands & stands_still
            steps.append((before, right, stands.float()))
        states, pushes, rewards = (torch.stack(values) for values in zip(*steps, strict=True))
        return states, pushes, rewards

    def training_step(self, starts: Tensor, batch_idx: int) -> Tensor:
        states, pushes, rewards = self.play(starts)
        returns = rewards.flip(0).cumsum(0).flip(0)
        advantages = (returns - returns.mean(1, keepdim=True)) / returns.std()
        odds = self(states.flatten(0, 1)).float().view_as(pushes)
        cost = nn.functional.binary_cross_entropy_with_logits(odds, pushes, reduction="none")
        played = torch.cat([torch.ones_like(rewards[:1]), rewards[:-1]])
        loss = (cost * advantages * played).sum() / played.sum()
        self.log("steps", rewards.sum(0).mean(), prog_bar=True)
        return loss

    def validation_step(self, starts: Tensor, batch_idx: int) -> None:
        """How long the pole stands with the likelier push of each step."""
        self.log("val_steps", self.play(starts, draws=False)[2].sum(0).mean(), prog_bar=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    """Train, then say how long the pole stands."""
    args = arguments(__doc__)
    torch.set_num_threads(1)  # more only wait for each other on a policy this small
    seed_everything(0)
    trainer = Trainer(**trainer_arguments(args))
    episodes, held_out = Starts(args.items or 320, seed=1), Starts(64, seed=2)
    trainer.fit(Player(), DataLoader(episodes, 32), DataLoader(held_out, 64), ckpt_path=args.ckpt_path)
    if trainer.is_global_zero:
        print(f"the pole stands for {float(trainer.callback_metrics['val_steps']):.1f} of {LONGEST} steps")


if __name__ == "__main__":
    main()
