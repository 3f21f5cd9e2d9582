"""A small network and its training: by torch and torchao, without torch-hal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

NAMES = ("fp8-mixed", "int8-qat", "int4-qat")
STEPS, BATCH = 6, 8


def network() -> nn.Sequential:
    """Two linear layers with dropout between them, always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 4))


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(net.parameters(), lr=0.01)


def loader(batch_size: int = BATCH) -> DataLoader[Any]:
    """As many batches as there are steps, in order."""
    inputs = torch.randn(STEPS * BATCH, 32, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs, inputs[:, :4].argmax(1)), batch_size=batch_size)


def batches() -> list[Any]:
    """Those of :func:`loader`."""
    return list(loader())


def base_config(name: str) -> Any:
    """torchao's configuration of the quantized model."""
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, PerAxis, PerGroup

    dtype, size = (torch.int8, PerAxis(0)) if name == "int8-qat" else (getattr(torch, "int4"), PerGroup(32))  # noqa: B009 torch declares no type of it
    return Int8DynamicActivationIntxWeightConfig(weight_dtype=dtype, weight_granularity=size)


def prepare_by_hand(name: str, net: nn.Sequential, recipe: str = "tensorwise") -> None:
    """Make the layers of ``net`` torchao's."""
    if name == "fp8-mixed":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(net, config=Float8LinearConfig.from_recipe_name(recipe))
        return
    from torchao.quantization import quantize_
    from torchao.quantization.qat import QATConfig

    quantize_(net, QATConfig(base_config(name), step="prepare"))


def loss_by_hand(name: str, net: nn.Module, batch: Any) -> Tensor:
    """The loss of a batch; under fp8-mixed, with autocast, which torchao's layers follow on CUDA only."""
    inputs, labels = batch
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=name == "fp8-mixed"):
        output = net(inputs.bfloat16() if name == "fp8-mixed" else inputs)
    return cross_entropy(output.float(), labels)


def by_hand(name: str, recipe: str = "tensorwise", parts: int = 1) -> tuple[list[float], nn.Sequential]:
    """Losses and the trained network; ``parts`` of each batch have their own pass, and their gradients are averaged."""
    net = network()
    prepare_by_hand(name, net, recipe)
    optimizer = optimizer_of(net)
    if parts > 1:
        net.eval()  # dropout draws other numbers in other processes
    data = batches()
    torch.manual_seed(11)
    losses = []
    for inputs, labels in data:
        halves = zip(inputs.chunk(parts), labels.chunk(parts), strict=True)
        of_parts = [loss_by_hand(name, net, part) for part in halves]
        loss = torch.stack(of_parts).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, net


def largest_difference(one: nn.Module, other: nn.Module) -> float:
    """Of the parameters."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max((mine.detach() - theirs.detach()).abs().max().item() for mine, theirs in pairs)
