"""benchmarks/costs.py: that it counts what is there, and notices what is not as its formula."""

from __future__ import annotations

import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("costs")


def as_said(costs: Any, name: str, n: int) -> dict[str, float]:
    """What a strategy would count that is as its formulas."""
    row, unit = costs.ROWS[name], costs.BYTES
    return {"held": row.held.value(n) * unit, "sent": row.sent.value(n) * unit, "host": 0.0, "beside": 0.0}


@pytest.mark.parametrize("n", [1, 2, 4])
def test_what_is_as_said_passes(costs: Any, n: int) -> None:
    """No strategy that is as its formulas is complained of, and FSDP's formula is within the bar."""
    named = [name for name, row in costs.ROWS.items() if row.sent.value is not None]
    assert costs.complaints({name: {n: as_said(costs, name, n)} for name in named}) == []


@pytest.mark.parametrize(
    ("name", "kind", "more", "words"),
    [
        ("ddp", "held", 0.1, "held 4.100 P, not 4.000 P"),
        ("ddp", "host", 0.1, "held 4.100 P, not 4.000 P"),
        ("ddp", "sent", -0.1, "sent 0.900 P, not 1.000 P"),
        ("fsdp", "held", 0.25, "more than 1/2 and 5% of DDP's"),
        ("stage_3", "host", 0.25, "more than 1/2 and 5% of DDP's"),
    ],
)
def test_what_is_not_is_named(costs: Any, name: str, kind: str, more: float, words: str) -> None:
    """More or less than the formula, on the device or the host, and more than FSDP may hold."""
    counted = as_said(costs, name, 2)
    counted[kind] += more * costs.BYTES
    assert words in "\n".join(costs.complaints({name: {2: counted}}))


def test_a_page_keeps_what_is_not_between_the_markers(costs: Any, tmp_path: Path) -> None:
    """A table takes the place of the one before; a page without its markers is refused, and left as it is."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- memory:begin -->\nold\n<!-- memory:end -->\nafter\n")
    costs.write_between(page, "memory", "| new |")
    assert page.read_text() == "before\n<!-- memory:begin -->\n\n| new |\n\n<!-- memory:end -->\nafter\n"
    with pytest.raises(SystemExit, match="traffic:begin"):
        costs.write_between(page, "traffic", "")
    assert "| new |" in page.read_text()


@pytest.mark.slow
def test_ddp_is_counted(costs: Any) -> None:
    """Two processes of DDP hold four numbers for each parameter, and their buckets; each sends its gradients once."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip")
    if subprocess.run([*costs.unshare(), "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may make no network namespace")
    counted = {kind: bytes_ / costs.BYTES for kind, bytes_ in costs.count("ddp", 2).items()}
    assert counted == pytest.approx({"sent": 1, "held": 4, "host": 0, "beside": 1}, abs=0.02)
