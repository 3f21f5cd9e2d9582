"""Make an environment in which Horovod itself runs on this machine's CPU, over gloo.

``python environment.py FOLDER`` makes a virtual environment there with core, the devkit, this plugin and what their
tests need, or leaves one that is complete, and prints the path of its interpreter. Horovod is compiled from its sdist,
set to the C++ standard that today's torch needs; that takes some minutes, so the wheel is kept next to FOLDER, under
the versions of Python, torch and Horovod. Needs make and a C++ compiler. With ``--mpi`` Horovod gets MPI too, if an MPI
program compiles here.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

HOROVOD = "0.28.1"
PLUGIN = Path(__file__).resolve().parents[2]
CORE = PLUGIN.parents[1]
PROJECTS = (CORE, PLUGIN.parent / "devkit", PLUGIN)
"""What is installed of this repository."""
NEEDED = (
    "torch>=2.6",
    # To build Horovod: it asks for packages that setuptools has dropped since.
    *("setuptools<81", "wheel", "cmake>=3.25", "packaging"),
    # What it imports.
    *("cffi>=1.4", "cloudpickle", "numpy>=1.24", "psutil", "pyyaml"),
    # Of core, and of the tests.
    *("attrs>=23.2", "pluggy>=1.7", "editables>=0.5", "hatchling>=1.27", "pytest>=8.2", "pytest-timeout>=2.3"),
    "pytest-xdist>=3.6",
)
BUILD = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    # Its third parties ask for a cmake that version 4 no longer plays.
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
}
MPI = {False: {"HOROVOD_WITHOUT_MPI": "1"}, True: {"HOROVOD_WITH_MPI": "1"}}
STANDARD = (r"set\(CMAKE_CXX_STANDARD 14\)", "set(CMAKE_CXX_STANDARD 20)")
# What debuggers are told of torch's headers takes a third of the time and 95 % of the wheel.
FLAGS = (r"string\(.* CMAKE_CXX_FLAGS_RELWITHDEBINFO .*\)", 'set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -DNDEBUG")')
# torch's headers are read once for all files that include them.
TOGETHER = (STANDARD[0], f"{STANDARD[1]}\nset(CMAKE_UNITY_BUILD ON)\nset(CMAKE_UNITY_BUILD_BATCH_SIZE 16)")
CHANGES = {"CMakeLists.txt": (STANDARD, FLAGS), "horovod/torch/CMakeLists.txt": (TOGETHER,)}
"""What is replaced in its files: a pattern that one line has, and what takes its place."""


def main() -> None:
    """Make the environment that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the environment is, or is to be")
    parser.add_argument("--constraint", action="append", default=[], help="passed to pip")
    parser.add_argument("--wheels", type=Path, help="where built wheels are kept; next to the folder by default")
    parser.add_argument("--mpi", action="store_true", help="build with MPI too, if MPI programs can be compiled")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.absolute()
    constraints = [Path(path).resolve() for path in arguments.constraint]
    python, complete = folder / "bin" / "python", folder / "complete"
    mpi = arguments.mpi and _compiles_mpi()
    said = "\n".join(
        (HOROVOD, str(MPI[mpi]), *NEEDED, *map(str, PROJECTS), *(path.read_text() for path in constraints))
    )
    if not complete.exists() or complete.read_text() != said:
        venv.create(folder, clear=True, with_pip=True)
        _pip(python, "install", *(f"--constraint={path}" for path in constraints), *NEEDED)
        wheel = _wheel(python, arguments.wheels or folder.parent / "horovod-wheels", mpi)
        _pip(python, "install", "--no-deps", str(wheel))
        editable = [argument for project in PROJECTS for argument in ("--editable", str(project))]
        _pip(python, "install", "--no-deps", "--no-build-isolation", *editable)
        complete.write_text(said)
    sys.stdout.write(f"{python}\n")


def _compiles_mpi() -> bool:
    """Whether an MPI program can be compiled and linked; says why not.

    Debian's ``openmpi-bin`` brings the compiler wrappers without headers or libraries.
    """
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "mpi.cpp"
        source.write_text("#include <mpi.h>\nint main() { MPI_Init(nullptr, nullptr); return MPI_Finalize(); }\n")
        command = ["mpicxx", str(source), "-o", str(source.with_suffix(""))]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            sys.stderr.write(f"Horovod is built without MPI: mpicxx cannot compile an MPI program: {said.strip()}\n")
            return False
    return True


def _wheel(python: Path, wheels: Path, mpi: bool) -> Path:
    """Horovod's wheel for the environment's Python and torch; built where there is none yet."""
    asked = "import sys, torch; print(f'{sys.implementation.cache_tag}-torch-{torch.__version__}')"
    key = subprocess.run(
        [python, "-W", "ignore", "-c", asked], check=True, capture_output=True, text=True
    ).stdout.strip()
    home = wheels.absolute() / f"horovod-{HOROVOD}-{key}{'-mpi' if mpi else ''}"
    if not home.exists():
        with tempfile.TemporaryDirectory() as scratch:
            built = _build(python, Path(scratch), MPI[mpi])
            wheels.mkdir(parents=True, exist_ok=True)
            # Its own name only once it is whole.
            with tempfile.TemporaryDirectory(dir=wheels) as partial:
                (Path(partial) / "wheel").mkdir()
                (Path(partial) / "wheel" / built.name).write_bytes(built.read_bytes())
                try:
                    (Path(partial) / "wheel").rename(home)
                except OSError:
                    if not home.exists():  # which another run has built meanwhile
                        raise
    return next(home.glob("*.whl"))


def _build(python: Path, scratch: Path, controller: dict[str, str]) -> Path:
    _pip(
        python,
        "download",
        "--no-deps",
        "--no-build-isolation",
        "--no-binary=horovod",
        f"horovod=={HOROVOD}",
        cwd=scratch,
    )
    with tarfile.open(next(scratch.glob("horovod-*.tar.gz"))) as archive:
        archive.extractall(scratch, filter="data")
    source = scratch / f"horovod-{HOROVOD}"
    for name, changes in CHANGES.items():
        text = (source / name).read_text()
        for pattern, line in changes:
            text, found = re.subn(pattern, line, text)
            if found != 1:
                raise SystemExit(f"{name} of horovod {HOROVOD}: expected one line like {pattern}, found {found}")
        (source / name).write_text(text)
    arguments = ("--no-deps", "--no-build-isolation", f"--wheel-dir={scratch / 'built'}", ".")
    _pip(python, "wheel", *arguments, cwd=source, MAKEFLAGS=f"-j{os.cpu_count()}", **controller)
    return next((scratch / "built").glob("horovod-*.whl"))


def _pip(python: Path, *arguments: str, cwd: Path | None = None, **variables: str) -> None:
    command = [str(python), "-m", "pip", arguments[0], "--quiet", "--disable-pip-version-check", *arguments[1:]]
    path = os.pathsep.join((str(python.parent), os.environ["PATH"]))
    subprocess.run(command, env={**os.environ, **BUILD, **variables, "PATH": path}, cwd=cwd, check=True)


if __name__ == "__main__":
    main()
