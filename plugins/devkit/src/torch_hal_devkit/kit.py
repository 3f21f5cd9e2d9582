"""Run the kit from a package's own tests, in a separate process, as a user of the package would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from torch_hal.kinds import KINDS
from torch_hal.specs import BackendSpec

__all__ = ["check_backends"]


def check_backends(
    *backends: str,
    folder: Path,
    options: Sequence[str] = (),
    specs: Sequence[BackendSpec] = (),
    min_passed: int = 1,
    environ: Mapping[str, str] | None = None,
    seconds: float = 580.0,
) -> str:
    """Run the kit for ``backends`` and check that all of them pass.

    Args:
        backends: As ``--backend`` takes them, such as ``"accelerator:acme"``.
        folder: An empty folder, used as the working directory.
        options: Further options for pytest, such as ``"--backend-devices=1"``.
        specs: Backends to install for this run only, such as a class of the package with other ``init_args``. Targets
            are strings, and arguments plain data.
        min_passed: How many tests must pass for each backend; tests skipped by declaration do not count.
        environ: Environment variables to add to this process's own, of which those of pytest are removed.
        seconds: The time limit.

    Returns:
        The kit's output.

    Raises:
        AssertionError: A test failed, or fewer tests than ``min_passed`` passed; the message has the output.
        subprocess.TimeoutExpired: The time limit was exceeded.
    """
    kit = ["-p", "no:cacheprovider", "-p", "torch_hal_devkit.plugin", "--pyargs", "torch_hal_devkit.suite"]
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
        if passed < min_passed:
            raise AssertionError(f"{backend}: {passed} tests passed. Expected: at least {min_passed}\n{done.stdout}")
    return done.stdout


def _passed(backend: str, output: str) -> int:
    """The number of tests that passed for ``backend``, according to the kit's output."""
    line = re.search(rf"^conformance of {re.escape(backend)} .*?(\d+) passed", output, re.MULTILINE)
    return int(line[1]) if line else 0


def _install(specs: Iterable[BackendSpec], site: Path) -> None:
    """Write a distribution that provides ``specs`` to ``site``, as an installer does."""
    metadata = site / "core_testing_specs-0.dist-info"
    metadata.mkdir(parents=True)
    requires = "Requires-Dist: torch-hal"
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: core-testing-specs\nVersion: 0\n{requires}\n\n")
    declared, code = (
        [],
        ["from types import MappingProxyType as mappingproxy", "from torch_hal.hookspecs import hookimpl"],
    )
    code.append("from torch_hal.specs import *")
    for kind in KINDS.values():
        of_kind = [spec for spec in specs if spec.kind == kind.name]
        if of_kind:
            declared += [f"[{kind.group}]", *(f"{spec.name} = core_testing_specs" for spec in of_kind)]
            code.append(f"@hookimpl\ndef {kind.hook}():\n    return {of_kind!r}")
    (metadata / "entry_points.txt").write_text("\n".join(declared) + "\n")
    (site / "core_testing_specs.py").write_text("\n".join(code) + "\n")
