"""Checks of what is installed, from metadata files alone: torch is not imported, and may be broken."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

import importlib_metadata

from .report import Check

_DEPENDENCIES = ("torch", "pluggy", "attrs", "packaging", "importlib-metadata", "numpy")
_GROUP = re.compile(r"^\s*\[\s*torch\.backends\s*\]\s*$(.*?)(?=^\s*\[|\Z)", re.MULTILINE | re.DOTALL)
_UNUSED = {"__main__", "test", "this", "antigravity", "turtle", "turtledemo", "idlelib", "lib2to3"}
"""Modules of the standard library that nothing imports."""
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def versions() -> dict[str, str]:
    """The versions of Python, the system, torch-hal and its dependencies."""
    found = {
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "torch-hal": f"{_version('torch-hal')} ({os.path.dirname(os.path.dirname(__file__))})",
    }
    return found | {name: _version(name) for name in _DEPENDENCIES}


def _version(distribution: str) -> str:
    try:
        return importlib_metadata.version(distribution) or "damaged metadata"
    except importlib_metadata.PackageNotFoundError:
        return "not installed"
    except (UnicodeError, ValueError, OSError) as error:
        return f"damaged metadata ({type(error).__name__})"


def check_metadata(environ: Mapping[str, str], path: Sequence[str] | None = None) -> list[Check]:
    """Metadata that makes ``import torch`` fail: it reads the entry points of every installed distribution.

    Args:
        environ: The environment variables.
        path: The folders to search; by default ``sys.path``.
    """
    checks = []
    for folder, content in _entry_points(sys.path if path is None else path):
        name = os.path.basename(folder)
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            checks.append(
                Check(
                    "metadata",
                    "problem",
                    f"{folder}/entry_points.txt is not UTF-8 (byte {error.start}), so 'import torch' and every program "
                    "that looks for plugins fails",
                    f"Reinstall the distribution {name.partition('-')[0]!r}, or remove the folder.",
                )
            )
            continue
        group = _GROUP.search(text)
        for line in group[1].strip().splitlines() if group else []:
            checks += _check_extension(line, name, environ)
    return checks or [Check("metadata", "ok", "the entry points of all distributions can be read")]


def _entry_points(path: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for entry in dict.fromkeys(os.path.abspath(entry or ".") for entry in path):
        try:
            names = sorted(name for name in os.listdir(entry) if name.endswith((".dist-info", ".egg-info")))
        except OSError:  # a zip file, or a folder that is not there
            continue
        for name in names:
            try:
                with open(os.path.join(entry, name, "entry_points.txt"), "rb") as file:
                    yield os.path.join(entry, name), file.read()
            except OSError:  # it has none
                continue


def _check_extension(line: str, distribution: str, environ: Mapping[str, str]) -> list[Check]:
    """An entry point that torch loads when it is imported. Its code runs only where torch is imported, in a process."""
    name, equals, target = (part.strip() for part in line.partition("="))
    if not equals or line.lstrip().startswith(("#", ";")):
        return []
    package = target.partition(":")[0].partition(".")[0].strip()
    try:
        is_there = importlib.util.find_spec(package) is not None
    except (ImportError, ValueError, AttributeError):
        is_there = False
    if is_there:
        return [Check("torch.backends", "ok", f"'import torch' also imports {target} of {distribution} ({name})")]
    if environ.get(_AUTOLOAD, "1") != "1":
        return [Check("torch.backends", "ok", f"{target} of {distribution} is missing, but {_AUTOLOAD} turns it off")]
    return [
        Check(
            "torch.backends",
            "problem",
            f"{distribution} has torch load {target!r} ({name}) at 'import torch', and there is no package {package!r}",
            f"Reinstall or uninstall {distribution.partition('-')[0]!r}, or set {_AUTOLOAD}=0.",
        )
    ]


def check_folders(current: str) -> list[Check]:
    """Files of the user that hide a package: ``current``, the folder of a script, comes first in its search path."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    checks = []
    for entry in dict.fromkeys(os.path.realpath(entry or ".") for entry in (current, *sys.path)):
        for hiding in (os.path.join(entry, "core", "__init__.py"), os.path.join(entry, "core.py")):
            if os.path.isfile(hiding) and os.path.realpath(os.path.dirname(hiding)) != os.path.realpath(own):
                found = f"{hiding} is imported as 'core' where its folder comes first in the search path"
                remedy = "Rename it, or write 'from torch_hal import Trainer' instead of 'from core import Trainer'."
                checks.append(Check("own core", "problem", found, remedy))
    hidden = {"torch", "pluggy", "attr", "packaging", "numpy"} | (sys.stdlib_module_names - _UNUSED)
    try:
        names = os.listdir(current)
    except OSError as error:
        return [*checks, Check("current directory", "problem", f"{current} cannot be read: {error.strerror}")]
    for name in sorted(names):
        module = name.removesuffix(".py")
        is_module = name.endswith(".py") or os.path.isfile(os.path.join(current, name, "__init__.py"))
        if module in hidden and is_module and not _is_that_package(current, module):
            found = f"{os.path.join(current, name)} hides the module {module!r} from scripts in this folder"
            checks.append(Check("hidden module", "problem", found, "Rename it."))
    return checks or [Check("own files", "ok", "no file here hides a module that a run needs")]


def _is_that_package(current: str, module: str) -> bool:
    """Whether this folder is where the module is installed."""
    import sysconfig

    places = {os.path.realpath(place) for place in sysconfig.get_paths().values()}
    return os.path.realpath(current) in places or bool(module in sys.builtin_module_names)
