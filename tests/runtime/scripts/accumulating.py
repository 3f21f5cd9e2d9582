"""Accumulation over processes against plain torch on one big batch. Usage: accumulating.py PROCESSES"""

from __future__ import annotations

import copy
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from core import GradientAccumulationPlugin, LocalSGD, Runtime
from core.errors import ConfigurationError
from core.strategies import DDPStrategy

PROCESSES = int(sys.argv[1])
BATCH, STEPS, BATCHES = 2, 3, 8

sent: list[int] = []
"""The buckets of gradients that were reduced, one for each."""


def counting(state: Any, bucket: Any) -> Any:
    """The mean over processes, as DistributedDataParallel computes it."""
    del state
    sent.append(1)
    gradients = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(gradients, async_op=True).get_future().then(lambda future: future.value()[0])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def data() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets, and the number of tokens of each item, 0 to 4."""
    items = PROCESSES * BATCH * BATCHES
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(items, 4, generator=generator), torch.randn(items, 2, generator=generator)
    return inputs, targets, torch.randint(0, 5, (items,), generator=generator)


class Stream(IterableDataset[Any]):
    """Of unknown length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(list(zip(*data(), strict=True)))


def distance(model: nn.Module, expected: nn.Module) -> float:
    return max(
        float((one - other).detach().abs().max())
        for one, other in zip(model.parameters(), expected.parameters(), strict=True)
    )


def runtime(steps: Any = STEPS, **options: Any) -> Runtime:
    strategy = DDPStrategy(communication_hook=counting)
    return Runtime(
        accelerator="cpu", strategy=strategy, devices=PROCESSES, gradient_accumulation_steps=steps, **options
    )


def token_losses(model: nn.Module, batch: Any) -> Tensor:
    """Each item's loss counts as often as it has tokens."""
    inputs, targets, tokens = batch
    errors: Tensor = model(inputs) - targets
    total: Tensor = (errors.square().mean(1) * tokens).sum()
    return total


def train(steps: Any, is_stream: bool, is_weighted: bool) -> dict[str, Any]:
    """Two epochs; the distance to plain torch, and the number of reductions of each epoch."""
    one = runtime(steps)
    module = network()
    loader = DataLoader(Stream() if is_stream else TensorDataset(*data()), batch_size=BATCH)
    model, optimizer, batches = one.prepare(module, SGD(module.parameters(), lr=0.1, momentum=0.9), loader)
    sent.clear()
    for _ in range(2):
        for batch in batches:
            with one.accumulate(model):
                if is_weighted:
                    one.backward(token_losses(model, batch), num_items=batch[2].sum())
                else:
                    one.backward(nn.functional.mse_loss(model(batch[0]), batch[1]))
                one.clip_grad_norm_(model.parameters(), 1e6)
                optimizer.step()
                optimizer.zero_grad()
    expected = network()
    plain = SGD(expected.parameters(), lr=0.1, momentum=0.9)
    size = PROCESSES * BATCH * STEPS
    for _ in range(2):
        for inputs, targets, tokens in zip(*(torch.split(part, size) for part in data()), strict=True):
            loss = nn.functional.mse_loss(expected(inputs), targets)
            if is_weighted:
                loss = token_losses(expected, (inputs, targets, tokens)) / tokens.sum()
            loss.backward()  # type: ignore[no-untyped-call]
            plain.step()
            plain.zero_grad()
    moved = distance(network(), expected)
    one.teardown()
    return {"distance": distance(module, expected), "moved": moved, "reductions": len(sent)}


