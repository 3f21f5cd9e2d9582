"""Make an environment in which the real torch_xla runs on this machine's CPU.

``python environment.py FOLDER`` makes a virtual environment there, or leaves one that is complete, and prints the path
of its interpreter. torch_xla goes with one torch, whose wheel is linked against CUDA libraries that a run on the CPU
never calls: rather than download 4 GB of them, libraries of their names take their place, whose functions all say that
there is no device. Needs a C compiler and ``readelf``, on Linux.
"""

from __future__ import annotations

import argparse
import ctypes.util
import os
import re
import subprocess
import sys
import venv
from collections import defaultdict
from pathlib import Path

WITHOUT_DEPENDENCIES = ("torch==2.9.0", "torch_xla==2.9.0")
"""Both name dependencies that a run on the CPU does not need."""
WITH_DEPENDENCIES = (
    # Of torch and torch_xla.
    *("absl-py>=1", "filelock", "fsspec", "jinja2", "networkx>=2.5.1", "numpy", "pyyaml", "requests", "setuptools"),
    *("sympy>=1.13.3", "typing-extensions>=4.10"),
    # Of core, and of the tests.
    *("attrs>=23.2", "importlib-metadata>=7.0", "packaging>=23.2", "pluggy>=1.7"),
    *("editables>=0.5", "hatchling>=1.27", "pytest>=8.2", "pytest-timeout>=2.3"),
)

_NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
_VERSION_FILE = re.compile(r"Version: .* File: (\S+) ")
_VERSION_NAME = re.compile(r" Name: (\S+) ")
_SYMBOL = re.compile(r"^ *\d+: \w+ +\d+ \w+ +(GLOBAL|WEAK) +\w+ +(\w+) ([^@\s]+)(?:@+(\S+))?", re.MULTILINE)
_NO_DEVICE = 100
"""cudaErrorNoDevice: what every function says that is called all the same."""
_PREFIXES = ("cu", "nccl", "nv")
"""How the names begin that libraries define which give their symbols no versions."""


def main() -> None:
    """Make the environment that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the environment is, or is to be")
    parser.add_argument("--constraint", action="append", default=[], help="passed to pip for the pure packages")
    arguments = parser.parse_args()
    python = arguments.folder / "bin" / "python"
    complete = arguments.folder / "complete"
    said = "\n".join((*WITHOUT_DEPENDENCIES, *WITH_DEPENDENCIES))
    if not complete.exists() or complete.read_text() != said:
        venv.create(arguments.folder, clear=True, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, *(f"--constraint={path}" for path in arguments.constraint), *WITH_DEPENDENCIES], check=True
        )
        subprocess.run([*pip, "--no-compile", "--no-deps", *WITHOUT_DEPENDENCIES], check=True)
        _replace_missing(next(arguments.folder.glob("lib/python*/site-packages/torch/lib")))
        complete.write_text(said)
    sys.stdout.write(f"{python}\n")


def _replace_missing(folder: Path) -> None:
    """Put a library that does nothing next to torch's own for each that they need, and that is not here."""
    own = {path.name for path in folder.iterdir()}
    missing: set[str] = set()
    homes: dict[str, str] = {}  # from a version's name to the library that has it
    wanted: set[tuple[str, str]] = set()  # symbols and their versions
    defined: set[str] = set()
    for path in folder.glob("*.so"):
        said = _readelf(path, "--dynamic")
        missing |= {name for name in _NEEDED.findall(said) if name not in own and not _is_here(name)}
        for block in _readelf(path, "--version-info").split("Version needs section")[1:]:
            homes |= _homes(block)
        for bind, section, name, version in _SYMBOL.findall(_readelf(path, "--dyn-syms")):
            if section != "UND":
                defined.add(name)
            elif bind == "GLOBAL":
                wanted.add((name, version))
    wanted = {(name, version) for name, version in wanted if name not in defined}
    without_version = {name for name, version in wanted if not version and name.startswith(_PREFIXES)}
    for library in missing:
        by_version: dict[str, set[str]] = defaultdict(set)
        for name, version in wanted:
            if version and homes[version] == library:
                by_version[version].add(name)
        # Which library these are of cannot be told, and need not: the first found serves.
        _make_library(folder / library, by_version, without_version)


def _homes(version_needs: str) -> dict[str, str]:
    homes, library = {}, ""
    for line in version_needs.splitlines():
        if found := _VERSION_FILE.search(line):
            library = found[1]
        elif found := _VERSION_NAME.search(line):
            homes[found[1]] = library
    return homes


def _make_library(path: Path, by_version: dict[str, set[str]], without_version: set[str]) -> None:
    names = sorted(without_version.union(*by_version.values()))
    script = path.with_suffix(".versions")
    script.write_text(
        "".join(
            f"{version} {{ global: {' '.join(f'{n};' for n in sorted(n))} }};\n" for version, n in by_version.items()
        )
    )
    options = [f"-Wl,-soname,{path.name}", *([f"-Wl,--version-script,{script}"] if by_version else [])]
    subprocess.run(
        ["cc", "-shared", "-nostdlib", "-fno-builtin", "-w", *options, "-x", "c", "-", "-o", str(path)],
        input="".join(f"long {name}(void) {{ return {_NO_DEVICE}; }}\n" for name in names),
        text=True,
        check=True,
    )
    script.unlink()


def _readelf(path: Path, option: str) -> str:
    command = ["readelf", "--wide", option, str(path)]
    environ = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout


def _is_here(name: str) -> bool:
    return name.startswith("ld-linux") or ctypes.util.find_library(name.removeprefix("lib").partition(".so")[0]) == name


if __name__ == "__main__":
    main()
