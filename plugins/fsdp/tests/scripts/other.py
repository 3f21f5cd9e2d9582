"""What one process cannot show: modules made on meta, gradients that overflow, several runs, compiling."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from problem import MLP, Transformer, evaluate, loss_of, make, own_batch, say, train, whole_state
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel
from torch_hal_fsdp import FSDPStrategy

from torch_hal import Runtime
from torch_hal.errors import ConfigurationError
from torch_hal.strategies import DDPStrategy

said: dict[str, Any] = {}


class Mixed(nn.Module):
    """Layers that make their numbers in several ways, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(4, 8, 3)
        self.normed = nn.BatchNorm1d(8)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.normed(self.first(x)).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.last(x)
        return y


class Angles(nn.Module):
    """A parameter and a buffer that only its constructor fills."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))
        self.register_buffer("angles", torch.arange(3.0), persistent=False)
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x * self.scale + self.get_buffer("angles"))
        return y


def fill(module: nn.Module) -> None:
    if isinstance(module, Angles):
        module.scale.fill_(2.0)
        module.get_buffer("angles").copy_(torch.arange(3.0))
    elif isinstance(module, nn.Linear):
        module.reset_parameters()


def deferred(name: str, build: Callable[[], nn.Module], precision: str = "32-true", **options: Any) -> None:
    """Whether a module made on meta gets the numbers of one made at once, by process 0's generator."""
    states, draws = [], []
    for meta in (False, True):
        strategy = FSDPStrategy(**options)
        with Runtime(accelerator="cpu", strategy=strategy, devices=2, precision=precision) as runtime:
            runtime.launch()
            torch.manual_seed(5 + runtime.process_index)
            if meta:
                with torch.device("meta"):
                    module = build()
            else:
                module = build()
            module = runtime.unwrap_model(runtime.prepare(module))
            kept = {name: buffer.clone() for name, buffer in module.named_buffers()}
            states.append(whole_state(module) | kept)
            draws.append(torch.rand(1) if runtime.is_main_process else torch.zeros(1))
    one, other = states
    alike = one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    said[f"deferred {name}"] = [alike, torch.equal(*draws), len(one)]


def refused(name: str, build: Callable[[], nn.Module], **options: Any) -> None:
    """What a module made on meta is refused with."""
    with Runtime(accelerator="cpu", strategy=FSDPStrategy(**options), devices=2) as runtime:
        runtime.launch()
        with torch.device("meta"):
            module = build()
        try:
            runtime.prepare(module)
        except ConfigurationError as error:
            said[f"refused {name}"] = str(error)


