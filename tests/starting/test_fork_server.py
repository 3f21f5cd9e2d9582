"""A process that the fork server made is what a started one is."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fork_client
import pytest
from declared import PREFIX
from forks import forks
from packaging.version import Version

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork server is made for Linux")

STARTING = Path(__file__).parent
LIKENESS = """\
import json, os, random, signal, sys, threading, warnings
import imported, numpy, torch
json.dump({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "warnoptions": sys.warnoptions,
    "name": __name__, "file": globals().get("__file__"), "spec": __spec__ and __spec__.name, "package": __package__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "filters": [str(one) for one in warnings.filters],
    "cwd": os.getcwd(), "environ": dict(os.environ), "umask": os.umask(0),
    "stdin": sys.stdin.read(),
    "streams": [(s.encoding, s.errors, s.line_buffering, s.write_through, s.name, s.buffer.__class__.__name__)
                for s in (sys.stdin, sys.stdout, sys.stderr)],
    "signals": {n: str(signal.getsignal(n)) for n in (1, 2, 3, 13, 15)}, "mask": len(signal.pthread_sigmask(0, [])),
    "threads": threading.active_count(), "torch": torch.get_num_threads(),
    "random": [random.random(), torch.initial_seed(), torch.rand(1).item(), numpy.random.rand()],
    "files": sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)),
    "group": os.getpgrp(),
    "parent": os.getppid(),
}, sys.stdout)
"""


@pytest.fixture(scope="module")
def environ() -> Iterator[Mapping[str, str]]:
    """Variables that lead to fork servers: the session's, where it has some."""
    if "FORK_SERVERS" in os.environ:
        yield os.environ
        return
    path = os.pathsep.join([str(STARTING), *filter(None, [os.environ.get("PYTHONPATH")])])
    with forks(sys.executable, {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}) as environ:
        yield {**os.environ, **environ}


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Leave a script where those that train lie."""

    def write(text: str) -> Path:
        folder = tmp_path / "tests" / "scripts"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"script{len(list(folder.iterdir()))}.py"
        path.write_text(text)
        return path

    return write


def begin(
    environ: Mapping[str, str], *arguments: str | Path, served: bool = True, **options: Any
) -> subprocess.Popen[str]:
    """Start Python, by the fork server or really."""
    variables = {name: value for name, value in environ.items() if served or name != "FORK_SERVERS"}
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.skipif(
    Version(importlib.metadata.version("torch")) < Version("2.7"),
    reason=f"{PREFIX}torch 2.6 makes a folder in each process that imports it",
)
@pytest.mark.parametrize(
    ("options", "started"),
    [([], {}), (["-P", "-u"], {"start_new_session": True}), (["-W", "error", "-Wdefault"], {"process_group": 0})],
    ids=["plain", "options", "warnings"],
)
def test_all_is_as_in_a_started_process(
    environ: Mapping[str, str], script: Callable[[str], Path], options: Sequence[str], started: dict[str, Any]
) -> None:
    path = script(LIKENESS)
    said = []
    for served in (False, True):
        process = begin(environ, *options, path.name, "a", "-b", served=served, cwd=path.parent, umask=0o27, **started)
        out, err = process.communicate("what it reads", timeout=120)
        assert (process.returncode, err) == (0, "")
        said.append(json.loads(out))
        if "start_new_session" not in started:
            assert said[-1].pop("group") == (process.pid if started else os.getpgrp())
    real, forked = said
    random = zip(real.pop("random"), forked.pop("random"), strict=True)
    assert all(one != other for one, other in random)
    assert forked["environ"].pop("FORK_SERVERS")
    assert forked.pop("environ").items() ^ real.pop("environ").items() == set()
    for name in real.keys() - {"group"}:
        assert forked[name] == real[name], name


def test_no_two_are_random_alike(environ: Mapping[str, str], script: Callable[[str], Path]) -> None:
    path = script(LIKENESS + "\nprint('\\n', hash('a'))")
    ranks = [{**environ, "LOCAL_RANK": str(rank)} for rank in range(4)]
    said = [begin(variables, path).communicate(timeout=120)[0].split("\n ") for variables in ranks]
    assert len({order for _, order in said}) == 2
    for numbers in zip(*(json.loads(text)["random"] for text, _ in said), strict=True):
        assert len(set(numbers)) == 4


def test_it_was_forked(environ: Mapping[str, str], script: Callable[[str], Path]) -> None:
    path = script("import sys; sys.stdout.write(str('torch._dynamo' in sys.modules))")
    for served in (False, True):
        assert begin(environ, path, served=served).communicate(timeout=120)[0] == str(served)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["/a/tests/scripts/train.py"], True),
        ([str(STARTING.parents[1] / "examples" / "digits.py")], True),
        (["/a/examples/digits.py"], False),
        (["-m", "core.run", "--devices", "2"], True),
        (["-m", "core.list"], False),
        (["-m", "pytest", "-p", "torch_hal_devkit.plugin"], True),
        (["-m", "pytest", "tests"], False),
        (["-c", "import torch"], False),
    ],
)
def test_what_is_forked(command: list[str], expected: bool) -> None:
    assert fork_client.trains("script" if command[0].startswith("/") else command[0], command) is expected


@pytest.mark.parametrize("question", ["import_changes", "listed"])
def test_what_the_kit_asks_is_forked_where_the_kit_was(
    environ: Mapping[str, str], script: Callable[[str], Path], question: str
) -> None:
    """And only if it begins with an import of torch."""
    code = (
        "import importlib, sys\n"
        "sys.stdout.write(str('torch._dynamo' in sys.modules))\n"
        "sys.exit()\n"
        "getattr(importlib.import_module(module), function)\n"
    )
    folder = script("").parent
    (folder / "task").write_text(json.dumps({"question": f"torch_hal_devkit.probes:{question}"}))
    ask = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {code!r}, {str(folder)!r}], check=True)\n"
    asking = script(ask)
    assert begin(environ, asking).communicate(timeout=120)[0] == str(question == "import_changes")
    assert begin(environ, "-c", code, folder).communicate(timeout=120)[0] == "False"


@pytest.mark.parametrize("variables", [{"OMP_NUM_THREADS": "2"}, {"PYTHONHASHSEED": "1"}, {"PYTHONOPTIMIZE": "1"}])
def test_one_that_is_to_be_unlike_the_server_is_started(
    environ: Mapping[str, str], script: Callable[[str], Path], variables: Mapping[str, str]
) -> None:
    path = script("import sys; sys.stdout.write(str('torch._dynamo' in sys.modules))")
    assert begin({**environ, **variables}, path).communicate(timeout=120)[0] == "False"


def test_what_stands_before_the_sessions_own_start_is_run(
    environ: Mapping[str, str], script: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import builtins, starting\nbuiltins.mine = vars(builtins).get('mine', 0) + 1\n"
    )
    variables = {**environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), environ["PYTHONPATH"]])}
    path = script("import sys; sys.stdout.write(f\"{mine} {'fork_server' in sys.modules}\")")
    assert begin(variables, path).communicate(timeout=120)[0] == "1 True"


@pytest.mark.parametrize(
    ("end", "code", "text"),
    [
        ("sys.exit(3)", 3, ""),
        ("raise ValueError('so')", 1, "ValueError: so"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
        ("os.abort()", -6, ""),
        ("os._exit(255)", 255, ""),
    ],
)
def test_it_ends_as_it_would(
    environ: Mapping[str, str], script: Callable[[str], Path], end: str, code: int, text: str
) -> None:
    path = script(f"import atexit, os, signal, sys\natexit.register(print, 'the end')\n{end}\n")
    process = begin(environ, path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert text in err
    assert out == ("the end\n" if code in (3, 1) else "")


ENDLESS = """\
import os, subprocess, sys, time
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, *sys.orig_argv[1:], "further"])
print(os.getpid(), flush=True)
time.sleep(100)
"""


def test_killing_what_stands_for_it_ends_it_and_all_that_it_started(
    environ: Mapping[str, str], script: Callable[[str], Path]
) -> None:
    process = begin(environ, script(ENDLESS), start_new_session=True)
    assert process.stdout is not None
    numbers = [int(process.stdout.readline()) for _ in range(2)]
    assert process.pid not in numbers
    os.killpg(process.pid, signal.SIGKILL)
    assert process.communicate(timeout=10)[0] == ""  # no one has it open
    assert process.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{number}") for number in numbers):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_signal_reaches_it(environ: Mapping[str, str], script: Callable[[str], Path]) -> None:
    text = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nprint(1, flush=True)\n"
    process = begin(environ, script(text + "time.sleep(100)\n"))
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    process.communicate(timeout=10)
    assert process.returncode == 7


def test_it_ends_with_the_server(environ: Mapping[str, str], script: Callable[[str], Path]) -> None:
    with forks(sys.executable, {name: environ[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS")}) as own:
        process = begin({**os.environ, **own}, script("import time\nprint(1, flush=True)\ntime.sleep(100)\n"))
        assert process.stdout is not None
        process.stdout.readline()
    _, err = process.communicate(timeout=10)
    assert (process.returncode, "the fork server has gone" in err) == (70, True)
