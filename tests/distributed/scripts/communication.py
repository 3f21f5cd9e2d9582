"""What each communication hook makes of two processes' gradients, against its formula; and a divided state."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from core import Runtime
from core.errors import ConfigurationError
from core.strategies import DDPShardedStrategy, DDPStrategy

FULL_RANK = {"matrix_approximation_rank": 24, "min_compression_rate": 0.1, "start_powerSGD_iter": 2}


def gradients(steps: int = 1, **options: Any) -> list[Tensor]:
    """The gradients after some steps of a run with that strategy; inputs differ from process to process."""
    with Runtime(accelerator="cpu", strategy=DDPStrategy(**options), devices=2) as runtime:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        model, optimizer = runtime.prepare(module, optimizer)
        for step in range(steps):
            optimizer.zero_grad()
            runtime.backward(model(inputs(runtime.process_index, step)).square().mean())
            optimizer.step()
        return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


def inputs(rank: int, step: int = 0) -> Tensor:
    return torch.randn(8, 8, generator=torch.Generator().manual_seed(2 * step + rank))


def alone(rank: int, step: int = 0) -> list[Tensor]:
    """One process's own gradients of a step from the same parameters, in plain torch."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return list(torch.autograd.grad(module(inputs(rank, step)).square().mean(), list(module.parameters())))


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return len(found) == len(expected) == 4 and all(map(torch.equal, found, expected))


