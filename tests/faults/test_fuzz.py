"""Manifests, shards and names, drawn by hypothesis: reading gives a result or a CoreError, only that.

``FUZZ_DRAWS=10000`` sets the number of examples.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from drawing import TEXTS, drawn, json_values
from hypothesis import given
from hypothesis import strategies as st
from manifest_files import manifest_bytes, write_manifest

from core.checkpoints import FileRecord, is_committed, latest, locate, read_manifest
from core.checkpoints.single_file import write_tail
from core.errors import CoreError

from .small import IOS, save_small


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], None]:
    """Puts a small checkpoint of an IO into a folder; it is saved once."""
    top = tmp_path_factory.mktemp("saved")

    def put(name: str, folder: Path) -> None:
        if not (top / name).exists():
            (top / name).mkdir()
            save_small(name, top / name / "c")
        place = top / name / "c"
        (shutil.copytree if place.is_dir() else shutil.copy)(place, folder / "c")

    return put


@st.composite
def mutated(draw: st.DrawFn, content: Any) -> Any:
    """``content`` with something changed, removed or added somewhere."""
    if isinstance(content, dict) and content and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(list(content)))
        action = draw(st.sampled_from(["change", "change", "change", "remove", "add", "rename"]))
        if action == "remove":
            return {name: item for name, item in content.items() if name != key}
        if action == "add":
            return {**content, draw(TEXTS): draw(json_values())}
        if action == "rename":
            other = draw(TEXTS)
            return {other if name == key else name: item for name, item in content.items()}
        return {**content, key: draw(mutated(content[key]))}
    if draw(st.integers(0, 50)) == 0:
        deep: Any = []
        for _ in range(900):
            deep = [deep]
        return deep
    return draw(json_values())


@st.composite
def garbled(draw: st.DrawFn, content: bytes) -> bytes:
    """``content`` with bytes changed, removed, repeated or added."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from([1, 1, 2, 8, 100])))
        size = end - start
        part = draw(
            st.one_of(
                st.binary(min_size=size, max_size=size),
                st.sampled_from([b"", content[start:end] * 2, b"\xff" * size, b"\0" * size]),
            )
        )
        content = content[:start] + part + content[end:]
    return content


