"""What the package says of itself before torch is there, and as one of those installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import torch_hal_cuda
import torch_hal_cuda.strategies
from torch_hal_cuda import detect, plugin


@pytest.mark.parametrize(
    ("group", "specs"),
    [("core.accelerators", plugin.core_accelerators()), ("core.strategies", plugin.core_strategies())],
    ids=["accelerators", "strategies"],
)
def test_names_in_metadata_are_those_of_the_hooks(group: str, specs: list[object]) -> None:
    """The entry points name exactly the backends that the hooks hand over."""
    keys = sorted(point.name for point in entry_points(group=group) if point.value == "torch_hal_cuda.plugin")
    assert keys == sorted(getattr(spec, "name") for spec in specs)  # noqa: B009


def test_hooks_and_detection_import_no_torch() -> None:
    """Handing over specs and counting GPUs takes a process that never imports torch."""
    code = (
        "import sys; import torch_hal_cuda; from torch_hal_cuda import detect, plugin\n"
        "plugin.core_accelerators(); plugin.core_strategies(); detect.count()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("module", [torch_hal_cuda, torch_hal_cuda.strategies])
def test_public_names(module: object) -> None:
    """Every public name can be had, and a wrong one is refused as any module refuses it."""
    for name in module.__all__:  # type: ignore[attr-defined]
        assert getattr(module, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        getattr(module, "Nothing")  # noqa: B009


def test_it_is_listed() -> None:
    """``python -m core.list --probe`` shows the accelerator as this machine has it, and the strategies as usable."""
    done = subprocess.run(
        [sys.executable, "-m", "core.list", "--probe", "--json"],
        env={**os.environ, "CORE_PLUGINS": "torch-hal-cuda"},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    rows = {row["name"]: row for row in json.loads(done.stdout)["backends"] if row["distribution"] == "torch-hal-cuda"}
    assert set(rows) == {"cuda", "dp", "ddp2"}
    assert rows["dp"]["state"] == rows["ddp2"]["state"] == "available"
    assert rows["cuda"]["state"] == ("available" if detect.count() else "unavailable")


def test_auto_and_gpu(capfd: pytest.CaptureFixture[str]) -> None:
    """Under "auto" it is asked for devices; the alias "gpu" names it, and says so where it is absent."""
    from torch_hal import Runtime
    from torch_hal.errors import BackendError

    if detect.count():
        assert Runtime(accelerator="gpu", devices=1).plan.accelerator.name == "cuda"
        return
    passed = {other.name: other.reason for other in Runtime(devices=1).plan.accelerator.rejected}
    assert passed["cuda"] == "no device found"
    with pytest.raises(BackendError, match=r"accelerator='gpu'.*"):
        Runtime(accelerator="gpu", devices=1)