def half_of(state: Any, bucket: Any) -> torch.futures.Future[Tensor]:
    """A hook of the user's own: half of what this process has."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer() / 2)
    return future


def check_hooks(rank: int) -> None:
    both = list(zip(alone(0), alone(1), strict=True))
    mean = [a / 2 + b / 2 for a, b in both]
    assert same(gradients(), mean)
    assert same(gradients(communication_hook="allreduce"), mean)
    assert same(gradients(communication_hook="allreduce", static_graph=True, gradient_as_bucket_view=True), mean)
    for name, dtype in (("fp16_compress", torch.float16), ("bf16_compress", torch.bfloat16)):
        expected = [(a.to(dtype) / 2 + b.to(dtype) / 2).float() for a, b in both]
        assert same(gradients(communication_hook=name), expected), name
        assert not same(expected, mean)
    assert same(gradients(communication_hook=half_of), [grad / 2 for grad in alone(rank)])
    late = gradients(2, communication_hook="power_sgd", communication_options={"start_powerSGD_iter": 10})
    assert same(late, gradients(2))
    for name, dtype in (("fp16_compress", torch.float16), ("bf16_compress", torch.bfloat16)):
        in_half = {"matrix_approximation_rank": 1, "wrapper": name}
        late = gradients(1, communication_hook="power_sgd", communication_options=in_half | {"start_powerSGD_iter": 10})
        assert same(late, [(a.to(dtype) / 2 + b.to(dtype) / 2).float() for a, b in both]), name
        rough = gradients(4, communication_hook="power_sgd", communication_options=in_half | {"start_powerSGD_iter": 2})
        exact = gradients(4)
        distance = sum(float((a - b).norm()) for a, b in zip(rough, exact, strict=True))
        assert 0 < distance < sum(float(gradient.norm()) for gradient in exact)
    options = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 2}
    rough, exact = gradients(4, communication_hook="power_sgd", communication_options=options), gradients(4)
    assert not same(rough, exact)
    distance = sum(float((a - b).norm()) for a, b in zip(rough, exact, strict=True))
    assert distance < sum(float(gradient.norm()) for gradient in exact)
    with pytest.raises(ConfigurationError, match=r"communication_options.*rank_of_matrix"):
        gradients(communication_hook="power_sgd", communication_options={"rank_of_matrix": 1})


def check_accumulation_on_a_static_graph() -> None:
    """Torch learns the graph from a pass that reduces: accumulating from the first step on gives the same mean."""
    with Runtime(accelerator="cpu", strategy=DDPStrategy(static_graph=True), devices=2) as runtime:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        model = runtime.prepare(module)
        for _ in range(2):
            module.zero_grad()
            for step in range(3):
                with runtime.no_sync(model) if step < 2 else nullcontext():
                    runtime.backward(model(inputs(runtime.process_index, step)).square().mean())
        found = [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
    passes = [alone(rank, step) for rank in (0, 1) for step in range(3)]
    for one, others in zip(found, zip(*passes, strict=True), strict=True):
        assert torch.allclose(one, torch.stack(others).sum(0) / 2, rtol=1e-5, atol=1e-7)


class Penalized(nn.Linear):
    """Differentiates by its inputs within its forward pass."""

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.requires_grad_()
        outputs = super().forward(inputs)
        (gradients,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        return outputs + gradients.square().sum()


def check_other_gradients_on_a_static_graph() -> None:
    """``torch.autograd.grad`` before the first backward pass is refused; within the forward pass it may come."""
    with Runtime(accelerator="cpu", strategy=DDPStrategy(static_graph=True), devices=2) as runtime:
        module = Penalized(8, 4)
        model = runtime.prepare(module)
        for step in range(3):
            given = inputs(runtime.process_index, step)
            if not step:
                for wanted in (given.requires_grad_(), list(module.parameters())):
                    with pytest.raises(ConfigurationError, match="static_graph=True: torch records the first pass"):
                        torch.autograd.grad(model(given).sum(), wanted)
            runtime.backward(model(given).mean())
            if step:
                torch.autograd.grad(model(given).sum(), list(module.parameters()))
        for parameter in module.parameters():
            assert parameter.grad is not None
            one, other = runtime.gather(parameter.grad[None])
            assert torch.equal(one, other)


def check_power_sgd_in_buckets() -> None:
    """At full rank it is the mean, of whichever bucket: here each layer is one, and all are of one shape."""
    results = []
    in_full_rank = DDPStrategy(communication_hook="power_sgd", communication_options=FULL_RANK, bucket_cap_mb=0.001)
    for strategy in (DDPStrategy(), in_full_rank):
        with Runtime(accelerator="cpu", strategy=strategy, devices=2) as runtime:
            torch.manual_seed(0)
            module = nn.Sequential(*(nn.Linear(24, 24, bias=False) for _ in range(12)))
            model = runtime.prepare(module)
            for step in range(20):
                module.zero_grad()
                generator = torch.Generator().manual_seed(2 * step + runtime.process_index)
                runtime.backward(model(torch.randn(32, 24, generator=generator)).sum())
            results.append([parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None])
    exact, found = results
    for one, other in zip(exact, found, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-4 * float(one.norm()))


def check_sharded(path: Path) -> None:
    """The optimizer's state is divided, saved whole, and read back; learning rates follow the user's optimizer."""
    saved = {}
    for attempt in range(2):
        with Runtime(accelerator="cpu", strategy=DDPShardedStrategy(), devices=2) as runtime:
            torch.manual_seed(attempt)
            module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
            given = torch.optim.AdamW(module.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.StepLR(given, 1, 0.5)
            optimizer: Any
            model, optimizer = runtime.prepare(module, given)
            held = {"model": model, "optimizer": optimizer, "schedule": schedule}
            if attempt:
                runtime.load(path, held)
                assert given.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.05
            else:
                runtime.backward(model(inputs(runtime.process_index)).square().mean())
                optimizer.step()
                schedule.step()
                runtime.save(held, path)
            own = sum(tensor.numel() for state in optimizer.optim.state.values() for tensor in state.values())
            assert own < 0.75 * 2 * sum(parameter.numel() for parameter in module.parameters()), own
            optimizer.zero_grad()
            runtime.backward(model(inputs(runtime.process_index, 1)).square().mean())
            optimizer.step()
            saved[attempt] = [parameter.detach().clone() for parameter in module.parameters()]
    assert same(saved[0], saved[1])
    with Runtime(accelerator="cpu", strategy=DDPShardedStrategy(), devices=2) as runtime:
        stepped = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        stepped.state[next(module.parameters())] = {"momentum_buffer": torch.zeros(16, 8)}
        with pytest.raises(ConfigurationError, match="SGD has already stepped"):
            runtime.prepare(module, stepped)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with Runtime(accelerator="cpu", strategy="ddp", devices=2) as first:
        first.barrier()
        process = first.process_index
    check_hooks(process)
    check_accumulation_on_a_static_graph()
    check_other_gradients_on_a_static_graph()
    check_power_sgd_in_buckets()
    check_sharded(Path(os.environ["OUT"]) / "checkpoint")
    print(f"process {process} is through")
