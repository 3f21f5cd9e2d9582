"""Where a step ends is marked, in both front ends, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from torch_hal import Runtime, Trainer

from ..problem import OPTIONS, Classifier, furthest, loader, net, plain_losses, sgd
from .conftest import RunScript

STEP = ["step", "torch_xla.sync"]
EVALUATION = ["evaluation", "torch_xla.sync"]


KEPT = ["xm.get_rng_state", "xm.set_rng_state"]
"""Once before each validation: a checkpoint that is saved while it runs holds the random state of its beginning."""


def in_loop(calls: list[str]) -> list[str]:
    """All calls from the first forward pass on; without the end, where the Trainer keeps the random state as well."""
    calls = calls[calls.index("forward") :]
    last = max((at for at, call in enumerate(calls) if call == KEPT[0]), default=len(calls))
    return calls[:last]


@pytest.mark.parametrize("strategy", ["single_xla", "xla"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_trainer(calls: list[str], strategy: str, accumulate: int) -> None:
    """A mark follows each step of the optimizer and each batch of evaluation; there is no other call in the loop."""
    module = Classifier(note=calls.append)
    trainer = Trainer(
        accelerator="xla",
        devices=1,
        strategy=strategy,
        accumulate_grad_batches=accumulate,
        gradient_clip_val=0.5,
        **OPTIONS,
    )
    trainer.fit(module, loader(), loader(32))
    epoch = (["forward"] * accumulate + STEP) * (8 // accumulate) + KEPT + EVALUATION * 2
    assert in_loop(calls) == epoch * OPTIONS["max_epochs"]
    assert furthest(module.losses, plain_losses(net(), accumulate=accumulate, clip=0.5)) <= 1e-6
    assert module.seen == {"xla:0", "float32"}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_runtime(calls: list[str], accumulate: int) -> None:
    """In your own loop as well: what marks a step is the optimizer's ``step``."""
    model = net()
    optimizer = sgd(model)
    optimizer.register_step_post_hook(lambda *_: calls.append("step"))
    with Runtime(accelerator="xla", devices=1, strategy="single_xla") as runtime:
        model, optimizer, batches = runtime.prepare(model, optimizer, loader())
        losses: list[Any] = []
        for _ in range(OPTIONS["max_epochs"]):
            for index, (inputs, labels) in enumerate(batches):
                calls.append("forward")
                loss = nn.functional.cross_entropy(model(inputs), labels)
                runtime.backward(loss / accumulate)
                losses.append(loss.detach())
                if (index + 1) % accumulate == 0:
                    optimizer.step()
                    optimizer.zero_grad()
    assert in_loop(calls) == (["forward"] * accumulate + STEP) * (16 // accumulate)
    assert furthest(losses, plain_losses(net(), accumulate=accumulate)) <= 1e-6


def test_debug_waits_and_looks(calls: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """``xla_debug`` asks after each mark what was compiled and what was left to the host, and says what it finds."""
    import torch_xla.debug.metrics as metrics

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "executed_fallback_ops", lambda: ["aten::nonzero"])
        Trainer(accelerator="xla", devices=1, strategy="xla_debug", **OPTIONS).fit(
            Classifier(note=calls.append), loader()
        )
    assert in_loop(calls) == (["forward", *STEP, "xr.get_num_cached_compilation_graph"]) * 16
    (record,) = (one for one in caplog.records if one.name.startswith("torch_hal_xla"))
    assert "step 1: operations ran on the host instead of XLA: aten::nonzero" in record.message


def test_debug_says_what_is_compiled_again(caplog: pytest.LogCaptureFixture) -> None:
    """A step after the warm-up for which another graph is compiled is logged with its number."""
    import torch_xla.runtime as xr

    counts = iter([1, 2, 2, 3, *[3] * 12])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xr, "get_num_cached_compilation_graph", lambda: next(counts))
        Trainer(accelerator="xla", devices=1, strategy="xla_debug", **OPTIONS).fit(Classifier(), loader())
    (record,) = (one for one in caplog.records if one.name.startswith("torch_hal_xla"))
    assert "step 4 was compiled again" in record.message


def test_spmd(run_script: RunScript) -> None:
    """One process on both devices: each batch is split along its first dimension, and steps are marked as elsewhere."""
    told = run_script("spmd.py")
    assert told["devices"] == ["xla:0", "xla:1"]
    assert told["world_size"] == 1
    split = ["xs.mark_sharding('data', None)", "xs.mark_sharding('data',)"]
    assert told["calls"] == [*split, "forward", *STEP] * 16
    assert furthest(told["losses"], plain_losses(net())) <= 1e-6
    assert "Use 'xla_spmd', or start a new process" in told["afterwards"]


def test_autocast_on_the_second_device() -> None:
    """Autocast is XLA's own, and computes what that of the CPU does; losses are told in float32."""
    module = Classifier()
    Trainer(accelerator="tpu", devices=[1], precision="bf16-mixed", **OPTIONS).fit(module, loader())
    assert module.seen == {"xla:1", "bfloat16"}
    assert furthest(module.losses, plain_losses(net(), autocast=True)) <= 1e-6
