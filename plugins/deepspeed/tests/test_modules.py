"""What the engine makes of modules without an optimizer, and of losses that are scaled; in one process."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch_hal_deepspeed import DeepSpeedStrategy
from torch_hal_deepspeed.library import part

import torch_hal
from torch_hal.errors import ConfigurationError, CoreError

from .conftest import prepared


@pytest.fixture
def float16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine for which DeepSpeed has float16."""
    monkeypatch.setattr(part("accelerator.cpu_accelerator").CPU_Accelerator, "is_fp16_supported", lambda self: True)


@pytest.mark.deepspeed
@pytest.mark.usefixtures("float16")
def test_a_scaled_loss_is_clipped_by_the_engine() -> None:
    """Under 16-mixed a step of SGD is as long as its clipped gradient; the scale is the engine's own affair."""
    strategy = DeepSpeedStrategy(stage=0)
    with torch_hal.Runtime(accelerator="cpu", strategy=strategy, devices=1, precision="16-mixed") as runtime:
        own = nn.Linear(4, 2)
        model, optimizer = runtime.prepare(own, torch.optim.SGD(own.parameters(), lr=1.0))
        before = nn.utils.parameters_to_vector(own.parameters()).detach()
        for _ in range(2):
            runtime.backward(model(torch.ones(1, 4)).sum() / 100)
            runtime.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
        change = nn.utils.parameters_to_vector(own.parameters()).detach() - before
        assert float(change.norm()) == pytest.approx(2 * 0.01, rel=1e-3)


@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_parameters_that_are_unfrozen_later(stage: int) -> None:
    """DeepSpeed would never train them: refused by name, with what to do."""
    with torch_hal.Runtime(accelerator="cpu", strategy=DeepSpeedStrategy(stage=stage), devices=1) as runtime:
        own = nn.Linear(4, 2)
        own.bias.requires_grad_(False)
        model, _ = runtime.prepare(own, torch.optim.SGD(own.parameters(), lr=1.0))
        runtime.backward(model(torch.ones(1, 4)).sum())
        own.bias.requires_grad_(True)
        with pytest.raises(ConfigurationError, match=r"require gradients now: 'bias'.*Set requires_grad before fit or"):
            model(torch.ones(1, 4))


WHOLE = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
INPUTS = torch.ones(3, 4)


@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_group_that_is_added_later(stage: int) -> None:
    """With stage 0 it is trained as by plain torch; else the engine would never step it, and it is refused."""
    with torch_hal.Runtime(accelerator="cpu", strategy=DeepSpeedStrategy(stage=stage), devices=1) as runtime:
        own = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        last = nn.Parameter(torch.ones(3))
        model, optimizer = runtime.prepare(own, torch.optim.SGD(own.parameters(), lr=1.0))
        group = {"params": [last], "lr": 0.5}
        if stage:
            with pytest.raises(ConfigurationError, match=r"would not train.* Add the group before prepare, or set"):
                optimizer.add_param_group(group)
            assert len(optimizer.param_groups) == 1
            return
        optimizer.add_param_group(group)
        runtime.backward(model(torch.ones(1, 4)).sum() + (last * torch.arange(3.0)).sum())
        optimizer.step()
        assert last.tolist() == [1.0, 0.5, 0.0]


@pytest.mark.deepspeed
@pytest.mark.parametrize(("stage", "divided"), [(0, False), (2, False), (3, False), (3, True)])
def test_a_module_runs_without_an_optimizer(stage: int, divided: bool) -> None:
    """Its outputs are the plain module's; an optimizer that comes afterwards is refused under stage 3."""
    torch.manual_seed(0)
    plain = nn.Linear(4, 2)
    expected = plain(INPUTS).detach()
    with torch_hal.Runtime(accelerator="cpu", strategy=DeepSpeedStrategy(stage=stage), devices=1) as runtime:
        torch.manual_seed(0)
        runtime.launch()
        strategy: Any = runtime.strategy
        with strategy.init_module() if divided else nullcontext():
            own = nn.Linear(4, 2)
        model = runtime.prepare(own)
        for context in (torch.inference_mode, torch.no_grad):
            with context():
                assert torch.equal(model(INPUTS), expected)
        assert str(inspect.signature(model)) == "(*args: 'Any', **kwargs: 'Any') -> 'Any'"
        # What is made in inference mode can be given no new weights outside of it.
        assert not any(getattr(held, "ds_tensor", held).is_inference() for held in own.parameters())
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
        if stage < 3:
            runtime.prepare(optimizer)
        else:
            with pytest.raises(CoreError, match="its module has run without it"):
                runtime.prepare(optimizer)