def with_its_sum(content: Any) -> bytes:
    """As text, with the checksum that belongs to it."""
    if isinstance(content, dict) and "sha256" in content:
        rest = {name: item for name, item in content.items() if name != "sha256"}
        text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
        content = {**rest, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return json.dumps(content).encode()


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
def test_drawn_manifests(tmp_path: Path, name: str, saved: Callable[[str, Path], None]) -> None:
    """Manifests with drawn values, whose own checksum is right."""
    saved(name, tmp_path)
    good = json.loads(manifest_bytes(tmp_path / "c"))

    @drawn()
    @given(mutated(good).flatmap(mutated))
    def check(content: Any) -> None:
        write_manifest(tmp_path / "c", with_its_sum(content))
        read(name, tmp_path)

    check()


@pytest.mark.parametrize("name", ["torch", "sharded"])
def test_drawn_bytes_of_manifests(name: str, tmp_path: Path) -> None:
    """A manifest with drawn bytes, which are not JSON or have a wrong checksum: an error, or what was saved."""
    save_small(name, tmp_path / "c")
    good = manifest_bytes(tmp_path / "c")

    @drawn(0.5)
    @given(garbled(good))
    def check(content: bytes) -> None:
        write_manifest(tmp_path / "c", content)
        read(name, tmp_path)

    check()


@pytest.mark.parametrize("name", ["torch", "sharded"])
def test_drawn_shards(tmp_path: Path, name: str, saved: Callable[[str, Path], None]) -> None:
    """Shards with drawn bytes, for which the manifest has the right sizes and checksums."""
    saved(name, tmp_path)
    place = tmp_path / "c"
    good = json.loads(manifest_bytes(place))
    parts = {file: place / file if place.is_dir() else place for file in sorted(good["files"])}
    files = {file: path.read_bytes() for file, path in parts.items()}

    @drawn()
    @given(st.sampled_from(list(files)).flatmap(lambda file: st.tuples(st.just(file), garbled(files[file]))))
    def check(choice: tuple[str, bytes]) -> None:
        chosen, content = choice
        path = parts[chosen]
        try:
            path.write_bytes(content)
            record = FileRecord.of(path)
            entry = {"size": record.size, "crc32": record.crc32}
            text = with_its_sum({**good, "files": {**good["files"], chosen: entry}})
            if place.is_dir():
                write_manifest(place, text)
            else:
                # It may no longer be an archive, to which an entry could be added.
                with suppress(zipfile.BadZipFile, IndexError, ValueError, struct.error):
                    write_tail(place, text, record.size, 1)
            read(name, tmp_path)
        finally:
            path.write_bytes(files[chosen])

    check()


VALUES = st.one_of(
    json_values(),
    st.sampled_from([torch.float32, torch.strided, torch.Size([3]), torch.Size([2**40]), torch.Size([]), b"", (), {}]),
    st.lists(st.integers(-2, 4), max_size=3).map(tuple),
)


@st.composite
def mutated_facts(draw: st.DrawFn, good: bytes) -> Any:
    """A file ``.metadata`` in which one object, or a few, have another attribute, item or key."""
    top = pickle.loads(good)
    for _ in range(draw(st.integers(1, 3))):
        place: Any = top
        for _ in range(draw(st.integers(0, 5))):
            parts = _inner(place)
            if not parts:
                break
            place = draw(st.sampled_from(parts))
        if isinstance(place, list):
            place[:] = draw(st.sampled_from([[], place * 2, [*place, draw(VALUES)]]))
        elif isinstance(place, dict) and place:
            key = draw(st.sampled_from([*place]))
            if draw(st.booleans()):
                place[key] = draw(VALUES)
            else:
                place[draw(TEXTS)] = place.pop(key)
        elif names := getattr(place, "__dict__", {}).keys() - {"memory_format"}:  # torch pickles no other memory format
            vars(place)[draw(st.sampled_from(sorted(names)))] = draw(VALUES)
    return pickle.dumps(top)


def _inner(place: Any) -> list[Any]:
    values = place.values() if isinstance(place, dict) else place if isinstance(place, list) else vars(place).values()
    return [value for value in values if isinstance(value, dict | list) or hasattr(value, "__dict__")]


def test_drawn_facts_of_shards(tmp_path: Path, saved: Callable[[str, Path], None]) -> None:
    """Which tensors the shards have, and where, changed in any way, with the right size and checksum."""
    saved("sharded", tmp_path)
    manifest, path = tmp_path / "c" / "manifest.json", tmp_path / "c" / ".metadata"
    good, facts = json.loads(manifest.read_text()), path.read_bytes()

    @drawn()
    @given(mutated_facts(facts))
    def check(content: bytes) -> None:
        path.write_bytes(content)
        record = FileRecord.of(path)
        entry = {"size": record.size, "crc32": record.crc32}
        manifest.write_bytes(with_its_sum({**good, "files": {**good["files"], ".metadata": entry}}))
        read("sharded", tmp_path)

    check()


def test_drawn_names(tmp_path: Path) -> None:
    """Checkpoints with any name in a folder: saved and loaded, or refused with nothing written elsewhere."""
    folder = tmp_path / "folder"

    @drawn(0.5)
    @given(TEXTS.filter(lambda text: "/" not in text and text not in ("", ".", "..")))
    def check(name: str) -> None:
        io, path = IOS["torch"](), f"{folder}/{name}"
        for number in (1, 2):
            try:
                io.save_checkpoint({"name": number}, path)
            except CoreError as error:
                str(error).encode(errors="surrogatepass")
            else:
                assert locate(path).parent == folder
        try:
            assert io.load_checkpoint(path)["name"] == 2
            io.remove_checkpoint(path)
        except CoreError:
            pass
        assert {item.name for item in tmp_path.iterdir()} <= {"folder"}

    check()
