"""What the package says of itself before torch is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from torch_hal_acme import detect, plugin


def test_names_in_metadata_are_those_of_the_hooks() -> None:
    """The entry points name exactly the backends that the hooks hand over."""
    keys = {
        point.name for point in entry_points(group="core.accelerators") if point.value.startswith("torch_hal_acme.")
    }
    assert keys == {spec.name for spec in plugin.core_accelerators()} == {"acme"}


def test_hooks_and_detection_import_no_torch() -> None:
    """Handing over specs and counting cards takes a process that never imports torch."""
    code = (
        "import sys; from torch_hal_acme import detect, plugin; specs = plugin.core_accelerators(); "
        "assert detect.count() == 2; assert not {'torch', 'torch_hal_acme.accelerator'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def _probed(**environ: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "core.list", "--probe", "--json"],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    (row,) = (row for row in json.loads(done.stdout)["backends"] if row["name"] == "acme")
    return {"state": row["state"], "detail": json.dumps(row)}


def test_it_is_listed() -> None:
    """``python -m core.list --probe`` shows the cards there are, that there are none, or why that can't be said."""
    assert _probed()["state"] == "available"
    assert _probed(ACME_DEVICES="0")["state"] == "unavailable"
    failed = _probed(ACME_DEVICES="many")
    assert failed["state"] == "failed"
    assert "ACME_DEVICES='many'" in failed["detail"]


def test_availability_never_raises(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Where the cards can't be counted there are none, with a warning in the log; detection itself raises."""
    from torch_hal_acme.accelerator import AcmeAccelerator

    monkeypatch.setenv("ACME_DEVICES", "many")
    assert AcmeAccelerator().is_available() is False
    assert "can't be counted" in caplog.text
    with pytest.raises(ValueError, match="ACME_DEVICES='many'"):
        detect.count()