@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", [0, 3])
def test_hooks_of_the_prepared_module(stage: int) -> None:
    """Those of forward and backward passes run once a pass, whenever they are registered."""
    with torch_hal.Runtime(accelerator="cpu", strategy=DeepSpeedStrategy(stage=stage), devices=1) as runtime:
        own = nn.Linear(4, 2)
        model = runtime.prepare(own)
        ran: list[str] = []

        def note(kind: str) -> Any:
            return lambda *_: ran.append(kind)

        model.register_forward_pre_hook(note("before forward"))
        handle = model.register_forward_hook(note("after forward"))
        optimizer = runtime.prepare(torch.optim.SGD(own.parameters(), lr=0.1))
        model.register_full_backward_pre_hook(note("before backward"))
        model.register_full_backward_hook(note("after backward"))
        runtime.backward(model(INPUTS.clone().requires_grad_()).sum())
        optimizer.step()
        assert ran == ["before forward", "after forward", "before backward", "after backward"]
        handle.remove()
        model(INPUTS)
        assert ran[4:] == ["before forward"]


class Averaging(torch.optim.SGD):
    """An optimizer with a mode, as those that average weights have."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.is_training = False

    def train(self) -> str:
        """Go over to training."""
        self.is_training = True
        return "trains"


@pytest.mark.deepspeed
def test_what_else_an_optimizer_has_is_its_own() -> None:
    """Methods, attributes and groups, to be read and to be set; what it lacks, the prepared one lacks."""
    with torch_hal.Runtime(accelerator="cpu", strategy="deepspeed", devices=1) as runtime:
        own = Averaging((network := nn.Linear(4, 2)).parameters())
        model, optimizer = runtime.prepare(network, own)
        assert optimizer.train() == "trains"
        assert (own.is_training, optimizer.is_training) == (True, True)
        optimizer.is_training = False
        assert not own.is_training
        optimizer.param_groups[0]["lr"] = 0.7
        assert own.param_groups[0]["lr"] == 0.7
        assert optimizer.state is own.state
        assert optimizer.defaults["lr"] == 0.1
        assert not hasattr(optimizer, "eval")
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        runtime.backward(model(INPUTS).sum())
        optimizer.step()
        schedule.step()
        assert own.param_groups[0]["lr"] == pytest.approx(0.35)


@pytest.mark.deepspeed
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo, at DeepSpeed's hooks
def test_a_prepared_module_is_compiled() -> None:
    """``model.compile`` takes effect on the engine's calls."""
    graphs: list[Any] = []

    def note(graph: Any, examples: Any) -> Any:
        del examples
        graphs.append(graph)
        return graph.forward

    with torch_hal.Runtime(accelerator="cpu", strategy="deepspeed_stage_1", devices=1) as runtime:
        own = nn.Linear(4, 2)
        model, _ = runtime.prepare(own, torch.optim.SGD(own.parameters(), lr=0.1))
        model.compile(backend=note)
        assert torch.equal(model(INPUTS), nn.functional.linear(INPUTS, own.weight, own.bias))
        assert graphs


@pytest.mark.deepspeed
def test_a_divided_module_without_trainable_parameters() -> None:
    """It is gathered as it runs, like any other."""
    with torch_hal.Runtime(accelerator="cpu", strategy="deepspeed_stage_3", devices=1) as runtime:
        runtime.launch()
        strategy: Any = runtime.strategy
        with strategy.init_module():
            own = nn.Linear(4, 2).requires_grad_(False)
        model = runtime.prepare(own)
        weights = strategy.whole_module_state(own)
        with torch.no_grad():
            assert torch.equal(model(INPUTS), nn.functional.linear(INPUTS, *map(weights.get, ("weight", "bias"))))


