"""Building Horovod for the tests: with MPI only where MPI programs can be compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from .real.environment import _compiles_mpi


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 'mpi.h: No such file or directory' >&2; exit 1", False),  # Debian's openmpi-bin without the headers
        ("exit 0", True),
        (None, False),
    ],
    ids=["wrapper without headers", "wrapper with headers", "no wrapper"],
)
def test_only_a_compiled_program_proves_mpi(
    script: str | None, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler wrapper alone is not enough."""
    if script is not None:
        (tmp_path / "mpicxx").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (tmp_path / "mpicxx").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _compiles_mpi() is expected
