"""benchmarks/matrix.py: what it lets pass, and that it lets nothing else pass."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MATRIX = Path(__file__).parents[2] / "benchmarks" / "matrix.py"
SCRIPTS = Path(__file__).parent / "scripts"
PAGE = "# A page\n\n<!-- matrix:begin -->\nold\n<!-- matrix:end -->\n\nThe rest.\n"

BROKEN = {
    "Raises": r"process 0 ended with exit code 1; .*; 0 of 2 process\(es\) came to the end",
    "RefusesLate": r"process 0 ended with exit code 1",
    "RefusesWithoutName": r"the refusal names neither strategy, precision nor an argument: .*This cannot be done",
    "RaisesEarly": r"not refused by name, but KeyError: 'bf16-mixed'",
    "StartsEarly": r"making the front end started processes \[\d+\]",
    "Apart": r"weights differ between processes",
    "NoNumbers": r"not all are numbers",
    "StandsStill": r"process 0: losses .* do not fall",
    "OtherDtype": r"process 0: computed is \['float32'\], not \['bfloat16'\]",
    "Leaves": r"processes left behind: \[.*time\.sleep\(60\)",
    "Hangs": r"process 0 was still there after 12 s; process 1 was still there after 12 s",
}


def run_matrix(*words: Any, path: Path | None = None) -> tuple[int, str]:
    """The exit code of the script, and what it printed."""
    environ = {**os.environ, "PYTHONPATH": str(path or "")}
    ended = subprocess.run(
        [sys.executable, str(MATRIX), *map(str, words)], env=environ, capture_output=True, text=True, timeout=300
    )
    return ended.returncode, ended.stdout + ended.stderr


def outcomes(file: Path) -> dict[tuple[str, str, str, int], dict[str, Any]]:
    """What the script wrote, by cell."""
    rows = json.loads(file.read_text("utf-8"))
    return {(row["strategy"], row["precision"], row["front_end"], row["ranks"]): row for row in rows}


def test_what_works_and_what_is_refused(tmp_path: Path) -> None:
    """Core's strategies work, but for one process's on two, which is refused; the page says so."""
    page, file = tmp_path / "page.md", tmp_path / "cells.json"
    page.write_text(PAGE, "utf-8")
    strategies, precisions = ["ddp", "ddp_sharded", "single_device"], ["64-true", "bf16-mixed"]
    code, said = run_matrix("--only", *strategies, *precisions, "--json", file, "--write", page)
    assert code == 0, said
    found = outcomes(file)
    assert len(found) == 3 * 2 * 2 * 2
    for (strategy, _, _, ranks), row in found.items():
        refused = strategy == "single_device" and ranks == 2
        assert row["kind"] == ("refused" if refused else "worked"), said
        assert ("'single_device'" in row["text"] and "Valid: 1." in row["text"]) == refused
    assert {row["route"] for row in found.values() if row["kind"] == "worked"} == {"alone", "torchrun"}
    text = page.read_text("utf-8")
    assert "| strategy | 64-true | bf16-mixed |\n|---|---|---|\n| `ddp` | yes | yes |\n" in text
    assert "| `single_device` | 1 process<sup>1</sup> | 1 process<sup>1</sup> |\n" in text
    assert text.startswith("# A page\n\n<!-- matrix:begin -->\n")
    assert text.endswith(PAGE.partition("old\n")[2])


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, dict[str, dict[str, Any]]]:
    """One cell of each broken strategy, which are installed like any other."""
    folder = tmp_path_factory.mktemp("broken")
    shutil.copy(SCRIPTS / "broken_strategies.py", folder)
    info = folder / "torch_hal_broken-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-hal-broken\nVersion: 0.1.0\n")
    lines = "".join(f"{name} = broken_strategies\n" for name in BROKEN)
    (info / "entry_points.txt").write_text(f"[core.strategies]\n{lines}")
    words = ("bf16-mixed", "Trainer", "2", "--limit", 12, "--jobs", 3)
    code, said = run_matrix("--only", *BROKEN, *words, "--json", folder / "cells.json", path=folder)
    return code, said, {cell[0]: row for cell, row in outcomes(folder / "cells.json").items()}


@pytest.mark.parametrize("name", BROKEN)
def test_a_third_kind_is_a_failure(broken: tuple[int, str, dict[str, dict[str, Any]]], name: str) -> None:
    """Whatever else becomes of a cell is a failure that says what it is."""
    _, said, found = broken
    assert found[name]["kind"] == "failed", said
    assert re.search(BROKEN[name], found[name]["text"]), found[name]


def test_failures_are_told_with_their_output(broken: tuple[int, str, dict[str, dict[str, Any]]]) -> None:
    """The exit code is 1, and what the processes wrote is kept: the error, or where they hang."""
    code, said, found = broken
    assert code == 1
    assert "RuntimeError: quantile() input tensor must be either float or double dtype" in found["Raises"]["output"]
    assert "does not serve precision 'bf16-mixed'" in found["RefusesLate"]["output"]
    assert re.search(r"broken_strategies\.py\", line \d+ in setup_module", found["Hangs"]["output"])
    assert "quantile() input" in said


def test_words_that_mean_nothing_are_refused() -> None:
    """A slip in a name does not make an empty matrix pass."""
    code, said = run_matrix("--only", "dpp")
    assert code != 0
    assert "--only dpp" in said