@pytest.mark.deepspeed
def test_a_module_divided_in_an_earlier_run() -> None:
    """It runs in a later one with the weights that it was trained to, and is refused by name for training."""
    arguments: dict[str, Any] = {"accelerator": "cpu", "devices": 1}
    own = nn.Linear(4, 2)
    with torch_hal.Runtime(strategy=DeepSpeedStrategy(stage=3, config=WHOLE), **arguments) as runtime:
        model, optimizer = runtime.prepare(own, torch.optim.SGD(own.parameters(), lr=0.1))
        runtime.backward(model(INPUTS).sum())
        optimizer.step()
        weights = runtime.strategy.whole_module_state(own)
    expected = nn.functional.linear(INPUTS, weights["weight"], weights["bias"])
    with torch_hal.Runtime(strategy=DeepSpeedStrategy(stage=3, config=WHOLE), **arguments) as runtime, torch.no_grad():
        assert torch.equal(runtime.prepare(own)(INPUTS), expected)
    for stage, reason in ((3, "it was divided in an earlier run.*Valid: a new module"), (2, "divides no parameters")):
        with torch_hal.Runtime(strategy=DeepSpeedStrategy(stage=stage), **arguments) as runtime:
            optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
            with pytest.raises(CoreError, match=f"module: .*{reason}"):
                runtime.prepare(own, optimizer)


@pytest.mark.deepspeed
def test_a_run_in_autocast_leaves_nothing_of_it() -> None:
    """DeepSpeed notes in a global that it computes in autocast, by which engines of later runs would go."""
    for precision in ("bf16-mixed", "32-true"):
        with torch_hal.Runtime(accelerator="cpu", strategy="deepspeed", devices=1, precision=precision) as runtime:
            prepared(runtime)
            assert part("runtime.torch_autocast").is_autocast_initialized() is (precision == "bf16-mixed")


@pytest.mark.deepspeed
@pytest.mark.usefixtures("float16")
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_scaled_loss_is_refused_under_zero(stage: int) -> None:
    """There DeepSpeed's autocast to float16 takes no step after an overflow, and clips what is scaled."""
    arguments: list[dict[str, Any]] = [
        {"strategy": DeepSpeedStrategy(stage=stage), "precision": "16-mixed"},
        {"strategy": DeepSpeedStrategy(stage=stage, config={"torch_autocast": {"enabled": True, "dtype": "float16"}})},
    ]
    for given in arguments:
        with pytest.raises(CoreError, match=f"'16-mixed' with stage={stage}.*stage=0.*'16-true'"):
            torch_hal.Runtime(accelerator="cpu", devices=2, **given)


@pytest.mark.deepspeed
@pytest.mark.usefixtures("float16")
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("clip", [None, 0.01])
def test_a_scale_of_the_configs_is_undone(stage: int, clip: float | None) -> None:
    """A step of 16-true is as long as without a scale, clipped or not."""
    lengths = []
    for scale in (1, 256):
        strategy = DeepSpeedStrategy(stage=stage, config={"fp16": {"enabled": True, "loss_scale": scale}})
        with torch_hal.Runtime(accelerator="cpu", strategy=strategy, devices=1) as runtime:
            own = nn.Linear(4, 2)
            model, optimizer = runtime.prepare(own, torch.optim.SGD(own.parameters(), lr=1.0))
            before = {name: value.clone() for name, value in runtime.strategy.whole_module_state(own).items()}
            runtime.backward(model(torch.ones(1, 4)).sum() / 10)
            if clip is not None:
                runtime.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            after = runtime.strategy.whole_module_state(own)
            lengths.append(float(torch.cat([(after[name] - before[name]).flatten() for name in before]).norm()))
    assert lengths == pytest.approx(2 * [clip or 0.1 * 10**0.5], rel=0.02)


@pytest.mark.deepspeed
@pytest.mark.usefixtures("float16")
@pytest.mark.parametrize("section", [{}, {"loss_scale": 0}, {"loss_scale": 256}])
def test_a_scale_without_zero_is_refused(section: dict[str, Any]) -> None:
    """There DeepSpeed divides gradients by it, and does not scale the loss."""
    strategy = DeepSpeedStrategy(stage=0, config={"fp16": {"enabled": True, **section}})
    with pytest.raises(CoreError, match=r"config\['fp16'\] with stage=0.*Set 'loss_scale': 1"):
        torch_hal.Runtime(accelerator="cpu", devices=2, strategy=strategy)


