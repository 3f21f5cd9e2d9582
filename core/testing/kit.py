"""Running the kit from a package's own tests, in a process of its own, as a user of the package would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["check_backends"]


def check_backends(
    *backends: str,
    folder: Path,
    options: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    seconds: float = 580.0,
) -> str:
    """Run the kit for ``backends``, all of which must pass it.

    Args:
        backends: As ``--backend`` takes them, such as ``"accelerator:acme"``.
        folder: An empty folder; the working directory.
        options: Further options of the kit, such as ``"--backend-devices=1"``.
        environ: Variables beside the process's own, without those of the pytest that runs now.
        seconds: How long it may take.

    Returns:
        What the kit printed.

    Raises:
        AssertionError: It did not pass, or said nothing of one of them; with what it printed.
        subprocess.TimeoutExpired: It took longer.
    """
    kit = ["-p", "no:cacheprovider", "-p", "core.testing.plugin", "--pyargs", "core.testing.suite"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *kit, *(f"--backend={backend}" for backend in backends), *options],
        env={**kept, **(environ or {})},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    said = done.stdout.splitlines()
    passed = all(
        any(line.startswith(f"conformance of {backend} ") and " passed" in line for line in said)
        for backend in backends
    )
    if done.returncode != 0 or not passed:
        raise AssertionError(f"pytest ended with exit code {done.returncode}:\n{done.stdout}")
    return done.stdout
