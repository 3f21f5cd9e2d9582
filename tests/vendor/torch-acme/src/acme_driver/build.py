"""Compiling the simulation, once for each torch: ``python -m acme_driver.build`` does it ahead of the first use.

It needs a C++ compiler (``CXX``, else ``g++``) and what torch brings. The result lies in ``ACME_CACHE``, else in the
user's cache directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

__all__ = ["build", "load"]

_SOURCES = Path(__file__).parent / "csrc"
_MODULE = _SOURCES / "module.cpp"
_NAME = "_native"


def load() -> ModuleType:
    """The extension module, compiled where it is not yet."""
    loader = importlib.machinery.ExtensionFileLoader(f"acme_driver.{_NAME}", str(build()))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def build() -> Path:
    """The compiled extension module of this torch and this Python. Processes that ask at once compile it once.

    Raises:
        RuntimeError: It cannot be compiled; says what the compiler says.
    """
    command = _command()
    target = _cache() / _key(command) / f"{_NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                made = Path(scratch) / target.name
                _run([*command, "-o", str(made)])
                made.replace(target)
    return target


def _command() -> list[str]:
    import torch

    home = Path(torch.__file__).parent
    includes = [home / "include", home / "include/torch/csrc/api/include", Path(sysconfig.get_path("include"))]
    return [
        *shlex.split(os.environ.get("CXX", "g++")),
        *("-O1", "-fPIC", "-shared", "-std=c++20"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-DTORCH_EXTENSION_NAME={_NAME}",
        *(f"-I{path}" for path in includes),
        str(_MODULE),
        f"-L{home / 'lib'}",
        *("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
    ]


def _key(command: list[str]) -> str:
    """What the result depends on: that is not where the sources are installed."""
    import torch

    elsewhere = [argument for argument in command if argument != str(_MODULE)]
    digest = hashlib.sha256("\0".join([torch.__version__, sys.version, *elsewhere]).encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:32]


def _cache() -> Path:
    said = os.environ.get("ACME_CACHE")
    return Path(said) if said else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch-acme"


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise RuntimeError(f"the Acme simulation needs a C++ compiler: {command[0]!r}: {error}") from error
    if done.returncode:
        raise RuntimeError(f"the Acme simulation does not compile:\n{shlex.join(command)}\n{done.stderr}")


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
