"""The manifest of a checkpoint, of one file or a directory, read and written as anyone can who knows the format."""

from __future__ import annotations

import zipfile
from pathlib import Path

from core.checkpoints.single_file import content_size, read_trailer, write_tail

__all__ = ["manifest_bytes", "write_manifest"]


def manifest_bytes(place: Path) -> bytes:
    """What is in the manifest."""
    if place.is_dir():
        return (place / "manifest.json").read_bytes()
    with zipfile.ZipFile(place) as archive:
        return archive.read("archive/manifest.json")


def write_manifest(place: Path, content: bytes, sequence: int | None = None) -> None:
    """Replace the manifest; the checksum at the end of a file is right, and its number as before unless given."""
    if place.is_dir():
        (place / "manifest.json").write_bytes(content)
        return
    with place.open("rb") as file:
        trailer, size = read_trailer(file)
    assert trailer is not None
    number = trailer.sequence if sequence is None else sequence
    write_tail(place, content, content_size(trailer, size), number)
