"""FSDP on devices whose backend comes from outside torch: simulated cards."""

from __future__ import annotations

import importlib.util
import shutil
from typing import Any

import pytest

from .conftest import run_script

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch_acme") is None, reason="torch-acme is not installed"),
    pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++"))), reason="torch-acme needs a C++ compiler"),
]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``acme.py`` says on two cards."""
    return run_script(tmp_path_factory.mktemp("acme"), "acme.py", ACME_DEVICES="2")


@pytest.mark.parametrize("form", ["fsdp", "offload", "hybrid", "tensor"])
def test_it_trains_as_ddp(said: dict[str, Any], form: str) -> None:
    """Accumulated and clipped, losses and norms are those of DDP on the same cards."""
    for kind in ("losses", "norms", "evaluated"):
        assert said[form][kind] == pytest.approx(said["ddp"][kind], rel=1e-5)


def test_shards_are_where_they_belong(said: dict[str, Any]) -> None:
    """Shards lie on the process's card; offloaded, on the host."""
    assert said["fsdp"]["devices"] == ["acme:0", "acme:0"]
    assert said["offload"]["devices"] == ["cpu", "acme:0"]


@pytest.mark.parametrize(
    ("form", "backend"), [("fsdp", "accl"), ("offload", "cpu:gloo,acme:accl"), ("hybrid", "accl"), ("tensor", "accl")]
)
def test_the_plan_has_the_live_backend(said: dict[str, Any], form: str, backend: str) -> None:
    """With shards on the host, the process group has a backend for the CPU too, and the Plan says so."""
    planned, live = said[form]["backends"]
    assert planned == backend
    for pair in backend.split(",") if ":" in backend else [f"acme:{backend}"]:
        assert pair in live.split(",")


def test_a_checkpoint_comes_back(said: dict[str, Any]) -> None:
    """Shards on cards are saved, and read back into them."""
    assert said["reloaded"] == pytest.approx(said["fsdp"]["evaluated"], rel=1e-7)


def test_no_card_ever_holds_the_whole_model(said: dict[str, Any]) -> None:
    """While a model is divided among two cards, one takes its half, and no more than a block in addition."""
    assert said["memory on meta"] <= 0.55
    assert said["memory at once"] <= 0.5 + 0.25 + 0.1
