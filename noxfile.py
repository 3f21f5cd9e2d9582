"""Everything that is run on this project by a command: ``nox --list`` names it, ``nox -s NAME`` runs it.

Sessions that need torch share one environment, since installing torch takes longer than most of them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import nox

sys.path.append(str(Path(__file__).parent / "tests" / "starting"))

from forks import forks

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "docs", "tests", "plugins", "vendor", "horovod"]

HERE = Path(__file__).parent
TORCH_ENVIRONMENT = HERE / ".nox" / "torch"
CONSTRAINTS = ("--constraint", str(HERE / "constraints.txt"))
GROUPS = nox.project.load_toml(HERE / "pyproject.toml")
PLUGINS = sorted(path.parent.name for path in HERE.glob("plugins/*/pyproject.toml"))
ENGINES = ("bagua", "deepspeed", "fsdp", "horovod")
"""Plugins that spread a model in ways of their own."""
SIMULATED = ("torch-acme", "stand-ins")
"""What plays hardware and vendors' libraries in the tests of plugins; lies in ``tests/vendor``."""
LONGEST = ("fsdp", "bagua", "cuda", "hpu")
"""The plugins whose tests take longest: begun first, they do not go on alone when all others have ended."""
MANY_PROCESSES = {
    "PYTHONDONTWRITEBYTECODE": "",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(HERE / "tests" / "starting"),
}
"""Variables of what starts many processes: core's bytecode is kept, whatever the machine says, numpy and torch start no
threads, and what lies in ``tests/starting`` makes the start of those that train short."""
INSTALLED: set[Path] = set()
"""The folders and environments that were made, or brought up to date, in this run."""


def group(*names: str) -> tuple[str, ...]:
    """The requirements in dependency groups of ``pyproject.toml``."""
    return nox.project.dependency_groups(GROUPS, *names)


