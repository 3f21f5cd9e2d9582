"""Kinds of broken plugin: what each does to the process that runs its code, and what users must be told."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from installing import files_of, lay_down

__all__ = ["KINDS", "Kind", "write_site"]

PLUGIN = """\
from core.hookspecs import hookimpl
from core.specs import AcceleratorSpec

@hookimpl
def core_accelerators():
    return [AcceleratorSpec(name="NAME", target="PACKAGE.accelerator:AcmeAccelerator", detect=DETECT, priority=90)]
"""

ACCELERATOR = """\
import torch
from core.accelerators import Accelerator

class AcmeAccelerator(Accelerator):
    def is_available(self):
        return True

    def auto_device_count(self):
        return 1

    def get_parallel_devices(self, devices):
        return [torch.device("cpu") for _ in devices]
"""

ONE = "def count():\n    return 1\n"
SEGFAULT = "import ctypes\nctypes.string_at(0)\n"
HANG = "import time\nwhile True:\n    time.sleep(1)\n"
HOLDS_THE_LOCK = "import re\nre.match('(a+)+$', 40 * 'a' + 'b')\n"
BASE = "class Stop(BaseException):\n    pass\nraise Stop('licence expired')\n"
THREAD = (
    "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=DAEMON, name='vendor').start()\n"
)
CHILD = """\
import subprocess, sys
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
raise OSError('no daemon')
"""
PATCH = "import torch\ntorch.nn.Linear.forward = lambda self, x: x\n"
PATCH_CORE = "from core.accelerators import Accelerator as A\nA.setup_device = lambda self, device: None\n"
HOOKS = "from torch.nn.modules import module\nmodule.register_module_forward_hook(lambda *_: None)\n"
GROUP = """\
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
SEED = "import torch\ntorch.manual_seed(1)\n"
DTYPE = "import torch\ntorch.set_default_dtype(torch.float64)\n"
SIGNAL = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
FILTER = "import warnings\nwarnings.simplefilter('error')\n"
HOOK = PLUGIN.partition("    return")[0]


class Kind(NamedTuple):
    """One kind of broken plugin."""

    cause: str
    """What the error says whose user names the backend."""
    before: str = ""
    """Code in its hook module, before the hook."""
    hook: str = PLUGIN
    """The hook, and what it imports."""
    target: str = ""
    """Code in the module of its class, before the class."""
    accelerator: str = ACCELERATOR
    detect: str | None = ONE
    """The module with its function ``count``; ``None`` for a spec that has none."""
    name: str = "acme"
    requires: str = "torch-hal"
    state: str = "failed"
    """Its state in a listing that probes."""
    twin: bool = False
    """Whether a second distribution claims its name."""
    is_shown: bool = True
    """Whether a listing that probes shows ``cause``: it does not call ``is_available`` where there is ``detect``."""


def method(name: str, code: str) -> str:
    """The class, with one method that runs ``code``."""
    first = f"    def {name}(self"
    assert first in ACCELERATOR
    head, _, rest = ACCELERATOR.partition(first)
    body = "".join(f"        {line}\n" for line in code.splitlines())
    signature, _, rest = rest.partition("\n")
    return f"{head}{first}{signature}\n{body}{rest}"


def indented(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.splitlines())


