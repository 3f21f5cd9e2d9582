"""Changes that the import of a plugin makes in this process besides adding modules: found, and undone.

A plugin that changes any of it would change the user's program without being asked. torch and numpy are looked at only
if they are imported; this module imports neither.
"""

from __future__ import annotations

import builtins
import gc
import importlib.util
import locale
import logging
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple


class ProcessState:
    """The state of this process, as it is when the object is created."""

    def __init__(self) -> None:
        self._before = {aspect: aspect.read() for aspect in _ASPECTS}
        self._threads = set(threading.enumerate())

    def take_changes(self) -> str:
        """Undo what has changed since the object was created, as far as it can be undone.

        Returns:
            What had changed, on one line; empty if nothing had.
        """
        changes: list[str] = []
        for aspect, values in self._before.items():
            now = aspect.read()
            for name, value in values.items():
                if _differ(value, now.get(name)):
                    changes.append(f"{aspect.change} {name}{aspect.show(value, now.get(name))}".replace("  ", " "))
                    with suppress(Exception):  # what cannot be undone is at least reported
                        aspect.undo(name, value)
        changes += [
            f"it starts the thread {thread.name!r}" for thread in threading.enumerate() if thread not in self._threads
        ]
        return "; ".join(changes[:_MOST]) + (f"; and {len(changes) - _MOST} more" if len(changes) > _MOST else "")


_MOST = 8
"""Changes that are reported one by one."""


class _Aspect(NamedTuple):
    """One aspect of the state."""

    change: str
    """How the report of a change begins; the name of what changed follows."""
    read: Callable[[], dict[str, Any]]
    """Returns the values by name."""
    undo: Callable[[str, Any], None]
    """Sets the value of a name."""
    show: Callable[[Any, Any], str] = lambda before, now: ""
    """Describes a value before and now."""


def _differ(one: Any, other: Any) -> bool:
    if one is other:
        return False
    if type(one) is not type(other):
        return True
    if type(one) is tuple:
        return len(one) != len(other) or any(_differ(*pair) for pair in zip(one, other, strict=True))
    if hasattr(one, "equal"):  # a tensor
        return not one.equal(other)
    if hasattr(one, "tobytes"):  # an array of numpy
        return bool(one.tobytes() != other.tobytes())
    return bool(one != other)


def _values(before: Any, now: Any) -> str:
    return f" from {before!r} to {now!r}"


