"""Running a module on two simulated devices at once."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch_hal_cuda.parallel import DataParallel
from torch_hal_cuda.parallel.gather import gather
from torch_hal_cuda.parallel.replicate import replicate
from torch_hal_cuda.parallel.scatter import scatter

from torch_hal.errors import ConfigurationError, WrongTypeError
from torch_hal.strategies.wrapping import move_module

from .conftest import needs_compiler

pytestmark = needs_compiler

DEVICES = [torch.device("acme:0"), torch.device("acme:1")] if torch._C._get_privateuse1_backend_name() == "acme" else []


def _select(device: torch.device) -> None:
    torch.get_device_module(device).set_device(device.index)


def _parallel(module: nn.Module) -> DataParallel:
    return DataParallel(move_module(module, DEVICES[0]), DEVICES, _select)


class Pair(NamedTuple):
    one: Any
    other: Any


@dataclasses.dataclass(frozen=True)
class Record:
    logits: Any
    note: Any = None


class TestScatter:
    @pytest.mark.parametrize(("items", "sizes"), [(8, [4, 4]), (5, [3, 2]), (1, [1])])
    def test_sizes(self, items: int, sizes: list[int]) -> None:
        """Parts differ by one item at most, and no part is empty."""
        whole = torch.arange(items * 2.0).reshape(items, 2)
        parts, found = scatter(whole, DEVICES)
        assert found == sizes
        assert [part.device for part in parts] == DEVICES[: len(sizes)]
        assert torch.equal(torch.cat([part.cpu() for part in parts]), whole)

    def test_nested(self) -> None:
        """Structures keep their form; what has no items goes to each device as it is."""
        batch = {"x": [torch.arange(4), Pair(torch.ones(4, 3), "text")], "scale": torch.tensor(2.0), "n": 7}
        parts, sizes = scatter((batch,), DEVICES)
        assert sizes == [2, 2]
        for number, (part,) in enumerate(parts):
            assert part["x"][0].tolist() == [2 * number, 2 * number + 1]
            assert isinstance(part["x"][1], Pair)
            assert (part["x"][1].one.shape, part["x"][1].other) == ((2, 3), "text")
            assert (part["scale"].item(), part["scale"].device) == (2.0, DEVICES[number])
            assert part["n"] == 7

    def test_nothing_to_split(self) -> None:
        """Without any item there is one part."""
        assert scatter(({"n": 1},), DEVICES) == ([({"n": 1},)], [1])

    @pytest.mark.parametrize(
        ("batch", "error", "said"),
        [
            ([torch.ones(4), torch.ones(3)], ConfigurationError, "first dimensions of its tensors are '3', '4'"),
            ([torch.ones(0, 2)], ConfigurationError, "first dimensions of its tensors are '0'"),
            (
                {"x": (nn.utils.rnn.pack_sequence([torch.ones(2)]),)},
                WrongTypeError,
                "a PackedSequence cannot be split",
            ),
        ],
    )
    def test_what_cannot_be_split(self, batch: Any, error: type[Exception], said: str) -> None:
        """Tensors of several sizes, empty ones and packed sequences are refused by name."""
        with pytest.raises(error, match=said):
            scatter(batch, DEVICES)


class TestGather:
    def test_structures(self) -> None:
        """Tensors are joined in order, scalars and numbers become vectors, other objects lists; types stay."""
        outputs = [
            {
                "pair": Pair(torch.full((size, 2), float(size), device=device), None),
                "record": Record(torch.tensor(float(size), device=device), [size]),
                "text": f"on {device}",
            }
            for size, device in zip((3, 1), DEVICES, strict=True)
        ]
        joined = gather(outputs, DEVICES[0])
        assert isinstance(joined["pair"], Pair)
        assert joined["pair"].one[:, 0].tolist() == [3, 3, 3, 1]
        assert joined["pair"].one.device == DEVICES[0]
        assert joined["pair"].other is None
        assert isinstance(joined["record"], Record)
        assert joined["record"].logits.tolist() == [3, 1]
        assert joined["record"].note[0].tolist() == [3, 1]
        assert joined["text"] == ["on acme:0", "on acme:1"]

    def test_mappings_keep_what_else_they_hold(self) -> None:
        """A mapping of the user's class is joined into one of that class."""
        outputs: list[Any] = [collections.defaultdict(int) for _ in DEVICES]
        for output, device in zip(outputs, DEVICES, strict=True):
            output["n"] = torch.ones(1, device=device)
        joined = gather(outputs, DEVICES[0])
        assert joined.default_factory is int
        assert joined["n"].tolist() == [1, 1]

    @pytest.mark.parametrize(
        ("outputs", "said"),
        [
            ([{"a": 1}, {"b": 1}], "part 0: dict with 'a'; part 1: dict with 'b'"),
            ([None, 1], "part 0: NoneType; part 1: int"),
            ([torch.ones(2), None], "part 0: Tensor; part 1: NoneType"),
            ([torch.ones(2, 3), torch.ones(2, 4)], r"part 0: \(2, 3\), torch.float32; part 1: \(2, 4\)"),
            ([torch.ones(2), torch.ones(2).half()], "torch.float16"),
            ([torch.ones(()), torch.ones(2)], r"part 0: \(\), "),
        ],
    )
    def test_different_forms(self, outputs: list[Any], said: str) -> None:
        """Outputs that cannot be joined are refused, with what each part gave."""
        with pytest.raises(ConfigurationError, match=said):
            gather(outputs, torch.device("cpu"))


