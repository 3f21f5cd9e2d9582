"""What the strategy refuses; these tests need no Colossal-AI."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from torch import nn
from torch_hal_colossalai import ColossalAIStrategy

from torch_hal import Runtime
from torch_hal.errors import BackendError, ConfigurationError, CoreError


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"plugin": "gemini"}, r"plugin='gemini': .* was not run on hardware.*strategy='fsdp_cpu_offload'"),
        ({"plugin": "low_level_zero"}, r"its optimizer needs a GPU.*'deepspeed_stage_1'"),
        ({"plugin": "hybrid_parallel"}, r"its own policy for each class of model.*'tensor_parallel', 'pipeline'"),
        ({"plugin": "moe_hybrid_parallel"}, r"plugin='moe_hybrid_parallel'"),
        ({"plugin": "torch_fsdp"}, r"strategy='fsdp'"),
        ({"plugin": "zero"}, r"plugin='zero' is unknown. Valid: 'torch_ddp'"),
        ({"static_graph": "yes"}, r"static_graph='yes': must be a bool"),
        ({"bucket_cap_mb": 1.5}, r"bucket_cap_mb=1.5: must be an integer"),
        ({"communication_hook": "fp16"}, r"Colossal-AI has fp8_communication=True"),
        ({"broadcast_buffer": True}, r"broadcast_buffers"),
    ],
)
def test_arguments_that_are_refused(arguments: dict[str, Any], match: str) -> None:
    """What does not run is refused by name, with the reason and what does the same; unknown arguments, too."""
    with pytest.raises(CoreError, match=match):
        ColossalAIStrategy(**arguments)


def test_fp8_communication_on_a_cpu() -> None:
    """Colossal-AI's hook fails there, so it is refused before the first step."""
    strategy = ColossalAIStrategy(fp8_communication=True)
    with (
        pytest.raises(ConfigurationError, match=r"fp8_communication=True: .* fails on a CPU"),
        Runtime(accelerator="cpu", devices=1, strategy=strategy) as runtime,
    ):
        runtime.prepare(nn.Linear(2, 1))


def test_engine_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Colossal-AI, the error says so, and where the line that installs it stands."""
    monkeypatch.setitem(sys.modules, "colossalai", None)
    with (
        pytest.raises(BackendError, match=r"Colossal-AI cannot be imported: .*README of torch-hal-colossalai"),
        Runtime(accelerator="cpu", devices=1, strategy="colossalai") as runtime,
    ):
        runtime.prepare(nn.Linear(2, 1))


@pytest.mark.parametrize("broadcast", [True, False])
def test_whose_buffers(broadcast: bool) -> None:
    """Evaluation takes process 0's, unless processes train with their own."""
    assert ColossalAIStrategy(broadcast_buffers=broadcast).keeps_buffers_equal is broadcast
