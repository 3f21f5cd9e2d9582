"""A module whose forward pass runs in a precision, seen by its user."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from core import Runtime
from core.errors import ConfigurationError
from core.runtime.prepare.wrappers import PreparedModule
from core.strategies.training_step import tensor_backward

from .problem import PRECISIONS, batch, network, runtime

WRAPPING = [name for name in PRECISIONS if name != "32-true"]


class Custom(nn.Module):
    """A module with its own attributes and methods."""

    kind = "custom"

    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self.frozen = nn.BatchNorm1d(2)
        self.frozen.eval()
        self.temperature = 2.0
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor, *, double: bool = False) -> dict[str, Tensor]:
        outputs = self.frozen(self.network(inputs))
        return {"outputs": outputs * 2 if double else outputs}

    def twice(self, value: float) -> float:
        return value * self.temperature

    @property
    def size(self) -> int:
        return 8


def prepared(name: str = "bf16-mixed") -> tuple[PreparedModule, Custom]:
    module = Custom()
    model = runtime(precision=name).prepare(module)
    assert isinstance(model, PreparedModule)
    return model, module


def test_attributes_are_the_users_modules() -> None:
    """Attributes, methods, properties, submodules, buffers and parameters; what it lacks is an AttributeError."""
    model, module = prepared()
    assert (model.kind, model.temperature, model.size, model.twice(3.0)) == ("custom", 2.0, 8, 6.0)
    assert model.network is module.network
    assert model.count is module.count
    assert model.network[0].weight is module.network[0].weight
    with pytest.raises(AttributeError, match="no_such_thing"):
        model.no_such_thing  # noqa: B018
    assert not hasattr(model, "no_such_thing")
    with pytest.raises(AttributeError, match=r"has no attribute 'no_sync'. Write runtime.no_sync\(model\)."):
        model.no_sync()


def test_it_is_an_instance_of_the_users_class() -> None:
    """Attributes that are set or deleted through it are the user's module's; containers are indexed."""
    model, module = prepared()
    assert isinstance(model, Custom)
    assert type(model).__name__ == "Custom"
    model.temperature = 5.0
    assert module.temperature == 5.0
    del module.temperature
    assert not hasattr(model, "temperature")
    model.extra = nn.Linear(1, 1)
    assert "extra.weight" in module.state_dict()
    assert list(inspect.signature(model.forward).parameters) == ["inputs", "double"]
    sequence = network()
    assert runtime(precision="bf16-mixed").prepare(sequence)[-1] is sequence[-1]
    assert len(runtime(precision="bf16-mixed").prepare(sequence)) == 3


def test_hooks_run_once() -> None:
    """Those of the user's module, on the prepared module or on the user's."""
    model, module = prepared()
    called: list[str] = []
    module.register_forward_hook(lambda *_: called.append("own"))
    model.register_forward_pre_hook(lambda *_: called.append("prepared"))
    model(batch()[0])
    assert called == ["prepared", "own"]


@pytest.mark.parametrize("name", WRAPPING)
def test_the_state_is_the_users_modules(name: str) -> None:
    """Keys without a prefix; what one gives the other takes, and so does a parent that it is a part of."""
    model, module = prepared(name)
    assert list(model.state_dict()) == list(module.state_dict())
    assert list(model.state_dict(prefix="a.")) == [f"a.{key}" for key in module.state_dict()]
    other = Custom()
    other.load_state_dict(model.state_dict())
    changed = {key: torch.zeros_like(value) for key, value in model.state_dict().items()}
    assert not any(model.load_state_dict(changed))
    assert all((value == 0).all() for value in module.state_dict().values())


def test_each_parameter_stands_there_once() -> None:
    """An optimizer of the prepared module's parameters has those of the user's."""
    model, module = prepared()
    assert [id(parameter) for parameter in model.parameters()] == [id(parameter) for parameter in module.parameters()]


def test_modes_are_the_users() -> None:
    """Preparing changes no mode, not even that of a frozen part; train() and eval() reach all parts."""
    model, module = prepared()
    assert (model.training, module.training, module.network.training, module.frozen.training) == (
        True,
        True,
        True,
        False,
    )
    model.eval()
    assert not any(part.training for part in model.modules())
    model.train()
    assert all(part.training for part in model.modules())
    module = Custom().eval()
    assert not runtime(precision="bf16-mixed").prepare(module).training


@pytest.mark.parametrize("copy_it", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_stand_alone(copy_it: Callable[[PreparedModule], PreparedModule]) -> None:
    """A copy computes the same from its own parameters, which its attributes and its state are about."""
    model, module = prepared()
    duplicate = copy_it(model)
    inputs = batch()[0]
    assert torch.equal(duplicate(inputs)["outputs"], model(inputs)["outputs"])
    with torch.no_grad():
        duplicate.network[0].weight.zero_()
    assert duplicate.network is not module.network
    assert (duplicate.state_dict()["network.0.weight"] == 0).all()
    assert not torch.equal(duplicate(inputs)["outputs"], model(inputs)["outputs"])


@pytest.mark.parametrize(
    ("name", "computes", "returns"),
    [
        ("16-true", torch.float16, torch.float32),
        ("bf16-true", torch.bfloat16, torch.float32),
        ("16-mixed", torch.float16, torch.float32),
        ("bf16-mixed", torch.bfloat16, torch.float32),
    ],
)
def test_arguments_and_results_are_converted(name: str, computes: torch.dtype, returns: torch.dtype) -> None:
    """Positional and keyword arguments reach forward; it computes in the precision and returns what is widened."""
    model, module = prepared(name)
    seen: list[torch.dtype] = []
    module.network[2].register_forward_hook(lambda part, inputs, output: seen.append(output.dtype))
    outputs = model(batch()[0], double=True)["outputs"]
    assert seen == [computes]
    assert outputs.dtype is returns
    assert torch.equal(outputs, 2 * model(batch()[0])["outputs"])


@pytest.mark.parametrize("name", PRECISIONS)
def test_unwrapping_gives_the_users_own_module(name: str) -> None:
    """Of a prepared module and of one that is not; under a strategy that wraps as well."""
    one = runtime(precision=name)
    module = network()
    assert one.unwrap_model(one.prepare(module)) is module
    assert one.unwrap_model(module) is module


@pytest.mark.parametrize(
    ("dtype", "name", "says"),
    [
        (
            torch.bfloat16,
            "32-true",
            "from bfloat16 to float32, as precision='32-true' requires.* set precision='bf16-true'",
        ),
        (torch.bfloat16, "bf16-mixed", "converted parameters of the model from bfloat16 to float32"),
        (torch.float16, "32-true", "set precision='16-true'"),
        (torch.float64, "32-true", "set precision='64-true'"),
        (torch.bfloat16, "bf16-true", ""),
        (torch.float32, "32-true", ""),
        (torch.float32, "64-true", ""),
    ],
)
def test_a_model_in_another_dtype(dtype: torch.dtype, name: str, says: str, caplog: pytest.LogCaptureFixture) -> None:
    """Parameters that the precision widens take twice the memory: a warning says so once, with the way to keep them."""
    module = network().to(dtype)
    front_end = runtime(precision=name)
    front_end.prepare(module)
    front_end.prepare_model(module, evaluation_mode=True)
    texts = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(texts) == bool(says)
    assert all(re.search(says, text) for text in texts)


def test_unwrapping_what_ddp_wrapped() -> None:
    """The module within DistributedDataParallel, with and without a precision around it."""
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        module = network()
        wrapped: nn.Module = DistributedDataParallel(module)
        one = Runtime(accelerator="cpu", devices=1, strategy="ddp", precision="bf16-mixed")
        assert one.unwrap_model(wrapped) is module
        prepared: nn.Module = PreparedModule(wrapped, module, one._strategy.precision)
        assert one.unwrap_model(prepared) is module
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_module_that_the_user_compiled(name: str) -> None:
    """Compiled before prepare, it computes what it does uncompiled, and comes back from unwrap_model compiled."""
    inputs, _ = batch()
    expected = runtime(precision=name).prepare(network())(inputs)
    compiled = torch.compile(network(), backend="eager")
    one = runtime(precision=name)
    model = one.prepare(compiled)
    assert torch.equal(model(inputs), expected)
    assert one.unwrap_model(model) is compiled


def loss_of(module: Any) -> Any:
    return module(torch.ones(2, 6)).float().mean()


def test_a_prepared_module_that_is_dropped() -> None:
    """Training the module that was passed to prepare is refused in the first backward; the prepared one trains."""
    run, module = runtime(precision="bf16-mixed"), nn.Linear(6, 1)
    run.prepare(module)
    with pytest.raises(ConfigurationError, match=r"gradients of the Linear that was passed to prepare.*model, optim"):
        run.backward(loss_of(module))
    taken = run.prepare(nn.Linear(6, 1))
    run.backward(loss_of(taken))


def test_a_module_that_was_prepared_for_an_evaluation_before() -> None:
    """It may be prepared again, and another may be trained."""
    run, module, other = runtime(precision="bf16-mixed"), nn.Linear(6, 1), nn.Linear(6, 1)
    loss_of(run.prepare(module))
    taken = run.prepare(other)
    loss_of(taken)
    again = run.prepare(module)
    for trained in (taken, again):
        run.backward(loss_of(trained))
    assert run._backward.native is tensor_backward  # the check has ended
