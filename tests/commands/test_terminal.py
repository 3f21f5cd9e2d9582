"""What commands draw on a terminal, and that they write plain text elsewhere; completion in a real shell."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import core.discovery.scan
import core.discovery.selection
import core.explain
import core.list
from core.__main__ import main
from core.commands.completion import SHELLS, options_of
from core.commands.terminal import Style, is_terminal, table
from core.commands.verbs import available_verbs
from core.list import _SWITCHES
from core.plan import Request, resolve

VERBS = available_verbs({})
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def listed(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, *arguments: str, **environ: str) -> str:
    monkeypatch.setattr(sys, "stdout", stream)
    assert core.list.main(arguments, environ=environ) == 0
    return stream.getvalue()


def test_listing_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same titles and cells as in plain text, with colours; without colours if NO_COLOR is set."""
    plain = listed(monkeypatch, io.StringIO())
    drawn = listed(monkeypatch, Terminal())
    colourless = listed(monkeypatch, Terminal(), NO_COLOR="1")
    assert ESCAPE.search(drawn)
    assert not ESCAPE.search(plain + colourless)
    assert ESCAPE.sub("", drawn) == colourless
    assert re.sub(r"[─●]", "", colourless).split() == plain.split()


def test_state_of_a_denied_plugin_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not usable is explained below its row, on a terminal too."""
    monkeypatch.setattr(core.list, "_probe", lambda found, environ, options: None)
    monkeypatch.setattr(core.list, "survey", surveyed)
    drawn = ESCAPE.sub("", listed(monkeypatch, Terminal()))
    assert re.search(r"acme +torch-hal-acme 1.0 +● failed\n    its driver is broken\n", drawn)


def surveyed(environ: object) -> core.discovery.selection.Survey:
    row = core.discovery.scan.Row(
        kind="accelerator",
        name="acme",
        distribution="torch-hal-acme",
        version="1.0",
        state="failed",
        reason="its driver is broken",
    )
    return core.discovery.selection.Survey([row], "0.1", [])


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {}])
def test_plain_where_lines_cannot_be_drawn(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A dumb terminal, or one whose encoding has no lines of boxes, gets the plain text."""
    stream = Terminal()
    if not environ:
        monkeypatch.setattr(Terminal, "encoding", "ascii")
    assert not is_terminal(stream, environ)
    assert listed(monkeypatch, stream, **environ) == listed(monkeypatch, io.StringIO())


def test_a_pipe_imports_no_view() -> None:
    """Where the listing is plain, the modules that draw are not imported."""
    code = "import sys; from core.list import main; main([]); print([m for m in sys.modules if m in %r])"
    code %= ["torch_hal.commands.list_view", "torch_hal.commands.terminal"]
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo terminal")
def test_a_real_terminal() -> None:
    """Through a pseudo terminal the command draws; exit code 0."""
    ours, theirs = os.openpty()
    environ = {**os.environ, "TERM": "xterm"}
    environ.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "core.list", "--kind", "accelerator"], stdout=theirs, env=environ, cwd=ROOT
    )
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
    except OSError:  # Linux says so at the end
        pass
    os.close(ours)
    assert process.wait(60) == 0
    assert "● installed" in shown.decode()
    assert b"\x1b[1m" in shown