def uneven(precision: str) -> dict[str, Any]:
    """Process 0 has a batch more than the others, which add gradients of zero."""
    one = runtime(1, precision=precision)
    module = network()
    model, optimizer = one.prepare(module, SGD(module.parameters(), lr=0.1))
    inputs, targets, _ = data()
    items = 3 * PROCESSES + 1
    loader = one.prepare(DataLoader(TensorDataset(inputs[:items], targets[:items]), batch_size=1))
    padded = len(loader)
    steps = 0
    with one.join_uneven_inputs([model], even_batches=False):
        own = len(loader)
        for own_inputs, own_targets in loader:
            one.backward(nn.functional.mse_loss(model(own_inputs), own_targets))
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    expected = network().to(next(module.parameters()).dtype)
    inputs, targets = (part.to(next(module.parameters()).dtype) for part in (inputs, targets))
    plain = SGD(expected.parameters(), lr=0.1)
    for start in range(0, items, PROCESSES):
        for number in range(start, min(start + PROCESSES, items)):
            loss = nn.functional.mse_loss(expected(inputs[number : number + 1]), targets[number : number + 1])
            (loss / PROCESSES).backward()  # type: ignore[no-untyped-call]
        plain.step()
        plain.zero_grad()
    batches = one.gather(torch.tensor([own])).tolist()
    found = {"distance": distance(module, expected), "batches": batches, "steps": steps == own, "padded": padded}
    found["after"] = len(loader)
    one.teardown()
    return found


class Halves(nn.Module):
    """Uses one of its two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(1, 1, bias=False), nn.Linear(1, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.used(inputs)
        return output


def synchronized_later(**arguments: Any) -> float:
    """Two forward passes in no_sync, then a reduction in the second backward; the distance to the mean gradient."""
    one = Runtime(accelerator="cpu", strategy=DDPStrategy(**arguments), devices=PROCESSES)
    model: Any = one.prepare(Halves() if arguments else nn.Linear(1, 1, bias=False))
    rank = one.process_index
    with one.no_sync(model):
        first = model(torch.full((1, 1), 1.0 + rank)).sum()
        second = model(torch.full((1, 1), 10.0 + rank)).sum()
    one.backward(first)
    with one.trigger_sync_in_backward(model):
        one.backward(second)
    mean = sum(11.0 + 2 * number for number in range(PROCESSES)) / PROCESSES
    found = abs(float(next(model.parameters()).grad) - mean)
    one.teardown()
    return found


def losses_by_turns(one: Runtime, model: nn.Module, inputs: Tensor, targets: Tensor, way: str) -> None:
    """The backward passes of two losses in one step, which a plain sum of both would need once."""
    output = model(inputs)
    other = model(2 * inputs) if way.startswith("passes") else output
    if "evaluation" in way:
        with torch.no_grad():
            model(inputs)
    one.backward(nn.functional.mse_loss(output, targets), retain_graph=other is output)
    one.backward(other.square().mean())


def repeated(way: str, steps: int = 1, **arguments: Any) -> float:
    """Two losses of one forward pass, or of two that came before both; the distance to plain torch on all items."""
    one = Runtime(
        accelerator="cpu", strategy=DDPStrategy(**arguments), devices=PROCESSES, gradient_accumulation_steps=steps
    )
    module, expected = network(), network()
    loader = DataLoader(TensorDataset(*data()[:2]), batch_size=BATCH)
    model, optimizer, batches = one.prepare(module, SGD(module.parameters(), lr=0.1), loader)
    plain = SGD(expected.parameters(), lr=0.1)
    for inputs, targets in batches:
        with one.accumulate(model):
            losses_by_turns(one, model, inputs, targets, way)
            optimizer.step()
            optimizer.zero_grad()
    for inputs, targets in zip(*(torch.split(part, PROCESSES * BATCH * steps) for part in data()[:2]), strict=True):
        other = expected(2 * inputs) if way.startswith("passes") else expected(inputs)
        loss = nn.functional.mse_loss(expected(inputs), targets) + other.square().mean()
        loss.backward()
        plain.step()
        plain.zero_grad()
    one.teardown()
    return distance(module, expected)


class TwoHeads(nn.Module):
    """Its outputs share a layer, and have one each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.heads = nn.Linear(4, 8), nn.ModuleList(nn.Linear(8, 2) for _ in range(2))

    def forward(self, inputs: Tensor) -> list[Tensor]:
        hidden = self.trunk(inputs).tanh()
        return [head(hidden) for head in self.heads]


