"""Checkpoints on an S3 server, through s3fs. The server is moto's and runs in a separate process.

``nox -s object_store`` installs both. Everything passes a proxy, which can kill a process in the middle of an upload.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from declared import PREFIX
from python_processes import run_python

from core.checkpoints import (
    AsyncCheckpointIO,
    CheckpointIO,
    SafetensorsCheckpointIO,
    ShardedCheckpointIO,
    TorchCheckpointIO,
    is_committed,
    latest,
    read_manifest,
)
from core.errors import CheckpointError

MISSING = [name for name in ("moto", "s3fs", "flask") if find_spec(name) is None]
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(bool(MISSING), reason=f"{PREFIX}{', '.join(MISSING)} not installed, as by nox -s object_store"),
]

SCRIPTS = Path(__file__).parent / "scripts"
IOS: list[Callable[[], CheckpointIO]] = [
    TorchCheckpointIO,
    ShardedCheckpointIO,
    AsyncCheckpointIO,
    SafetensorsCheckpointIO,
]


class Proxy:
    """Forwards connections to a port, until a request comes that begins with a pattern: of it, only the beginning."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.cuts_at: re.Pattern[bytes] | None = None
        self.cut: Callable[[], None] = lambda: None
        self.seen: list[bytes] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self._port)) as far:
            back = threading.Thread(target=self._forward, args=(far, near, False), daemon=True)
            back.start()
            self._forward(near, far, True)
            back.join()

    def _forward(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if is_request and (request := re.match(rb"[A-Z]+ /[^ ]*", data)):
                    self.seen.append(request[0])
                    if self.cuts_at is not None and self.cuts_at.match(request[0]):
                        self.cuts_at = None
                        self.cut()
                        break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    port = free_port()
    with (tmp_path_factory.mktemp("server") / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "moto's server did not start"
                assert server.poll() is None
                time.sleep(0.2)
        made = Proxy(port)
        yield made
        made.close()
    finally:
        server.terminate()
        server.wait()


@pytest.fixture
def bucket(proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A new bucket, as a URL; this process and those that it starts find it by environment variables."""
    import s3fs

    for name, value in {
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_DEFAULT_REGION": "us-east-1",
        "FSSPEC_S3_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
    }.items():
        monkeypatch.setenv(name, value)
    import fsspec.config

    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": f"http://127.0.0.1:{proxy.port}"})
    s3fs.S3FileSystem.clear_instance_cache()
    name = f"bucket-{os.getpid()}-{time.monotonic_ns()}"
    files().mkdir(name)
    yield f"s3://{name}"
    proxy.cuts_at = None


def files() -> Any:
    import fsspec

    found = fsspec.filesystem("s3")
    found.invalidate_cache()
    return found


@pytest.mark.parametrize("kind", IOS)
def test_what_is_there_is_what_was_saved(kind: Callable[[], CheckpointIO], bucket: str) -> None:
    """Of three saves one is left, which s3fs finds; it is loaded, found as the last and removed."""
    url, io = f"{bucket}/run/c", kind()
    for number in range(3):
        io.save_checkpoint({"rows": torch.arange(6.0) + number, "step": number}, url)
        io.wait()
    found = {name.rpartition("/")[2] for name in files().find(url)}
    parts = set(read_manifest(url).files)
    assert found == ({"c"} if parts == {"content"} else {"manifest.json", *parts})
    loaded = io.load_checkpoint(url)
    assert (loaded["step"], loaded["rows"].tolist()) == (2, (torch.arange(6.0) + 2).tolist())
    assert (read_manifest(url).sequence, latest(f"{bucket}/run")) == (3, url)
    io.remove_checkpoint(url)
    assert (files().find(url), is_committed(url), latest(f"{bucket}/run")) == ([], False, None)


def test_a_large_one_in_parts(bucket: str) -> None:
    """S3 takes more than 50 MB in several parts, which it puts together at the end."""
    rows = torch.arange(20_000_000, dtype=torch.int32)
    TorchCheckpointIO().save_checkpoint({"rows": rows}, f"{bucket}/c")
    assert torch.equal(TorchCheckpointIO().load_checkpoint(f"{bucket}/c")["rows"], rows)


def test_urls_that_are_hard(bucket: str) -> None:
    """A bucket as a checkpoint; names that are quoted in requests; a bucket that does not exist."""
    io, directories = TorchCheckpointIO(), ShardedCheckpointIO()
    for number in (1, 2):
        directories.save_checkpoint({"step": number}, bucket)
        io.save_checkpoint({"step": number}, f"{bucket}/ä = +%20/c")
    assert directories.load_checkpoint(bucket)["step"] == 2
    assert (latest(f"{bucket}/ä = +%20"), read_manifest(bucket).sequence) == (f"{bucket}/ä = +%20/c", 2)
    directories.remove_checkpoint(bucket)
    assert (is_committed(bucket), io.load_checkpoint(f"{bucket}/ä = +%20/c")["step"]) == (False, 2)
    url = "s3://not-there-at-all/run/c"
    for action in (lambda: latest(url), lambda: io.load_checkpoint(url), lambda: io.save_checkpoint({}, url)):
        with pytest.raises(CheckpointError, match=rf"^{url} cannot be (read|written): .*bucket.*Check the URL"):
            action()


def train(strategy: str, io: str, url: str, out: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    out.mkdir(exist_ok=True)
    return run_python(SCRIPTS / "trains_to_a_url.py", strategy, io, url, cwd=out, warnings="ignore", **options)


def ends(out: Path) -> list[str]:
    return [(out / f"end.{rank}").read_text() for rank in range(2)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """With what both processes end that are not disturbed, with checkpoints on a disk."""
    out = tmp_path_factory.mktemp("whole")
    train("ddp", "torch", str(out / "saved"), out)
    return ends(out)


@pytest.mark.parametrize(
    ("strategy", "io", "file", "number"),
    [
        ("ddp", "torch", "", 3),
        ("ddp_fork", "async", "", 2),
        ("ddp_fork", "sharded", "shard-00000.pt", 2),
        ("ddp_spawn", "sharded", "manifest.json", 3),
    ],
)
def test_a_process_is_killed_in_an_upload(
    strategy: str, io: str, file: str, number: int, bucket: str, proxy: Proxy, whole: list[str], tmp_path: Path
) -> None:
    """All end; the one before is the last; two are kept; the next run goes on from there, and ends with equal bits."""
    url, out = f"{bucket}/saved", tmp_path / "out"
    step = 3 * number
    killed: list[int] = []

    def kill() -> None:
        killed.append(int((out / "pid.0").read_text()))
        os.kill(killed[0], signal.SIGKILL)

    proxy.cut = kill
    proxy.cuts_at = re.compile(rf"PUT /[^ ]*step={step}[^ ]*{file}$".replace("=", "(=|%3D)").encode())
    done = train(strategy, io, url, out, expect=None)
    assert killed, (done.stderr, proxy.seen[-20:])
    assert done.returncode != 0
    deadline = time.monotonic() + 30
    while any(Path("/proc", pid.read_text(), "cmdline").exists() for pid in out.glob("pid.*")):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.1)
    last = latest(url)
    assert str(last).endswith(f"step={step - 3}.ckpt"), last
    assert ShardedCheckpointIO().load_checkpoint(str(last))["core"]
    committed = [name for name in {name.split("/")[2] for name in files().find(url)} if is_committed(f"{url}/{name}")]
    assert len(committed) == min(2, number - 1)
    train(strategy, io, url, out)
    assert (out / "start.0").read_text() == str(step - 3)
    assert ends(out) == whole
    assert str(latest(url)).endswith("step=12.ckpt")


@pytest.mark.parametrize("action", ["save", "save-async"])
def test_shards_of_three_processes(action: str, bucket: str, proxy: Proxy, tmp_path: Path) -> None:
    """Each uploads its own, two and four processes load them; an upload that is cut off leaves the previous one."""
    script, url = SCRIPTS / "shards_of_processes.py", f"{bucket}/sharded"
    env = {"HELPERS": str(Path(__file__).parents[1] / "helpers")}
    rows = torch.arange(140.0).reshape(7, 20)
    run_python(script, action, 3, url, cwd=tmp_path, env=env)
    for size in (2, 4):
        run_python(script, "load", size, url, cwd=tmp_path, env=env)
        said = json.loads((tmp_path / "said.json").read_text())
        assert torch.equal(torch.tensor([row for part in said["rows"] for row in part]), rows)
    assert read_manifest(url).sequence == 1
    assert torch.equal(ShardedCheckpointIO().load_checkpoint(url)["rows"], rows)
