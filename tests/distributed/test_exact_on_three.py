"""On three processes, where sums depend on their order, a resumed run ends bit for bit as the uninterrupted one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import assert_same, run_script, states


@pytest.mark.slow
@pytest.mark.parametrize(
    ("frontend", "strategy", "options"),
    [
        ("trainer", "ddp", {}),
        ("runtime", "ddp", {}),
        ("trainer", "ddp_spawn", {}),
        ("runtime", "ddp_fork", {}),
        ("trainer", "ddp_sharded", {}),
        ("trainer", "ddp", {"static_graph": True}),
        ("runtime", "ddp", {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001}),
        ("runtime", "ddp", {"communication_hook": "fp16_compress"}),
    ],
    ids=str,
)
def test_resumed_after_several_steps(frontend: str, strategy: str, options: dict[str, Any], tmp_path: Path) -> None:
    """The uninterrupted run saves on its way; new processes continue from there to the same bits."""
    arguments = ("exact_on_three.py", frontend)
    run_script(tmp_path, *arguments, "whole", strategy, json.dumps(options))
    expected = states(tmp_path)
    for rank in expected:
        (tmp_path / f"rank{rank}.pt").unlink()
    run_script(tmp_path, *arguments, "resume", strategy, json.dumps(options))
    resumed = states(tmp_path)
    assert sorted(expected) == sorted(resumed)
    assert set(expected) == ({0} if strategy == "ddp_spawn" else {0, 1, 2})  # there, fit returns where it was called
    for rank, state in expected.items():
        assert_same(resumed[rank], state)