def losses_of_heads(**arguments: Any) -> tuple[float, str]:
    """A backward pass for each head: the distance to plain torch, and what is said of an error."""
    one = Runtime(accelerator="cpu", strategy=DDPStrategy(**arguments), devices=PROCESSES)
    module, expected = TwoHeads(), TwoHeads()
    inputs = data()[0]
    model, optimizer = one.prepare(module, SGD(module.parameters(), lr=0.1))
    plain = SGD(expected.parameters(), lr=0.1)
    try:
        for _ in range(2):
            first, second = model(inputs[one.process_index :: PROCESSES])
            one.backward(first.square().mean(), retain_graph=True)
            one.backward((second - 1).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            first, second = expected(inputs)
            (first.square().mean() + (second - 1).square().mean()).backward()
            plain.step()
            plain.zero_grad()
    except RuntimeError as error:
        return 0.0, "\n".join(getattr(error, "__notes__", ["nothing"]))
    finally:
        one.teardown()
    return distance(module, expected), ""


def of_shared_layer(losses: int) -> float:
    """Two models with one trunk, each with its forward pass and losses by turns; the distance to plain torch."""
    trunk = nn.Linear(4, 8)
    module = nn.ModuleList(nn.Sequential(trunk, nn.Linear(8, 2)) for _ in range(2))
    expected = copy.deepcopy(module)
    one = Runtime(accelerator="cpu", strategy="ddp", devices=PROCESSES)
    prepared: Any = one.prepare(*module, SGD(module.parameters(), lr=0.1))
    first, second, optimizer = prepared
    plain = SGD(expected.parameters(), lr=0.1)
    for inputs in torch.split(data()[0], PROCESSES * BATCH):
        for models, own in (((first, second), inputs[one.process_index :: PROCESSES]), (expected, inputs)):
            for model in models:
                output = model(own)
                for left in reversed(range(losses)):
                    loss = (output - left).square().mean()
                    backward = loss.backward if models is expected else partial(one.backward, loss)
                    backward(retain_graph=left > 0)
        for each in (optimizer, plain):
            each.step()
            each.zero_grad()
    one.teardown()
    return distance(module, expected)


def steps_after_no_sync() -> dict[str, list[str]]:
    """The warnings of steps after, and within, ``no_sync``; of steps as they should be, and of LocalSGD."""
    one = Runtime(accelerator="cpu", strategy="ddp", devices=PROCESSES)
    model: Any = nn.Linear(4, 1)
    own = SGD(model.parameters(), lr=0.1)
    optimizer: Any
    model, optimizer = one.prepare(model, own)

    def train(step_inside: bool, reduces: bool) -> None:
        for _ in range(2):
            with one.no_sync(model):
                own.register_step_pre_hook(lambda *_: None)  # an engine's, or the user's
                one.backward(model(torch.ones(1, 4)).sum())
                if step_inside:
                    optimizer.step()
            if reduces:
                one.backward(model(torch.ones(1, 4)).sum())
            optimizer.step()
            optimizer.zero_grad()

    def train_locally() -> None:
        with LocalSGD(one, model, local_sgd_steps=2) as local_sgd:
            for _ in range(2):
                one.backward(model(torch.ones(1, 4)).sum())
                optimizer.step()
                local_sgd.step()

    ways: dict[str, Callable[[], None]] = {"after": partial(train, False, False), "within": partial(train, True, True)}
    ways |= {"reduced": partial(train, False, True), "LocalSGD": train_locally}
    texts = {}
    for name, way in ways.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            way()
        texts[name] = [str(warning.message) for warning in caught]
    one.teardown()
    return texts


def refused() -> list[str]:
    """Uneven numbers of batches with accumulation, and with numbers of items, which every process would exchange."""
    texts = []
    for steps in (STEPS, 1):
        one = runtime(steps)
        model = one.prepare(network())
        try:
            with one.join_uneven_inputs([model]):
                for _ in range(1 + one.process_index):
                    one.backward(model(torch.ones(1, 4)).sum(), num_items=2)
                    model.zero_grad()
                texts.append("")
        except ConfigurationError as error:
            texts.append(str(error))
        finally:
            one.teardown()
    return texts


def changed_later() -> list[str]:
    """The errors of optimizers with parameters that the model got after ``prepare``; and what they hold then."""
    one, errors = runtime(1), []
    model: Any = one.prepare(network())
    optimizer = one.prepare(SGD(model[0].parameters(), lr=0.1))
    optimizer.add_param_group({"params": model[2].parameters()})
    model.append(nn.Linear(2, 2))
    adds = (
        lambda: one.prepare(SGD(model.parameters(), lr=0.1)),
        lambda: optimizer.add_param_group({"params": model[3].parameters()}),
        lambda: optimizer.add_param_group({"params": list(nn.Linear(3, 1).parameters())}),
    )
    for add in adds:
        try:
            add()
        except ConfigurationError as error:
            errors.append(str(error))
    held = [sum(len(group["params"]) for group in optimizer.param_groups)]
    one.teardown()
    optimizer.add_param_group({"params": nn.Linear(3, 1).parameters()})  # the run has ended
    return [*errors, *map(str, held)]


def long_schedule() -> list[str]:
    """Warnings of a run of 4 steps, for schedules of 4 steps and of 4 steps for each process."""
    one = runtime(1)
    module = network()
    optimizer = SGD(module.parameters(), lr=0.1)

    def decay(step: int, num_training_steps: int) -> float:
        return max(0.0, 1 - step / num_training_steps)

    schedulers = [
        *(torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps) for steps in (4, 4 * PROCESSES)),
        torch.optim.lr_scheduler.LambdaLR(optimizer, partial(decay, num_training_steps=4 * PROCESSES)),
        torch.optim.lr_scheduler.StepLR(optimizer, 4 * PROCESSES),
    ]
    prepared: Any = one.prepare(module, optimizer, *schedulers)
    model, optimizer, *schedulers = prepared
    for _ in range(4):
        one.backward(model(torch.ones(1, 4)).mean())
        optimizer.step()
        for number, scheduler in enumerate(schedulers):
            if number or scheduler.last_epoch < 3:
                scheduler.step()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one.teardown()
    return [str(warning.message) for warning in caught]


