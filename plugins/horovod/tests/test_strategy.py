"""What is refused before anything starts, and the parts that need no second process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_hal_horovod import HorovodStrategy
from torch_hal_horovod.steps import AdasumStep, ScaledLearningRate

from torch_hal import Runtime
from torch_hal.errors import BackendError, ConfigurationError, LaunchError

FakeHorovod = Callable[..., Any]
TWO = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"}
MPI = {
    f"OMPI_COMM_WORLD_{name}": value
    for name, value in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "0303", strict=True)
}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "bf16"}, r"compression='bf16' is unknown. Valid: .*'none'.*'fp16'"),
        ({"op": "mean"}, r"op='mean' is unknown. Valid: .*'average'.*'sum'.*'adasum'"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step=0 must be an integer"),
        ({"backward_passes_per_step": True}, "backward_passes_per_step=True"),
        ({"gradient_predivide_factor": 0}, "gradient_predivide_factor=0 must be a finite number > 0"),
        ({"gradient_predivide_factor": float("inf")}, "gradient_predivide_factor=inf"),
        ({"gradient_predivide_factor": 2.0, "op": "sum"}, "gradient_predivide_factor=2.0 has no effect with op='sum'"),
        ({"scale_learning_rate": True, "op": "adasum"}, "scale_learning_rate=True contradicts op='adasum'"),
        ({"sparse_as_dense": True, "op": "adasum"}, "sparse_as_dense=True with op='adasum'"),
        ({"backward_passes_per_step": 2, "op": "adasum"}, "backward_passes_per_step=2 with op='adasum'"),
        ({"scale_learning_rate": 2}, "scale_learning_rate=2 must be True or False"),
        ({"sparse_as_dense": "no"}, "sparse_as_dense='no'"),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    """An invalid value, or one that contradicts another, is an error that names it."""
    with pytest.raises(ConfigurationError, match=message):
        HorovodStrategy(**options)


def test_horovod_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Horovod cannot be imported the strategy is refused when it is named."""
    monkeypatch.setitem(sys.modules, "horovod", None)
    monkeypatch.delitem(sys.modules, "horovod.torch", raising=False)
    with pytest.raises(BackendError, match=r"strategy='horovod': Horovod cannot be imported.*README"):
        Runtime(accelerator="cpu", strategy="horovod", devices=1)


def test_several_processes_without_a_launcher() -> None:
    """Only Horovod's own launcher starts processes."""
    with pytest.raises(ConfigurationError, match=r"strategy='horovod' starts no processes"):
        Runtime(accelerator="cpu", strategy="horovod", devices=2)


def test_another_launcher(monkeypatch: pytest.MonkeyPatch, fake_horovod: FakeHorovod) -> None:
    """Processes of torchrun's are refused with the command to use."""
    fake_horovod()
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    for name, value in {**torchrun, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=r"'torchelastic' gives 2 processes.*horovodrun -np 2 --gloo python"):
        Runtime(accelerator="cpu", strategy="horovod")


@pytest.mark.parametrize(
    ("environ", "arguments", "message"),
    [
        (TWO, {}, "these processes meet by gloo"),
        ({**MPI, "HOROVOD_CONTROLLER": "mpi"}, {}, "3 processes. Valid: a power of 2"),
    ],
)
def test_adasum(
    monkeypatch: pytest.MonkeyPatch, fake_horovod: FakeHorovod, environ: dict[str, str], arguments: Any, message: str
) -> None:
    """Adasum is refused by name where Horovod has none."""
    fake_horovod()
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=f"op='adasum': .*{message}"):
        Runtime(accelerator="cpu", strategy=HorovodStrategy(op="adasum"), **arguments)