class Penalized(nn.Module):
    """Has a penalty on the gradients of its inputs in its loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        return penalized(self.critic, inputs)


def penalized(critic: nn.Module, inputs: Tensor) -> Tensor:
    inputs = inputs.clone().requires_grad_()
    (gradients,) = torch.autograd.grad(critic(inputs).sum(), inputs, create_graph=True)
    loss: Tensor = gradients.square().sum() + critic(inputs).mean()
    return loss


def second_order() -> None:
    """Gradients of gradients, of a whole module in its forward pass and elsewhere."""
    inputs = torch.arange(12.0).reshape(3, 4)
    expected = Penalized()
    expected(inputs).backward()
    cases: list[tuple[str, Any, Any]] = [
        ("within", lambda part: False, lambda model: model(inputs)),
        ("blocks", "blocks", lambda model: model(inputs)),
        ("outside", lambda part: False, lambda model: penalized(model, inputs)),
    ]
    for name, policy, loss in cases:
        with Runtime(accelerator="cpu", strategy=FSDPStrategy(wrap_policy=policy), devices=2) as runtime:
            runtime.launch()
            model = runtime.prepare(Penalized().critic if name == "outside" else Penalized())
            try:
                runtime.backward(loss(model))
                pairs = zip(model.parameters(), expected.parameters(), strict=True)
                close = [torch.allclose(one.grad.full_tensor(), other.grad, atol=1e-6) for one, other in pairs]  # type: ignore[union-attr, arg-type]
                said[f"second order {name}"] = str(all(close))
            except ConfigurationError as error:
                said[f"second order {name}"] = str(error)


def overflow() -> None:
    """Under 16-mixed, an infinite gradient in one process makes all leave the step out."""
    with Runtime(accelerator="cpu", strategy="fsdp", devices=2, precision="16-mixed") as runtime:
        own, model, optimizer = make(runtime, Transformer)
        kept = {}
        for culprit in ("words.weight", "layers.0.query.weight", "layers.1.out.weight", "norm.weight"):
            before = whole_state(own)
            runtime.backward(loss_of(model, *own_batch(runtime, own, 0)))
            gradient = dict(own.named_parameters())[culprit].grad
            if runtime.process_index == 1 and isinstance(gradient, DTensor):
                gradient.to_local().view(-1)[:1].fill_(float("inf"))
            optimizer.step()
            optimizer.zero_grad()
            after = whole_state(own)
            scales = runtime.strategy.all_gather_object(runtime.strategy.precision.state_dict()["scale"])
            kept[culprit] = [all(torch.equal(before[key], after[key]) for key in before), len(set(scales))]
        said["overflow"] = kept


def between() -> None:
    """An evaluation between backward and step keeps no weights that the next one or a hook would use."""
    for reshards in (None, False):
        strategy = FSDPStrategy(reshard_after_forward=reshards)
        with Runtime(accelerator="cpu", strategy=strategy, devices=2) as runtime:
            own, model, optimizer = made = make(runtime, Transformer)
            runtime.backward(loss_of(model, *own_batch(runtime, own, 0)))
            before = evaluate(runtime, made)
            are_shards = all(isinstance(parameter, DTensor) for parameter in own.parameters())
            optimizer.step()
            after = evaluate(runtime, made)
            plain = Transformer()
            state = whole_state(own)
            plain.load_state_dict(state)
            error = abs(after - evaluate(runtime, (own, plain, optimizer)))
        said[f"between {reshards}"] = [are_shards, before - after, error]


def again() -> None:
    """One module and its optimizer in two runs, and what a run of another form says to the module."""
    strategy = FSDPStrategy(wrap_policy="model")
    with Runtime(accelerator="cpu", strategy=strategy, devices=2) as runtime:
        made = make(runtime, Transformer)
        whole = train(runtime, made)["losses"] + train(runtime, made, first=6)["losses"]
    parts = []
    made = None
    for first in (0, 6):
        with Runtime(accelerator="cpu", strategy=FSDPStrategy(wrap_policy="model"), devices=2) as runtime:
            made = make(runtime, Transformer) if made is None else (made[0], *runtime.prepare(made[1], made[2]))
            assert runtime.prepare(made[1]) is made[1]
            parts += train(runtime, made, first=first)["losses"]
            evaluate(runtime, made)
    said["again"] = parts == whole
    with Runtime(accelerator="cpu", strategy=FSDPStrategy(replicas=2), devices=2) as runtime:
        try:
            runtime.prepare(made[0])
        except ConfigurationError as error:
            said["again in another form"] = str(error)


def optimizers() -> None:
    """One made before it is divided; one that has stepped."""
    with Runtime(accelerator="cpu", strategy="fsdp", devices=2) as runtime:
        runtime.launch()
        model = MLP()
        used = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(1, 64)).sum().backward()
        used.step()
        before = weakref.ref(model.net[0].weight)
        first, rest = model.net[0].parameters(), model.net[2:].parameters()
        fresh = torch.optim.SGD([{"params": first}, {"params": rest, "lr": 3.0}])
        _, fresh = runtime.prepare(model, fresh)
        groups = [[isinstance(p, DTensor) for p in group["params"]] for group in fresh.param_groups]
        said["groups"] = [groups, [group["lr"] for group in fresh.param_groups]]
        try:
            runtime.prepare(used)
        except ConfigurationError as error:
            said["stepped optimizer"] = str(error)
        said["other optimizers"] = others = {}
        for kind, arguments in (
            ("Adafactor", {}),
            ("LBFGS", {}),
            ("Rprop", {}),
            ("SGD", {"fused": True}),
            ("AdamW", {}),
        ):
            try:
                runtime.prepare(getattr(torch.optim, kind)(model.parameters(), **arguments))
            except ConfigurationError as error:
                others[kind] = str(error)
        del used
        gc.collect()
        said["whole parameters are gone"] = before() is None


def broadcast() -> None:
    """Processes that made different models all train process 0's."""
    with Runtime(accelerator="cpu", strategy="fsdp", devices=2) as runtime:
        runtime.launch()
        torch.manual_seed(runtime.process_index)
        state = whole_state(runtime.prepare(Mixed()))
        torch.manual_seed(0)
        expected = Mixed().state_dict()
        said["of process 0"] = all(torch.equal(state[name], expected[name]) for name in expected)


