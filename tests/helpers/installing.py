"""Distributions made and installed for tests."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PACKAGES = Path(__file__).parents[2] / "plugins"


def import_packages_from_here(patch: Any) -> None:
    """Let this repository's packages be imported without being installed, for the time of a test's ``monkeypatch``."""
    for folder in PACKAGES.glob("*/src"):
        patch.syspath_prepend(folder)


def files_of(
    distribution: str,
    version: str,
    entry_points: str,
    requires: Sequence[str] = ("torch-hal>=0.1,<1",),
) -> dict[str, str]:
    """The metadata files of a distribution, by path below the directory that it is installed in."""
    info = f"{distribution.replace('-', '_')}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    return {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{needs}\nA plugin.\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": entry_points,
    }


def lay_down(directory: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files as an installer would have; returns ``directory``."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return directory


def write_wheel(directory: Path, distribution: str, version: str, files: Mapping[str, str]) -> Path:
    """A wheel with these files, RECORD added."""
    name = distribution.replace("-", "_")
    record = f"{name}-{version}.dist-info/RECORD"
    wheel = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
        archive.writestr(record, "".join(f"{path},,\n" for path in [*files, record]))
    return wheel


def pip_install(wheels: Sequence[Path], target: Path) -> Path:
    """Install wheels with pip, as a user does; returns ``target``."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*command, "--target", str(target), *map(str, wheels)], check=True, timeout=240)
    return target


def environment(*path: Path, **variables: str) -> dict[str, str]:
    """The environment variables of a process that finds what is installed in ``path``, and that no one configured."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CORE_", "TORCH_DEVICE_"))}
    return {**inherited, "PYTHONPATH": os.pathsep.join(map(str, path)), **variables}


def run_list(*arguments: str, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run ``python -m core.list``."""
    command = [sys.executable, "-m", "core.list", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
