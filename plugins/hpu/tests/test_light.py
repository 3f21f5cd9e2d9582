"""What the package says of itself before torch is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch_hal_hpu
from torch_hal_hpu import plugin

from .conftest import needs_simulation


@pytest.mark.parametrize(
    ("group", "specs"),
    [("core.accelerators", plugin.core_accelerators()), ("core.strategies", plugin.core_strategies())],
    ids=["accelerators", "strategies"],
)
def test_names_in_metadata_are_those_of_the_hooks(group: str, specs: list[object]) -> None:
    """The entry points name exactly the backends that the hooks hand over."""
    keys = sorted(point.name for point in entry_points(group=group) if point.value == "torch_hal_hpu.plugin")
    assert keys == sorted(getattr(spec, "name") for spec in specs)  # noqa: B009


@pytest.mark.parametrize("name", torch_hal_hpu.__all__)
def test_public_names(name: str) -> None:
    """Every public name can be had from the package."""
    assert getattr(torch_hal_hpu, name).__name__ == name


def test_other_names() -> None:
    """A wrong name is refused as any module refuses it."""
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        getattr(torch_hal_hpu, "Nothing")  # noqa: B009


def test_hooks_and_detection_import_no_torch() -> None:
    """Handing over specs and counting takes a process that never imports torch."""
    code = (
        "import sys; import torch_hal_hpu; from torch_hal_hpu import detect, plugin\n"
        "plugin.core_accelerators(); plugin.core_strategies(); detect.count()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def _probed(**environ: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "core.list", "--probe", "--json"],
        env={**os.environ, "CORE_PLUGINS": "torch-hal-hpu", **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    rows = json.loads(done.stdout)["backends"]
    return {row["name"]: json.dumps(row) for row in rows if row["distribution"] == "torch-hal-hpu"}


@needs_simulation
def test_it_is_listed(cards: Path) -> None:
    """``python -m core.list --probe`` shows the cards there are, that none is left, or why that can't be said."""
    rows = _probed()
    assert set(rows) == {"hpu", "hpu_parallel", "hpu_single"}
    assert json.loads(rows["hpu"])["state"] == "available"
    assert json.loads(_probed(HABANA_VISIBLE_MODULES="7")["hpu"])["state"] == "unavailable"
    failed = _probed(HABANA_VISIBLE_MODULES="all")["hpu"]
    assert json.loads(failed)["state"] == "failed"
    assert "HABANA_VISIBLE_MODULES='all'" in failed
