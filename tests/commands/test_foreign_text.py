"""Text of others is printed harmlessly and short: it does not control the terminal, nor fill it."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from installing import environment, files_of, lay_down, run_list
from manifest_files import manifest_bytes, write_manifest

from core import errors
from core.checkpoints import FileRecord, TorchCheckpointIO, latest
from core.checkpoints.manifest import Manifest
from core.doctor.report import Check, Report
from core.environments import TorchElasticEnvironment
from core.errors import CoreError, harmless, quoted, shortened
from core.plan.model import Rejected

CONTROLS = {
    "colour": "\x1b[31m",
    "title": "\x1b]0;title\x07",
    "link": "\x1b]8;;http://example.org\x1b\\",
    "C1": "\x9b31m",
    "right to left": "\u202e",
    "isolate": "\u2066",
    "return": "\rfake",
    "backspace": "\b\b",
    "invisible": "\u200b",
    "separator": "\u2028",
    "NUL": "\0",
    "surrogate": "\udc9b",
}
HOSTILE = "x".join(CONTROLS.values())
LONG = "y" * 1_000_000


def check(text: str, most: int = 25_000) -> None:
    """Nothing in it but printable characters, ends of lines and tabs; and not much."""
    assert {each for each in text if not each.isprintable()} <= {"\n", "\t"}
    assert len(text) <= most


@pytest.mark.parametrize("name", CONTROLS)
def test_each_control_is_written_as_in_source_code(name: str) -> None:
    """What is printable stays, in any language; of several lines, the lines stay."""
    shown = harmless(f"before{CONTROLS[name]}after")
    check(shown)
    assert shown.startswith("before\\")
    assert shown.endswith("after")
    assert harmless("naïve Straße 模型 🙂\n\tline") == "naïve Straße 模型 🙂\n\tline"
    assert harmless("two\nlines", keep="") == "two\\nlines"


def test_of_a_long_text_both_ends_are_kept() -> None:
    """What was wrong is said first, and what to do last."""
    shown = harmless(f"begin {LONG} end", 100)
    assert shown.startswith("begin yyy")
    assert shown.endswith("yyy end")
    assert "(999910 characters left out)" in shown


@pytest.mark.parametrize("kind", [each for name in errors.__all__ if isinstance(each := getattr(errors, name), type)])
def test_every_error_is_harmless(kind: type[CoreError]) -> None:
    """Whoever raises it, a plugin too; also from another process."""
    for error in (kind(f"{HOSTILE} {LONG} remedy"), pickle.loads(pickle.dumps(kind(f"{HOSTILE} {LONG} remedy")))):
        check(str(error))
        assert str(error).endswith("remedy")
    assert str(kind("as it was")) == "as it was"


@pytest.mark.parametrize(
    "show",
    [
        lambda text: quoted([text, text]),
        lambda text: quoted([text] * 100, near="x"),
        lambda text: quoted([str(number) + text for number in range(1000)]),
        shortened,
        lambda text: Rejected(text, text).reason,
        lambda text: str(
            Report(
                versions={text: text},
                plugins={text: text},
                environment={"MASTER_ADDR": text},
                backends=[{"kind": "accelerator", "name": text, "state": text}],
                checks=[Check(text, "problem", text, text, text)],
            )
        ),
    ],
)
@pytest.mark.parametrize("text", [HOSTILE, LONG, HOSTILE + "\nforged line" + LONG])
def test_what_shows_text_of_others(show: Callable[[str], str], text: str) -> None:
    """Lists of names, reasons, and the doctor's page."""
    check(show(text))
    assert "\nforged" not in show(text)


def test_a_variable_in_an_error() -> None:
    """As of a launcher."""
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    for text in (HOSTILE, LONG):
        with pytest.raises(CoreError) as raised:
            TorchElasticEnvironment({**variables, "MASTER_ADDR": text, "MASTER_PORT": text}).main_port  # noqa: B018
        check(str(raised.value))


def test_a_manifest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In an error, and in the log."""
    TorchCheckpointIO().save_checkpoint({}, tmp_path / "good")
    for number, text in enumerate((HOSTILE.replace("\udc9b", ""), LONG)):
        path = tmp_path / f"{number}"
        TorchCheckpointIO().save_checkpoint({}, path)
        manifest = Manifest.read(path)
        Manifest(files=manifest.files, checkpoint_io=text).write(path)
        with pytest.raises(CoreError) as raised:
            TorchCheckpointIO().load_checkpoint(path)
        check(str(raised.value))
        Manifest(files={**manifest.files, text: FileRecord(1, "0" * 8)}, checkpoint_io="torch").write(path)
        write_manifest(path, json.dumps({**json.loads(manifest_bytes(path)), "saved_at": text}).encode())
    with caplog.at_level(logging.WARNING):
        assert latest(tmp_path) == tmp_path / "good"
    assert len(caplog.records) == 2
    check(caplog.text)


RAISES = "raise ImportError('a' + {0!r} + 'b' * 1000000)"


@pytest.mark.parametrize("options", [(), ("--verbose",), ("--probe", "--verbose")])
def test_the_listing(options: tuple[str, ...], tmp_path: Path) -> None:
    """Names of entry points and distributions, versions, and what a plugin raises."""
    control = HOSTILE.replace("\0", "").replace("\r", "").replace("\udc9b", "").replace("\u2028", "")
    points = f"[core.accelerators]\nacme = torch_hal_acme\n{control} = torch_hal_acme\n{LONG} = torch_hal_acme\n"
    files = files_of("torch-hal-acme", "1.0", points)
    info = next(iter(files)).partition("/")[0]
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: torch-hal-a{control}\nVersion: 1{control}\n\nA plugin.\n"
    lay_down(tmp_path, {**files, "torch_hal_acme.py": RAISES.format(control)})
    done = run_list(*options, environ=environment(tmp_path, PYTHONIOENCODING="utf-8"))
    assert done.returncode == 0
    assert "acme" in done.stdout
    check(done.stdout, 100_000)
    check(done.stderr)