KINDS = {
    # its hook module
    "import_exits": Kind("ended with exit code 9", before="import os\nos._exit(9)\n"),
    "import_segfaults": Kind("killed by SIGSEGV", before=SEGFAULT),
    "import_aborts": Kind("killed by SIGABRT", before="import os\nos.abort()\n"),
    "import_is_killed": Kind("killed by SIGKILL", before="import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"),
    "import_hangs": Kind("timed out after", before=HANG),
    "import_holds_the_lock": Kind("timed out after", before=HOLDS_THE_LOCK),
    "import_raises": Kind("RuntimeError: no driver", before="raise RuntimeError('no driver')\n"),
    "import_exits_politely": Kind("SystemExit: no licence", before="raise SystemExit('no licence')\n"),
    "import_raises_base_exception": Kind("Stop: licence expired", before=BASE),
    "import_interrupts": Kind("KeyboardInterrupt", before="raise KeyboardInterrupt\n"),
    "import_recurses": Kind("RecursionError", before="def f():\n    f()\nf()\n"),
    "import_takes_memory": Kind("MemoryError", before="kept = bytearray(64 << 30)\n"),
    "import_misses_a_package": Kind("No module named 'acmelib'", before="import acmelib\n"),
    "import_is_no_python": Kind("SyntaxError", before="def (:\n"),
    "import_seeds_torch": Kind("random number generator of torch", before=SEED),
    "import_seeds_python": Kind("random number generator of Python", before="import random\nrandom.seed(1)\n"),
    "import_sets_dtype": Kind("torch's setting of the default dtype", before=DTYPE),
    "import_changes_path": Kind("changes sys.path", before="import sys\nsys.path.insert(0, '/opt/acme')\n"),
    "import_changes_directory": Kind("the working directory", before="import os\nos.chdir('/')\n"),
    "import_changes_environment": Kind(
        "os.environ: OMP_NUM", before="import os\nos.environ['OMP_NUM_THREADS'] = '3'\n"
    ),
    "import_handles_signals": Kind("the handler of SIGTERM", before=SIGNAL),
    "import_filters_warnings": Kind("the filters of all warnings", before=FILTER),
    "import_patches_torch": Kind("the function torch.nn.Linear.forward", before=PATCH),
    "import_patches_builtins": Kind("the builtin print", before="import builtins\nbuiltins.print = repr\n"),
    "import_starts_a_thread": Kind("starts the thread 'vendor'", before=THREAD.replace("DAEMON", "False")),
    "import_starts_a_daemon": Kind("starts the thread 'vendor'", before=THREAD.replace("DAEMON", "True")),
    "import_leaves_a_child": Kind("OSError: no daemon", before=CHILD),
    "import_configures_logging": Kind("the root logger", before="import logging\nlogging.basicConfig(level=10)\n"),
    "import_sets_an_alarm": Kind("the timer of SIGALRM", before="import signal\nsignal.alarm(900)\n"),
    "import_sets_the_umask": Kind("the umask", before="import os\nos.umask(0)\n"),
    "import_limits_files": Kind(
        "the limit RLIMIT_NOFILE",
        before="import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n",
    ),
    "import_hooks_all_modules": Kind("hooks of all modules", before=HOOKS),
    "import_replaces_excepthook": Kind("sys.excepthook", before="import sys\nsys.excepthook = print\n"),
    # its hook
    "hook_raises": Kind("its core_accelerators raises ValueError: odd", hook=HOOK + "    raise ValueError('odd')\n"),
    "hook_exits": Kind("ended with exit code 3", hook=HOOK + "    import os\n    os._exit(3)\n"),
    "hook_hangs": Kind("timed out after", hook=HOOK + indented(HANG)),
    "hook_never_ends": Kind("has no end", hook=HOOK + "    while True:\n        yield 1\n"),
    "hook_returns_dicts": Kind("an object of type dict", hook=HOOK + "    return [{}]\n"),
    "hook_returns_nothing": Kind("returns None", hook=HOOK + "    return None\n"),
    "hook_returns_another_name": Kind("declares 'acme', but", hook=PLUGIN.replace("NAME", "acme2")),
    # finding its hardware
    "detect_exits": Kind("exit code 5", detect="def count():\n    import os\n    os._exit(5)\n"),
    "detect_hangs": Kind("timed out after", detect="def count():\n" + indented(HANG)),
    "available_exits": Kind("exit code 6", accelerator=method("is_available", "import os\nos._exit(6)"), detect=None),
    "available_segfaults": Kind("killed by SIGSEGV", accelerator=method("is_available", SEGFAULT), is_shown=False),
    "available_hangs": Kind("timed out after", accelerator=method("is_available", HANG), detect=None),
    "available_raises": Kind(
        "OSError: no driver", accelerator=method("is_available", "raise OSError('no driver')"), detect=None
    ),
    # its class
    "class_exits": Kind("ended with exit code 4", target="import os\nos._exit(4)\n"),
    "class_segfaults": Kind("killed by SIGSEGV", target=SEGFAULT),
    "class_hangs": Kind("timed out after", target=HANG),
    "class_raises_base_exception": Kind("Stop: licence expired", target=BASE),
    "class_patches_torch": Kind("the function torch.nn.Linear.forward", target=PATCH),
    "class_patches_core": Kind("the function torch_hal.accelerators.base.Accelerator.setup_device", target=PATCH_CORE),
    "class_joins_a_group": Kind("the default process group", target=GROUP),
    "class_seeds_torch": Kind("random number generator of torch", target=SEED),
    "class_sets_dtype": Kind("torch's setting of the default dtype", target=DTYPE),
    "class_starts_a_thread": Kind("starts the thread 'vendor'", target=THREAD.replace("DAEMON", "False")),
    "class_handles_signals": Kind("the handler of SIGTERM", target=SIGNAL),
    "class_is_missing": Kind("has no attribute 'AcmeAccelerator'", accelerator=""),
    "class_is_none_of_ours": Kind("is not a subclass", accelerator="class AcmeAccelerator:\n    pass\n"),
    "class_is_unfinished": Kind(
        "does not define auto_device_count", accelerator=ACCELERATOR.replace("auto_device_count", "device_count")
    ),
    "class_cannot_be_created": Kind(
        "raises OSError: no driver",
        accelerator=ACCELERATOR + "\n    def __init__(self):\n        raise OSError('no driver')\n",
        is_shown=False,
    ),
    # its metadata
    "needs_newer_core": Kind("needs torch-hal>=99", requires="torch-hal>=99", state="incompatible"),
    "name_is_claimed_twice": Kind("claim 'acme'", twin=True, state="conflict"),
}
"""Fifty-six kinds; those that change torch do so in a process of their own, too."""

HARMLESS_BY_NAME = ("detect_exits", "detect_hangs")
"""Kinds whose fault is in what is not called when the backend is named."""


def write_site(site: Path, name: str, kind: Kind, backend: str | None = None) -> None:
    """Install the plugin into the directory ``site``."""
    backend = backend or kind.name
    for number in range(1 + kind.twin):
        distribution = f"torch-hal-{name.replace('_', '-')}" + "-twin" * number
        package = distribution.replace("-", "_")
        code = (kind.before + kind.hook).replace("PACKAGE", package).replace("NAME", backend)
        code = code.replace("DETECT", "None" if kind.detect is None else f"'{package}.detect:count'")
        lay_down(
            site,
            {
                **files_of(
                    distribution, "1.0", f"[core.accelerators]\n{backend} = {package}.plugin\n", [kind.requires]
                ),
                f"{package}/__init__.py": "",
                f"{package}/plugin.py": code.replace("'acme'", repr(backend)),
                f"{package}/accelerator.py": kind.target + kind.accelerator,
                f"{package}/detect.py": kind.detect or "",
            },
        )
