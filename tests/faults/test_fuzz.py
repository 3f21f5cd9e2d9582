"""Manifests and shards with drawn content behind right checksums: reading gives a result or a CoreError, only that.

``FUZZ_DRAWS=10000`` sets the number of draws, ``FUZZ_SEED`` the first seed; a failure names the seed of its draw.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.checkpoints import FileRecord, is_committed, latest, read_manifest
from core.errors import CoreError

from .small import IOS, save_small

DRAWS, SEED = int(os.environ.get("FUZZ_DRAWS", "20")), int(os.environ.get("FUZZ_SEED", "0"))
NUMBERS = [0, -1, 1, 2, 3, 2**31, 2**63, 2**64, 10**400, -(10**30), 1e999, -0.0, 1.5, float("nan")]
TEXTS = ["", "\0", "\ud800", "..", "../x", "/etc/passwd", "a" * 300, "manifest.json", "shard-00000.pt", ".", "1", "é\n"]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def value(draw: random.Random, depth: int = 0) -> Any:
    """Any value of JSON."""
    kind = draw.randrange(8 if depth < 4 else 6)
    if kind == 6:
        return [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == 7:
        return {draw.choice(TEXTS): value(draw, depth + 1) for _ in range(draw.randrange(4))}
    return draw.choice([None, True, False, draw.choice(NUMBERS), draw.choice(TEXTS), draw.randbytes(32).hex()])


def mutated(draw: random.Random, content: Any) -> Any:
    """``content`` with something changed, removed or added somewhere."""
    if isinstance(content, dict) and content and draw.random() < 0.9:
        key, action = draw.choice(list(content)), draw.randrange(6)
        if action == 0:
            return {name: item for name, item in content.items() if name != key}
        if action == 1:
            return {**content, draw.choice(TEXTS): value(draw)}
        if action == 2:
            return {draw.choice(TEXTS) if name == key else name: item for name, item in content.items()}
        return {**content, key: mutated(draw, content[key])}
    if draw.random() < 0.02:
        deep: Any = []
        for _ in range(900):
            deep = [deep]
        return deep
    return value(draw)


def with_its_sum(content: Any) -> str:
    """As text, with the checksum that belongs to it."""
    if isinstance(content, dict) and "sha256" in content:
        rest = {name: item for name, item in content.items() if name != "sha256"}
        text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
        content = {**rest, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return json.dumps(content)


def garbled(draw: random.Random, content: bytes) -> bytes:
    """``content`` with bytes changed, removed, repeated or added."""
    for _ in range(draw.randrange(1, 4)):
        start = draw.randrange(len(content) + 1)
        end = min(len(content), start + draw.choice([1, 1, 2, 8, 100]))
        change = draw.choice([b"", draw.randbytes(end - start), content[start:end] * 2, b"\xff" * (end - start)])
        content = content[:start] + change + content[end:]
    return content


def read(name: str, folder: Path) -> None:
    """All ways to read it."""
    for action in (
        lambda: IOS[name]().load_checkpoint(folder / "c"),
        lambda: read_manifest(folder / "c"),
        lambda: is_committed(folder / "c"),
        lambda: latest(folder),
    ):
        try:
            action()
        except CoreError as error:
            str(error).encode(errors="surrogatepass")


@pytest.mark.parametrize("name", ["torch", "sharded"])
def test_drawn_manifests(tmp_path: Path, name: str) -> None:
    """Manifests with drawn values, whose own checksum is right."""
    save_small(name, tmp_path / "c")
    file = tmp_path / "c" / "manifest.json"
    good = json.loads(file.read_text())
    for seed in range(SEED, SEED + DRAWS):
        draw = random.Random(seed)
        content = good
        for _ in range(draw.randrange(1, 4)):
            content = mutated(draw, content)
        try:
            file.write_text(with_its_sum(content), encoding="utf-8")
            read(name, tmp_path)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("name", ["torch", "sharded"])
def test_drawn_shards(tmp_path: Path, name: str) -> None:
    """Shards with drawn bytes, for which the manifest has the right sizes and checksums."""
    save_small(name, tmp_path / "c")
    manifest = tmp_path / "c" / "manifest.json"
    good = json.loads(manifest.read_text())
    files = {file: (tmp_path / "c" / file).read_bytes() for file in good["files"]}
    for seed in range(SEED, SEED + DRAWS):
        draw = random.Random(seed)
        chosen = draw.choice(sorted(files))
        path = tmp_path / "c" / chosen
        try:
            path.write_bytes(garbled(draw, files[chosen]))
            record = FileRecord.of(path)
            entry = {"size": record.size, "sha256": record.sha256}
            manifest.write_text(with_its_sum({**good, "files": {**good["files"], chosen: entry}}), encoding="utf-8")
            read(name, tmp_path)
        except Exception as error:
            raise AssertionError(f"seed {seed}, {chosen}: {type(error).__name__}: {error}") from error
        path.write_bytes(files[chosen])
