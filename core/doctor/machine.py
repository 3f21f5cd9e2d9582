"""The machine: what is installed, disk, shared memory, ports, names; and the environment variables.

What is installed is read from metadata files alone: torch is not imported, and may be broken.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import importlib_metadata

from ..discovery.ranks import by_priority, has_started
from ..discovery.registry import Registry
from ..environments.base import LARGEST_PORT, LAUNCHED, TORCHRUN_VARIABLES, whole_number
from ..environments.local import OWNER
from ..errors import ConfigurationError, CoreError
from .report import Check

_MIB = 1 << 20
_SMALLEST_DISK = 1024 * _MIB
_SMALLEST_MEMORY = 64 * _MIB
_MATTER = re.compile(
    r"(CORE|SLURM|OMPI|PMI|PMIX|PALS|FLUX|JSM|LSB|LSF|MPI|TORCH|TORCHELASTIC|MASTER|LOCAL|GROUP|ROLE|GLOO|OMP|MKL|"
    r"KMP|PYTORCH|PET|[A-Z]?CCL)_.*|RANK|WORLD_SIZE|NODE_RANK|PYTHONPATH|PYTHONSTARTUP|LD_PRELOAD|LD_LIBRARY_PATH|TMPDIR|"
    r".*VISIBLE_DEVICES|FI_PROVIDER"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|JWT", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""In a URL, the user and the password before the host."""
_LONGEST = 200


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a run depends on. Values of what may be a secret are not shown; long ones are cut."""
    found = {}
    for name in sorted(environ):
        if _MATTER.fullmatch(name):
            value = "(hidden)" if _SECRET.search(name) else _LOGIN.sub("(hidden)", environ[name])
            value = value.encode(errors="backslashreplace").decode().replace("\n", "\\n")
            found[name] = value if len(value) <= _LONGEST else f"{value[:_LONGEST]}… ({len(value)} characters)"
    return found


def check_variables(environ: Mapping[str, str]) -> list[Check]:
    """Variables that contradict each other, or were left over by another run."""
    checks = []
    some = [name for name in TORCHRUN_VARIABLES if name in environ]
    if LAUNCHED in environ or OWNER in environ:
        left = LAUNCHED if LAUNCHED in environ else OWNER
        found = f"{left} is set, which belongs to the processes of one run"
        checks.append(Check("variables", "problem", found, f"Unset {left}, or open a new shell."))
    elif "RANK" in some and len(some) < len(TORCHRUN_VARIABLES):
        missing = ", ".join(name for name in TORCHRUN_VARIABLES if name not in environ)
        remedy = f"Set {missing} too, or unset {', '.join(some)}. torch-hal run sets all of them."
        checks.append(Check("variables", "problem", f"{', '.join(some)} set, but not {missing}", remedy))
    try:
        registry = Registry.read(environ)
        specs = by_priority(registry.specs("cluster_environment"))
        told = registry.started(specs, environ)
        used = (spec.name for spec in specs if has_started(registry, spec, told.get(spec.name), environ))
        found = f"a run started here would use cluster environment {next(used, 'none')!r}"
        checks.append(Check("variables", "ok", found))
    except CoreError as error:
        remedy = "Unset what the error names, or set cluster_environment to the launcher that you use."
        checks.append(Check("variables", "problem", str(error), remedy))
    return checks


def check_disk(folders: Mapping[str, str]) -> list[Check]:
    """Free space, and whether a file can be written, where checkpoints and temporary files go.

    Args:
        folders: Paths by what is there.
    """
    checks = []
    for what, folder in folders.items():
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"x")
            free = shutil.disk_usage(folder).free
        except OSError as error:
            found = f"no file can be written in {folder}: {error.strerror}"
            checks.append(Check(what, "problem", found, "Use another folder, or make room there."))
            continue
        if free < _SMALLEST_DISK:
            found = f"{folder} has {free // _MIB} MiB left"
            checks.append(Check(what, "problem", found, "Make room, or use another folder: a checkpoint may not fit."))
        else:
            checks.append(Check(what, "ok", f"{folder} has {free / 1024 / _MIB:.1f} GiB left"))
    return checks


def check_memory(folder: str = "/dev/shm") -> list[Check]:
    """Shared memory, by which workers of a DataLoader pass their batches on."""
    if not os.path.isdir(folder):
        return [Check("shared memory", "skipped", f"this system has no {folder}")]
    usage = shutil.disk_usage(folder)
    found = f"{folder} has {usage.free // _MIB} of {usage.total // _MIB} MiB left"
    if usage.free >= _SMALLEST_MEMORY and os.access(folder, os.W_OK):
        return [Check("shared memory", "ok", found)]
    remedy = "Give the container more (docker run --shm-size=8g, or --ipc=host), or set num_workers=0 in DataLoaders."
    return [Check("shared memory", "problem", f"{found}; workers of a DataLoader end with a bus error", remedy)]


def check_ports(environ: Mapping[str, str]) -> list[Check]:
    """Whether this process can listen, at MASTER_PORT too if this is the machine of rank 0."""
    checks = []
    try:
        with socket.create_server(("127.0.0.1", 0)):
            pass
        checks.append(Check("ports", "ok", "a process can listen on 127.0.0.1"))
    except OSError as error:
        remedy = "Bring the loopback interface up (ip link set lo up), and check the firewall."
        checks.append(Check("ports", "problem", f"no process can listen on 127.0.0.1: {error.strerror}", remedy))
    if "MASTER_PORT" in environ and environ.get("RANK", "0") == "0":
        checks += _check_master_port(environ)
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        found = f"this machine's name {name!r} has no address ({error}), so processes may not find each other"
        checks.append(Check("host name", "problem", found, f"Add it to /etc/hosts: 127.0.0.1 {name}"))
    else:
        checks.append(Check("host name", "ok", f"{name!r} has an address"))
    return checks


def _check_master_port(environ: Mapping[str, str]) -> list[Check]:
    try:
        port = whole_number(environ, "MASTER_PORT", low=1, high=LARGEST_PORT)
        with socket.create_server(("", port)):
            return [Check("MASTER_PORT", "ok", f"port {port} is free")]
    except ConfigurationError as error:
        return [Check("MASTER_PORT", "problem", str(error), "Set it to a free port, or unset it.")]
    except OSError as error:
        found = f"no process can listen at MASTER_PORT={port}: {error.strerror}"
        return [Check("MASTER_PORT", "problem", found, "Set it to a free port; another run may still use this one.")]


# -- what is installed -------------------------------------------------------------------------------------------------

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