class Tangled(nn.Module):
    """Holds references of every kind to its own parts."""

    calls: Tensor
    hidden: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(3))])
        self.register_buffer("calls", torch.zeros(()))
        self.rnn = nn.RNN(3, 3, batch_first=True)
        self.act = self._act
        self.stages = [self.first, self.second]
        self.by_name = {"first": self.first}
        self.__dict__["hidden"] = self.second
        self.counted = 0

    def _act(self, inputs: Tensor) -> Tensor:
        return torch.tanh(inputs * self.scales[0])

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        self.counted += 1
        for stage in self.stages:
            inputs = self.act(stage(inputs))
        output: Tensor = self.rnn(self.hidden(self.by_name["first"](inputs)).unsqueeze(1))[0].squeeze(1)
        return output


class TestReplicate:
    def test_a_replica_is_all_on_its_device(self) -> None:
        """Parameters, buffers and all references among the parts are the replica's own; the original is untouched."""
        module: Any = move_module(Tangled(), DEVICES[0])
        replica: Any = replicate(module, DEVICES[1])
        assert {tensor.device for tensor in (*replica.parameters(), *replica.buffers())} == {DEVICES[1]}
        assert len(list(replica.parameters())) == len(list(module.parameters()))
        assert replica.first.weight is replica.second.weight
        assert replica.stages == [replica.first, replica.second]
        assert (replica.hidden, replica.by_name["first"]) == (replica.second, replica.first)
        inputs = torch.ones(2, 3)
        assert torch.equal(replica(inputs.to(DEVICES[1])).cpu(), module(inputs.to(DEVICES[0])).cpu())
        assert module.calls.item() == replica.calls.item() == 1
        replica.first.extra = nn.Linear(1, 1)
        assert "first.extra" not in dict(module.named_modules())

    def test_scripted_modules_are_refused(self) -> None:
        """A scripted module, whose parts cannot be exchanged, is refused by name."""
        with pytest.warns(DeprecationWarning, match="torch.jit.script"):
            scripted = torch.jit.script(nn.Linear(2, 2))
        with pytest.raises(WrongTypeError, match="module '0': a ScriptModule"):
            DataParallel(nn.Sequential(scripted), DEVICES, _select)