def test_another_number_of_processes(monkeypatch: pytest.MonkeyPatch, fake_horovod: FakeHorovod) -> None:
    """A Horovod built for another controller takes itself for alone: two lone runs are refused."""
    fake_horovod()
    for name, value in TWO.items():
        monkeypatch.setenv(name, value)
    runtime = Runtime(accelerator="cpu", strategy="horovod")
    with pytest.raises(LaunchError, match="says rank 1 of 2, but Horovod rank 0 of 1"):
        runtime.launch()


def test_the_plan_says_who_started_it(monkeypatch: pytest.MonkeyPatch, fake_horovod: FakeHorovod) -> None:
    """In a process of Horovod's the environment is found, and devices are as many as it started."""
    fake_horovod()
    for name, value in TWO.items():
        monkeypatch.setenv(name, value)
    plan = Runtime(accelerator="cpu", strategy="horovod").plan
    assert plan.cluster_environment.name == "horovod"
    assert len(plan.devices) == 2
    assert plan.launcher is None


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_scaled_learning_rate(kind: Any) -> None:
    """Steps are as with the scaled rate, and the rate that is kept is the user's, until it is released."""
    ours, theirs = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    mine, plain = kind([ours], lr=0.1), kind([theirs], lr=0.3)
    scaled = ScaledLearningRate(mine, lambda: 3)
    schedule = torch.optim.lr_scheduler.LambdaLR(mine, lambda step: 0.5**step)
    for step in range(4):
        if step == 3:
            scaled.release()
        for parameter in (ours, theirs):
            parameter.grad = torch.full((3,), 0.5 + step)
        mine.step()
        plain.step()
        assert torch.allclose(ours, theirs)
        schedule.step()
        assert mine.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5 ** (step + 1))
        plain.param_groups[0]["lr"] = 0.3 * 0.5 ** (step + 1) if step < 2 else 0.1 * 0.5**3


def test_parameters_that_are_unfrozen_later(monkeypatch: pytest.MonkeyPatch, fake_horovod: FakeHorovod) -> None:
    """Horovod would reduce no gradients of theirs: refused while the run lasts, by name and with what to do."""
    fake_horovod()
    module = torch.nn.Linear(2, 1)
    module.weight.requires_grad_(False)
    with Runtime(accelerator="cpu", strategy="horovod") as runtime:
        runtime.launch()
        with monkeypatch.context() as patches:  # as on two processes
            patches.setattr(HorovodStrategy, "world_size", 2)
            patches.setattr(HorovodStrategy, "broadcast_module", lambda *_: None)
            patches.setattr(HorovodStrategy, "_add_reducer", lambda *_: None)
            runtime.strategy.setup_module(module)
        module(torch.ones(1, 2))
        module.weight.requires_grad_(True)
        with pytest.raises(
            ConfigurationError, match=r"horovod.*require gradients now: 'weight'.*Set requires_grad bef"
        ):
            module(torch.ones(1, 2))
    module(torch.ones(1, 2))


def test_adasum_combines_what_steps_change(fake_horovod: FakeHorovod) -> None:
    """What each process's own step has changed is what Horovod is given, and its answer what is applied."""
    asked: list[tuple[list[float], str]] = []

    def allreduce(tensor: torch.Tensor, *, op: str, name: str, compression: Any) -> torch.Tensor:
        assert (op, compression) == ("Adasum", "half")
        asked.append((tensor.tolist(), name))
        return 10 * tensor

    compression = type("Compression", (), {"fp16": "half"})
    fake_horovod(allreduce=allreduce, Adasum="Adasum", Compression=compression)
    weight, frozen = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(1), requires_grad=False)
    optimizer = torch.optim.SGD([weight, frozen], lr=0.5)
    weight.grad = torch.tensor([1.0, -2.0])
    assert AdasumStep(optimizer, "fp16", 4).take(lambda: optimizer.step() or "done") == "done"
    assert asked == [([-0.5, 1.0], "core.adasum.4.0")]
    assert torch.equal(weight.detach(), torch.tensor([-4.0, 11.0]))
    assert torch.equal(frozen, torch.ones(1))
