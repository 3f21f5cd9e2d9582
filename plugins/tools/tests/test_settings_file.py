"""``torch-hal config``: questions and options, and the file that runs read."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from torch_hal_tools.settings_file import main

from torch_hal.plan import VARIABLES, Request, resolve

PROGRAM = "torch-hal config"


def asked(
    answers: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    """Answer the questions; returns the exit code and what was printed."""
    lines = iter(answers.splitlines())

    def answer(prompt: str) -> str:
        sys.stdout.write(prompt)
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", answer)
    code = main(list(arguments), PROGRAM)
    return code, *capsys.readouterr()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; no setting comes from the environment."""
    monkeypatch.chdir(tmp_path)
    for name in (*VARIABLES.values(), "CORE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_options_ask_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file has what was given, numbers as numbers; the lines that are printed use it."""
    assert main(["--accelerator", "cpu", "--devices", "2", "--precision", "bf16"], PROGRAM) == 0
    text = (folder / "torch-hal.toml").read_text("utf-8")
    assert tomllib.loads(text) == {"accelerator": "cpu", "precision": "bf16", "devices": 2}
    out = capsys.readouterr().out
    assert out == (
        "torch-hal.toml: ddp on cpu:0-1, bf16-mixed\n"
        "Use it: torch-hal run --config torch-hal.toml train.py\n"
        "or:     CORE_CONFIG=torch-hal.toml python train.py\n"
    )


@pytest.mark.parametrize(
    ("options", "values"),
    [
        (["--devices", "0,1"], {"devices": "0,1"}),
        (["--devices", "-1"], {"devices": -1}),
        (["--precision", "64", "--devices", "1"], {"precision": "64", "devices": 1}),
        (["--num-nodes", "2", "--strategy", "ddp_sharded"], {"num_nodes": 2, "strategy": "ddp_sharded"}),
        (["--devices", "auto"], {}),
    ],
)
def test_the_file_asks_for_what_was_given(options: list[str], values: dict[str, object], folder: Path) -> None:
    """A Request that reads it has the values, and its Plan is that of the same arguments."""
    assert main([*options, "--output", "run.toml"], PROGRAM) == 0
    assert tomllib.loads((folder / "run.toml").read_text("utf-8")) == values
    machines = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "NODE_RANK": "0"}
    by_file = Request.read(environ={**machines, "CORE_CONFIG": str(folder / "run.toml")})
    by_argument = Request.read(environ=machines, **values)
    assert by_file.describe() == by_argument.describe()
    assert resolve(by_file).headline == resolve(by_argument).headline


def test_several_machines_need_a_place_to_meet(capsys: pytest.CaptureFixture[str]) -> None:
    """The printed line says so; a path with a space can be copied."""
    assert main(["--num-nodes", "2", "--output", "my run.toml"], PROGRAM) == 0
    used = "Use it: torch-hal run --config 'my run.toml' --rdzv-endpoint HOST:PORT train.py\n"
    assert used in capsys.readouterr().out