def _names(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    return ", ".join(sorted(name for name in {*before, *now} if before.get(name) != now.get(name)))


# -- Python ------------------------------------------------------------------------------------------------------------


def _generators() -> Iterator[tuple[str, Any]]:
    yield "of Python", random.getstate()
    if "numpy.random" in sys.modules:
        yield "of numpy", sys.modules["numpy.random"].get_state()
    if (torch := _torch()) is not None:
        yield "of torch", torch.get_rng_state()


def _seed(name: str, value: Any) -> None:
    if name == "of Python":
        random.setstate(value)
    elif name == "of numpy":
        sys.modules["numpy.random"].set_state(value)
    else:
        _torch().set_rng_state(value)


def _search_path() -> dict[str, Any]:
    return {"": list(sys.path)}


def _set_search_path(_: str, value: Any) -> None:
    sys.path[:] = value


def _handlers() -> dict[str, Any]:
    return {number.name: signal.getsignal(number) for number in signal.Signals}


def _set_handler(name: str, value: Any) -> None:
    signal.signal(signal.Signals[name], value)


def _filters() -> dict[str, Any]:
    """The warning filters for a whole category of Python's own; many packages add filters for their own categories."""
    return {
        "": [
            entry
            for entry in warnings.filters
            if entry[1] is None and entry[3] is None and entry[2].__module__ == "builtins"
        ]
    }


def _set_filters(_: str, value: Any) -> None:
    added = [entry for entry in _filters()[""] if entry not in value]
    kept = [entry for entry in warnings.filters if entry not in added]
    warnings.filters[:] = kept + [entry for entry in value if entry not in kept]  # type: ignore[index]


def _hooks() -> dict[str, Any]:
    found = {f"sys.{name}": getattr(sys, name) for name in ("stdout", "stderr", "stdin", "excepthook", "displayhook")}
    return {**found, "threading.excepthook": threading.excepthook}


def _set_hook(name: str, value: Any) -> None:
    module, _, attribute = name.partition(".")
    setattr(sys.modules[module], attribute, value)


def _variables() -> dict[str, Any]:
    """All but those that torch itself sets when a plugin is the first to import its compiler."""
    return {"": {name: value for name, value in os.environ.items() if not name.startswith("TORCHINDUCTOR_")}}


def _set_variables(_: str, value: Any) -> None:
    for name in set(_variables()[""]) - set(value):
        del os.environ[name]
    os.environ.update(value)


class _Setting(NamedTuple):
    """One setting of the process."""

    read: Callable[[], Any]
    set: Callable[[Any], object]


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _umask() -> str:
    """Reading it means setting it; files that another thread creates meanwhile are closed to others."""
    value = os.umask(0o077)
    os.umask(value)
    return f"{value:03o}"


def _set_start_method(value: str | None) -> None:
    multiprocessing.set_start_method(value, force=True)


_SETTINGS = {
    "the working directory": _Setting(_working_directory, os.chdir),
    "the recursion limit": _Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    "the number of digits in text that Python reads": _Setting(sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    "the switch interval of threads": _Setting(sys.getswitchinterval, sys.setswitchinterval),
    "the garbage collector": _Setting(gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "the trace function": _Setting(sys.gettrace, sys.settrace),
    "the profile function": _Setting(sys.getprofile, sys.setprofile),
    "the locale": _Setting(lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    "the default timeout of sockets": _Setting(socket.getdefaulttimeout, socket.setdefaulttimeout),
    "how multiprocessing starts processes": _Setting(
        lambda: multiprocessing.get_start_method(allow_none=True), _set_start_method
    ),
    "the level below which logging is off": _Setting(lambda: logging.root.manager.disable, logging.disable),
    "the level of the root logger": _Setting(lambda: logging.root.level, logging.root.setLevel),
    "the level of the logger 'torch_hal'": _Setting(
        lambda: logging.getLogger("torch_hal").level, lambda level: logging.getLogger("torch_hal").setLevel(level)
    ),
    "the handlers of the root logger": _Setting(
        lambda: list(logging.root.handlers), lambda handlers: logging.root.handlers.__setitem__(slice(None), handlers)
    ),
}
"""What any system has. What the kernel keeps for the process is in :data:`_OF_POSIX`."""
_OF_POSIX = {
    "the umask": _Setting(_umask, lambda value: os.umask(int(value, 8))),
    "the niceness": _Setting(
        lambda: os.getpriority(os.PRIO_PROCESS, 0), lambda value: os.setpriority(os.PRIO_PROCESS, 0, value)
    ),
    "the processors that the process may use": _Setting(
        lambda: sorted(os.sched_getaffinity(0)), lambda processors: os.sched_setaffinity(0, processors)
    ),
    "the timer of SIGALRM": _Setting(
        lambda: "on" if any(signal.getitimer(signal.ITIMER_REAL)) else "off",
        lambda value: signal.setitimer(signal.ITIMER_REAL, 0) if value == "off" else None,
    ),
}


def _settings() -> dict[str, Any]:
    found = {name: setting.read() for name, setting in _SETTINGS.items()}
    for name, setting in _OF_POSIX.items():
        with suppress(AttributeError):  # a system that lacks it
            found[name] = setting.read()
    return found


def _set_setting(name: str, value: Any) -> None:
    (_SETTINGS | _OF_POSIX)[name].set(value)


def _limits() -> dict[str, Any]:
    if importlib.util.find_spec("resource") is None:
        return {}
    import resource

    return {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}


def _set_limit(name: str, value: Any) -> None:
    import resource

    resource.setrlimit(getattr(resource, name), value)


def _builtins() -> dict[str, Any]:
    return {name: getattr(builtins, name) for name in dir(builtins) if not name.startswith("_") or name == "__import__"}


# -- torch -------------------------------------------------------------------------------------------------------------


def _torch() -> Any:
    """torch, if its import is complete."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and hasattr(torch, "set_default_dtype") and hasattr(torch, "nn") else None


_SWITCHES: dict[str, tuple[str, str | None]] = {
    "the default dtype": ("get_default_dtype", "set_default_dtype"),
    "the default device": ("get_default_device", "set_default_device"),
    "gradients": ("is_grad_enabled", "set_grad_enabled"),
    "the precision of matrix products": ("get_float32_matmul_precision", "set_float32_matmul_precision"),
    "the number of threads": ("get_num_threads", "set_num_threads"),
    "anomaly detection": ("is_anomaly_enabled", "autograd.set_detect_anomaly"),
    "deterministic algorithms": ("get_deterministic_debug_mode", "set_deterministic_debug_mode"),
    "how tensors are shared": ("multiprocessing.get_sharing_strategy", "multiprocessing.set_sharing_strategy"),
    "inference mode": ("is_inference_mode_enabled", None),
    "autocast on the CPU": ("is_autocast_cpu_enabled", None),
    "the default process group": ("distributed.is_initialized", None),
}
"""torch's global switches: the functions of torch that read and set each; ``None`` where none undoes the change."""
_OF_BACKENDS = (
    "enabled",
    "benchmark",
    "deterministic",
    "engine",
    "allow_tf32",
    "allow_fp16_reduced_precision_reduction",
)


def _switches() -> dict[str, Any]:
    torch = _torch()
    if torch is None:
        return {}
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns where two of its settings for one thing are in use
        for name, (get, _) in _SWITCHES.items():
            with suppress(Exception):  # the state of one may make another unreadable
                found[name] = _attribute(torch, get)()
        for path, holder in _backends(torch):
            for attribute in _OF_BACKENDS:
                with suppress(Exception):
                    value = getattr(holder, attribute)
                    if isinstance(value, bool | str):
                        found[f"{path}.{attribute}"] = value
            for kernel in _attention_kernels(holder):
                found[f"{path}.{kernel}_sdp"] = getattr(holder, f"{kernel}_sdp_enabled")()
    return found


def _backends(torch: Any) -> Iterator[tuple[str, Any]]:
    for name, module in sorted(vars(torch.backends).items()):
        if getattr(module, "__name__", "").startswith("torch.backends."):
            yield f"backends.{name}", module
            if hasattr(module, "matmul"):
                yield f"backends.{name}.matmul", module.matmul


def _attention_kernels(holder: Any) -> list[str]:
    """Kernels that a function of the backend turns on and off, and another one reads."""
    names = [name.removesuffix("_sdp_enabled") for name in vars(holder) if name.endswith("_sdp_enabled")]
    return [name for name in names if hasattr(holder, f"enable_{name}_sdp")]


def _set_switch(name: str, value: Any) -> None:
    torch = _torch()
    if name in _SWITCHES:
        if name == "the default device":
            value = None if value.type == "cpu" else value
        if (path := _SWITCHES[name][1]) is not None:
            _attribute(torch, path)(value)
    else:
        path, _, attribute = name.rpartition(".")
        holder = _attribute(torch, path)
        if attribute.endswith("_sdp"):
            getattr(holder, f"enable_{attribute}")(value)
        else:
            setattr(holder, attribute, value)


def _attribute(holder: Any, path: str) -> Any:
    for name in path.split("."):
        holder = getattr(holder, name)
    return holder


def _functions() -> dict[str, Any]:
    """The functions of torch that training calls, and those of core, which every backend shares."""
    found: dict[str, Any] = {}
    for path, holder in _holders().items():
        for name, value in list(vars(holder).items()):
            if callable(value) and not isinstance(value, type):
                found[f"{path}.{name}"] = _Function(value, holder, name)
    return found


def _holders() -> dict[str, Any]:
    """Modules and classes by name."""
    core = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "torch_hal"]
    found: dict[str, Any] = {module.__name__: module for module in core}
    for module in core:
        classes = [value for value in vars(module).values() if isinstance(value, type)]
        found |= {f"{cls.__module__}.{cls.__name__}": cls for cls in classes if cls.__module__ == module.__name__}
    if (torch := _torch()) is None:
        return found
    modules = (torch, torch.nn.functional, torch.autograd, torch.distributed, torch.serialization)
    found |= {module.__name__: module for module in modules}
    found |= {"torch.Tensor": torch.Tensor, "torch.utils.data.DataLoader": torch.utils.data.DataLoader}
    for module in (torch.nn, torch.optim):
        found |= {f"{module.__name__}.{name}": value for name, value in vars(module).items() if isinstance(value, type)}
    return found


class _Function:
    """Compares by identity, which runs no code of others; a function of torch itself equals any other of them.

    torch replaces some of its functions when its compiler is imported.
    """

    __slots__ = ("holder", "name", "value")

    def __init__(self, value: Any, holder: Any, name: str) -> None:
        self.value, self.holder, self.name = value, holder, name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Function) and (
            other.value is self.value or (self._is_of_torch and other._is_of_torch)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def _is_of_torch(self) -> bool:
        code = getattr(self.value, "__code__", None)
        return code is not None and code.co_filename.startswith(os.path.dirname(_torch().__file__) + os.sep)


def _set_function(_: str, value: Any) -> None:
    setattr(value.holder, value.name, value.value)


_WHOSE_HOOKS = {"of all modules": "torch.nn.modules.module", "of all optimizers": "torch.optim.optimizer"}


def _hook_dictionaries(whose: str) -> list[dict[Any, Any]]:
    """Hooks that every module or every optimizer calls. torch has functions that add them, and none that lists them."""
    names = vars(sys.modules[_WHOSE_HOOKS[whose]])
    return [hooks for name, hooks in names.items() if name.startswith("_global_") and name.endswith("_hooks")]


def _hooks_of_all() -> dict[str, Any]:
    if _torch() is None:
        return {}
    return {whose: [[*hooks.values()] for hooks in _hook_dictionaries(whose)] for whose in _WHOSE_HOOKS}


def _remove_hooks(whose: str, value: Any) -> None:
    for hooks, before in zip(_hook_dictionaries(whose), value, strict=True):
        for key in [key for key, hook in hooks.items() if hook not in before]:
            del hooks[key]


def _set_builtin(name: str, value: Any) -> None:
    setattr(builtins, name, value)


_ASPECTS = (
    _Aspect("it changes os.environ:", _variables, _set_variables, _names),
    _Aspect("it seeds or draws from the random number generator", lambda: dict(_generators()), _seed),
    _Aspect("it changes sys.path", _search_path, _set_search_path),
    _Aspect("it changes the handler of", _handlers, _set_handler),
    _Aspect("it changes the filters of all warnings", _filters, _set_filters),
    _Aspect("it replaces", _hooks, _set_hook),
    _Aspect("it replaces the builtin", _builtins, _set_builtin),
    _Aspect("it changes", _settings, _set_setting, _values),
    _Aspect("it changes torch's setting of", _switches, _set_switch, _values),
    _Aspect("it changes the limit", _limits, _set_limit, _values),
    _Aspect("it replaces the function", _functions, _set_function),
    _Aspect("it registers hooks", _hooks_of_all, _remove_hooks),
)
