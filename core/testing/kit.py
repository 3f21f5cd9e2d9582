"""Running the kit from a package's own tests, in a process of its own, as a user of the package would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from core.kinds import KINDS
from core.specs import BackendSpec

__all__ = ["check_backends"]


def check_backends(
    *backends: str,
    folder: Path,
    options: Sequence[str] = (),
    specs: Sequence[BackendSpec] = (),
    least: int = 1,
    environ: Mapping[str, str] | None = None,
    seconds: float = 580.0,
) -> str:
    """Run the kit for ``backends``, all of which must pass it.

    Args:
        backends: As ``--backend`` takes them, such as ``"accelerator:acme"``.
        folder: An empty folder; the working directory.
        options: Further options of the kit, such as ``"--backend-devices=1"``.
        specs: What is installed for this run alone, such as a name for a class of the package with ``init_args`` of its
            own; plain data, their targets by name.
        least: How many tests must pass for each; what a backend declares that it lacks is not among them.
        environ: Variables beside the process's own, without those of the pytest that runs now.
        seconds: How long it may take.

    Returns:
        What the kit printed.

    Raises:
        AssertionError: It did not pass, or fewer tests than ``least`` did for one of them; with what it printed.
        subprocess.TimeoutExpired: It took longer.
    """
    kit = ["-p", "no:cacheprovider", "-p", "core.testing.plugin", "--pyargs", "core.testing.suite"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    variables.update(environ or {})
    if specs:
        _install(specs, folder / "installed")
        path = [str(folder / "installed"), variables.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *kit, *(f"--backend={backend}" for backend in backends), *options],
        env=variables,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode != 0:
        raise AssertionError(f"pytest ended with exit code {done.returncode}:\n{done.stdout}")
    for backend in backends:
        passed = _passed(backend, done.stdout)
        if passed < least:
            raise AssertionError(f"{backend}: {passed} tests passed, of at least {least}:\n{done.stdout}")
    return done.stdout


def _passed(backend: str, said: str) -> int:
    """How many tests passed for ``backend``, by what the kit printed."""
    line = re.search(rf"^conformance of {re.escape(backend)} .*?(\d+) passed", said, re.MULTILINE)
    return int(line[1]) if line else 0


def _install(specs: Iterable[BackendSpec], site: Path) -> None:
    """Leave a distribution that provides ``specs`` in ``site``, as an installer does."""
    metadata = site / "core_testing_specs-0.dist-info"
    metadata.mkdir(parents=True)
    requires = "Requires-Dist: torch-hal"
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: core-testing-specs\nVersion: 0\n{requires}\n\n")
    declared, code = [], ["from types import MappingProxyType as mappingproxy", "from core.hookspecs import hookimpl"]
    code.append("from core.specs import *")
    for kind in KINDS.values():
        of_kind = [spec for spec in specs if spec.kind == kind.name]
        if of_kind:
            declared += [f"[{kind.group}]", *(f"{spec.name} = core_testing_specs" for spec in of_kind)]
            code.append(f"@hookimpl\ndef {kind.hook}():\n    return {of_kind!r}")
    (metadata / "entry_points.txt").write_text("\n".join(declared) + "\n")
    (site / "core_testing_specs.py").write_text("\n".join(code) + "\n")
