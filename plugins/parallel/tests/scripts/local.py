"""DiLoCo on three processes, and the same by hand in one: local steps of AdamW, an outer step of Nesterov momentum."""

from __future__ import annotations

import torch
from problem import OUT, batch_of, loss_of, make, say
from torch import Tensor, nn
from torch_hal_parallel import DiLoCoStrategy

from torch_hal import Runtime

PROCESSES, EVERY, STEPS, SAVED = 3, 4, 10, 6
LR, MOMENTUM = 0.7, 0.9


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def put(model: nn.Module, values: Tensor) -> None:
    with torch.no_grad():
        nn.utils.vector_to_parameters(values.clone(), model.parameters())  # which makes them views


def by_hand() -> list[Tensor]:
    """The weights of each process after all steps, by the formulas of the paper's algorithm 1."""
    workers = [make() for _ in range(PROCESSES)]
    common = flat(workers[0][0])
    velocity = torch.zeros_like(common)
    for step in range(STEPS):
        for rank, (model, optimizer) in enumerate(workers):
            text, targets = (one.tensor_split(PROCESSES)[rank] for one in batch_of(step))
            optimizer.zero_grad()
            loss_of(model(text), targets).backward()
            optimizer.step()
        if (step + 1) % EVERY == 0:
            change = torch.stack([common - flat(model) for model, _ in workers]).mean(0)
            velocity = MOMENTUM * velocity + change
            common = common - LR * (change + MOMENTUM * velocity)
            for model, _ in workers:
                put(model, common)
    return [flat(model) for model, _ in workers]


def train(first: int, last: int, resume: bool = False) -> list[Tensor]:
    """Some of the steps; the weights of each process."""
    strategy = DiLoCoStrategy(sync_every=EVERY, outer_lr=LR, outer_momentum=MOMENTUM)
    with Runtime(accelerator="cpu", devices=PROCESSES, strategy=strategy) as runtime:
        model, optimizer = runtime.prepare(*make())
        if resume:
            runtime.load_state(OUT / "saved")
        for step in range(first, last):
            text, targets = (one.tensor_split(PROCESSES)[runtime.process_index] for one in batch_of(step))
            optimizer.zero_grad()
            runtime.backward(loss_of(model(text), targets))
            optimizer.step()
            if step + 1 == SAVED and not resume:
                runtime.save_state(OUT / "saved")
        return runtime.strategy.all_gather_object(flat(model))


whole, resumed = train(0, STEPS), train(SAVED, STEPS, resume=True)
with Runtime(accelerator="cpu", devices=PROCESSES, strategy="ddp") as runtime:
    runtime.launch()
    if runtime.is_main_process:
        expected = by_hand()
        say(
            runtime,
            {
                "error": max(float((a - b).abs().max()) for a, b in zip(whole, expected, strict=True)),
                "apart": float((whole[0] - whole[1]).abs().max()),
                "resumed": all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True)),
            },
        )
