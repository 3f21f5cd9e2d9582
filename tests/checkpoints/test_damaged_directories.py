"""Damage in a checkpoint's directory: each file is found damaged, missing, or not to be a file."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from core.checkpoints import SHARD, ShardedCheckpointIO
from core.errors import CheckpointError

IO = ShardedCheckpointIO()


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def rewrite(**changes: Any) -> Callable[[Path], None]:
    """Change a manifest together with its checksum, which the format describes as follows."""

    def change(path: Path) -> None:
        content = json.loads(path.read_text()) | changes
        del content["sha256"]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        path.write_text(json.dumps(content | {"sha256": hashlib.sha256(text.encode()).hexdigest()}))

    return change


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def become_zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: list[tuple[str, Callable[[Path], Any], str]] = [
    ("shard-00000.pt", flip_a_bit, "shard-00000.pt is damaged: its CRC-32"),
    ("shard-00000.pt", lambda path: os.truncate(path, 100), "shard-00000.pt is damaged: it has 100 bytes"),
    ("shard-00000.pt", os.remove, "shard-00000.pt .*missing"),
    ("manifest.json", os.remove, "is not a committed checkpoint: it has no manifest.json"),
    ("manifest.json", lambda path: os.truncate(path, 100), "manifest.json is damaged"),
    ("manifest.json", lambda path: os.truncate(path, 0), "manifest.json is damaged"),
    ("manifest.json", lambda path: path.write_bytes(b"\xff\xfe"), "manifest.json is damaged"),
    ("manifest.json", lambda path: path.write_text("[1]"), "manifest.json is not the manifest"),
    ("manifest.json", rewrite(format="other"), "manifest.json is damaged"),
    ("manifest.json", lambda path: path.write_text('{"format": "other"}'), "manifest.json is not the manifest"),
    ("manifest.json", rewrite(files=None), "manifest.json is damaged"),
    ("manifest.json", rewrite(files={"../x": {"size": 1, "crc32": ""}}), "is outside of the checkpoint"),
    ("manifest.json", rewrite(files={"/etc/passwd": {"size": 1, "crc32": ""}}), "is outside of the checkpoint"),
    ("manifest.json", rewrite(files={"a/../../x": {"size": 1, "crc32": ""}}), "is outside of the checkpoint"),
    ("manifest.json", rewrite(files={".": {"size": 1, "crc32": ""}}), "is outside of the checkpoint"),
    ("manifest.json", rewrite(files={"a\0b": {"size": 1, "crc32": "0" * 8}}), "is outside of the checkpoint"),
    ("manifest.json", rewrite(files={"\ud800": {"size": 1, "crc32": "0" * 8}}), "surrogates not allowed"),
    ("manifest.json", rewrite(files={SHARD: {"size": math.inf, "crc32": "0" * 8}}), "'inf' is not an integer"),
    ("manifest.json", rewrite(files={SHARD: {"size": -1, "crc32": "0" * 8}}), "'-1' is not an integer"),
    ("manifest.json", rewrite(sequence=2**53), "'9007199254740992' is not an integer"),
    ("manifest.json", rewrite(sequence=int("9" * 4300)), "'9{50}' is not an integer"),
    ("manifest.json", rewrite(files={SHARD: {"size": 1, "crc32": "short"}}), "'short' is not a CRC-32"),
    ("manifest.json", rewrite(files={}), "does not list shard-00000.pt"),
    ("manifest.json", rewrite(sequence=1e999), "'inf' is not an integer"),
    ("manifest.json", rewrite(format_version=1e999), "'inf' is not an integer"),
    ("manifest.json", rewrite(format_version=5), "format version 5, and this torch-hal reads version 4"),
    ("manifest.json", rewrite(saved_at="yesterday"), "Invalid isoformat string: 'yesterday'"),
    ("manifest.json", rewrite(saved_at=7), "is damaged: TypeError"),
    ("manifest.json", rewrite(format_version=1), "there is no format version 1"),
    ("manifest.json", rewrite(format_version=0), "there is no format version 0"),
    ("manifest.json", lambda path: path.write_text("[" * 100_000 + "]" * 100_000), "manifest.json is damaged"),
    ("manifest.json", lambda path: path.write_text('{"a":' * 900 + "1" + "}" * 900), "is not the manifest"),
    ("manifest.json", lambda path: os.truncate(path, 1 << 30), "manifest.json is damaged: it has more than"),
    ("manifest.json", become_pipe, "manifest.json is not a regular file"),
    ("manifest.json", become_link, "manifest.json is a link"),
    ("shard-00000.pt", become_pipe, "shard-00000.pt is not a regular file"),
    ("shard-00000.pt", become_link, "shard-00000.pt is a link"),
    ("shard-00000.pt", become_zeros, "shard-00000.pt is a link"),
    ("shard-00000.pt", become_folder, "shard-00000.pt is missing or cannot be read: .*Is a directory"),
    ("manifest.json", rewrite(files={}, checkpoint_io="safetensors"), "Set checkpoint_io='safetensors'"),
]


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGES)
def test_what_is_damaged_is_refused(name: str, damage: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    """The message names the file and what is wrong with it."""
    IO.save_checkpoint({"x": torch.ones(1000)}, tmp_path / "c")
    damage(tmp_path / "c" / name)
    with pytest.raises(CheckpointError, match=f"{tmp_path}/c.*{message}"):
        IO.load_checkpoint(tmp_path / "c")
