"""The simulated cards in one process."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import copy
import gc
import io
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_acme
from torch import Tensor, nn
from torch.utils.data import DataLoader

from .training import OPTIMIZERS, losses

_FIRST, _SECOND = torch.device("acme:0"), torch.device("acme:1")
_acme: Any = torch.get_device_module(torch_acme.DEVICE_TYPE)


@pytest.fixture(autouse=True)
def _first_device_again() -> Iterator[None]:
    yield
    _acme.set_device(0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("device", [_FIRST, _SECOND], ids=str)
def test_training_equals_the_cpu(device: torch.device, optimizer: str) -> None:
    """Training on either card gives the losses of the CPU bit for bit, and the losses fall."""
    seen = losses(str(device), optimizer)
    assert seen == losses("cpu", optimizer)
    assert seen[-1] < seen[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_equals_the_cpu(dtype: torch.dtype) -> None:
    """Autocast on a card, with scaled losses in float16, gives the losses of autocast on the CPU, and not fp32's."""
    seen = losses("acme:1", autocast=dtype)
    assert seen == losses("cpu", autocast=dtype)
    assert seen != losses("acme:1")


def test_a_step_with_infinite_gradients_is_left_out() -> None:
    """torch's gradient scaler finds them on a card, and halves its scale."""
    scaler = torch.amp.GradScaler("acme", init_scale=8.0)
    parameter = nn.Parameter(torch.ones(2, device=_SECOND))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    scaler.scale((parameter * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [1.0, 1.0]
    assert scaler.get_scale() == 4.0


@pytest.mark.parametrize(
    "function",
    [
        lambda t: t[1],
        lambda t: t[t > 4],
        lambda t: t[[0, 2]],
        lambda t: t.T.contiguous(),
        lambda t: t.view(-1)[3:],
        lambda t: t.unfold(1, 2, 1),
        lambda t: torch.cat([t, t], dim=1),
        lambda t: t.unbind(1)[2],
        lambda t: t.topk(2).indices,
        lambda t: torch.unique(t),
        lambda t: torch.where(t > 2, t, 0.0),
        lambda t: torch.einsum("ij,kj->ik", t, t),
        lambda t: t.to(torch.bfloat16).float(),
        lambda t: t.clone().resize_(2, 9)[0, :9],
        lambda t: torch.sum(t, dim=0, out=torch.empty(0, device=t.device)),
        lambda t: torch.view_as_real(torch.complex(t, t).conj() * 2j),
        lambda t: torch.tril_indices(3, 3, device=t.device),
        lambda t: t.to("cpu", non_blocking=True).to(t.device),
        lambda t: torch.linalg.qr(t).Q,
        lambda t: nn.functional.scaled_dot_product_attention(t[None], t[None], t[None]),
    ],
)
def test_operators_equal_the_cpu(function: Callable[[Tensor], Tensor]) -> None:
    """Operators, views and copies give the CPU's values, shapes and strides on the second card."""
    host = torch.arange(12.0).reshape(3, 4)
    expected, result = function(host), function(host.to(_SECOND))
    assert result.device == _SECOND
    assert (result.dtype, result.shape, result.stride()) == (expected.dtype, expected.shape, expected.stride())
    torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=0 if expected.dim() != 3 else 1e-6)


def test_views_share_memory() -> None:
    """Writing through a view changes what it is a view of."""
    tensor = torch.zeros(3, 4, device=_SECOND)
    tensor.t()[3].add_(1)
    tensor[1, 2] = 5
    tensor.view(-1)[0] = 9
    assert tensor.tolist() == [[9, 0, 0, 1], [0, 0, 5, 1], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    "mixing",
    [
        lambda: torch.ones(2, device=_FIRST) + torch.ones(2, device=_SECOND),
        lambda: torch.ones(2) + torch.ones(2, device=_FIRST),
        lambda: torch.cat([torch.ones(2, device=_FIRST), torch.ones(2, device=_SECOND)]),
        lambda: nn.Linear(2, 2).to(_SECOND)(torch.ones(1, 2, device=_FIRST)),
        lambda: nn.Linear(2, 2).to(_SECOND)(torch.ones(1, 2)),
        lambda: nn.functional.cross_entropy(torch.ones(2, 3, device=_FIRST), torch.tensor([0, 1])),
        lambda: torch.rand(2, device=_FIRST, generator=torch.Generator()),
        lambda: torch.ones(2, device="acme:2"),
    ],
)
def test_cards_are_apart(mixing: Callable[[], Tensor]) -> None:
    """Tensors of different cards do not meet, nor does a card's meet one of the host."""
    with pytest.raises(RuntimeError, match=r"at least two devices|device type for generator|no device 2"):
        mixing()


def test_the_host_cannot_read_a_card() -> None:
    """The card's memory is reached by a copy only."""
    with pytest.raises(TypeError, match="acme"):
        torch.ones(2, device=_FIRST).numpy()


def test_current_device() -> None:
    """A device without an index is the current one, for the card's own module and for ``torch.accelerator``."""
    _acme.set_device(1)
    assert torch.ones(1, device="acme").device == _SECOND
    assert torch.accelerator.current_accelerator() == torch.device("acme")
    assert torch.accelerator.current_device_index() == 1
    assert torch.accelerator.device_count() == 2
    with _acme.device(0):
        assert torch.ones(1, device="acme").device == _FIRST


def test_backward_from_another_thread() -> None:
    """A graph on the second card can be differentiated from any thread."""
    leaf = torch.ones(3, device=_SECOND, requires_grad=True)
    thread = threading.Thread(target=lambda: (leaf * leaf).sum().backward())
    thread.start()
    thread.join()
    assert leaf.grad is not None
    assert leaf.grad.device == _SECOND


def test_streams_and_events() -> None:
    """Streams are the cards' own, one is current in its context, and events measure time."""
    stream = torch.Stream(_SECOND)
    assert stream.device == _SECOND
    with stream:
        assert _acme.current_stream(1) == stream
    assert _acme.current_stream(1) != stream
    events = [torch.Event(_SECOND, enable_timing=True) for _ in range(2)]
    for event in events:
        event.record(stream)
        event.synchronize()
    assert events[0].query()
    assert events[0].elapsed_time(events[1]) >= 0


def test_synchronizing_is_counted() -> None:
    """Waiting for a card is on record for that card alone."""
    before = _acme.synchronizations(0), _acme.synchronizations(1)
    torch.accelerator.synchronize(_SECOND)
    _acme.synchronize(1)
    assert (_acme.synchronizations(0), _acme.synchronizations(1)) == (before[0], before[1] + 2)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_memory_is_counted() -> None:
    """Memory is counted for the card it is on, is given back with its last view, and its peak is remembered."""
    gc.collect()
    before, other = _acme.memory_allocated(1), _acme.memory_allocated(0)
    _acme.reset_peak_memory_stats(1)
    tensor = torch.zeros(1000, device=_SECOND)
    view = tensor[3:]
    assert torch.accelerator.memory_allocated(1) == _acme.memory_allocated(1) == before + 4000
    sums = tensor + 1
    assert _acme.memory_allocated(1) == before + 8000
    del tensor, sums
    assert _acme.memory_allocated(1) == before + 4000
    del view
    assert (_acme.memory_allocated(1), _acme.memory_allocated(0)) == (before, other)
    assert _acme.max_memory_allocated(1) == before + 8000
    free, total = _acme.mem_get_info(1)
    assert total - free == before


def test_out_of_memory() -> None:
    """More than a card has is refused by torch's own error."""
    with pytest.raises(torch.OutOfMemoryError, match=r"acme:1 out of memory"):
        torch.empty(2**34, device=_SECOND)


def test_pinned_batches() -> None:
    """A loader with ``pin_memory=True`` hands over pinned batches; their memory is not pinned any more when freed."""
    batches = list(DataLoader([0.0, 1.0, 2.0, 3.0], batch_size=2, pin_memory=True))  # type: ignore[arg-type]
    assert all(batch.is_pinned() for batch in batches)
    assert not torch.ones(2).is_pinned()
    assert [batch.to(_FIRST, non_blocking=True).tolist() for batch in batches] == [[0.0, 1.0], [2.0, 3.0]]


# -- random numbers ----------------------------------------------------------------------------------------------------


def test_each_card_has_its_generator() -> None:
    """Drawing on one card moves neither the other's generator nor the host's; a seed sets them all."""
    torch.manual_seed(3)
    host, other = torch.get_rng_state(), _acme.get_rng_state(_FIRST)
    drawn = nn.functional.dropout(torch.ones(64, device=_SECOND))
    native = torch.native_dropout(torch.ones(64, device=_SECOND), 0.5, True)[0]
    assert torch.equal(torch.get_rng_state(), host)
    assert torch.equal(_acme.get_rng_state(_FIRST), other)
    torch.manual_seed(3)
    assert torch.equal(nn.functional.dropout(torch.ones(64, device=_FIRST)).cpu(), drawn.cpu())
    assert torch.equal(torch.native_dropout(torch.ones(64, device=_FIRST), 0.5, True)[0].cpu(), native.cpu())


def test_random_state() -> None:
    """Putting a card's state back repeats its draws exactly, as does a generator with the same seed."""
    state = _acme.get_rng_state(_SECOND)
    drawn = torch.rand(5, device=_SECOND)
    torch.rand(5, device=_FIRST)
    _acme.set_rng_state(state, _SECOND)
    assert torch.equal(torch.rand(5, device=_SECOND).cpu(), drawn.cpu())
    own = [torch.rand(3, device=_SECOND, generator=torch.Generator(_SECOND).manual_seed(4)) for _ in range(2)]
    assert own[0].tolist() == own[1].tolist()


# -- objects -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("map_location", [None, "cpu", "acme:0"])
def test_saving_and_loading(map_location: str | None) -> None:
    """A state dict comes back from a file on the card it was on, or on the device asked for."""
    state = nn.Linear(2, 2).to(_SECOND).state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True, map_location=map_location)
    assert loaded["weight"].device == torch.device(map_location or _SECOND)
    assert torch.equal(loaded["weight"].cpu(), state["weight"].cpu())


def test_deep_copies() -> None:
    """A deep copy has its own memory on the same card."""
    tensor = torch.ones(2, device=_SECOND)
    copied = copy.deepcopy(tensor)
    assert copied.device == _SECOND
    assert copied.data_ptr() != tensor.data_ptr()


def test_fork_after_use() -> None:
    """As with real hardware, a process forked from one that uses the cards cannot use them."""
    torch.ones(1, device=_FIRST)
    assert _acme.is_initialized()
    child = os.fork()
    if child == 0:
        try:
            torch.ones(1, device=_FIRST)
        except RuntimeError:
            os._exit(3 if _acme._is_in_bad_fork() else 4)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_compiling_through_aot_autograd() -> None:
    """``torch.compile`` traces forward and backward on a card."""
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    expected = module(torch.ones(1, 3)).detach()
    compiled = torch.compile(module.to(_FIRST), backend="aot_eager")
    result = compiled(torch.ones(1, 3, device=_FIRST))
    result.sum().backward()
    assert torch.equal(result.detach().cpu(), expected)