class TestDataParallel:
    @pytest.mark.parametrize("items", [8, 5, 1])
    def test_gradients_are_those_of_the_whole_batch(self, items: int) -> None:
        """Outputs and gradients, of inputs too, equal those of the module on the CPU."""
        torch.manual_seed(0)
        plain, split = Tangled(), Tangled()
        split.load_state_dict(plain.state_dict())
        parallel = _parallel(split)
        inputs = torch.randn(items, 3)
        results = []
        for module, device in ((plain, torch.device("cpu")), (parallel, DEVICES[0])):
            own = inputs.clone().to(device).requires_grad_()
            output = module(own)
            output.square().sum().backward()
            results.append([output, own.grad, *(parameter.grad for parameter in module.parameters())])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other.cpu())

    def test_the_first_part_is_the_modules_own(self) -> None:
        """Buffers and attributes that a call changes are those of the first part, as with torch's DataParallel."""
        module = nn.BatchNorm1d(3)
        parallel = _parallel(module)
        inputs = torch.randn(8, 3)
        parallel(inputs.to(DEVICES[0]))
        alone = nn.BatchNorm1d(3)
        alone(inputs[:4])
        torch.testing.assert_close(module.running_mean.cpu(), alone.running_mean)  # type: ignore[union-attr]
        assert module.num_batches_tracked.item() == 1  # type: ignore[union-attr]
        tangled = Tangled()
        _parallel(tangled)(inputs.to(DEVICES[0]))
        assert tangled.counted == 1

    def test_parts_run_at_the_same_time(self) -> None:
        """Each part has its own thread: parts that wait for one another come through."""
        barrier = threading.Barrier(2, timeout=30)

        class Meeting(nn.Module):
            def forward(self, inputs: Tensor) -> Tensor:
                barrier.wait()
                return inputs

        assert _parallel(Meeting())(torch.arange(4, device=DEVICES[0])).tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        "mode",
        [
            torch.no_grad,
            torch.inference_mode,
            lambda: torch.autocast("acme", dtype=torch.bfloat16),
            lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        ],
        ids=["no_grad", "inference_mode", "autocast", "autocast of the host"],
    )
    def test_modes_reach_every_part(self, mode: Callable[[], Any]) -> None:
        """Gradient mode, inference mode and autocast are in the other threads as they are in the caller's."""

        class Modes(nn.Module):
            def forward(self, inputs: Tensor) -> Any:
                linear = nn.functional.linear(inputs, inputs)
                return {
                    "modes": torch.is_grad_enabled() * 2 + torch.is_inference_mode_enabled(),
                    "host": torch.is_autocast_enabled("cpu"),
                    "dtype": str(linear.dtype),
                    "current": torch.get_device_module("acme").current_device(),
                }

        parallel = _parallel(Modes())
        with mode():
            seen = parallel(torch.ones(2, 2, device=DEVICES[0]))
        assert len(set(seen["modes"].tolist())) == len(set(seen["host"].tolist())) == len(set(seen["dtype"])) == 1
        assert seen["current"].tolist() == [0, 1]
        assert (seen["dtype"][0] == "torch.bfloat16") == ("acme" in str(mode().__dict__.get("device", "")))

    def test_errors_name_the_device(self) -> None:
        """An error in a replica is raised as it is, with the device as a note, after all parts have ended."""

        class Failing(nn.Module):
            def forward(self, inputs: Tensor) -> Tensor:
                if inputs.device.index == 1:
                    raise KeyError("lost")
                return inputs

        with pytest.raises(KeyError, match="lost") as caught:
            _parallel(Failing())(torch.ones(4, device=DEVICES[0]))
        assert caught.value.__notes__ == ["raised in the replica on device 'acme:1'"]

    def test_losses_of_another_shape_are_refused(self) -> None:
        """A loss that is not a scalar of each part is refused rather than averaged over something."""
        parallel = _parallel(nn.Identity())
        output = parallel(torch.ones(4, 2, device=DEVICES[0]))
        with pytest.raises(ConfigurationError, match=r"loss: of shape \(4, 2\).*2 part\(s\)"):
            parallel.mean_over_parts(output)