def test_questions(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each setting, with what is installed; after a wrong answer again, with the reason; nothing is ``auto``."""
    answers = "cup\ncpu\nsingle_device\nbf17\nbf16-mixed\n2\ntwo\n1\n\n"
    code, out, _ = asked(answers, monkeypatch, capsys)
    assert code == 0
    values = tomllib.loads((folder / "torch-hal.toml").read_text("utf-8"))
    assert values == {"accelerator": "cpu", "strategy": "single_device", "precision": "bf16-mixed", "devices": 1}
    times = {name: out.count(f"\n{name} [auto]: ") for name in VARIABLES}
    assert times == {"accelerator": 2, "strategy": 1, "precision": 2, "devices": 3, "num_nodes": 1}
    assert "accelerator: the hardware (cpu, " in out
    for reason in ("Did you mean 'cpu'?", "precision='bf17'", "runs on 1 process", "devices='two'"):
        assert reason in out


def test_questions_without_an_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Empty answers leave every choice to the run."""
    code, _, _ = asked("\n" * 5, monkeypatch, capsys)
    assert (code, tomllib.loads((folder / "torch-hal.toml").read_text("utf-8"))) == (0, {})


def test_the_end_of_input_writes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also after some answers."""
    code, _, err = asked("cpu\nddp\n", monkeypatch, capsys)
    assert (code, err) == (2, "\ntorch-hal config: end of input; nothing is written\n")
    assert not list(folder.iterdir())


def test_a_terminal_is_asked_until_ctrl_c(folder: Path) -> None:
    """A real terminal: the questions come, an answer is taken, Ctrl-C ends it with 130 and writes nothing."""
    command = [sys.executable, "-m", "torch_hal_tools.settings_file"]
    controller, terminal = pty.openpty()
    try:
        with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal) as process:
            said = _until(controller, b"accelerator [auto]: ")
            os.write(controller, b"cpu\n")
            said += _until(controller, b"strategy [auto]: ")
            process.send_signal(signal.SIGINT)
            os.write(controller, b"\n")  # a signal between Python's prompt and its read waits for the next line
            assert process.wait(timeout=60) == 130
            said += _until(controller, b"nothing is written")
    finally:
        os.close(controller)
        os.close(terminal)
    assert b"Traceback" not in said
    assert not list(folder.iterdir())


def _until(descriptor: int, text: bytes) -> bytes:
    """What is printed up to ``text``."""
    said, end = b"", time.monotonic() + 120
    while text not in said:
        assert time.monotonic() < end, said
        said += os.read(descriptor, 4096)
    return said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--strategy", "single_device", "--devices", "2"], "runs on 1 process"),
        (["--strategy", "dpp"], "Did you mean 'ddp'?"),
        (["--num-nodes", "0"], "must be 'auto' or an integer ≥ 1"),
        (["--no-check", "--num-nodes", "0"], "must be 'auto' or an integer ≥ 1"),
    ],
)
def test_what_cannot_work_is_not_written(
    options: list[str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Plan is made first; its error is the command's."""
    assert main(options, PROGRAM) == 2
    err = capsys.readouterr().err
    assert err.startswith("torch-hal config: ")
    assert says in err
    assert not list(folder.iterdir())


def test_for_another_machine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--no-check`` writes what this machine does not have."""
    options = ["--accelerator", "acme", "--devices", "8"]
    assert main(options, PROGRAM) == 2
    assert main([*options, "--no-check"], PROGRAM) == 0
    assert capsys.readouterr().out.startswith("torch-hal.toml\nUse it: ")
    assert tomllib.loads((folder / "torch-hal.toml").read_text("utf-8")) == {"accelerator": "acme", "devices": 8}


def test_a_file_that_is_there_stays(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused before any question; ``--force`` replaces it."""
    path = folder / "torch-hal.toml"
    path.write_text("# mine\n")
    with pytest.raises(SystemExit) as ended:
        main([], PROGRAM)
    assert ended.value.code == 2
    assert "'torch-hal.toml' is there. Add --force to replace it" in capsys.readouterr().err
    assert path.read_text() == "# mine\n"
    assert main(["--devices", "1", "--force"], PROGRAM) == 0
    assert tomllib.loads(path.read_text("utf-8")) == {"devices": 1}


@pytest.mark.parametrize("output", [".", "no/such/run.toml"])
def test_a_place_where_no_file_can_be(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder, or one that is missing: refused before any question."""
    with pytest.raises(SystemExit):
        main(["--output", output], PROGRAM)
    assert "is not a file in a folder that is there" in capsys.readouterr().err


def test_the_environment_is_not_part_of_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What variables say here, another shell's may not: the file's own values are checked, and written."""
    monkeypatch.setenv("CORE_STRATEGY", "single_device")
    monkeypatch.setenv("CORE_CONFIG", str(folder / "missing.toml"))
    assert main(["--devices", "2"], PROGRAM) == 0
    assert tomllib.loads((folder / "torch-hal.toml").read_text("utf-8")) == {"devices": 2}


def test_a_written_file_runs(folder: Path) -> None:
    """The printed lines: two processes by ``torch-hal run --config``, and by the variable."""
    assert main(["--accelerator", "cpu", "--devices", "2", "--strategy", "ddp"], PROGRAM) == 0
    script = "import os\nfrom torch_hal import Runtime\nruntime = Runtime()\nruntime.wait_for_everyone()\n"
    script += "os.write(1, f'{runtime.process_index} of {runtime.num_processes}\\n'.encode())\n"
    (folder / "train.py").write_text(script)
    run = [sys.executable, "-m", "torch_hal", "run", "--config", "torch-hal.toml", "train.py"]
    alone = [sys.executable, "train.py"]
    for command, environ in ((run, {}), (alone, {"CORE_CONFIG": "torch-hal.toml"})):
        done = subprocess.run(
            command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=200, check=True
        )
        assert sorted(done.stdout.splitlines()) == ["0 of 2", "1 of 2"]
