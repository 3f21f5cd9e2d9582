"""docs/strategy-authors.md: its example against plain torch, and the names in it against the classes."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from core.strategies import DDPStrategy, ParallelStrategy, ProcessGroupStrategy, Strategy

PAGE = Path(__file__).parents[2] / "docs" / "strategy-authors.md"
SCRIPT = Path(__file__).parent / "scripts" / "local_sgd.py"


@pytest.mark.parametrize("processes", [pytest.param(2, marks=pytest.mark.exhaustive), 3])
def test_the_example_is_local_sgd(processes: int, tmp_path: Path) -> None:
    """In each process it has the parameters of a calculation by hand, also after resuming between two averages."""
    example = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)[0]
    assert "class LocalSGDStrategy" in example
    (tmp_path / "page.py").write_text(example, encoding="utf-8")
    (tmp_path / "compare.py").write_text(SCRIPT.read_text("utf-8"), encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-W", "error", "compare.py", str(processes)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    said = [f"rank {rank} resumed={resumed} as by hand" for rank in range(processes) for resumed in (False, True)]
    assert sorted(re.findall(r"rank .* as by hand", result.stdout)) == sorted(said)


@pytest.mark.parametrize("strategy", [Strategy, ParallelStrategy, ProcessGroupStrategy, DDPStrategy])
def test_the_page_names_the_whole_interface(strategy: type[Strategy]) -> None:
    """Every public method, property and attribute of the base classes that the page recommends."""
    public = {name for name in {*vars(strategy), *inspect.get_annotations(strategy)} if not name.startswith("_")}
    named = set(re.findall(r"`(\w+)[`(]", PAGE.read_text("utf-8")))
    assert public - named == set()
