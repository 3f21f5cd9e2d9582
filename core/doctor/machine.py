"""The machine: disk, shared memory, ports, names; and the environment variables, with those that contradict others."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Mapping

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