def torch_python(session: nox.Session) -> str:
    """The interpreter of the environment with torch, this project (editable) and what its sessions need."""
    python = str(TORCH_ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    if TORCH_ENVIRONMENT in INSTALLED:
        return python
    if not Path(python).exists():
        session.run(sys.executable, "-m", "venv", str(TORCH_ENVIRONMENT))
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    session.run(*pip, *CONSTRAINTS, "--editable", f"{HERE}[examples]", *group("test", "types"))
    INSTALLED.add(TORCH_ENVIRONMENT)
    return python


def many_processes(session: nox.Session, *command: str) -> None:
    """Run a command that starts many processes."""
    with forks(command[0], MANY_PROCESSES) as env:
        session.run(*command, env=env)


@nox.session(venv_backend="none")
def digits(session: nox.Session) -> None:
    """Train on handwritten digits, on one process and on two, with the Trainer and with the Runtime."""
    python = torch_python(session)
    for example in ("digits_trainer.py", "digits_runtime.py"):
        for devices in ("1", "2"):
            words = ("--accelerator", "cpu", "--devices", devices, *session.posargs)
            session.run(python, f"examples/{example}", *words)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """All tests but those of :func:`slow`."""
    # Most tests wait for processes: four at a time do well on two cores, too. Neighbours go to one worker, which makes
    # what they share once, until another worker has nothing left.
    words = ("-n", "4", "--dist", "worksteal", *session.posargs)
    many_processes(session, torch_python(session), "-m", "pytest", *words)


@nox.session(venv_backend="none")
def slow(session: nox.Session) -> None:
    """The tests that are left out elsewhere for their length, most of the conformance kit's mutants among them."""
    many_processes(session, torch_python(session), "-m", "pytest", "-n", "4", "-m", "slow", *session.posargs)


@nox.session(venv_backend="none")
def plugins(session: nox.Session) -> None:
    """The tests of each plugin, or of those named; no other plugin is installed beside core."""
    python = torch_python(session)
    options = [word for word in session.posargs if word.startswith("-")]
    names = [word for word in session.posargs if not word.startswith("-")] or PLUGINS
    # The heavy runs of a file are shared by its tests.
    words = ("-n", "2", "--dist", "loadfile", *options)
    ordered = sorted(names, key=[*LONGEST, *PLUGINS].index)
    with forks(python, MANY_PROCESSES) as env:
        side_by_side(session, (plugin_tests(session, python, name, *words, env=env) for name in ordered))


class Run(NamedTuple):
    """A command to run."""

    name: str
    command: Sequence[str]
    folder: Path
    """Where."""
    env: Mapping[str, str]
    """What it has in its environment beside what this process has."""


def plugin_tests(session: nox.Session, python: str, name: str, *words: str, env: Mapping[str, str]) -> Run:
    """pytest with ``words`` for a plugin, which is installed beside core and what plays hardware."""
    plugin = installed(session, python, name, f"plugins/{name}")
    simulated = installed(session, python, "simulated", *(f"tests/vendor/{project}" for project in SIMULATED))
    path = os.pathsep.join([str(plugin), str(simulated), env["PYTHONPATH"]])
    return Run(name, (python, "-m", "pytest", *words), HERE / "plugins" / name, {**env, "PYTHONPATH": path})


def side_by_side(session: nox.Session, runs: Iterable[Run]) -> None:
    """Run commands, two at a time; what one prints is shown when it has ended. All are run, also where one fails."""
    waiting, failed = iter(runs), []
    running: dict[str, subprocess.Popen[bytes]] = {}
    with tempfile.TemporaryDirectory() as printed:
        try:
            while True:
                while len(running) < 2 and (run := next(waiting, None)):
                    session.log(f"{run.name}: {' '.join(run.command)}")
                    env = {**os.environ, **run.env}
                    with Path(printed, run.name).open("wb") as file:
                        process = subprocess.Popen(run.command, cwd=run.folder, env=env, stdout=file, stderr=file)
                    running[run.name] = process
                if not running:
                    break
                time.sleep(0.1)
                for name in [name for name, process in running.items() if process.poll() is not None]:
                    code = running.pop(name).returncode
                    sys.stdout.write(Path(printed, name).read_text("utf-8", errors="replace"))
                    sys.stdout.flush()
                    session.log(f"{name}: ended with exit code {code}")
                    failed += [name] if code else []
        finally:
            for process in running.values():
                process.send_signal(signal.SIGINT)  # as Ctrl-C does: pytest ends what its tests have started
            for process in running.values():
                process.wait()
    if failed:
        session.error(f"failed: {', '.join(failed)}")


def installed(session: nox.Session, python: str, name: str, *projects: str) -> Path:
    """A folder with ``projects`` as an installer leaves them, made anew once a run, to be put on a path."""
    target = HERE / ".nox" / "installed" / name
    if target in INSTALLED:
        return target
    INSTALLED.add(target)
    shutil.rmtree(target, ignore_errors=True)
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    session.run(*pip, "--no-build-isolation", "--no-index", "--target", str(target), *projects)
    return target


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Strict type checks of the package, the plugins, the tests and everything else in Python."""
    python = torch_python(session)
    # One cache for all: what they import, torch above all, is read once.
    mypy = (python, "-m", "mypy", "--cache-dir", str(HERE / ".mypy_cache"))
    session.run(*mypy, *session.posargs)
    vendor = [HERE / "tests" / "vendor" / name for name in (*SIMULATED, "torch-hal-acme")]
    # Each has modules called tests of its own.
    words = (*mypy, "--config-file", str(HERE / "pyproject.toml"), "--explicit-package-bases", "src", "tests")
    checks = []
    for project in (*vendor, *(HERE / "plugins" / name for name in PLUGINS)):
        sources = os.pathsep.join(str(path / "src") for path in dict.fromkeys((project, *vendor)))
        checks.append(Run(project.name, words, project, {"MYPYPATH": sources}))
    side_by_side(session, checks)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, format, and the one direction in which rooms may know each other."""
    session.install(*group("lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports", "--no-logo", "--no-cache")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a broken link fails it."""
    session.install(*group("docs"))
    session.run("mkdocs", "build", "--strict", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build sdist and wheel into dist/; what is in them is checked by the tests."""
    session.install("build")
    session.run("python", "-m", "build", "--outdir", "dist")


@nox.session(venv_backend="none")
def vendor(session: nox.Session) -> None:
    """The packages of simulated third parties: each is installed and passes its own tests."""
    words = ("-n", "3", "tests/vendor", *session.posargs)
    many_processes(session, torch_python(session), "-m", "pytest", *words)


@nox.session(venv_backend="none")
def detection(session: nox.Session) -> None:
    """What asking the five hardware plugins costs beyond the listing."""
    python = torch_python(session)
    folders = [installed(session, python, name, f"plugins/{name}") for name in ("cuda", "hpu", "ipu", "mps", "xla")]
    env = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    session.run(python, "benchmarks/detection.py", *session.posargs, env=env)


def horovod_python(session: nox.Session) -> str:
    """The interpreter of an environment with Horovod, its plugin and what that one's tests need.

    Horovod is compiled once: its wheel is kept where the system has its caches.
    """
    if not (shutil.which("make") and shutil.which("c++")):
        session.skip("Horovod is compiled, which takes make and a C++ compiler")
    folder = HERE / ".nox" / "engines"
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    words = ["--wheels", str(caches / "torch-hal" / "horovod"), *(["--mpi"] if shutil.which("mpicc") else [])]
    session.run(sys.executable, "plugins/horovod/tests/real/environment.py", str(folder), *CONSTRAINTS, *words)
    return str(folder / "bin" / "python")


def engines_python(session: nox.Session) -> str:
    """As :func:`horovod_python`, with every engine that runs on a CPU, and the packages of plugins on them."""
    python = horovod_python(session)
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    deepspeed = nox.project.load_toml(HERE / "plugins" / "deepspeed" / "pyproject.toml")
    needed = nox.project.dependency_groups(deepspeed, "test")
    session.run(*pip, *CONSTRAINTS, *needed, *GROUPS["project"]["optional-dependencies"]["examples"], "ninja")
    session.run(*pip, *CONSTRAINTS, "--no-build-isolation", *deepspeed["project"]["dependencies"][1:])
    projects = [word for name in ENGINES for word in ("--editable", f"plugins/{name}")]
    session.run(*pip, "--no-deps", "--no-build-isolation", *projects)
    return python


@nox.session(venv_backend="none")
def horovod(session: nox.Session) -> None:
    """The plugin on Horovod itself."""
    python = horovod_python(session)
    with session.chdir(HERE / "plugins" / "horovod"):
        many_processes(session, python, "-m", "pytest", "-n", "2", "--dist", "loadfile", *session.posargs)


@nox.session(venv_backend="none")
def deepspeed(session: nox.Session) -> None:
    """The plugin on DeepSpeed itself."""
    python = engines_python(session)
    with session.chdir(HERE / "plugins" / "deepspeed"):
        many_processes(session, python, "-m", "pytest", "-n", "2", "--dist", "loadfile", *session.posargs)


@nox.session(venv_backend="none")
def strategies(session: nox.Session) -> None:
    """Measure all strategies on their engines, and write the tables of docs/strategies.md; or what the words say."""
    python = engines_python(session)
    scripts = ("matrix", "compare", "costs", "overhead_engines")
    for script in session.posargs or scripts:
        session.run(python, f"benchmarks/{script}.py", "--write", "docs/strategies.md")


@nox.session(venv_backend="none")
def hardware(session: nox.Session) -> None:
    """Run the conformance kit on every accelerator that can be had here, and write docs/hardware.md."""
    folder = HERE / ".nox" / "conformance"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ["CORE_CONFORMANCE_REPORTS"] = str(folder)
    python = torch_python(session)
    kit = ("-p", "core.testing.plugin", "--pyargs", "core.testing.suite", "--hardware", "this machine's CPU")
    session.run(python, "-m", "pytest", *kit, "--backend", "accelerator:cpu")
    session.run(python, "-m", "pytest", "--basetemp", str(folder / "acme"), "tests/vendor/test_from_outside.py")
    names = ("cuda", "hpu", "ipu", "mps")
    words = ("-m", "", "tests/test_conformance.py")
    side_by_side(session, (plugin_tests(session, python, name, *words, env=MANY_PROCESSES) for name in names))
    xla_real(session)
    session.run(python, "benchmarks/hardware.py", str(folder))


@nox.session(venv_backend="none")
def xla_real(session: nox.Session) -> None:
    """plugins/xla on the real torch_xla, on this machine's CPU, in an environment of its own (2.2 GB, made once)."""
    folder = HERE / ".nox" / "xla_real"
    session.run(sys.executable, "plugins/xla/tests/real/environment.py", str(folder), *CONSTRAINTS)
    python = str(folder / "bin" / "python")
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    projects = ("--editable", str(HERE), "--editable", str(HERE / "plugins" / "xla"))
    session.run(*pip, "--no-build-isolation", *projects)
    env = {"PJRT_DEVICE": "CPU"}
    kit = ("--pyargs", "core.testing.suite", "-p", "core.testing.plugin", "--backend", "accelerator:xla")
    said = ("--hide-devices", "PJRT_DEVICE=TPU", "--hardware", "this machine's CPU by PJRT, torch_xla 2.9.0")
    with session.chdir(HERE / "plugins" / "xla"):
        session.run(python, "-m", "pytest", "tests/real", env=env)
        expected = ("--expected-failures", "tests/real/expected-failures.toml")
        session.run(python, "-m", "pytest", *kit, *said, *expected, *session.posargs, env=env)


@nox.session(venv_backend="none")
def soak(session: nox.Session) -> None:
    """A hundred runs on two processes one after another: how each ends, and what it leaves behind."""
    session.run(torch_python(session), "benchmarks/soak.py", *session.posargs)


@nox.session(venv_backend="none")
def listing(session: nox.Session) -> None:
    """What ``python -m core.list`` costs at 500 installed distributions."""
    session.run(torch_python(session), "benchmarks/listing.py", *session.posargs)


@nox.session
def overhead(session: nox.Session) -> None:
    """Microseconds a step beyond the hand-written loop, beside the peers of today."""
    session.install("--quiet", *CONSTRAINTS, "--editable", ".[progress]", *group("peers"))
    session.run("python", "benchmarks/overhead.py", *(session.posargs or ("--check",)))