def traffic() -> None:
    """How many reductions of gradients an accumulation of three batches takes."""
    calls = 0
    reduce_scatter = dist.reduce_scatter_single

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return reduce_scatter(*args, **kwargs)

    dist.reduce_scatter_single = counted
    for name in ("one", "three", "each"):
        calls = 0
        strategy = FSDPStrategy(reduce_each_batch=name == "each")
        with Runtime(accelerator="cpu", strategy=strategy, devices=2) as runtime:
            train(runtime, make(runtime, Transformer), steps=1, accumulate=1 if name == "one" else 3)
        said[f"reductions {name}"] = calls
    dist.reduce_scatter_single = reduce_scatter


def compiled() -> None:
    """Blocks that are compiled train as others."""
    losses = []
    for option in (False, {"backend": "aot_eager"}):
        strategy = FSDPStrategy(compile_blocks=option, activation_checkpointing="blocks")
        with Runtime(accelerator="cpu", strategy=strategy, devices=2) as runtime:
            losses.append(train(runtime, make(runtime, Transformer), steps=3)["losses"])
    said["compiled"] = losses


def batch_norm() -> None:
    """Normalisation over a batch, with statistics in float32, in mixed precision."""
    losses = []
    for strategy in (DDPStrategy(), FSDPStrategy()):
        with Runtime(accelerator="cpu", strategy=strategy, devices=2, precision="bf16-mixed") as runtime:
            torch.manual_seed(1)
            runtime.launch()
            module = Mixed()
            model, optimizer = runtime.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
            for seed in range(3):
                generator = torch.Generator().manual_seed(seed)
                loss = model(torch.randn(4, 4, 9, generator=generator)).square().mean()
                runtime.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(float(loss.detach()))
    said["batch norm"] = losses


def averaged() -> None:
    """Averages of the weights that the loop keeps, and what copying a sharded module says."""
    totals = []
    for strategy in (DDPStrategy(), FSDPStrategy(wrap_policy="model")):
        with Runtime(accelerator="cpu", strategy=strategy, devices=2) as runtime:
            own, model, optimizer = make(runtime, Transformer)
            means = [parameter.detach().clone() for parameter in model.parameters()]
            for step in range(3):
                runtime.backward(loss_of(model, *own_batch(runtime, own, step)))
                optimizer.step()
                optimizer.zero_grad()
                for mean, parameter in zip(means, model.parameters(), strict=True):
                    mean.lerp_(parameter.detach(), 0.5)
            whole = (mean.full_tensor() if isinstance(mean, DTensor) else mean for mean in means)
            totals.append([float(mean.double().norm()) for mean in whole])
            if len(totals) == 2:
                try:
                    AveragedModel(model)
                except ConfigurationError as error:
                    said["copied"] = str(error)
    said["averaged"] = totals


def constructed() -> None:
    """Adagrad makes its state in its constructor, before a strategy divides its parameters."""
    said["constructed"] = totals = []
    for strategy in ("ddp", "ddp_sharded", "fsdp"):
        with Runtime(accelerator="cpu", strategy=strategy, devices=2) as runtime:
            torch.manual_seed(0)
            own = MLP()
            adagrad = torch.optim.Adagrad(own.parameters(), initial_accumulator_value=0.1)
            model, optimizer = runtime.prepare(own, adagrad)
            for step in range(2):
                runtime.backward(loss_of(model, *own_batch(runtime, own, step)))
                optimizer.step()
                optimizer.zero_grad()
            totals.append([float(value.double().norm()) for value in runtime.get_state_dict(model).values()])


deferred("transformer", Transformer)
deferred("tied", partial(Transformer, tied=True))
deferred("mixed", Mixed, wrap_policy=60)
deferred("double", Mixed, "64-true")
deferred("half", Mixed, "bf16-true")
deferred("offloaded", Transformer, cpu_offload=True)
deferred("tensor", Transformer, tensor_parallel_size=2)
deferred("own function", Angles, init_fn=fill)
refused("nothing fills", Angles)
refused("not all filled", Angles, init_fn=lambda module: None)
refused("no plan", MLP, tensor_parallel_size=2)
refused("plan of nothing", Transformer, tensor_parallel_size=2, tensor_parallel_plan={"layers.*.q": "colwise"})
refused("no list", MLP, wrap_policy="model")
refused("class", MLP, wrap_policy=["Block"])
refused("tied class", partial(Transformer, tied=True), wrap_policy=["Embedding"])
second_order()
overflow()
between()
again()
optimizers()
broadcast()
traffic()
compiled()
batch_norm()
averaged()
constructed()
with Runtime(accelerator="cpu", strategy="fsdp", devices=2) as last:
    last.launch()
    say(last, said)
