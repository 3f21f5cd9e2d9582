"""Environment variables of torch-hal: misspelt ones are refused, and others' are left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.discovery.selection import survey
from core.errors import ConfigurationError
from core.list import main
from core.plan import Request, resolve
from core.plan.foreign_variables import FOREIGN
from core.utilities.environment_variables import INTERNAL, VARIABLES

from .cases import runtime, trainer


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CORE_DEVICE", "CORE_DEVICES"),
        ("CORE_ACCELERATORS", "CORE_ACCELERATOR"),
        ("CORE_STRATEGIE", "CORE_STRATEGY"),
        ("CORE_PLUGIN", "CORE_PLUGINS"),
        ("CORE_PRECISON", "CORE_PRECISION"),
        ("CORE_NUM_NODE", "CORE_NUM_NODES"),
        ("CORE_DEBUGG", "CORE_DEBUG"),
    ],
)
def test_misspelt_variable(name: str, meant: str) -> None:
    """A misspelt variable is refused with its value and the nearest name, before anything is resolved."""
    with pytest.raises(ConfigurationError) as caught:
        resolve(Request.read(environ={name: "2"}))
    assert f"environment variable {name}='2'" in str(caught.value)
    assert f"Did you mean '{meant}'" in str(caught.value)


def test_listing_refuses_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The listing exits with 2 and the same message."""
    assert main([], environ={"CORE_PLUGIN": "-acme"}) == 2
    assert "Did you mean 'CORE_PLUGINS'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        *VARIABLES,
        *INTERNAL,
        "CORE_PEER_ADDRESS",
        "CORE_SERVICE_HOST",
        "CORE_PORT",
        "CORE_PORT_80_TCP",
        "CORE",
        "DEVICE",
    ],
)
def test_other_variables_are_left_alone(name: str) -> None:
    """torch-hal's own variables, and other programs' that begin alike, are no misspellings."""
    value = {"CORE_PLUGINS": ""}.get(name, "1")
    survey({name: value})


def test_the_page_has_the_table() -> None:
    """The page of the documentation has each variable with its meaning, and those of other libraries."""
    page = (Path(__file__).parents[2] / "docs" / "environment-variables.md").read_text("utf-8")
    for name, meaning in VARIABLES.items():
        assert f"| `{name}` | {meaning} |" in page
    for name in FOREIGN:
        assert f"`{name}`" in page


FRONTS: dict[str, Any] = {"Runtime": runtime, "Trainer": trainer}

REFUSED = {
    "ACCELERATE_MIXED_PRECISION": ("bf16", "Set precision='bf16-mixed', or CORE_PRECISION=bf16-mixed."),
    "ACCELERATE_USE_CPU": ("True", "Set accelerator='cpu', or CORE_ACCELERATOR=cpu."),
    "ACCELERATE_TORCH_DEVICE": ("acme:1", "Set accelerator= to the hardware"),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": ("4", "Set gradient_accumulation_steps=4."),
    "ACCELERATE_DYNAMO_BACKEND": ("INDUCTOR", "torch.compile(model"),
    "ACCELERATE_USE_DEEPSPEED": ("true", "Set strategy='deepspeed'"),
    "ACCELERATE_USE_FSDP": ("true", "Set strategy='fsdp'"),
    "ACCELERATE_USE_MEGATRON_LM": ("true", "no strategy for Megatron-LM"),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("true", "Set strategy='parallel'"),
    "ACCELERATE_DOWNCAST_BF16": ("true", "Set precision='bf16-true'"),
    "ACCELERATE_DEBUG_MODE": ("1", "Set debug=True"),
    "MIXED_PRECISION": ("fp16", "Set precision='16-mixed'"),
    "USE_CPU": ("yes", "Set accelerator='cpu'"),
    "GRADIENT_ACCUMULATION_STEPS": ("2", "Set gradient_accumulation_steps=2."),
    "DYNAMO_BACKEND": ("inductor", "torch.compile(model"),
    "USE_DEEPSPEED": ("true", "Set strategy='deepspeed'"),
    "USE_FSDP": ("true", "Set strategy='fsdp'"),
    "USE_MEGATRON_LM": ("true", "no strategy for Megatron-LM"),
    "LT_ACCELERATOR": ("cuda", "Set accelerator='cuda', or CORE_ACCELERATOR=cuda."),
    "LT_STRATEGY": ("fsdp", "Set strategy='fsdp', or CORE_STRATEGY=fsdp."),
    "LT_DEVICES": ("2", "Set devices='2', or CORE_DEVICES=2."),
    "LT_NUM_NODES": ("2", "CORE_NUM_NODES=2"),
    "LT_PRECISION": ("16-mixed", "CORE_PRECISION=16-mixed"),
    "PL_TORCH_DISTRIBUTED_BACKEND": ("gloo", "DDPStrategy(process_group_backend='gloo')"),
}
"""By variable of another library, a value that would change a run there, and what to do."""


def test_the_table_is_whole() -> None:
    """Each variable of other libraries has its row here."""
    assert sorted(REFUSED) == sorted(FOREIGN)


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("name", [*FOREIGN, "PL_TRAINER_MAX_EPOCHS", "PL_TRAINER_DEVICES"])
def test_variables_of_other_libraries(name: str, front: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they would change a run there, they are refused by name, with what to set, and not ignored."""
    value, remedy = REFUSED.get(name, ("7", f"Pass Trainer({name.removeprefix('PL_TRAINER_').lower()}=7)."))
    fronts = FOREIGN[name].fronts if name in FOREIGN else ("Trainer",)
    monkeypatch.setenv(name, value)
    arguments: dict[str, Any] = dict.fromkeys(("accelerator", "devices"), "auto")
    is_moot = name.endswith("_CPU") and resolve(Request.read(environ={})).accelerator.name == "cpu"
    if front in fronts and not is_moot:
        with pytest.raises(ConfigurationError) as caught:
            FRONTS[front](**arguments)
        assert f"environment variable {name}={value!r}" in str(caught.value)
        assert remedy in str(caught.value)
    else:
        FRONTS[front](**arguments)  # on this machine it is the CPU anyway, or the other front end does not read it
    for off in ("", "no", "False"):
        if name in FOREIGN and FOREIGN[name].library == "Accelerate":
            monkeypatch.setenv(name, off)
            FRONTS[front](**arguments)


@pytest.mark.parametrize("front", FRONTS)
def test_what_the_script_says_counts(front: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument, or a variable of torch-hal, says what the other variable would have said."""
    for name in ("ACCELERATE_MIXED_PRECISION", "USE_FP16", "LT_PRECISION", "PL_TRAINER_PRECISION"):
        monkeypatch.setenv(name, "1" if name == "USE_FP16" else "fp16")
    FRONTS[front](precision="32-true")
    monkeypatch.setenv("CORE_PRECISION", "bf16-mixed")
    made = FRONTS[front]()
    assert (made if front == "Runtime" else made.runtime).plan.precision.name == "bf16-mixed"
