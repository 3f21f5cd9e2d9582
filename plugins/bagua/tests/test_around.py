"""What is called around a module's forward pass, and what the module is to its user meanwhile."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_hal_bagua.around import call_around_forward

from torch_hal import Runtime


class Doubled(nn.Module):
    """Its weight times its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 2.0))

    def forward(self, inputs: Tensor, *, negate: bool = False) -> Tensor:
        """With its own keyword."""
        return inputs * self.weight * (-1 if negate else 1)


def _watched() -> tuple[Doubled, list[str], Callable[[], None]]:
    module, called = Doubled(), list[str]()
    end = call_around_forward(module, lambda: called.append("before"), lambda: called.append("after"))
    return module, called, end


def _pickled(module: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(module))


def _saved(module: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


ONE = torch.ones(1)


def test_both_are_called_and_the_forward_pass_is_the_modules() -> None:
    """In order, with the arguments passed on; no one else sees a difference, and afterwards there is none."""
    module, called, end = _watched()
    module.register_forward_hook(lambda *_: called.append("hook of the user's"))
    assert module(ONE, negate=True).item() == -2
    assert called == ["before", "after", "hook of the user's"]
    assert inspect.signature(module.forward) == inspect.signature(Doubled().forward)
    end()
    assert module(ONE).item() == 2
    assert called == ["before", "after", "hook of the user's", "hook of the user's"]
    assert "forward" not in vars(module)


def test_a_forward_pass_that_raises() -> None:
    """What comes after it is called all the same, and the error is the module's."""
    module, called, _ = _watched()
    with pytest.raises(TypeError, match="nonsense"):
        module(ONE, nonsense=1)
    assert called == ["before", "after"]


@pytest.mark.parametrize("copied", [copy.deepcopy, _pickled, _saved])
def test_copies_are_on_their_own(copied: Callable[[nn.Module], Any]) -> None:
    """A copy, as for an average of weights, computes with its own weights and calls no one."""
    module, called, _ = _watched()
    own = copied(module)
    with torch.no_grad():
        own.weight.fill_(5)
    assert own(ONE).item() == 5
    assert called == []
    assert module(ONE).item() == 2
    assert called == ["before", "after"]


def test_a_forward_of_one_instance() -> None:
    """Where the user has given this one module another forward, that is what runs, and what is left in the end."""
    module, called = Doubled(), list[str]()
    module.forward = own = lambda inputs: inputs * 7  # type: ignore[assignment]
    end = call_around_forward(module, lambda: called.append("before"), None)
    assert module(ONE).item() == 7
    assert called == ["before"]
    assert copy.deepcopy(module)(ONE).item() == 7
    assert called == ["before"]
    end()
    assert module.forward is own


def test_a_forward_put_around_it_stays() -> None:
    """One that somebody puts around it later goes on after the end, and calls no one any more."""
    module, called, end = _watched()
    inner = module.forward
    module.forward = outer = lambda inputs: inner(inputs) + 1  # type: ignore[assignment]
    assert module(ONE).item() == 3
    assert called == ["before", "after"]
    end()
    assert module.forward is outer
    assert module(ONE).item() == 3
    assert called == ["before", "after"]


@pytest.mark.parametrize(
    ("name", "is_watched"), [("low_precision_decentralized", False), ("decentralized", True), ("async", True)]
)
def test_only_what_an_algorithm_has_a_use_for(name: str, is_watched: bool) -> None:
    """A module's calls never take torch's long way, past hooks; after the run all is as it was, and steps are plain."""
    net = torch.nn.Linear(2, 2)
    with Runtime(accelerator="cpu", devices=1, strategy=f"bagua_{name}") as runtime:
        model, optimizer = runtime.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        assert ("forward" in vars(net)) is is_watched
        assert not net._forward_pre_hooks
        assert not net._forward_hooks
    assert "forward" not in vars(net)
    before = net.bias.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert torch.equal(net.bias, before - 0.1)


@pytest.mark.parametrize("name", ["decentralized", "async"])
@pytest.mark.parametrize("how", ["compiled first", "compiled later", "in place", "exported"])
def test_compiled(name: str, how: str) -> None:
    """torch's compiler takes the module before or after it is prepared, and trains it to the plain loop's weights."""
    torch._dynamo.reset()

    def trained(prepare: Callable[[nn.Module, Any], tuple[Any, Any]], backward: Callable[[Tensor], None]) -> Tensor:
        module = Doubled()
        model, optimizer = prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
        for _ in range(3):
            optimizer.zero_grad()
            backward(model(ONE).square().sum())
            optimizer.step()
            with torch.no_grad():
                assert model(ONE).item() == module.weight.item()
        return module.weight.detach()

    expected = trained(lambda module, optimizer: (module, optimizer), torch.autograd.backward)
    with Runtime(accelerator="cpu", devices=1, strategy=f"bagua_{name}") as runtime:

        def prepare(module: nn.Module, optimizer: Any) -> tuple[Any, Any]:
            if how == "compiled first":
                model, optimizer = runtime.prepare(torch.compile(module, backend="eager"), optimizer)
                return model, optimizer
            model, optimizer = runtime.prepare(module, optimizer)
            if how == "compiled later":
                model = torch.compile(model, backend="eager")
            elif how == "in place":
                model.compile(backend="eager")
            else:
                assert torch.export.export(module, (ONE,)).module()(ONE).item() == 2
            return model, optimizer

        assert torch.equal(trained(prepare, runtime.backward), expected)
