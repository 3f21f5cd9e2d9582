"""What two processes refuse while they prepare or run a model; the messages by what was tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from problem import Transformer, batch_of, loss_of, make, say, train
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch_hal_parallel import DiLoCoStrategy, ModelParallelStrategy

import torch_hal
from torch_hal import Runtime
from torch_hal.callbacks import EMAWeightAveraging, StochasticWeightAveraging, WeightAveraging
from torch_hal.errors import ConfigurationError


class Two(nn.Module):
    """With parameters outside of the model that is a pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.outside = Transformer(), nn.Linear(1, 1)


class Blind(nn.Module):
    """Does not look at other tokens by torch's function."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        return output


class Averaged(torch_hal.Module):
    """A language model whose weights a callback averages."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Transformer()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = loss_of(self.model(batch[0]), batch[1])
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def averaged(callback: torch_hal.Callback, strategy: Any = None) -> None:
    quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    strategy = strategy or ModelParallelStrategy(pipeline=2, microbatches=2)
    trainer = torch_hal.Trainer(
        max_epochs=2, accelerator="cpu", devices=2, strategy=strategy, callbacks=callback, **quiet
    )
    trainer.fit(Averaged(), DataLoader(TensorDataset(*batch_of(0)), batch_size=4))


said: dict[str, str] = {}


def tried(name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    try:
        function(*args, **kwargs)
    except ConfigurationError as error:
        said[name] = str(error)


text, targets = batch_of(0)
with Runtime(accelerator="cpu", devices=2, strategy=ModelParallelStrategy(pipeline=2, model="model")) as runtime:
    runtime.launch()
    tried("outside", runtime.prepare, Two())
with Runtime(accelerator="cpu", devices=2, strategy=ModelParallelStrategy(pipeline=2, microbatches=2)) as runtime:
    runtime.launch()
    tried("no plan", runtime.prepare, Blind())
    tried("too few parts", runtime.prepare, nn.Sequential(nn.Linear(1, 1)))
    with torch.device("meta"):
        on_meta = Transformer()
    tried("meta", runtime.prepare, on_meta)
    model, optimizer = runtime.prepare(*make())
    strategy: Any = runtime.strategy
    tried("gradients", model, text)
    with torch.no_grad():
        tried("named", model, text=text)
    tried("microbatches", strategy.forward_backward, model, text[:3], targets[:3], loss_of)
    tried("a second", runtime.prepare, Transformer())
tried("after the run", model, text)
with Runtime(accelerator="cpu", devices=2, strategy=ModelParallelStrategy(context=2)) as runtime:
    runtime.launch()
    tried("divided before", runtime.prepare, model)
    spread = runtime.prepare(Transformer())
    tried("odd length", spread, text[:, :11])
    blind = runtime.prepare(Blind())
    tried("no attention", blind, torch.ones(2, 4, 4))
with Runtime(accelerator="cpu", devices=2, strategy=ModelParallelStrategy(context=2, sequence_dim=2)) as runtime:
    runtime.launch()
    tried("divided otherwise", runtime.prepare, spread)
tried("average", averaged, EMAWeightAveraging())
tried("weight averaging", averaged, WeightAveraging())
tried("own weights", averaged, EMAWeightAveraging(), DiLoCoStrategy(sync_every=2))
tried("stochastic", averaged, StochasticWeightAveraging(swa_lrs=0.01))
uneven = ModelParallelStrategy(tensor=2, tensor_parallel_plan={"0": "colwise", "1": "rowwise"})
with Runtime(accelerator="cpu", devices=2, strategy=uneven) as runtime:
    runtime.launch()
    tried("uneven", runtime.prepare, nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 4)))
plan = {name: style for name, style in Transformer.tensor_parallel_plan.items() if isinstance(style, str)}
with Runtime(
    accelerator="cpu", devices=2, strategy=ModelParallelStrategy(tensor=2, tensor_parallel_plan=plan)
) as runtime:
    tried("apart", train, runtime, *runtime.prepare(*make()))
    say(runtime, said)