@pytest.mark.deepspeed
def test_accumulation_in_the_config_of_an_own_loop_is_refused() -> None:
    """An own loop says itself when it steps."""
    strategy = DeepSpeedStrategy(config={"gradient_accumulation_steps": 4})
    with torch_hal.Runtime(accelerator="cpu", strategy=strategy, devices=1) as runtime:
        model, _ = prepared(runtime)
        with pytest.raises(CoreError, match="gradient_accumulation_steps"):
            runtime.backward(model(torch.ones(1, 4)).sum())


@pytest.mark.deepspeed
def test_the_prepared_module_has_each_parameter_once() -> None:
    """Before and after there is an engine, the prepared module has the names of the user's own, each once."""
    with torch_hal.Runtime(accelerator="cpu", strategy="deepspeed", devices=1) as runtime:
        own = nn.Linear(4, 2)
        model = runtime.prepare(own)
        assert sorted(model.state_dict()) == ["bias", "weight"]
        runtime.prepare(torch.optim.SGD(own.parameters(), lr=0.1))
        assert sorted(model.state_dict()) == ["bias", "weight"]
        assert runtime.unwrap_model(model) is own


@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_step_starts_no_program(stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed asks no one how many processes a machine has: it is told, for as long as the run lasts."""
    started: list[Any] = []
    with torch_hal.Runtime(accelerator="cpu", strategy=DeepSpeedStrategy(stage=stage), devices=1) as runtime:
        model, optimizer = prepared(runtime)
        monkeypatch.setattr(part("utils.numa").subprocess, "Popen", lambda *arguments, **_: started.append(arguments))
        runtime.backward(model(INPUTS).sum())
        optimizer.step()
    assert not started
    assert "LOCAL_SIZE" not in os.environ


class Feed(nn.Module):
    """Two layers, the second of which needs the first one's result in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        result: Tensor = x + scale * self.layers(x)
        return result


@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", [2, 3])
def test_recomputed_activations_train_as_plain_torch(stage: int) -> None:
    """Three steps of a model whose parts recompute their forward pass end where the plain model does."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), Feed(), Feed(), nn.Linear(8, 1))

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, backward: Callable[[Tensor], object]) -> list[float]:
        losses = []
        for step in range(3):
            loss = model(torch.ones(3, 4) + step).square().mean()
            backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    plain = model()
    expected = train(plain, torch.optim.SGD(plain.parameters(), lr=0.1), torch.autograd.backward)
    strategy = DeepSpeedStrategy(stage=stage, activation_checkpointing=[Feed], config=WHOLE)
    with torch_hal.Runtime(accelerator="cpu", strategy=strategy, devices=1) as runtime:
        own = model()
        prepared_model, optimizer = runtime.prepare(own, torch.optim.SGD(own.parameters(), lr=0.1))
        assert train(prepared_model, optimizer, runtime.backward) == pytest.approx(expected, rel=1e-5)


@pytest.mark.deepspeed
def test_options_of_recomputing_are_refused_under_stage_3() -> None:
    """There torch's function recomputes, which has none of them."""
    config = {"activation_checkpointing": {"cpu_checkpointing": True}}
    strategy = DeepSpeedStrategy(stage=3, activation_checkpointing=[Feed], config=config)
    with (
        torch_hal.Runtime(accelerator="cpu", strategy=strategy, devices=1) as runtime,
        pytest.raises(CoreError, match=r"'cpu_checkpointing'.*stage=3"),
    ):
        runtime.prepare(Feed())


@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("max_norm", [0.01, 1e6])
def test_clipping_tells_the_norm_after_the_step(stage: int, max_norm: float) -> None:
    """It is the plain module's norm before clipping, whether or not anything is clipped."""
    plain = nn.Linear(4, 1)
    plain(INPUTS).sum().backward()
    expected = nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None])
    with torch_hal.Runtime(accelerator="cpu", strategy=DeepSpeedStrategy(stage=stage), devices=1) as runtime:
        own = nn.Linear(4, 1)
        model, optimizer = runtime.prepare(own, torch.optim.SGD(own.parameters(), lr=0.1))
        runtime.backward(model(INPUTS).sum())
        norm = runtime.clip_grad_norm_(model.parameters(), max_norm)
        assert norm is not None
        assert norm.isnan()
        optimizer.step()
        assert norm.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.deepspeed