def long_uneven_schedule() -> list[str]:
    """Warnings of three epochs, for the steps that they were before ``prepare``; the last windows are not whole."""
    one = runtime(2)
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    data: Any = [torch.ones(4)] * 55
    loader: Any = DataLoader(data, batch_size=3)
    scheduler: Any = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3 * -(-len(loader) // 2))
    model, optimizer, loader, scheduler = one.prepare(model, optimizer, loader, scheduler)
    for _ in range(3):
        for batch in loader:
            with one.accumulate(model):
                one.backward(model(batch).mean())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one.teardown()
    return [str(warning.message) for warning in caught]


def main() -> None:
    each = GradientAccumulationPlugin(num_steps=STEPS, sync_each_batch=True)
    facts = {
        "sized": train(STEPS, False, False),
        "stream": train(STEPS, True, False),
        "sized, tokens": train(STEPS, False, True),
        "stream, tokens": train(STEPS, True, True),
        "each": train(each, False, False),
        "each, tokens": train(each, True, True),
        "uneven": [uneven(precision) for precision in ("32-true", "64-true", "bf16-mixed")],
        "later": synchronized_later(),
        "later, unused": synchronized_later(find_unused_parameters=True),
        "repeated": {
            "losses": repeated("losses"),
            "passes": repeated("passes"),
            "passes, evaluation": repeated("passes, evaluation"),
            "losses, accumulated": repeated("losses", 4),
            "passes, accumulated": repeated("passes", 4),
            "losses, unused": repeated("losses", find_unused_parameters=True),
            "passes, unused": repeated("passes", find_unused_parameters=True),
            "passes, static": repeated("passes", static_graph=True),
            "losses, views": repeated("losses", gradient_as_bucket_view=True),
        },
        "heads": losses_of_heads(),
        "heads, unused": losses_of_heads(find_unused_parameters=True),
        "heads, static": losses_of_heads(static_graph=True),
        "shared layer": [of_shared_layer(losses) for losses in (1, 2)],
        "after no_sync": steps_after_no_sync(),
        "refused": refused(),
        "changed": changed_later(),
        "schedules": long_schedule(),
        "uneven schedule": long_uneven_schedule(),
    }
    Path(os.environ["OUT"], f"rank{os.environ.get('RANK', '0')}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
