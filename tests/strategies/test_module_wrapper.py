"""A strategy that wraps modules in a :class:`core.strategies.ModuleWrapper`, and overrides nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from core import Runtime
from core.strategies import InferenceModule, ModuleWrapper, SingleDeviceStrategy


class Negated(ModuleWrapper):
    """Negates the inputs."""

    def forward(self, inputs: Tensor) -> Any:
        return self.module(-inputs)


class Doubled(ModuleWrapper):
    """Doubles the output."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return 2 * super().forward(*args, **kwargs)


class Wraps(SingleDeviceStrategy):
    """Wraps a module twice."""

    def setup_module(self, module: nn.Module) -> nn.Module:
        return Doubled(Negated(super().setup_module(module)))


class Net(nn.Module):
    """With an attribute and a method of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.linear, self.width = nn.Dropout(), nn.Linear(3, 2), 3

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(self.dropout(inputs))  # type: ignore[no-any-return]


def test_the_wrapper_runs_and_the_user_s_module_is_found_inside() -> None:
    """The prepared module gives the wrapped result, and has the attributes and the state of the user's module."""
    module = Net()
    module.dropout.eval()
    runtime = Runtime(accelerator="cpu", devices=1, strategy=Wraps())
    model = runtime.prepare(module)
    inputs = torch.randn(4, 3)
    torch.testing.assert_close(model(inputs), 2 * module.linear(-inputs), rtol=0, atol=0)
    assert (model.width, list(model.state_dict())) == (3, ["linear.weight", "linear.bias"])
    assert runtime.unwrap_model(model) is module
    assert runtime.strategy.unwrap_module(runtime.strategy_module(model)) is module
    assert runtime.strategy.unwrap_module(module) is module
    assert (model.training, module.dropout.training) == (True, False), "a part in eval mode stays in it"
    assert not model.eval().linear.training
    runtime.teardown()


def test_it_begins_in_the_mode_of_the_module() -> None:
    """And so does what core itself wraps for inference, which is found through as well."""
    module = Net().eval()
    inference = InferenceModule(Negated(module))
    assert (Negated(module).training, inference.training) == (False, False)
    assert Wraps().unwrap_module(inference) is module
