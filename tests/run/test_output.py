"""What the processes of ``torch-hal run`` print, on the terminal and in files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from core.errors import LaunchError
from core.run.output import Output


def write(path: str, *parts: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        for part in parts:
            file.write(part)


def test_lines_stay_whole_behind_their_ranks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A line that is written in pieces gets one prefix; the last one may lack its end; a bar's last state is shown."""
    output = Output(str(tmp_path), prefix=True, log_dir=str(tmp_path / "logs"))
    streams = {rank: output.connect(rank, "0") for rank in ("0", "11")}
    write(streams["0"][0], b"be", b"gin\n", b"\n", b"10%\r20%\r30%\n")
    write(streams["11"][0], "größe\n".encode(), b"no end")
    write(streams["0"][1], b"an error\n")
    output.close()
    output.close()
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0] ", "[0] 30%", "[0] begin", "[11] größe", "[11] no end"]
    assert [line for line in out.splitlines() if line.startswith("[0]")] == ["[0] begin", "[0] ", "[0] 30%"]
    assert err == "[0] an error\n"
    assert (tmp_path / "logs" / "rank_11.log").read_bytes() == "größe\nno end".encode()
    assert sorted((tmp_path / "logs" / "rank_0.log").read_bytes().split(b"\n")) == sorted(
        [b"begin", b"", b"10%\r20%\r30%", b"an error", b""]
    )


def test_files_alone_keep_the_order_of_both_streams(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing reaches the terminal; a restart writes to a file of its own; much output arrives whole."""
    output = Output(str(tmp_path), prefix=False, log_dir=str(tmp_path))
    out, err = output.connect("2", "0")
    for number in range(100):
        write((out, err)[number % 2], f"{number}\n".encode())
    again, _ = output.connect("2", "1")
    write(again, b"x" * 300_000)
    output.close()
    assert (tmp_path / "rank_2.log").read_text().split() == [str(number) for number in range(100)]
    assert (tmp_path / "rank_2.restart_1.log").read_bytes() == b"x" * 300_000
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("prefix", [True, False])
def test_what_cannot_be_written_does_not_stop_the_processes(
    prefix: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A full disk, and a reader such as ``head`` that has ended: both are named, and a process can print on."""
    reader, closed = os.pipe()
    os.close(reader)
    with open(closed, "w") as broken, monkeypatch.context() as context:
        context.setattr("sys.stdout", broken)
        output = Output(str(tmp_path), prefix=prefix, log_dir=str(tmp_path))
        (tmp_path / "rank_3.log").symlink_to("/dev/full")
        path, _ = output.connect("3", "0")
        writer = threading.Thread(target=write, args=(path, *[b"x" * 99 + b"\n"] * 5000), daemon=True)
        writer.start()
        writer.join(30)
        assert not writer.is_alive()
        output.close()
    said = capfd.readouterr().err
    assert f"[3] what this rank prints is not written to {tmp_path / 'rank_3.log'} any more: [Errno 28]" in said
    assert ("standard output or error any more: [Errno 32]" in said) == prefix
    assert len(said.splitlines()) == 1 + prefix


def test_a_terminal_that_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another program may have set it so: all lines arrive when it has room again."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    found: list[bytes] = []
    with open(writing, "w") as terminal, open(reading, "rb") as reader, monkeypatch.context() as context:
        context.setattr("sys.stdout", terminal)
        output = Output(str(tmp_path), prefix=True, log_dir=None)
        path, _ = output.connect("0", "0")
        collector = threading.Thread(target=lambda: found.append(reader.read()))
        writer = threading.Thread(target=write, args=(path, *[b"x" * 99 + b"\n"] * 5000), daemon=True)
        writer.start()
        collector.start()
        writer.join(30)
        output.close()
        terminal.close()
        collector.join()
    assert len(found[0].splitlines()) == 5000
    assert not capfd.readouterr().err


def test_no_descriptors_are_left(tmp_path: Path) -> None:
    """Each run closes its pipes and files."""
    before = sorted(os.listdir("/dev/fd"))
    output = Output(str(tmp_path), prefix=True, log_dir=str(tmp_path))
    output.connect("0", "0")
    output.close()
    assert sorted(os.listdir("/dev/fd")) == before


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """The error names the option."""
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match=r"--log-dir .* cannot be created"):
        Output(str(tmp_path), prefix=False, log_dir=str(tmp_path / "file" / "logs"))