def test_a_prepared_module_can_be_copied_unless_it_is_sharded() -> None:
    """AveragedModel takes it; its copy is the plain module. Under stage 3 the error says what to do, also for parts."""
    for stage in (2, 3):
        with torch_hal.Runtime(accelerator="cpu", strategy=DeepSpeedStrategy(stage=stage), devices=1) as runtime:
            own = nn.Linear(4, 2)
            expected = own(INPUTS).detach()
            model, _ = runtime.prepare(own, torch.optim.SGD(own.parameters(), lr=0.1))
            if stage == 2:
                assert torch.equal(AveragedModel(model)(INPUTS), expected)
            else:
                for each in (model, own, own.weight):
                    with pytest.raises(CoreError, match=r"'weight' is sharded.*stage=2 or less.*get_state_dict"):
                        copy.deepcopy(each)
                with pytest.raises(CoreError, match="stage=2 or less"):
                    AveragedModel(own)


class Averaged(nn.Module):
    """Has the average of a part of it, as torch's documentation makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.average = AveragedModel(self.layer).requires_grad_(False)

    def forward(self, data: Tensor) -> Tensor:
        """Of the part itself."""
        return cast("Tensor", self.layer(data))


@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", [2, 3])
def test_a_module_that_averages_a_part_of_itself(stage: int) -> None:
    """The average is right after each step; stage 3, under which it would stay as it was, refuses the module."""
    with torch_hal.Runtime(
        accelerator="cpu", strategy=DeepSpeedStrategy(stage=stage, config=WHOLE), devices=1
    ) as runtime:
        own = Averaged()
        if stage == 3:
            with pytest.raises(CoreError, match=r"Averaged has an AveragedModel, 'average'.*stage=2 or less"):
                runtime.prepare(own, torch.optim.SGD(own.layer.parameters(), lr=0.1))
            return
        model, optimizer = runtime.prepare(own, torch.optim.SGD(own.layer.parameters(), lr=0.1))
        weights = []
        for _ in range(3):
            runtime.backward(model(INPUTS).sum())
            optimizer.step()
            own.average.update_parameters(own.layer)
            weights.append(own.layer.weight.detach().clone())
        assert torch.allclose(next(own.average.parameters()), torch.stack(weights).mean(0))


class Classifier(nn.Module):
    """With a method of its own, as models of transformers have ``generate``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.layer(inputs)
        return scores

    def generate(self, inputs: Tensor) -> Tensor:
        best: Tensor = self(inputs).argmax(1)
        return best


@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", [1, 3])
def test_a_models_own_methods_and_its_whole_weights(stage: int) -> None:
    """The prepared module has the user's methods, and get_state_dict gives what the plain module would save."""
    with torch_hal.Runtime(
        accelerator="cpu", strategy=DeepSpeedStrategy(stage=stage, config=WHOLE), devices=1
    ) as runtime:
        own = Classifier()
        weights = {name: value.clone() for name, value in own.state_dict().items()}
        expected = own.generate(INPUTS)
        model, _ = runtime.prepare(own, torch.optim.SGD(own.parameters(), lr=0.1))
        assert torch.equal(model.generate(INPUTS), expected)
        state = runtime.get_state_dict(model)
        assert state.keys() == weights.keys()
        assert all(torch.equal(state[name], weights[name]) for name in weights)


class Parts(torch_hal.Module):
    """Two layers, of which the first may be loaded alone."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(4, 2), nn.Linear(4, 2)


@pytest.mark.deepspeed
@pytest.mark.parametrize("stage", [2, 3])
def test_without_strict_loading_the_names_that_both_have_are_loaded(stage: int) -> None:
    """With it, others are refused."""
    strategy = DeepSpeedStrategy(stage=stage, config=WHOLE if stage == 3 else None)
    with torch_hal.Runtime(accelerator="cpu", strategy=strategy, devices=1) as runtime:
        own = Parts()
        before, given = own.other.weight.detach().clone(), {"own.weight": torch.ones(2, 4), "unknown": torch.ones(1)}
        runtime.prepare(own, torch.optim.SGD(own.parameters(), lr=1.0))
        with pytest.raises(RuntimeError, match="unknown"):
            strategy.load_module_state(own, given)
        own.strict_loading = False
        strategy.load_module_state(own, given)
        weights = strategy.whole_module_state(own)
        assert torch.equal(weights["own.weight"], given["own.weight"])
        assert torch.equal(weights["other.weight"], before)