def test_explain_as_a_tree(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The tree has each decision, each reason and each rejected candidate of the plain text, within the width."""
    arguments = ["--accelerator", "cpu", "--devices", "2", "--precision", "bf16-mixed"]
    assert core.explain.main(arguments) == 0
    assert "├" not in capsys.readouterr().out
    for name, value in {"TERM": "xterm", "COLUMNS": "60"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", stream := Terminal())
    assert core.explain.main(arguments) == 0
    drawn = ESCAPE.sub("", stream.getvalue())
    plan = resolve(Request.read(accelerator="cpu", devices="2", precision="bf16-mixed"))
    assert drawn.startswith(f"{plan.headline}\n├── accelerator")
    words = " ".join(re.sub("[│├└─]", "", drawn).split())
    for kind, choice in plan.choices().items():
        assert f"{kind} {choice.name} {choice.origin}" in words
        assert choice.reason in words
        assert all(f"not {other.name}: {other.reason}" in words for other in choice.rejected)
    branches = [line for line in drawn.splitlines() if line.startswith(("│", "    "))]
    assert branches
    assert max(map(len, branches)) <= 60


def test_columns_of_a_table() -> None:
    """Colours take no room."""
    style = Style({})
    rows: list[tuple[tuple[str, str], list[str]]] = [((style("x", "red"), "1"), []), (("long", "2"), ["why"])]
    wide, narrow = (ESCAPE.sub("", table(["A", "B"], rows, style, width)).splitlines() for width in (7, 6))
    assert wide == ["A     B", "───────", "x     1", "long  2", "why"]
    assert narrow == ["A  B", "──────", "x", "    1", "long", "    2", "why"]


@pytest.mark.parametrize("width", [50, 60, 100])
def test_lines_fit_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What commands say of themselves is wrapped; examples are whole, to be copied. Help is plain ASCII."""
    monkeypatch.setenv("COLUMNS", str(width))
    main([])
    overview = capsys.readouterr().out
    assert overview.isascii()
    assert max(map(len, overview.splitlines())) <= width
    for verb in sorted(set(VERBS) - {"list"}):
        with contextlib.suppress(SystemExit):
            main([verb, "--help"])
        text = capsys.readouterr().out
        assert text.isascii()
        before, after = re.split("^examples?:", text, maxsplit=1, flags=re.MULTILINE)
        prose = [line for line in after.splitlines()[1:] if not line.startswith("  ")]
        _, _, before = before.partition("\n\n")  # argparse does not break every usage
        assert max(map(len, (*before.splitlines(), *prose))) <= width, verb
        if not after.startswith("\n"):
            assert shlex.split(after.splitlines()[0])[0].endswith(("torch-hal", "python")), verb


@pytest.mark.parametrize("line", ["", "list", "explain --accelerator cpu --json"])
def test_a_reader_that_ends_before(line: str) -> None:
    """As in ``torch-hal list | head``: no traceback, and the exit code of a program that SIGPIPE has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "core", *line.split()], stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_listing_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is on a separate line if it does not fit; no line is longer than the terminal."""
    drawn = ESCAPE.sub("", listed(monkeypatch, Terminal(), "--kind", "strategy", COLUMNS="50"))
    lines = drawn.splitlines()
    assert max(map(len, lines)) <= 50
    assert lines[lines.index("ddp") + 1].startswith("    torch-hal ")
    assert lines[lines.index("ddp") + 1].endswith("● installed")


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """The help of each verb shows a command line that begins with this verb."""
    for verb in VERBS:
        with contextlib.suppress(SystemExit):
            main([verb, "--help"])
        usage, _, examples = re.split(r"(?i)(example)s?:", capsys.readouterr().out, maxsplit=1)
        assert usage.startswith("usage:")
        assert re.search(rf"(torch-hal|python -m core) {verb}\s+\S", examples), verb


COMPLETIONS = [
    (["lis"], {"list"}),
    (["list", "--pro"], {"--probe"}),
    (["list", "--kind", "pre"], {"precision"}),
    (["explain", "--precision", "bf16"], {"bf16-mixed", "bf16-true"}),
    (["run", "--strategy", "ddp_sh"], {"ddp_sharded"}),
    (["completion", ""], {*SHELLS}),
    (["run", "--strategy=ddp_sh"], {"--strategy=ddp_sharded"}),
    (["run", "tra"], {"train.py"}),
]
"""What stands on the line, and what the shell offers for the last word."""


def environment_of_shells(shell: str, folder: Path) -> dict[str, str]:
    """An environment for a shell in ``folder``, which then holds ``torch-hal``, its completion and a script."""
    (folder / "completion").write_text(SHELLS[shell]({verb: options_of(verb) for verb in VERBS}), "utf-8")
    (folder / "train.py").touch()
    (folder / "bin").mkdir()
    (folder / "bin" / "torch-hal").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m core "$@"\n', "utf-8")
    (folder / "bin" / "torch-hal").chmod(0o755)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(folder), "TERM": "dumb"}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(("words", "expected"), [*COMPLETIONS, ([""], {*VERBS, "--help", "--version"})])
def test_completion_in_bash(words: list[str], expected: set[str], tmp_path: Path) -> None:
    """bash completes verbs, options and the names of installed backends."""
    environ = environment_of_shells("bash", tmp_path)
    line = " ".join(f"'{word}'" for word in ("torch-hal", *words))
    code = f"source ./completion; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _torch_hal; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(
        ["bash", "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert {*done.stdout.split()} == expected


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_completion_in_fish(tmp_path: Path) -> None:
    """fish offers the same as bash."""
    environ = environment_of_shells("fish", tmp_path)
    lines = [" ".join(["torch-hal", *words]) for words, _ in COMPLETIONS]
    code = "source completion; " + "; ".join(f"complete -C '{line}'; echo ====" for line in lines)
    done = subprocess.run(["fish", "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    offered = [{line.split("\t")[0] for line in part.splitlines()} for part in done.stdout.split("====\n")]
    assert offered[:-1] == [expected for _, expected in COMPLETIONS]


ZSHRC = """
source ./completion
show() { print -r -- "<$BUFFER>"; BUFFER= }
zle -N show
bindkey '^X' show
print ready
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_completion_in_zsh(tmp_path: Path) -> None:
    """In zsh the Tab key completes the last word, where there is one way to do so."""
    environ = environment_of_shells("zsh", tmp_path)
    (tmp_path / ".zshrc").write_text(ZSHRC, "utf-8")
    controller, terminal = os.openpty()
    shell = subprocess.Popen(
        ["zsh", "-i"],
        cwd=tmp_path,
        env=environ,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )

    def said(end: str) -> str:
        text = ""
        while end not in text:
            readable, _, _ = select.select([controller], [], [], 60)
            assert readable, f"zsh does not print {end!r} after:\n{text}"
            text += os.read(controller, 10_000).decode()
        return text

    try:
        said("ready")
        for words, expected in COMPLETIONS:
            if len(expected) == 1:
                os.write(controller, f"torch-hal {' '.join(words)}\t\x18".encode())
                (completed,) = re.findall("<(.*)>", said(">"))
                assert completed.split() == ["torch-hal", *words[:-1], *expected]
    finally:
        shell.kill()
        shell.wait()
        os.close(controller)
        os.close(terminal)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_is_valid_in_other_shells(shell: str) -> None:
    """The shell itself finds no error in the script."""
    script = SHELLS[shell]({verb: options_of(verb) for verb in VERBS})
    assert all(verb in script for verb in VERBS)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_options_are_those_of_the_help() -> None:
    """Options of the verbs, none of those in examples."""
    assert {*options_of("list")} == {*_SWITCHES, "--kind", "--timeout"}
    assert "--lr" not in options_of("run")
    assert {"--devices", "--nnodes", "--dry-run", "--module"} <= {*options_of("run")}
